"""What a part of a recording is, and what it may know of the run."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter_ns, time_ns
from typing import Any, Protocol

from gpuprof_widgets.capture.cell import CellCode
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace


@dataclass(frozen=True)
class Context:
    """What the parts may need to know of the run: its options, its label and the user's names.

    ``cell_labels`` names the notebook's cells by the files of their code; empty in a script.
    ``code`` is the cell, with the rewrites that were applied to it; None in a script.
    ``shared`` is what the parts of one topic tell each other.
    """

    options: Options
    label: str
    namespace: Mapping[str, Any]
    cell_labels: Mapping[str, str]
    code: CellCode | None = None
    shared: dict[str, Any] = field(default_factory=dict)


class Part(Protocol):
    """One topic of a recording.

    ``start`` comes before torch.profiler starts, ``stop`` after it has stopped and after every
    failure: it takes out whatever ``start`` put in, and may be called twice. Both may come several
    times, once for each recorded window, and ``refine`` once with the trace of each. A part whose
    class sets ``starts_before_loop`` starts once, before anything else: where only some steps of a
    loop are recorded, before the loop. The others are asked once, at the end.
    """

    @property
    def loses(self) -> str:
        """What a profile lacks without it, for the note that says so: "no cell lines"."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def refine(self, trace: Trace) -> Trace:
        """The trace with what this part knows."""

    def notes(self) -> list[str]:
        """What was lost or not measured, one sentence each."""

    def metadata(self) -> dict[str, Any]:
        """What the profile's metadata gets, as JSON can hold it."""


class Loop(Protocol):
    """A loop whose iterations are counted, and which says when the recorder's windows are."""

    @property
    def explicit(self) -> bool:
        """Whether the code itself asks for it: then it goes before one that an option bounds."""

    @property
    def recorded(self) -> int:
        """How many of its steps were recorded since the windows began."""

    def give_up(self) -> None:
        """Stop counting: another loop has taken the recorder."""

    def close(self) -> None:
        """End with the run, if it has not ended itself: its last step was left in the middle."""

    def left_out(self) -> Mapping[str, int]:
        """The names of steps that turned out to be none, and how often the first ones did."""

    def notes(self) -> list[str]: ...

    def metadata(self) -> dict[str, Any]: ...


class Windows(Protocol):
    """A recorder, as a loop uses it. None of these raises an Exception; what failed is a note."""

    def take(self, loop: Loop) -> bool:
        """Record the windows of this loop from now on, and not what ran before it.

        False, and a note, where another loop has the recorder already.
        """

    @property
    def is_taken(self) -> bool: ...

    @property
    def has_cprofile(self) -> bool: ...

    def begin_window(self, step: int) -> None:
        """Start recording with this step."""

    def end_trace(self) -> int:
        """Stop the window's trace but not its cProfile; how long it waited for the device (ns)."""

    def end_window(self) -> int:
        """Stop the window; how long it waited for the device (ns)."""

    def keep_cycle(self) -> None:
        """Save what the windows recorded until now, for a loop that records again later."""

    def begin_cycle(self) -> None:
        """Drop what the windows recorded: the loop records again."""

    @property
    def has_explicit_loop(self) -> bool:
        """Whether the loop that is recorded is one that the code bounds itself."""

    def has_work(self, *, training: bool) -> bool:
        """Whether an op or a kernel, or a backward pass, ran in the windows, which have ended."""

    def release(self) -> None:
        """Drop what the windows recorded: another loop may take the recorder."""


class Active:
    """The one recorder at work; a second one inside it records nothing."""

    recorder: Windows | None = None
    process = 0  # the one in which it began; a fork of it has a copy of the recorder
    thread = 0  # the one in which it began: of others it records neither ops nor calls
    inside: ContextVar[object] = ContextVar("inside", default=None)
    """The mark of the recording in which a task runs: tasks that it began have it as well."""
    mark: object = None
    told = False  # a decorated function may come by a thousand times: say it once


Reading = tuple[int, int]
"""The processes' common clock and the time of day at one moment (ns)."""


def both_clocks() -> Reading:
    """The tightest of a few readings of both clocks."""
    readings = []
    for _ in range(5):
        before, day, after = perf_counter_ns(), time_ns(), perf_counter_ns()
        readings.append((after - before, (before + after) // 2, day))
    _, clock, day = min(readings)
    return clock, day


def time_of_day(moment: int, *, began: Reading, ended: Reading) -> int:
    """A reading of the common clock as ns since 1970: the two clocks may drift meanwhile."""
    drift = (ended[1] - began[1]) - (ended[0] - began[0])
    share = (moment - began[0]) / max(ended[0] - began[0], 1)
    return began[1] + (moment - began[0]) + round(drift * share)


class RecordClock:
    """Where moments of a window lie in the record, in which windows follow without gaps."""

    def __init__(self) -> None:
        self._before = 0

    def next_window(self, trace: Trace) -> range:
        """The moments (ns since 1970) of the next window; see `trace.join.joined`."""
        start = trace.epoch_ns + trace.start_ns
        self._offset = self._before - start
        self._before += trace.span_ns
        return range(start, start + trace.span_ns)

    def in_record(self, moment: int) -> int:
        """A moment of the latest window as ns on the record's clock."""
        return moment + self._offset
