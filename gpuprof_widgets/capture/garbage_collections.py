"""When Python's garbage collector ran, for how long, and in which code it started.

cProfile and torch count its time as that of the function in which it happened to start. The
callback keeps numbers in an array, which the collector need not look into.
"""

from __future__ import annotations

import gc
import sys
from array import array
from collections import defaultdict
from contextlib import suppress
from threading import get_native_id
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from gpuprof_widgets.capture.interrupts import RaisedAfterwards
from gpuprof_widgets.capture.part import Context, Part, RecordClock, both_clocks, time_of_day
from gpuprof_widgets.trace.model import Trace

GENERATIONS = 3
LONG_NS = 1_000_000
"""A collection of this length is listed by itself, with the code in which it started."""
MOST_LISTED = 100
MOST_LONG = 10_000

_FIELDS = 4  # start, end, generation, collected
_PLACE = ("file", "function", "function_line", "line", "during", "collections", "time_ns")

_ONE_OFF_WORK = {
    ("<frozen importlib._bootstrap>", "_find_and_load"): "importing",
    ("convert_frame.py", "_compile"): "compiling",
}
"""Work that is done once, by file name and function: Python's import, and torch.compile's work on
a function (torch/_dynamo/convert_frame.py)."""


class _Long(NamedTuple):
    """A long collection: its thread, the line in which it started, and the one-off work around."""

    since: int
    ended: int
    generation: int
    collected: int
    thread: int
    code: CodeType
    line: int
    during: str


class GarbageCollections(Part):
    """Records the collector's sums, its longest collections and where they started."""

    loses = "no garbage collections"

    def __init__(self, context: Context) -> None:
        self._cell_labels = context.cell_labels
        self._numbers = array("q")
        self._since = 0
        self._long: list[_Long] = []
        self._callback: Any = None
        self._interrupts = RaisedAfterwards(GarbageCollections._heard.__code__, self._heard_after)
        self._began = self._ended = (0, 0)
        self.discard()

    def discard(self) -> None:
        self._clock = RecordClock()
        # By generation: count, time (ns) and collected objects.
        self._sums, self._one_off_sums = np.zeros((2, GENERATIONS, 3), np.int64)
        self._listed: list[dict[str, Any]] = []
        # By file, function and its first line, the line that ran, and the one-off work around.
        self._places: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])

    def start(self) -> None:
        self._numbers, self._long, self._since = array("q"), [], 0
        self._began = both_clocks()
        self._interrupts.watch()
        hide_from_dynamo()
        self._callback = self._heard
        gc.callbacks.append(self._callback)

    def stop(self) -> None:
        callback, self._callback = self._callback, None
        if callback is None:
            return
        with suppress(ValueError):  # the code may have emptied the list
            gc.callbacks.remove(callback)
        self._interrupts.unwatch()
        self._ended = both_clocks()

    def _heard(self, phase: str, info: dict[str, int], above: int = 1) -> None:
        """Note a collection; any thread may run this, at any place of its code.

        The code that was interrupted is so many frames ``above``.
        """
        if phase == "start":
            self._since = perf_counter_ns()
            return
        ended, since = perf_counter_ns(), self._since
        generation, collected = info["generation"], info["collected"]
        if not since:  # a signal prevented noting its start, or this is a repeated call
            return
        self._since = 0
        self._numbers.extend((since, ended, generation, collected))
        if ended - since >= LONG_NS and len(self._long) < MOST_LONG:
            with suppress(ValueError):  # a thread that runs built-in code alone has no frame
                frame = sys._getframe(above)
                self._long.append(
                    _Long(
                        *(since, ended, generation, collected, get_native_id()),
                        *(frame.f_code, frame.f_lineno or 0, _during(frame)),
                    )
                )

    def _heard_after(self, names: dict[str, Any]) -> None:
        """Note what a signal prevented `_heard`, with these local variables, from noting."""
        self._heard(names["phase"], names["info"], above=3)

    def refine(self, trace: Trace) -> Trace:
        """Count the collections that began in this window; the trace stays as it is."""
        window = self._clock.next_window(trace)
        for at in range(0, len(self._numbers), _FIELDS):
            since, ended, generation, collected = self._numbers[at : at + _FIELDS]
            if self._day(since) in window:
                self._sums[generation] += (1, ended - since, collected)
        for long in self._long:
            if self._day(long.since) in window:
                self._list(long)
        self._numbers, self._long = array("q"), []
        return trace

    def _day(self, moment: int) -> int:
        return time_of_day(moment, began=self._began, ended=self._ended)

    def _list(self, long: _Long) -> None:
        spent = long.ended - long.since
        code = long.code
        file = self._cell_labels.get(code.co_filename, code.co_filename)
        place = self._places[file, code.co_name, code.co_firstlineno, long.line, long.during]
        place[0] += 1
        place[1] += spent
        if long.during:
            self._one_off_sums[long.generation] += (1, spent, long.collected)
        self._listed.append(
            {
                "start_ns": self._clock.in_record(self._day(long.since)),
                "dur_ns": spent,
                "generation": long.generation,
                "collected": long.collected,
                "thread": long.thread,
            }
        )

    def metadata(self) -> dict[str, Any]:
        """Return ``gc``, where anything was collected; see docs/record.md."""
        counts, times, collected = self._sums.T.tolist()
        once, once_ns, _ = self._one_off_sums.T.tolist()
        if not sum(counts):
            return {}
        longest = sorted(self._listed, key=lambda row: -row["dur_ns"])[:MOST_LISTED]
        places = sorted(self._places.items(), key=lambda item: -item[1][1])[:MOST_LISTED]
        return {
            "gc": {
                "collections": counts,
                "time_ns": times,
                "once": {"collections": once, "time_ns": once_ns},
                "collected": collected,
                "longest": sorted(longest, key=lambda row: row["start_ns"]),
                "places": [
                    dict(zip(_PLACE, (*place, *sums), strict=True)) for place, sums in places
                ],
            }
        }


def hide_from_dynamo() -> None:
    """Keep dynamo, once it is imported, from compiling our callback as part of the user's code.

    A collection may begin in a frame that dynamo looks at. The callback and what it calls then run
    under dynamo.
    """
    skip = getattr(sys.modules.get("torch._dynamo.decorators"), "skip", None)
    if skip is not None:
        for function in (GarbageCollections._heard, _during):
            skip(function)


def _during(frame: FrameType | None) -> str:
    """Return the one-off work that this frame is part of, or ""."""
    while frame is not None:
        code = frame.f_code
        for (file, name), work in _ONE_OFF_WORK.items():
            if code.co_name == name and code.co_filename.endswith(file):
                return work
        frame = frame.f_back
    return ""
