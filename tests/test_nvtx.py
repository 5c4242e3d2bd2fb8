"""`--nvtx`: what Nsight Systems gets to see, in which order, and that nothing of it stays on.

There is no CUDA here: what of torch speaks to it are stand-ins that log their calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity

from gpuprof_widgets.capture import nvtx
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import profiler_is_running
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from tests.shells import loaded

BEFORE = ["ops on", "capture on", "push the run"]
AFTER = ["pop", "ops off", "capture off"]


class Cuda:
    """What torch.cuda.nvtx, torch.cuda.profiler and emit_nvtx are asked to do, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failing = ""

    def do(self, what: str) -> None:
        self.log.append(what)
        if what == self.failing:
            raise RuntimeError(f"CUDA error in {what}")

    def range_push(self, name: str) -> None:
        self.do(f"push {name}")

    def range_pop(self) -> None:
        self.do("pop")

    def start(self) -> None:
        self.do("capture on")

    def stop(self) -> None:
        self.do("capture off")

    def emit_nvtx(self, *, record_shapes: bool) -> Cuda:
        self.shapes = record_shapes
        return self

    def __enter__(self) -> Cuda:
        self.do("ops on")
        return self

    def __exit__(self, *error: object) -> None:
        self.do("ops off")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(nvtx, "_nvtx", made)
    monkeypatch.setattr(nvtx, "_cuda_profiler", made)
    monkeypatch.setattr(nvtx._autograd_profiler, "emit_nvtx", made.emit_nvtx)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    return made


def record(run: Callable[[], Any], **options: Any) -> Record:
    with Recorder(Options(nvtx=True, python="off", **options), label="the run") as recorder:
        run()
    return recorder.record()


def notes(record: Record) -> str:
    return "\n".join(record.metadata["notes"])


def test_the_capture_holds_the_run_and_nothing_else(cuda: Cuda) -> None:
    record(lambda: cuda.do("the cell"))
    assert cuda.log == [*BEFORE, "the cell", *AFTER]


def test_nsight_records_instead_of_torch(cuda: Cuda) -> None:
    made = record(lambda: torch.ones(2) + 1, shapes=True)
    assert len(made.trace) == 0
    assert cuda.shapes
    assert "no ops: with --nvtx they are NVTX ranges for Nsight Systems" in notes(made)


def test_a_kernel_outside_of_nsys_is_told_so(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "does not seem to run under nsys" in notes(record(lambda: None))
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "71")
    assert "nsys, so" not in notes(record(lambda: None))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_of_the_cell_passes_and_the_capture_ends(
    cuda: Cuda, error: type[BaseException]
) -> None:
    def run() -> None:
        raise error

    with pytest.raises(error):
        record(run)
    assert cuda.log == [*BEFORE, *AFTER]


@pytest.mark.parametrize(
    ("failing", "log"),
    [
        ("ops on", ["ops on", "the cell"]),
        ("capture on", ["ops on", "capture on", "ops off", "the cell"]),
        ("push the run", [*BEFORE, "ops off", "capture off", "the cell"]),
    ],
)
def test_what_cannot_start_is_a_note_and_leaves_nothing_on(
    cuda: Cuda, failing: str, log: list[str]
) -> None:
    cuda.failing = failing
    made = record(lambda: cuda.do("the cell"))
    assert cuda.log == log
    (note,) = (line for line in made.metadata["notes"] if line.startswith("no NVTX ranges"))
    assert note.endswith(f"could not start: RuntimeError: CUDA error in {failing}")


@pytest.mark.parametrize("failing", ["pop", "ops off", "capture off"])
def test_what_cannot_stop_takes_nothing_else_with_it(cuda: Cuda, failing: str) -> None:
    cuda.failing = failing
    with pytest.raises(RecordingError, match="could not stop: RuntimeError: CUDA error in"):
        record(lambda: cuda.do("the cell"))
    assert cuda.log == [*BEFORE, "the cell", *AFTER]


def test_torchs_profiler_is_off_even_where_its_end_fails(cuda: Cuda) -> None:
    """emit_nvtx waits for the GPU first, which raises after an error of a kernel."""
    real = torch.autograd.profiler.profile(use_kineto=False)

    def leave_on(*error: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    ranges = nvtx.NvtxRanges.__new__(nvtx.NvtxRanges)
    real.__enter__()
    ranges._ops = type("Emitter", (), {"__exit__": staticmethod(leave_on)})
    with pytest.raises(RuntimeError, match="device-side assert"):
        ranges._stop_ops()
    assert not profiler_is_running()


def test_your_own_profiler_in_the_cell_has_its_ops(cuda: Cuda) -> None:
    def run() -> list[str]:
        with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as own:
            cuda.do("own profiler")
            torch.ones(2)
        return [event.name for event in own.events()]

    found: list[str] = []
    made = record(lambda: found.extend(run()))
    assert "aten::ones" in found
    assert cuda.log == [*BEFORE, "ops off", "own profiler", "pop", "capture off"]
    assert "NVTX ranges of ops end where your own torch.profiler started" in notes(made)


def test_your_own_profiler_around_the_cell_keeps_the_ops(cuda: Cuda) -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as own:
        made = record(lambda: torch.ones(2))
    assert "aten::ones" in {event.name for event in own.events()}
    assert cuda.log == ["capture on", "push the run", "pop", "capture off"]
    assert "your own torch.profiler is running" in notes(made)


def test_every_window_is_a_capture(cuda: Cuda) -> None:
    context = nvtx.Context(Options(nvtx=True), "the run", {}, {})
    part = nvtx.nvtx_ranges(context)
    assert part is not None
    for _ in range(2):
        part.start()
        part.stop()
        part.stop()  # as after a failure
    assert cuda.log == [*BEFORE, *AFTER] * 2


def marks_of(run: Callable[[], Any], code: Any = None, **options: Any) -> list[str]:
    """The names of the record functions of ours in a run: under emit_nvtx each becomes a range.

    They are those of a profiler that was running before, which ours leaves alone.
    """
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as own:
        record(run, **options)
    return [event.name for event in own.events() if not event.name.startswith("aten::")]


def test_modules_are_ranges_under_their_names(cuda: Cuda) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    model = torch.nn.Sequential(torch.nn.Flatten(), inner)
    marks = marks_of(lambda: model(torch.ones(1, 2)), modules="all")
    assert marks == [
        *("Sequential", "Sequential.0", "Sequential.1", "Sequential.1.0", "Sequential.1.1")
    ]


def test_lines_of_a_cell_are_ranges_with_their_text(cuda: Cuda) -> None:
    cell = "total = 0\nfor number in range(2):\n    total += number\n"
    with loaded() as shell, torch.profiler.profile(activities=[ProfilerActivity.CPU]) as own:
        shell.run_cell_magic("gpuprofile", "-q --nvtx --python off", cell)
    marks = [event.name for event in own.events() if event.name[0].isdigit()]
    loop = "3: for number in range(2):"
    assert marks == ["2: total = 0", loop, *("4: total += number",) * 2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_cell_is_recorded_as_always() -> None:
    made = record(lambda: torch.ones(2))
    assert "aten::ones" in set(made.trace.slices["name"])
    assert "no NVTX ranges: torch sees no CUDA device" in notes(made)
    assert "no ops" not in notes(made)


def test_without_the_switch_there_is_no_such_part() -> None:
    assert nvtx.nvtx_ranges(nvtx.Context(Options(), "the run", {}, {})) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_on_a_gpu_ops_are_ranges_and_torch_is_off_afterwards() -> None:
    running: list[bool] = []

    def run() -> None:
        running.append(profiler_is_running())
        torch.ones(8, device="cuda").sum().item()

    made = record(run)
    assert running == [True]
    assert not profiler_is_running()
    assert len(made.trace) == 0
    assert "no NVTX ranges" not in notes(made)
