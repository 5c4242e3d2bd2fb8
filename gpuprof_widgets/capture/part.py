"""What a recording is made of: parts, each one topic, the recorder at work, and the clocks.

`Part` is what modules, lines, workers, ... derive from; `Context` is what a part may know of the
run. `Active` is the recorder at work in this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter_ns, time_ns
from typing import Any

from gpuprof_widgets.capture.cell import CellCode
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace


@dataclass(frozen=True)
class Context:
    """What a part may know of the run: its options, its label and the user's variables.

    ``cell_labels`` maps the file of each cell's code to the cell's label; empty in a script.
    ``code`` is the compiled cell with its rewrites; None in a script.
    ``shared`` is where parts of the same topic leave objects for each other.
    """

    options: Options
    label: str
    namespace: Mapping[str, Any]
    cell_labels: Mapping[str, str]
    code: CellCode | None = None
    shared: dict[str, Any] = field(default_factory=dict)


class Part:
    """One topic of a recording; a part overrides what it needs.

    ``start`` is called before torch.profiler starts, and ``end_regions`` before it stops. ``stop``
    is called after torch.profiler has stopped, and after every failure: it takes out whatever
    ``start`` put in, and may be called twice. All are called once per recorded window, as is
    ``refine``, with the window's trace. ``notes`` and ``metadata`` are called once, at the end.
    """

    loses = ""
    """What a profile lacks without this part, for the note that says so: "no cell lines"."""

    starts_before_loop = False
    """Start once, before the loop, rather than with each window."""

    def start(self) -> None:
        """Put in what records; nothing by default."""

    def end_regions(self) -> None:
        """End the regions that are open in torch's record."""

    def give_way(self) -> None:
        """End them, and begin no more: the user's own torch profiler has the ops from now on."""

    def stop(self) -> None:
        """Take out what ``start`` put in."""

    def discard(self) -> None:
        """Forget the windows so far: none of them is kept."""

    def refine(self, trace: Trace) -> Trace:
        """Return the trace with what this part knows."""
        return trace

    def notes(self) -> list[str]:
        """Return what was lost or not measured, one sentence each."""
        return []

    def metadata(self) -> dict[str, Any]:
        """Return this part's keys of the profile's metadata, as JSON can hold them."""
        return {}


class Active:
    """The recorder at work in this process; a second one inside it records nothing."""

    recorder: Any = None
    process = 0  # where the recorder began: a fork of that process has a copy of it
    thread = 0  # where the recorder began: it records neither ops nor calls of other threads
    inside: ContextVar[object] = ContextVar("inside", default=None)
    """The mark of the recording in which a task runs; the tasks that it begins inherit it."""
    mark: object = None
    nesting_noted = False  # a decorated function may be called a thousand times: say it once


Reading = tuple[int, int]
"""One moment on two clocks: `perf_counter_ns`, common to all processes, and ns since 1970."""


def both_clocks() -> Reading:
    """Read both clocks a few times, and return the tightest pair."""
    readings = []
    for _ in range(5):
        before, day, after = perf_counter_ns(), time_ns(), perf_counter_ns()
        readings.append((after - before, (before + after) // 2, day))
    _, clock, day = min(readings)
    return clock, day


def time_of_day(moment: int, *, began: Reading, ended: Reading) -> int:
    """Convert a `perf_counter_ns` to ns since 1970, correcting for the drift between the clocks."""
    drift = (ended[1] - began[1]) - (ended[0] - began[0])
    share = (moment - began[0]) / max(ended[0] - began[0], 1)
    return began[1] + (moment - began[0]) + round(drift * share)


class RecordClock:
    """Converts moments of a window to the record's clock, where windows follow without gaps."""

    def __init__(self) -> None:
        self._before = 0

    def next_window(self, trace: Trace) -> range:
        """Return the span (ns since 1970) of the next window; see `trace.edit.joined`."""
        start = trace.epoch_ns + trace.start_ns
        self._offset = self._before - start
        self._before += trace.span_ns
        return range(start, start + trace.span_ns)

    def in_record(self, moment: int) -> int:
        """Return a moment of the latest window as ns on the record's clock."""
        return moment + self._offset
