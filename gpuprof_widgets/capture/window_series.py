"""The windows of one recording, one after the other; at most the last one runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpuprof_widgets.capture.cprofile import CallsRecording
from gpuprof_widgets.capture.part import Part
from gpuprof_widgets.capture.torch_profiler import TorchRecording
from gpuprof_widgets.capture.window import Note, Window
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.assemble import empty_trace
from gpuprof_widgets.trace.join import joined, starts_when_joined
from gpuprof_widgets.trace.model import Calls, Trace

Refine = Callable[[Trace], Trace]


class WindowSeries:
    """Starts and stops the windows, and reads them as one trace. Its errors are the caller's."""

    def __init__(self, options: Options, label: str, refine: Refine) -> None:
        self._options = options
        self._label = label
        self._refine = refine
        self._windows: list[Window] = []
        self._calls: CallsRecording | None = None
        self._open = False  # the last window runs, its cProfile at least

    @property
    def has_cprofile(self) -> bool:
        """Whether cProfile runs in them.

        On Python 3.11 torch's frames and cProfile fight over one hook; on 3.13 both run, but
        cProfile was seen to count calls twice. The frames are exact and tell the same.
        """
        return self._options.cprofile and not self._options.stack

    def begin(self, parts: Sequence[Part], step: int | None, note: Note) -> list[Part]:
        """Start the next window; the parts that could not start."""
        if self._windows:
            self._windows[-1].trace(self._refine)  # torch has room for one recording
        if self.has_cprofile and self._calls is None:
            self._calls = CallsRecording()
        recording = TorchRecording(self._options, self._label)
        window = Window(recording, self._calls, parts, step)
        self._windows.append(window)
        self._open = True
        return window.start(note)

    def end_trace(self) -> int:
        """Stop the trace but not cProfile; how long the device had to be waited for (ns)."""
        return self._windows[-1].stop_trace() if self._open else 0

    def end(self) -> int:
        """Stop the window, if one runs; how long the device had to be waited for (ns)."""
        waited = self._windows[-1].stop() if self._open else 0
        self._open = False
        return waited

    def discard(self) -> None:
        """Stop what runs and keep nothing."""
        self.end()
        self._windows, self._calls = [], None

    def drop_failed(self) -> bool:
        """Give up the window that could not start; whether there are others to keep."""
        self._windows.pop().stop_after_failure()
        self._open = False
        return bool(self._windows)

    def stop_after_failure(self) -> None:
        """Leave nothing running and keep nothing."""
        for window in self._windows:
            window.stop_after_failure()
        self._windows, self._calls, self._open = [], None, False

    @property
    def wall_ns(self) -> int:
        """How long the traces ran, all together."""
        return sum(window.wall_ns for window in self._windows)

    @property
    def lost(self) -> list[str]:
        """What the user's own profilers kept for themselves."""
        recordings = [window.lost for window in self._windows]
        recordings += [self._calls.lost] if self._calls is not None else []
        return [sentence for sentence in recordings if sentence]

    def trace(self) -> Trace:
        """What all windows recorded, on one clock."""
        traces = [trace for _, trace in self._read()]
        return joined(traces) if traces else empty_trace()

    def calls(self) -> Calls | None:
        """What cProfile counted in all of them; None where it did not run."""
        return self._calls.calls() if self._calls is not None else None

    def metadata(self) -> list[dict[str, Any]]:
        """When each window was, in truth and in the joined trace (ns), and its first step."""
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
