"""A user's own torch profiler in or around a recording: nothing of ours breaks it or is in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.capture import module_calls
from gpuprof_widgets.capture.lines.regions import LineMarks, end_open_regions
from tests.cells import recorded

pytestmark = pytest.mark.slow

CPU = [ProfilerActivity.CPU]
OWN = {
    "scheduled": "profile(activities=CPU, schedule=schedule(wait=1, warmup=1, active=2, repeat=1))",
    "at once": "profile(activities=CPU)",
    "of autograd": "torch.autograd.profiler.profile()",
}
BODY = """
def train(own, step):
    for i in range(6):
        model(x).sum().backward()
        step()
train(None, lambda: None)
with {own} as own:
    train(own, getattr(own, "step", lambda: None))
train(None, lambda: None)
sorted({{event.key for event in own.key_averages()}})
"""


def names() -> dict[str, Any]:
    return {
        "torch": torch,
        "profile": profile,
        "schedule": schedule,
        "CPU": CPU,
        "model": nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        "x": torch.ones(2, 4),
        "__name__": "__main__",
    }


@pytest.mark.parametrize("own", OWN)
def test_your_own_profiler_has_its_ops_and_nothing_of_ours(
    own: str, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome, record = recorded(BODY.format(own=OWN[own]), names())
    assert outcome.error == ""
    assert "aten::addmm" in outcome.result
    assert "gpuprof" not in outcome.result
    assert "Warning" not in capfd.readouterr().err
    assert record.metadata["own_torch_profiler"]
    assert (record.trace.slices["dur"] >= 0).all()
    assert not lines(record)["complete"].any()
    table = lines(record).set_index("line")
    assert table.loc[5, "calls"] in (6, 7)  # those before it, and a step in which a schedule waits
    assert table.loc[9, "wall_ns"] <= record.metadata["wall_ns"]


def test_a_record_without_ops_says_who_has_them() -> None:
    with profile(activities=CPU) as own:
        _, record = recorded("model(x)", names())
    assert not [event.key for event in own.key_averages() if "gpuprof" in event.key]
    (said,) = [found.text for found in findings(record) if found.title.startswith("No PyTorch op")]
    assert said.startswith("No PyTorch op is in this record: your own torch.profiler has those")


WARMING_UP = """
import gpuprof_widgets, torch
from torch.profiler import ProfilerActivity, profile, schedule
steps = torch.autograd.profiler.KinetoStepTracker._step_dict
with gpuprof_widgets.profile(quiet=True):
    torch.ones(1)
assert "ProfilerStep" not in steps
own = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=1))
own.start()
with gpuprof_widgets.profile(quiet=True):
    torch.ones(2)
print(gpuprof_widgets.last.metadata["own_torch_profiler"])
own.step()
torch.zeros(3)
own.stop()
print("aten::zeros" in {event.key for event in own.key_averages()})
with gpuprof_widgets.profile(quiet=True):
    torch.ones(2)
print(gpuprof_widgets.last.metadata["own_torch_profiler"])
"""


def test_a_profiler_that_warms_up_is_not_disturbed(tmp_path: Path) -> None:
    """In a process of its own: torch crashes where two prepare and the first one starts."""
    done = subprocess.run(
        [sys.executable, "-c", WARMING_UP], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True", "False"])


def test_a_mark_may_be_entered_and_left_under_different_profilers() -> None:
    marks = LineMarks("Cell [1]", "x")
    marks.mark(1)
    marks.switch_on()
    first, second = profile(activities=CPU), profile(activities=CPU)
    with marks.mark(1).next():
        first.start()
    with marks.mark(1).next():
        end_open_regions()
        first.stop()
        second.start()
    second.stop()
    assert [event.name for event in first.events()] == [marks.mark(1).marker]
    assert not second.events()


class Starting(nn.Module):
    """Starts a profiler in its forward pass, and leaves it on."""

    own: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.own = profile(activities=CPU)
        self.own.start()
        return x + 1


def test_a_module_may_start_a_profiler_and_return() -> None:
    known = module_calls.Entrances(lambda module: lambda: module_calls.TorchRegion("of a module"))
    calls, module = module_calls.ModuleCalls(known), Starting()
    calls.start()
    try:
        module(torch.ones(2))
    finally:
        calls.stop()
    module.own.stop()
    assert "aten::add" in {event.name for event in module.own.events()}
