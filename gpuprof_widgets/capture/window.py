"""Windows, the recorded stretches of a run: torch.profiler, cProfile and the parts, start to stop.

`PARTS` and `REWRITES` are the registries of what takes part in a recording. `Window` is one use of
torch.profiler; `WindowSeries` runs one after the other and joins their traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from gpuprof_widgets.capture.cell import Rewrite
from gpuprof_widgets.capture.compilations import Compilations
from gpuprof_widgets.capture.cprofile import CallsRecording
from gpuprof_widgets.capture.distributed import GroupLifetimes, rank_part
from gpuprof_widgets.capture.environment import ProcessState
from gpuprof_widgets.capture.garbage_collections import GarbageCollections
from gpuprof_widgets.capture.lines.recording import lines_rewrite, lines_window, marked_code
from gpuprof_widgets.capture.loop.bound import loop_bound
from gpuprof_widgets.capture.loop.recording import bounded_loop
from gpuprof_widgets.capture.loop.training import expected, guards
from gpuprof_widgets.capture.memory import memory_owners
from gpuprof_widgets.capture.modules import module_spans
from gpuprof_widgets.capture.nvtx import nvtx_ranges
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.capture.python_samples import python_samples
from gpuprof_widgets.capture.torch_profiler import Entrances, TorchRecording, gpu_events
from gpuprof_widgets.capture.workers import WorkerStarts, workers
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.assemble import empty_trace
from gpuprof_widgets.trace.edit import joined, starts_when_joined
from gpuprof_widgets.trace.model import Calls, Trace

Note = Callable[[str, Exception], None]
"""Receives what failed to start, as "<what the profile lacks>: <who>", and the error."""

Refine = Callable[[Trace], Trace]
"""Completes the trace of one window."""


class Window:
    """One use of torch.profiler, together with cProfile and the parts.

    cProfile's recording may serve several windows, whose calls it adds up, and may go on after the
    trace has ended. ``wall_ns`` is how long the trace ran, ``step`` the first step in it.
    """

    def __init__(
        self,
        recording: TorchRecording,
        calls: CallsRecording | None,
        parts: Sequence[Part],
        step: int | None,
    ) -> None:
        self.step = step
        self.wall_ns = 0
        self.recording = recording
        self._calls = calls
        self._parts = list(parts)
        self._began: int | None = None
        self._trace: Trace | None = None
        self._entrances = Entrances()

    def start(self, note: Note) -> list[Part]:
        """Start everything, the region last; return the parts that failed and are left out."""
        failed = [part for part in self._parts if not started(part, note)]
        self._parts = [part for part in self._parts if part not in failed]
        self.recording.start()
        if self.recording.is_users:
            self._unmark()
        else:
            self._entrances.watch(self._give_way)
        if self._calls is not None:
            try:
                self._calls.start()
            except Exception as error:
                self._calls.stop()
                self._calls = None
                note("no Python calls: cProfile", error)
        self._begin(self.recording)
        return failed

    def _give_way(self) -> None:
        """Leave the ops to the user's own profiler, and put no region among them."""
        self._entrances.unwatch()
        self.recording.leave_region()
        self._unmark()
        self.recording.give_way()

    def _unmark(self) -> None:
        for part in reversed(self._parts):
            with suppress(Exception):  # it would reach the user, whose profiler starts
                part.give_way()

    def _begin(self, recording: TorchRecording) -> None:
        """Enter the region, in a frame of its own that `frame_filter` takes out of cProfile."""
        self._began = perf_counter_ns()
        recording.enter_region()

    def stop_trace(self) -> int:
        """Stop the trace while cProfile goes on; return the wait for the device in ns."""
        waited = self.stop()  # cProfile as well: stopping torch is no call of the user's
        if self._calls is not None:
            self._calls.start()
        return waited

    def stop(self) -> int:
        """Stop whatever runs; return the wait for the device in ns."""
        self.recording.leave_region()  # first of all after the run
        if self._began is not None:
            self.wall_ns, self._began = perf_counter_ns() - self._began, None
        if self._calls is not None:
            self._calls.stop()
        self._entrances.unwatch()
        for part in reversed(self._parts):
            part.end_regions()
        waited = self.recording.stop()
        for part in reversed(self._parts):
            part.stop()
        return waited

    def stop_after_failure(self) -> None:
        """Stop everything, ignoring further failures: the first one is reported."""
        self._entrances.unwatch()
        for recording in (self._calls, self.recording, *self._parts):
            with suppress(BaseException):
                if recording is not None:
                    recording.stop()

    def trace(self, refine: Refine) -> Trace | None:
        """Return the refined trace, or None where nothing was recorded."""
        if (recorded := self.recording.trace()) is not None:
            self._trace = refine(recorded)
        return self._trace


def started(part: Part, note: Note) -> bool:
    """Start a part; if that fails stop it, note the loss and return False."""
    try:
        part.start()
    except Exception as error:
        part.stop()
        note(f"{part.loses}: its recording", error)
        return False
    return True


class WindowSeries:
    """Starts and stops windows, and reads them as one trace. Errors are left to the caller."""

    def __init__(self, options: Options, label: str, refine: Refine) -> None:
        self._options = options
        self._label = label
        self._refine = refine
        self._windows: list[Window] = []
        self._calls: CallsRecording | None = None
        self._open = False  # the last window runs, its cProfile at least

    @property
    def has_cprofile(self) -> bool:
        """Whether cProfile runs in the windows: not together with torch's Python frames.

        On Python 3.11 the two fight over one hook; on 3.13 both run, but cProfile was seen to count
        calls twice. The frames are exact, and calls can be counted from them.
        """
        return self._options.counts_calls and not self._options.stack

    def begin(self, parts: Sequence[Part], step: int | None, note: Note) -> list[Part]:
        """Start the next window; return the parts that could not start."""
        if self._windows:
            self._windows[-1].trace(self._refine)  # torch has room for one recording
        if self.has_cprofile and self._calls is None:
            self._calls = CallsRecording()
        recording = TorchRecording(self._options, self._label)
        window = Window(recording, self._calls, parts, step)
        self._windows.append(window)
        self._open = True
        return window.start(note)

    def enter_step(self, name: str) -> None:
        """Open the region of a step, if a window runs."""
        if self._open:
            self._windows[-1].recording.enter_step(name)

    def leave_step(self) -> None:
        """Close the region of the step, if one is open."""
        if self._open:
            self._windows[-1].recording.leave_step()

    def end_trace(self) -> int:
        """Stop the trace but not cProfile; return the wait for the device in ns."""
        return self._windows[-1].stop_trace() if self._open else 0

    def end(self) -> int:
        """Stop the window, if one runs; return the wait for the device in ns."""
        waited = self._windows[-1].stop() if self._open else 0
        self._open = False
        return waited

    def discard(self) -> None:
        """Stop what runs, and keep nothing."""
        self.end()
        self._windows, self._calls = [], None

    def drop_failed(self) -> bool:
        """Drop the window that could not start; return whether earlier ones remain."""
        self._windows.pop().stop_after_failure()
        self._open = False
        return bool(self._windows)

    def stop_after_failure(self) -> None:
        """Stop everything after a failure, and keep nothing."""
        for window in self._windows:
            window.stop_after_failure()
        self._windows, self._calls, self._open = [], None, False

    @property
    def wall_ns(self) -> int:
        """How long the traces ran in total."""
        return sum(window.wall_ns for window in self._windows)

    @property
    def has_ops(self) -> bool:
        """Whether ops were recorded throughout, rather than by the user's own profiler."""
        return not any(window.recording.is_users for window in self._windows)

    @property
    def lost(self) -> list[str]:
        """What was not recorded, mostly because the user's own profilers were, in sentences."""
        recordings = [*(window.recording for window in self._windows), self._calls]
        return [recording.lost for recording in recordings if recording and recording.lost]

    def trace(self) -> Trace:
        """Return the traces of all windows, joined on one clock."""
        traces = [trace for _, trace in self._read()]
        return joined(traces) if traces else empty_trace()

    def calls(self) -> Calls | None:
        """Return cProfile's calls of all windows, or None where it did not run."""
        return self._calls.calls() if self._calls is not None else None

    def metadata(self) -> list[dict[str, Any]]:
        """Return each window's first step, and its time in epoch ns and in the joined trace."""
        read = list(self._read())
        starts = starts_when_joined([trace for _, trace in read])
        return [
            {
                "epoch_ns": trace.epoch_ns + trace.start_ns,
                "start_ns": start,
                "dur_ns": trace.span_ns,
                "first_step": window.step,
            }
            for (window, trace), start in zip(read, starts, strict=True)
        ]

    def _read(self) -> Iterator[tuple[Window, Trace]]:
        for window in self._windows:
            trace = window.trace(self._refine)
            if trace is not None:
                yield window, trace


PARTS: tuple[Callable[[Context], Part | None], ...] = (
    marked_code,
    bounded_loop,
    lines_window,
    module_spans,
    memory_owners,
    gpu_events,
    Compilations,
    GarbageCollections,
    WorkerStarts,
    workers,
    rank_part,
    GroupLifetimes,
    nvtx_ranges,
    expected,
    ProcessState,
    python_samples,
)
"""Makers of the parts, in the order of their start; None where the options ask for no such part."""


def parts_for(context: Context) -> Iterator[Part]:
    """Yield the parts that the options ask for."""
    return filter(None, (make(context) for make in PARTS))


REWRITES: tuple[Callable[[Options], Rewrite | None], ...] = (
    guards,
    loop_bound,
    lines_rewrite,
)
"""Makers of the cell's rewrites, in the order in which they are applied; None as in `PARTS`.

The part of the same topic finds its rewrite in the ``code`` of its `Context`.
"""


def rewrites_for(options: Options) -> list[Rewrite]:
    """Return the rewrites that the options ask for."""
    return list(filter(None, (make(options) for make in REWRITES)))
