"""One stretch of a run that is recorded: torch.profiler, cProfile and the parts, start to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from gpuprof_widgets.capture.cprofile import CallsRecording
from gpuprof_widgets.capture.part import Part
from gpuprof_widgets.capture.torch_profiler import TorchRecording
from gpuprof_widgets.trace.model import Trace

Note = Callable[[str, Exception], None]
"""Takes what a profile lacks and who did not start, and the error because of which it did not."""


class Window:
    """One use of torch.profiler, with cProfile and the parts beside it.

    cProfile's recording may serve several windows, which it then adds up, and may go on after the
    trace has ended. ``wall_ns`` is how long the trace ran; ``step`` the first step in it.
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
        self._torch = recording
        self._calls = calls
        self._parts = list(parts)
        self._began: int | None = None
        self._trace: Trace | None = None
        self._refined = False

    @property
    def lost(self) -> str | None:
        """What the user's own profiler kept for itself."""
        return self._torch.lost

    def start(self, note: Note) -> list[Part]:
        """Start everything, the region last; the parts that did not start, which are left out."""
        failed = [part for part in self._parts if not started(part, note)]
        self._parts = [part for part in self._parts if part not in failed]
        self._torch.start()
        if self._calls is not None and not self._calls_started(note):
            self._calls = None
        self._begin(self._torch)
        return failed

    def _begin(self, recording: TorchRecording) -> None:
        """The last step, in a frame of its own: what cProfile sees of it is known as ours."""
        self._began = perf_counter_ns()
        recording.enter_region()

    def _calls_started(self, note: Note) -> bool:
        assert self._calls is not None
        try:
            self._calls.start()
        except Exception as error:
            self._calls.stop()
            note("no Python calls: cProfile", error)
            return False
        return True

    def stop_trace(self) -> int:
        """Stop the trace while cProfile goes on; how long the device had to be waited for (ns)."""
        self._leave()
        if self._calls is None:
            return self._stop_torch()
        self._calls.stop()  # what we do now is no call of the user's
        waited = self._stop_torch()
        self._calls.start()
        return waited

    def stop(self) -> int:
        """Stop whatever runs; how long the device had to be waited for (ns)."""
        self._leave()
        if self._calls is not None:
            self._calls.stop()
        return self._stop_torch()

    def _leave(self) -> None:
        """Close the region: the first thing after the run."""
        self._torch.leave_region()
        if self._began is not None:
            self.wall_ns, self._began = perf_counter_ns() - self._began, None

    def _stop_torch(self) -> int:
        waited = self._torch.stop()
        for part in reversed(self._parts):
            part.stop()
        return waited

    def stop_after_failure(self) -> None:
        """Leave nothing running; what fails again here was reported already."""
        for recording in (self._calls, self._torch, *self._parts):
            try:
                if recording is not None:
                    recording.stop()
            except BaseException:
                continue

    def trace(self, refine: Callable[[Trace], Trace]) -> Trace | None:
        """What was recorded, refined; None where nothing was.

        torch's own copy of the events is freed: a later profiler may not find it there.
        """
        if not self._refined:
            recorded, self._refined = self._torch.trace(), True
            self._trace = None if recorded is None else refine(recorded)
            self._torch.forget()
        return self._trace


def started(part: Part, note: Note) -> bool:
    """Whether the part could be started; if not, it is stopped and the loss is noted."""
    try:
        part.start()
    except Exception as error:
        part.stop()
        note(f"{part.loses}: it", error)
        return False
    return True
