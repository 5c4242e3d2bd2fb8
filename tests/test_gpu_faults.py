"""Faults of the GPU in a profiled cell, on an imagined one: whose they are is said, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, record_function

from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import GpuEvents, TorchRecording, profiler_is_running
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.report import static_text
from tests.traces import kernel, op, runtime, trace_of

STICKY = (
    "CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call"
)
EVERYTHING = {ProfilerActivity.CPU, ProfilerActivity.CUDA}


def broken(*_: object) -> Any:
    raise torch.AcceleratorError(STICKY)


def imagine_gpu(
    monkeypatch: pytest.MonkeyPatch, synchronize: Callable[..., Any] = lambda *_: None
) -> dict[str, int]:
    """A GPU that records nothing; returns what its allocator counts."""
    counts = {"allocation.all.allocated": 7}
    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "synchronize": synchronize,
        "memory_stats": lambda *_: dict(counts),
        "get_device_properties": broken,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    start = TorchRecording.start

    def started(self: TorchRecording) -> None:
        with monkeypatch.context() as torch_itself:
            torch_itself.setattr(torch.cuda, "is_available", lambda: False)
            start(self)
        self._profile.profiler.use_device = "cuda"  # it waits for that one when it stops

    monkeypatch.setattr(TorchRecording, "start", started)
    return counts


def record(work: Callable[[], Any]) -> Record:
    with Recorder(Options(), label="the run") as recorder:
        work()
    return recorder.record()


def shown(record: Record) -> str:
    """The text of the page, on one line."""
    return " ".join(static_text(record).split())


def test_an_error_of_the_gpu_is_the_codes_own_and_what_ran_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stays with the device: waiting, torch's own stop and asking for its name all raise it."""
    imagine_gpu(monkeypatch, synchronize=broken)
    made = record(lambda: torch.ones(3))
    assert not profiler_is_running()
    assert "aten::ones" in list(made.trace.slices["name"])
    assert made.calls is not None
    (note,) = (note for note in made.metadata["notes"] if "CUDA error" in note)
    assert "error of the code that ran (CUDA error: device-side assert triggered)" in note
    assert "until the process is restarted" in note
    assert "Note: the GPU stopped with an error of the code that ran" in shown(made)
    assert made.metadata["devices"] == []


def test_the_codes_own_error_of_the_gpu_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    imagine_gpu(monkeypatch, synchronize=broken)
    recorder = Recorder(Options(), label="the run")
    with pytest.raises(torch.AcceleratorError), recorder:
        torch.cuda.synchronize(torch.ones(3))
    made = recorder.record()
    assert made.metadata["error"] == "AcceleratorError: CUDA error: device-side assert triggered"
    assert "aten::ones" in list(made.trace.slices["name"])


def test_a_gpu_that_was_used_but_not_recorded_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = imagine_gpu(monkeypatch)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: EVERYTHING)

    def work() -> None:
        with record_function("training"):
            counts["allocation.all.allocated"] += 1_200

    (note,) = (note for note in record(work).metadata["notes"] if "CUPTI" in note)
    assert note.startswith("no GPU work is in this record, although the run put 1,200 tensors")
    assert "Nsight" in note


def test_a_torch_without_cupti_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = imagine_gpu(monkeypatch)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {ProfilerActivity.CPU})
    part = GpuEvents()
    part.start()
    counts["allocation.all.allocated"] += 1
    part.stop()
    part.stop()
    part.refine(trace_of(op("aten::mm", ts=0, dur=9)).trace)
    assert part.notes()[0].endswith("has no CUPTI; install one with CUDA from pytorch.org")


@pytest.mark.parametrize("allocated", [0, 5])
def test_nothing_is_said_of_a_gpu_that_is_recorded_or_was_not_used(
    monkeypatch: pytest.MonkeyPatch, allocated: int
) -> None:
    counts = imagine_gpu(monkeypatch)
    part = GpuEvents()
    part.start()
    counts["allocation.all.allocated"] += allocated
    part.stop()
    launch = runtime("cudaLaunchKernel", ts=2, dur=3, correlation=1)
    rows = [launch, kernel("gemm", ts=9, dur=9, correlation=1)] if allocated else []
    part.refine(trace_of(op("aten::mm", ts=0, dur=9), *rows).trace)
    assert part.notes() == []
