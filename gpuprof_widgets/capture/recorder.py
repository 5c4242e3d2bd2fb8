"""Record one run with torch.profiler and cProfile together: a context manager that never harms it.

Nothing that goes wrong in profiling reaches the code that is profiled. It is kept, and `record()`
raises it as a `RecordingError` of one line; what was merely not measured is a note in the metadata.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

from gpuprof_widgets.capture.cell import CellCode
from gpuprof_widgets.capture.cprofile import CallsRecording
from gpuprof_widgets.capture.environment import environment
from gpuprof_widgets.capture.options import Options
from gpuprof_widgets.capture.overhead import overhead
from gpuprof_widgets.capture.own_frames import without_own_calls, without_own_slices
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.capture.parts import parts_for
from gpuprof_widgets.capture.python_frames import calls_from_slices, with_cell_labels
from gpuprof_widgets.capture.torch_profiler import TorchRecording
from gpuprof_widgets.capture.workers import calls_of_workers
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.trace.assemble import empty_trace
from gpuprof_widgets.trace.event_json import without_garbage_collection
from gpuprof_widgets.trace.model import Calls, Record, Trace

_NESTED = (
    "this code is already being profiled by an outer gpuprof profile, "
    "which has all of it; the inner one recorded nothing"
)
_INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)


class _Active:
    """The recorder at work in this process, if any: a second one inside it records nothing."""

    recorder: Recorder | None = None
    told = False  # a decorated function may come by a thousand times: say it once


class Recorder:
    """``with Recorder(options, label="Cell [3]") as recorder: ...`` and then ``recorder.record()``.

    ``cell_labels`` names the notebook's cells by the files of their code: Python calls are then
    those that the cells' code made, and the kernel's own stay out.
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
    ) -> None:
        self._options = options
        self._label = label
        self._cell_source = cell_source
        self._execution_count = execution_count
        self._cell_labels = cell_labels or {}
        self._failure: str | None = None
        self._notes: list[str] = []
        self._torch: TorchRecording | None = None
        self._calls: CallsRecording | None = None
        self._parts: list[Part] = []
        self._namespace = namespace or {}
        self._code = code
        self._error: BaseException | None = None
        self._threads_before: set[int] = set()
        self._began = self._wall_ns = self._stop_ns = 0

    def __enter__(self) -> Self:
        if _Active.recorder is not None:
            self._failure = "" if _Active.told else _NESTED
            _Active.told = True
            return self
        _Active.recorder, _Active.told = self, False
        try:
            self._start()
        except BaseException as error:
            self._abandon()
            if not isinstance(error, Exception):
                raise
            self._failure = f"no profile: recording could not start: {_one_line(error)}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if _Active.recorder is not self:
            return
        ended = perf_counter_ns()
        self._wall_ns, self._error = ended - self._began, error
        try:
            self._stop()
        except BaseException as problem:
            self._abandon()
            self._failure = f"no profile: recording could not stop: {_one_line(problem)}"
            if not isinstance(problem, Exception):
                raise
        finally:
            _Active.recorder = None
        self._stop_ns = perf_counter_ns() - ended

    def record(self) -> Record:
        """What was recorded; a `RecordingError` of one line where nothing could be.

        The line is empty for the second and later recorders inside the same outer one.
        """
        if self._failure is not None:
            raise RecordingError(self._failure)
        began = perf_counter_ns()
        try:
            with without_garbage_collection():
                trace = self._read_trace()
                calls = self._read_calls(trace)
        except Exception as problem:
            text = f"no profile: the recording could not be read: {_one_line(problem)}"
            raise RecordingError(text) from problem
        self._stop_ns += perf_counter_ns() - began
        metadata = self._metadata(trace, calls)
        self._torch = self._calls = None  # torch's own copy of the events is no longer needed
        of_workers = calls_of_workers(self._parts)
        return Record(trace, calls, metadata, of_workers)

    def _start(self) -> None:
        if self._cell_labels:  # in a script the other threads are the user's own
            self._threads_before = {thread.native_id or 0 for thread in threading.enumerate()}
        self._start_parts()
        self._torch = TorchRecording(self._options, self._label)
        self._torch.start()
        # On Python 3.11 torch's frames and cProfile fight over one hook; on 3.13 both run, but
        # cProfile was seen to count calls twice. The frames are exact and tell the same.
        if self._options.cprofile and not self._options.stack:
            self._start_calls()
        self._begin(self._torch)

    def _start_parts(self) -> None:
        context = Context(
            self._options, self._label, self._namespace, self._cell_labels, self._code
        )
        for part in parts_for(context):
            try:
                part.start()
            except Exception as error:
                part.stop()
                self._notes.append(f"{part.loses}: it could not start: {_one_line(error)}")
            else:
                self._parts.append(part)

    def _begin(self, recording: TorchRecording) -> None:
        """The last step, in a frame of its own: what cProfile sees of it is known as ours."""
        self._began = perf_counter_ns()
        recording.enter_region()

    def _start_calls(self) -> None:
        self._calls = CallsRecording()
        try:
            self._calls.start()
        except Exception as error:
            self._calls.stop()
            self._calls = None
            self._notes.append(f"no Python calls: cProfile could not start: {_one_line(error)}")

    def _stop(self) -> None:
        if self._torch is not None:
            self._torch.leave_region()
        if self._calls is not None:
            self._calls.stop()
        if self._torch is not None:
            self._torch.stop()
        for part in reversed(self._parts):
            part.stop()

    def _abandon(self) -> None:
        """Leave nothing running after a failure; what fails again here was reported already."""
        _Active.recorder = None
        for recording in (self._calls, self._torch, *self._parts):
            try:
                if recording is not None:
                    recording.stop()
            except BaseException:
                continue
        self._calls = self._torch = None
        self._parts = []

    def _read_trace(self) -> Trace:
        trace = self._torch.trace() if self._torch is not None else None
        if trace is None:
            return empty_trace()
        trace = without_own_slices(
            with_cell_labels(trace, self._cell_labels),
            self._label,
            cells=self._cell_labels.values(),
            threads_before=self._threads_before,
        )
        for part in self._parts:
            trace = part.refine(trace)
        return trace

    def _read_calls(self, trace: Trace) -> Calls | None:
        if self._calls is None:
            wanted = self._options.cprofile and self._options.stack
            return calls_from_slices(trace, self._label) if wanted else None
        calls = self._calls.calls()
        return None if calls is None else without_own_calls(calls, self._cell_labels)

    def _metadata(self, trace: Trace, calls: Calls | None) -> dict[str, Any]:
        frames = int((trace.slices["category"] == "python_function").sum())
        # A recorded frame costs what a call under cProfile does: both are the interpreter's hook.
        counted = frames or (int(calls.functions["calls"].sum()) if calls is not None else 0)
        return {
            "label": self._label,
            "cell_source": self._cell_source,
            "execution_count": self._execution_count,
            "options": asdict(self._options),
            **environment(),
            "wall_ns": self._wall_ns,
            "stop_ns": self._stop_ns,
            "overhead": overhead(events=len(trace) - frames, calls=counted),
            "interrupted": isinstance(self._error, _INTERRUPTS),
            "error": self._error_text(),
            "notes": self._all_notes(),
            **{key: value for part in self._parts for key, value in part.metadata().items()},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _error_text(self) -> str | None:
        if self._error is None or isinstance(self._error, _INTERRUPTS):
            return None
        return _one_line(self._error)

    def _all_notes(self) -> list[str]:
        notes = [*self._notes]
        lost = [recording.lost for recording in (self._torch, self._calls) if recording is not None]
        notes += [sentence for sentence in lost if sentence]
        notes += [sentence for part in self._parts for sentence in part.notes()]
        if self._options.memory:
            notes.append("with --memory torch leaves out the ops of threads that the code starts")
        if self._options.cprofile and self._options.stack:
            notes.append(
                "cProfile did not run: the Python calls are counted from the stack's frames"
            )
        return notes


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
