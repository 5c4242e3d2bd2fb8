"""A Vision Transformer whose patch dropout gathers: one run names module, op and line.

Published as a bottleneck that took its author several tools and runs to find: with deterministic
algorithms the backward of `torch.gather` made the CPU wait for the GPU. Versions of PyTorch since
then may do it without: so the tests on a GPU have a backward of their own that surely waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpuprof_widgets.analyses.backward import backward_ops
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.trace.model import Record
from tests.cells import recorded
from tests.published_case import (
    FakeImages,
    IndexingPatchDropout,
    Waiting,
    vision_transformer,
)

pytestmark = pytest.mark.slow

CELL = """\
for images, labels in loader:
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad()
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
"""
FORWARD_LINE = 1 + 4  # the %% line is line 1


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def training(device: str, **changes: Any) -> dict[str, Any]:
    """The variables of the notebook in which the cell runs."""
    model = vision_transformer(**changes).to(device)
    size = changes.get("img_size", 32)
    return {
        "model": model,
        "device": device,
        "criterion": torch.nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "loader": torch.utils.data.DataLoader(FakeImages(8, size), batch_size=4),
    }


def profiled(names: dict[str, Any]) -> Record:
    """The record of the cell in which it trains."""
    outcome, made = recorded(CELL, names)
    assert not outcome.error
    return made


def test_the_finding_names_module_op_and_line() -> None:
    made = profiled(training("cpu"))
    slices, of_backward = made.trace.slices, [x for x in findings(made) if x.rule == "backward"]
    (finding,) = [one for one in of_backward if "`GatherBackward0`" in one.text]
    expected = f"`GatherBackward0` of `patch_drop` (forward `aten::gather`, line {FORWARD_LINE})"
    assert finding.text.startswith(expected)
    assert "Use indexing instead" in finding.remedy
    engine = slices[slices["name"] == "autograd::engine::evaluate_function: GatherBackward0"]
    assert len(engine) == 2  # one per step
    assert finding.cost_ns == engine["dur"].sum()
    longest = engine.loc[engine["dur"].idxmax()]
    assert (finding.start_ns, finding.end_ns) == (longest["ts"], longest["ts"] + longest["dur"])
    assert longest.name in finding.rows


def test_indexing_instead_has_no_such_finding() -> None:
    names = training("cpu")
    names["model"].patch_drop = IndexingPatchDropout()
    made = profiled(names)
    assert not [one for one in findings(made) if "Gather" in one.text]
    assert "IndexBackward0" in set(backward_ops(made).query("module == 'patch_drop'")["name"])


class WaitingPatchDropout(IndexingPatchDropout):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Waiting.apply(super().forward(x))


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A training whose steps keep a GPU busy, with what starts once started."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    names = training("cuda", img_size=224, patch_size=16, embed_dim=192, num_heads=3, depth=6)
    names["loader"] = torch.utils.data.DataLoader(FakeImages(64, 224), batch_size=16)
    profiled(names)
    return names


@pytest.mark.gpu
@on_a_gpu
def test_on_a_gpu_a_wait_in_the_backward_pass_is_named(large: dict[str, Any]) -> None:
    large["model"].patch_drop = WaitingPatchDropout().to("cuda")
    made = profiled(large)
    row = backward_ops(made).set_index("name").loc["WaitingBackward"]
    assert (row["module"], row["line"]) == ("patch_drop", FORWARD_LINE)
    assert 0 < row["wait_ns"] <= row["cpu_ns"]
    said = [one for one in findings(made) if "`WaitingBackward` of `patch_drop`" in one.text]
    if row["wait_ns"] >= 0.02 * made.trace.span_ns:
        (finding,) = said
        assert finding.cost_ns == row["wait_ns"]
        assert f"line {FORWARD_LINE}) waited " in finding.text
