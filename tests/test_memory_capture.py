"""Whose the recorded memory was, against what torch itself says of a real training step."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch.optim import optimizer as optimizers

from gpuprof_widgets.analyses.memory import allocations, memory_curve, memory_peak
from gpuprof_widgets.capture import memory as memory_capture
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record

pytestmark = pytest.mark.slow


def training(make: Callable[..., Any] = torch.optim.SGD) -> dict[str, Any]:
    """A namespace with a small model, its optimizer and a batch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    arguments = {"lr": 0.1, "momentum": 0.9} if make is torch.optim.SGD else {"lr": 0.1}
    return {
        "model": model,
        "optimizer": make(model.parameters(), **arguments),
        "batch": torch.randn(32, 64),
        "target": torch.randint(0, 10, (32,)),
    }


def step(names: dict[str, Any]) -> None:
    """One training step."""
    loss = torch.nn.functional.cross_entropy(names["model"](names["batch"]), names["target"])
    loss.backward()
    names["optimizer"].step()
    names["optimizer"].zero_grad()


def recorded(
    names: dict[str, Any], run: Callable[[dict[str, Any]], None], **options: Any
) -> Record:
    with Recorder(
        Options(memory=True, python="off", **options), label="run", namespace=names
    ) as recorder:
        run(names)
    return recorder.record()


def held(table: pd.DataFrame, category: str) -> dict[str, int]:
    """Bytes of the blocks of a category by the tensor that held them."""
    rows = table[table["category"] == category]
    return dict(zip(rows["tensor"], rows["bytes"], strict=True))


def sizes(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    return {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}


CLASSIFIED_BY = pytest.mark.parametrize(
    ("options", "by"), [({}, "rules"), ({"shapes": True, "stack": True}, "torch")]
)


@CLASSIFIED_BY
def test_gradients_and_momentum_are_those_of_the_parameters(
    options: dict[str, bool], by: str
) -> None:
    names = training()
    table = allocations(recorded(names, step, **options))
    parameters = {f"model.{name}": p for name, p in names["model"].named_parameters()}
    expected = sizes(parameters)
    assert held(table, "gradients") == {f"{name}.grad": size for name, size in expected.items()}
    state = names["optimizer"].state
    buffers = {
        f"{name}.momentum_buffer": state[p]["momentum_buffer"] for name, p in parameters.items()
    }
    assert held(table, "optimizer state") == sizes(buffers)
    assert set(table[table["tensor"] != ""]["classified_by"]) == {by}


@CLASSIFIED_BY
def test_a_model_made_in_the_run_owns_its_parameters(options: dict[str, bool], by: str) -> None:
    names: dict[str, Any] = {"seed": 0}

    def run(names: dict[str, Any]) -> None:
        names.update(training())
        step(names)

    table = allocations(recorded(names, run, **options))
    assert held(table, "parameters") == sizes(
        {f"model.{name}": p for name, p in names["model"].named_parameters()}
    )
    assert set(table[table["category"] == "parameters"]["classified_by"]) == {by}


def test_our_rules_agree_with_torch_on_all_but_what_dies_in_the_forward_pass() -> None:
    names = training()

    def run(names: dict[str, Any]) -> None:
        step(names)
        step(names)

    record = recorded(names, run, shapes=True, stack=True)
    torchs = allocations(record)
    without = {key: values for key, values in record.trace.args.items() if key != "Memory category"}
    ours = allocations(Record(_with(record, without), None, record.metadata))
    assert set(ours["classified_by"]) == {"rules"}
    kinds = ["gradients", "optimizer state", "autograd detail"]
    for kind in kinds:
        assert torchs[torchs["category"] == kind].index.equals(ours[ours["category"] == kind].index)
    activations = set(ours.index[ours["category"] == "activations"])
    assert activations
    assert activations <= set(torchs.index[torchs["category"] == "activations"])


def _with(record: Record, args: dict[str, pd.Series]) -> Any:
    from dataclasses import replace

    return replace(record.trace, args=args)


def test_an_optimizer_made_in_the_run_and_unknown_to_the_namespace_is_seen() -> None:
    def run(_: dict[str, Any]) -> None:
        step(training(torch.optim.Adam))

    table = allocations(recorded({}, run))
    parameters = 64 * 128 + 128 + 128 * 10 + 10
    by_category = table.groupby("category")["bytes"].sum()
    assert by_category["parameters"] == by_category["gradients"] == 4 * parameters
    steps = 4 * 4  # Adam also counts its steps, in a tensor per parameter
    assert by_category["optimizer state"] == 2 * 4 * parameters + steps


def test_the_peak_of_a_real_step_adds_up_to_what_torch_counted() -> None:
    record = recorded(training(), step)
    peak = memory_peak(record)
    assert peak["bytes"].sum() == memory_curve(record)["allocated_bytes"].max()


def test_memory_from_before_is_named_although_it_was_never_allocated_here() -> None:
    names = training()
    before = {one["tensor"]: one for one in recorded(names, step).metadata["memory"]["before"]}
    assert before["model.0.weight"]["category"] == "parameters"
    assert before["model.0.weight"]["bytes"] == 4 * 64 * 128
    assert before["batch"]["category"] == "inputs"


def test_nothing_is_left_behind_and_nothing_kept_alive() -> None:
    names = training()
    hooks = (
        dict(optimizers._global_optimizer_pre_hooks),
        dict(optimizers._global_optimizer_post_hooks),
    )
    record = recorded(names, step)
    assert dict(optimizers._global_optimizer_pre_hooks) == hooks[0]
    assert dict(optimizers._global_optimizer_post_hooks) == hooks[1]
    alive = weakref.ref(names["model"])
    names.clear()
    gc.collect()
    assert alive() is None
    assert len(record.trace)


def test_hooks_are_gone_after_an_error_as_well() -> None:
    def run(_: dict[str, Any]) -> None:
        raise ValueError("of the user")

    before = len(optimizers._global_optimizer_pre_hooks)
    with pytest.raises(ValueError, match="of the user"):
        recorded(training(), run)
    assert len(optimizers._global_optimizer_pre_hooks) == before


def test_a_step_notices_nothing_of_our_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise LookupError("not now")

    monkeypatch.setattr(memory_capture, "gradients_of", failing)
    names = {"trainer": training()}  # out of sight: only the steps' hooks look at it
    before = [parameter.clone() for parameter in names["trainer"]["model"].parameters()]
    record = recorded({"names": [names]}, lambda _: step(names["trainer"]))
    after = names["trainer"]["model"].parameters()
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert any("LookupError: not now" in note for note in record.metadata["notes"])


def test_tensors_without_storage_do_no_harm() -> None:
    names = {
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.empty(3, device="meta"),
        "items": [torch.ones(2), None],
        "table": {"weights": torch.ones(3)},
    }
    record = recorded(names, lambda _: None)
    assert {one["tensor"] for one in record.metadata["memory"]["before"]} == {
        "items[0]",
        "table['weights']",
    }


def test_torch_is_not_asked_about_more_events_than_one_would_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_capture, "MOST_EVENTS", 10)
    record = recorded(training(), step, shapes=True, stack=True)
    assert any("too long for more than 10 events" in note for note in record.metadata["notes"])
    assert set(allocations(record)["classified_by"]) == {"rules"}


def test_what_torch_cannot_classify_our_rules_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise AssertionError("version mismatch")

    monkeypatch.setattr(torch.profiler.profile, "_memory_profile", failing)
    record = recorded(training(), step, shapes=True, stack=True)
    assert (
        "torch could not classify the memory (version mismatch), so gpuprof_widgets did"
        in record.metadata["notes"]
    )
    assert set(allocations(record)["classified_by"]) == {"rules"}
