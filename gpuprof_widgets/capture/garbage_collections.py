"""When Python's garbage collector ran, for how long and where: nobody else says so.

cProfile and torch count its time as that of the function in which it happened to start. What is
heard of a collection is put into an array of numbers, so that listening makes no garbage.
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

from gpuprof_widgets.capture.interrupts import RaisedAfterwards
from gpuprof_widgets.capture.part import Context, RecordClock, both_clocks, time_of_day
from gpuprof_widgets.trace.model import Trace

GENERATIONS = 3
LONG_NS = 1_000_000
"""From here on a collection is told alone, with the code in which it started."""
MOST_LISTED = 100
MOST_LONG = 10_000
ROOM = 50_000
"""Collections of one window whose times are kept; of further ones the sums (2 MB)."""

_FIELDS = 4  # start, end, generation, collected


_ONCE = {
    ("<frozen importlib._bootstrap>", "_find_and_load"): "importing",
    ("convert_frame.py", "_compile"): "compiling",
}
"""What is done once, by the end of the file and the function that do it: Python's import, and
torch.compile's work on a function (torch/_dynamo/convert_frame.py)."""


class _Long(NamedTuple):
    """A long collection: its thread, the line that ran as it started, and what that was part of."""

    since: int
    ended: int
    generation: int
    collected: int
    thread: int
    code: CodeType
    line: int
    during: str


class _Place(NamedTuple):
    """Where long collections started: the function and its first line, the line that ran."""

    file: str
    function: str
    function_line: int
    line: int
    during: str


class GarbageCollections:
    """Listens to the collector and tells sums, the longest collections and where they started."""

    loses = "no garbage collections"

    def __init__(self, context: Context) -> None:
        self._cell_labels = context.cell_labels
        self._numbers = array("q")
        self._end = self._since = 0
        self._further = [[0, 0, 0] for _ in range(GENERATIONS)]
        self._long: list[_Long] = []
        self._callback: Any = None
        self._interrupts = RaisedAfterwards(GarbageCollections._heard.__code__, self._heard_after)
        self._began = self._ended = (0, 0)
        self.discard()

    def discard(self) -> None:
        """Begin with nothing, as no window so far is kept."""
        self._clock = RecordClock()
        self._sums = [[0, 0, 0] for _ in range(GENERATIONS)]
        self._listed: list[dict[str, Any]] = []
        self._once = [[0, 0, 0] for _ in range(GENERATIONS)]
        self._places: defaultdict[_Place, list[int]] = defaultdict(lambda: [0, 0, 0])

    def start(self) -> None:
        if not self._numbers:
            self._numbers = array("q", bytes(8 * _FIELDS * ROOM))
        self._end, self._long = 0, []
        self._further = [[0, 0, 0] for _ in range(GENERATIONS)]
        self._began = both_clocks()
        self._since = 0
        self._interrupts.watch()
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
        """Note a collection; it may be any thread that runs this, at any place of its code.

        The collector was called so many frames ``above``.
        """
        if phase == "start":
            self._since = perf_counter_ns()
            return
        ended, end, numbers = perf_counter_ns(), self._end, self._numbers
        since, generation, collected = self._since, info["generation"], info["collected"]
        if not since:  # a signal kept its start from being noted, or this is heard again
            return
        self._since = 0
        if end < ROOM * _FIELDS:
            numbers[end], numbers[end + 1] = since, ended
            numbers[end + 2], numbers[end + 3] = generation, collected
            self._end = end + _FIELDS
        else:
            _add(self._further[generation], ended - since, collected)
        if ended - since >= LONG_NS and len(self._long) < MOST_LONG:
            frame = sys._getframe(above)
            self._long.append(
                _Long(
                    *(since, ended, generation, collected, get_native_id()),
                    *(frame.f_code, frame.f_lineno or 0, _during(frame)),
                )
            )

    def _heard_after(self, names: dict[str, Any]) -> None:
        """Note what a signal kept `_heard`, with these names, from noting."""
        self._heard(names["phase"], names["info"], above=3)

    def refine(self, trace: Trace) -> Trace:
        """Count what began in this window; the trace is as it was."""
        window = self._clock.next_window(trace)
        for at in range(0, self._end, _FIELDS):
            since, ended, generation, collected = self._numbers[at : at + _FIELDS]
            if self._day(since) in window:
                _add(self._sums[generation], ended - since, collected)
        for generation, (count, spent, collected) in enumerate(self._further):
            _add(self._sums[generation], spent, collected, count)
        for one in self._long:
            if self._day(one.since) in window:
                self._list(one)
        self._end, self._long = 0, []
        self._further = [[0, 0, 0] for _ in range(GENERATIONS)]
        return trace

    def _day(self, moment: int) -> int:
        return time_of_day(moment, began=self._began, ended=self._ended)

    def _list(self, one: _Long) -> None:
        spent = one.ended - one.since
        code = one.code
        file = self._cell_labels.get(code.co_filename, code.co_filename)
        place = _Place(file, code.co_name, code.co_firstlineno, one.line, one.during)
        _add(self._places[place], spent, one.collected)
        if one.during:
            _add(self._once[one.generation], spent, one.collected)
        self._listed.append(
            {
                "start_ns": self._clock.in_record(self._day(one.since)),
                "dur_ns": spent,
                "generation": one.generation,
                "collected": one.collected,
                "thread": one.thread,
            }
        )

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        """``gc``, where anything was collected; see docs/record.md."""
        counts, times, collected = (list(column) for column in zip(*self._sums, strict=True))
        if not sum(counts):
            return {}
        longest = sorted(self._listed, key=lambda one: -one["dur_ns"])[:MOST_LISTED]
        places = sorted(self._places.items(), key=lambda item: -item[1][1])[:MOST_LISTED]
        return {
            "gc": {
                "collections": counts,
                "time_ns": times,
                "once": {
                    "collections": [count for count, _, _ in self._once],
                    "time_ns": [spent for _, spent, _ in self._once],
                },
                "collected": collected,
                "longest": sorted(longest, key=lambda one: one["start_ns"]),
                "places": [
                    {**place._asdict(), "collections": count, "time_ns": spent}
                    for place, (count, spent, _) in places
                ],
            }
        }


def _during(frame: FrameType | None) -> str:
    """What is done once of which this frame is part; "" of anything else."""
    while frame is not None:
        code = frame.f_code
        for (file, name), what in _ONCE.items():
            if code.co_name == name and code.co_filename.endswith(file):
                return what
        frame = frame.f_back
    return ""


def _add(sums: list[int], spent: int, collected: int, count: int = 1) -> None:
    sums[0] += count
    sums[1] += spent
    sums[2] += collected
