"""Record one run with torch.profiler, cProfile and the parts: a context manager.

No failure of the profiler reaches the profiled code: `record()` raises it afterwards as a
`RecordingError` of one line, and what was merely not measured becomes a note in the metadata.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

from gpuprof_widgets import progress
from gpuprof_widgets.capture.cell import CellCode, applied_rewrite
from gpuprof_widgets.capture.cprofile import note_on_threads
from gpuprof_widgets.capture.distributed import process_rank
from gpuprof_widgets.capture.environment import environment
from gpuprof_widgets.capture.frame_filter import (
    without_profiler_calls,
    without_profiler_slices,
)
from gpuprof_widgets.capture.interrupts import DeferredSignals
from gpuprof_widgets.capture.loop.bound import LoopBound
from gpuprof_widgets.capture.loop.iterations import StepLoop, without_steps_taken_back
from gpuprof_widgets.capture.overhead import counted, overhead
from gpuprof_widgets.capture.part import Active, Context, Part
from gpuprof_widgets.capture.torch_profiler import emits_nvtx
from gpuprof_widgets.capture.window import WindowSeries, parts_for, started
from gpuprof_widgets.capture.workers import calls_of_workers
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.files import without_garbage_collection
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.pstats import calls_from_slices, with_cell_labels
from gpuprof_widgets.trace.schema import GPU_CATEGORIES

_NESTED = (
    "this code is already being profiled by an outer gpuprof profile, "
    "which has all of it; the inner one recorded nothing"
)
_ELSEWHERE = (
    "another gpuprof profile is being recorded in this process, in another thread or task, and "
    "there can be only one at a time; this one recorded nothing"
)
_FORKED = (
    "this process was forked from one that is being recorded; until it leaves the recorded block, "
    "nothing is recorded here"
)
_ONE_LOOP = (
    "gpuprof_widgets.steps records one loop per recording: another loop, inside or after it, "
    "also ended after its iterations, but was not recorded"
)
_NOT_BOUND = "--steps could not bound the loop of this cell: it ran whole and is recorded whole"
_WORK_CATEGORIES = ("cpu_op", *GPU_CATEGORIES)
_BACKWARD = "autograd::engine::evaluate_function: "
_INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)


class Recorder:
    """``with Recorder(options, label="Cell [3]") as recorder: ...`` and then ``recorder.record()``.

    ``cell_labels`` maps the files of the notebook's cells to the cells' labels; Python calls are
    then restricted to those that cells made, and the kernel's are left out. ``keep`` receives each
    finished record of a loop that is recorded again and again.
    """

    def __init__(
        self,
        options: Options,
        *,
        label: str,
        cell_source: str | None = None,
        execution_count: int | None = None,
        cell_labels: Mapping[str, str] | None = None,
        namespace: Mapping[str, Any] | None = None,
        code: CellCode | None = None,
        keep: Callable[[Record], None] | None = None,
    ) -> None:
        self._keep = keep
        self._kept: Record | None = None
        self._options = options
        self._label = label
        self._context = Context(options, label, namespace or {}, cell_labels or {}, code)
        self._cell_source = cell_source
        self._execution_count = execution_count
        self._failure: str | None = None
        self.is_silent = False
        self._notes: list[str] = []
        self._windows = WindowSeries(options, label, self._refined)
        self._loop: StepLoop | None = None
        self._early_parts: list[Part] = []
        self._parts: list[Part] = []
        self._error: BaseException | None = None
        self._threads_before: set[int] = set()
        self._stop_ns = 0
        self._seen_calls = 0

    def __enter__(self) -> Self:
        if Active.recorder is not None:
            inside = Active.thread == threading.get_ident() and Active.inside.get() is Active.mark
            self._failure = _FORKED if _is_fork() else _NESTED if inside else _ELSEWHERE
            self.is_silent, Active.nesting_noted = Active.nesting_noted, True
            return self
        try:
            with DeferredSignals():
                self._start()
        except BaseException as error:  # a signal's: the profiled code does not run
            self._leave()
            self._give_up("start", error)
            raise
        return self

    def _start(self) -> None:
        try:
            Active.recorder, Active.nesting_noted, Active.process = self, False, os.getpid()
            Active.thread, Active.mark = threading.get_ident(), object()
            Active.inside.set(Active.mark)
            atexit.register(self._end_with_program)
            if self._context.cell_labels:  # in a script the other threads are the user's own
                self._threads_before = {thread.native_id or 0 for thread in threading.enumerate()}
            self._prepare()
        except BaseException as error:
            self._leave()
            self._give_up("start", error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if Active.recorder is not self:
            return
        try:
            ended = perf_counter_ns()
            self._error = error
            with DeferredSignals():
                self._end()
                self._stop_ns = perf_counter_ns() - ended
        finally:  # a signal handler may have raised just before signals were deferred
            self._end()

    def _end(self) -> None:
        """Stop, once. A forked process only stops: the recording belongs to its parent."""
        if Active.recorder is not self:
            return
        try:
            if self._loop is not None and not _is_fork():  # the parent has the loop's workers
                self._loop.close()
            self._windows.end()
            for part in reversed(self._early_parts):
                part.stop()
        except BaseException as problem:
            self._give_up("stop", problem)
        finally:
            self._leave()
            if _is_fork():
                self._failure, self.is_silent = _FORKED, True

    def _leave(self) -> None:
        Active.recorder = None
        atexit.unregister(self._end_with_program)

    def _end_with_program(self) -> None:
        """Stop a recording that was never left, such as a loop over `steps`, before torch goes.

        Later the interpreter has taken down what torch needs to stop, and the process crashes.
        A forked process has none of the profiler's threads, so there is nothing to stop.
        """
        if not _is_fork():
            self.__exit__(None, None, None)

    def record(self) -> Record:
        """Return the record, or raise a `RecordingError` of one line where there is none.

        ``is_silent`` then says whether the error was reported before, by an earlier inner recorder.
        """
        if self._failure is not None:
            raise RecordingError(self._failure)
        if self._kept is not None and self._loop is not None and not self._loop.recorded:
            return self._kept  # the loop ended before it was recorded again
        began = perf_counter_ns()
        try:
            with without_garbage_collection():
                trace = self._windows.trace()
                calls = self._read_calls(trace)
            self._stop_ns += perf_counter_ns() - began
            metadata = self._metadata(trace, calls)
            worker_calls = calls_of_workers(self._all_parts)
        except Exception as problem:
            text = f"no profile: the recording could not be read: {_one_line(problem)}"
            raise RecordingError(text) from problem
        return Record(trace, calls, metadata, worker_calls)

    def waiting(self) -> AbstractContextManager[None]:
        """Return the progress line for after the run; of several ranks, only the first has one."""
        quiet = self._options.quiet
        with suppress(Exception):  # the user's process group may be half gone
            rank = process_rank()
            quiet |= rank is not None and rank.rank > 0
        return progress.line(quiet=quiet, waited_s=self._stop_ns / 1e9)

    def forget(self) -> None:
        """Free what was recorded, once it is read: a traceback may keep the recorder alive."""
        self._windows.stop_after_failure()

    def _prepare(self) -> None:
        """Start recording, or wait for the loop whose steps the options ask for."""
        for part in parts_for(self._context):
            if part.starts_before_loop:
                if started(part, self._note_loss):
                    self._early_parts.append(part)
            else:
                self._parts.append(part)
        waits_for_loop = self._options.steps is not None  # of gpuprof_widgets.steps
        if waits_for_loop and self._context.code is not None:
            bound = applied_rewrite(self._context.code, LoopBound)
            if bound is None:
                self._notes.append(_NOT_BOUND)
            waits_for_loop = bound is not None and bound.serves(self)
        if not waits_for_loop:
            self._begin(None)

    def _begin(self, step: int | None) -> None:
        failed = self._windows.begin(self._parts, step, self._note_loss)
        self._parts = [part for part in self._parts if part not in failed]

    def _note_loss(self, loses: str, error: Exception) -> None:
        self._notes.append(f"{loses} could not start: {_one_line(error)}")

    def _give_up(self, verb: str, error: BaseException) -> None:
        """Stop everything after a failure, which `record` will raise."""
        self._failure = f"no profile: recording could not {verb}: {_one_line(error)}"
        with DeferredSignals():
            self._windows.stop_after_failure()
            for part in self._early_parts:
                with suppress(BaseException):  # the first failure is the one reported
                    part.stop()
            self._early_parts, self._parts = [], []
        if not isinstance(error, Exception):
            raise error

    @property
    def _all_parts(self) -> list[Part]:
        return [*self._early_parts, *self._parts]

    @property
    def is_taken(self) -> bool:
        return self._loop is not None

    @property
    def has_cprofile(self) -> bool:
        return self._windows.has_cprofile

    def take(self, loop: StepLoop) -> bool:
        """Record the windows of this loop from now on, and drop what ran before it.

        Return False, and add a note, where another loop has the recorder already.
        """
        before = self._loop
        if before is not None and (before.explicit or not loop.explicit):
            self._notes.append(_ONE_LOOP)
            return False
        if before is not None:
            before.give_up()
        self._loop = loop
        try:
            self.begin_cycle()
        except BaseException as error:
            self._give_up("start", error)
        return True

    def keep_cycle(self) -> None:
        """Save what the windows have recorded, for a loop that records again later."""
        try:
            self._kept = self.record()
            if self._keep is not None:
                self._keep(self._kept)
        except Exception as error:
            self._notes.append(f"a recording of the loop could not be kept: {_one_line(error)}")

    def begin_cycle(self) -> None:
        """Drop what the windows recorded: the loop records again."""
        self._windows.discard()
        for part in self._all_parts:
            part.discard()

    @property
    def has_explicit_loop(self) -> bool:
        """Whether the code itself bounds the loop that is recorded."""
        return self._loop is not None and self._loop.explicit

    def has_work(self, *, training: bool) -> bool:
        """Whether an op or a kernel (``training``: a backward pass) ran in the ended windows."""
        try:
            slices = self._windows.trace().slices
        except Exception:  # reported when the record is read
            return True
        if self._windows.lost or emits_nvtx(self._options):
            return True  # another profiler, or Nsight, has the ops
        if training:
            return bool(slices["name"].astype(str).str.startswith(_BACKWARD).any())
        return bool(slices["category"].isin(_WORK_CATEGORIES).any())

    def release(self) -> None:
        """Drop what the windows recorded, so that another loop may take the recorder."""
        self._loop = None
        self.begin_cycle()

    def enter_step(self, name: str) -> None:
        """Open the region of a step in the window that is recorded."""
        self._windows.enter_step(name)

    def leave_step(self) -> None:
        """Close the region of the step, if one is open."""
        self._windows.leave_step()

    def begin_window(self, step: int) -> None:
        """Start recording at this step."""
        if self._failure is not None:
            return
        with DeferredSignals():
            try:
                self._begin(step)
            except BaseException as error:
                if not isinstance(error, Exception) or not self._windows.drop_failed():
                    self._give_up("start", error)
                else:
                    self._notes.append(f"a further window could not start: {_one_line(error)}")

    def end_trace(self) -> int:
        """Stop the window's trace but not cProfile; return the wait for the device in ns."""
        return self._ended(self._windows.end_trace)

    def end_window(self) -> int:
        """Stop the window; return the wait for the device in ns."""
        return self._ended(self._windows.end)

    def _ended(self, end: Callable[[], int]) -> int:
        waited = 0
        with DeferredSignals():
            try:
                waited = end()
            except BaseException as error:
                self._give_up("stop", error)
        return waited

    def _refined(self, trace: Trace) -> Trace:
        """Return the trace of one window without our own events, refined by the parts."""
        progress.say("joining ops, lines and modules")
        trace = without_profiler_slices(
            with_cell_labels(trace, self._context.cell_labels),
            self._label,
            cells=self._context.cell_labels.values(),
            threads_before=self._threads_before,
        )
        if self._loop is not None:
            trace = without_steps_taken_back(trace, self._loop.left_out)
        for part in self._all_parts:
            trace = part.refine(trace)
        return trace

    def _read_calls(self, trace: Trace) -> Calls | None:
        if not self._windows.has_cprofile:
            return calls_from_slices(trace, self._label) if self._options.counts_calls else None
        calls = self._windows.calls()
        if calls is None:
            return None
        # Our own calls included: cProfile spent as much on them.
        self._seen_calls = int(calls.functions["calls"].sum())
        began_inside = self._loop is not None
        return without_profiler_calls(calls, self._context.cell_labels, began_inside=began_inside)

    def _metadata(self, trace: Trace, calls: Calls | None) -> dict[str, Any]:
        interrupted = isinstance(self._error, _INTERRUPTS)
        steps: dict[str, Any] = {}
        if self._loop is not None:
            steps["steps"] = {**self._loop.metadata(), "windows": self._windows.metadata()}
        return {
            "label": self._label,
            "cell_source": self._cell_source,
            "execution_count": self._execution_count,
            "options": asdict(self._options),
            **environment(),
            "wall_ns": self._windows.wall_ns,
            "own_torch_profiler": not self._windows.has_ops,
            "stop_ns": self._stop_ns,
            "overhead": overhead(
                counted(trace, self._seen_calls, framed=self._options.stack), self._options
            ),
            "interrupted": interrupted,
            "error": None if self._error is None or interrupted else _one_line(self._error),
            "notes": self._all_notes(calls),
            **{key: value for part in self._all_parts for key, value in part.metadata().items()},
            **steps,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _all_notes(self, calls: Calls | None) -> list[str]:
        """Return all notes, each once: several windows may lose the same thing."""
        notes = [*self._notes]
        if self._loop is not None:
            notes += self._loop.notes()
        notes += self._windows.lost
        notes += [sentence for part in self._all_parts for sentence in part.notes()]
        has_frames = self._options.samples_python or self._options.stack
        notes += note_on_threads(calls, has_frames=has_frames)
        if self._options.counts_calls and self._options.stack:
            notes.append(
                "cProfile did not run: the Python calls are counted from the stack's frames"
            )
        if self._options.samples_python and self._options.stack:
            notes.append("Python was not sampled: the stack's frames are exact")
        return list(dict.fromkeys(notes))


def _is_fork() -> bool:
    """Whether this process is a fork, whose recorder is a copy of its parent's."""
    return os.getpid() != Active.process


def _one_line(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # the user's own error class may fail to make a text
        lines = []
    if not lines:
        return type(error).__name__
    # A RecordingError's text needs no class name in front.
    return lines[0] if isinstance(error, RecordingError) else f"{type(error).__name__}: {lines[0]}"
