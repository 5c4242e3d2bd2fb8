"""Stacks over time as slices: what samplers and files for flame graphs hold, a lane per thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.events import Events, Names, from_codes, text_codes
from gpuprof_widgets.trace.model import Trace

CATEGORY = "python_function"
"""Whatever language they are of: functions that call one another."""

PYINSTRUMENT_BUILT_IN, PYINSTRUMENT_THREAD = "<built-in>", "<thread>"
"""Files that are none, in pyinstrument's frames and in what it writes for speedscope."""


@dataclass
class Lane:
    """The calls of one thread, outer before inner ones: function, start and duration (ns) of each.

    Functions are numbers. ``repaired`` counts calls that ended before an inner one did, or did not
    end or begin at all.
    """

    title: str
    function: list[int] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    dur: list[int] = field(default_factory=list)
    repaired: int = 0
    opened: list[int] = field(default_factory=list)

    def open(self, function: int, now: int) -> None:
        """A call begins in the one that was opened last."""
        self.opened.append(len(self.function))
        self.function.append(function)
        self.ts.append(now)
        self.dur.append(0)

    def close(self, down_to: int, now: int) -> None:
        """All calls end but the outermost ``down_to`` that are open."""
        for call in self.opened[down_to:]:
            self.dur[call] = now - self.ts[call]
        del self.opened[down_to:]


def lane_of_samples(
    title: str, samples: Iterable[Sequence[int]], weights: Iterable[int], start: int
) -> Lane:
    """Samples one after another, outermost function first; what goes on is one call."""
    lane = Lane(title)
    now = start
    for stack, weight in zip(samples, weights, strict=True):
        if not weight:
            continue
        same = 0
        for call, wanted in zip(lane.opened, stack, strict=False):
            if lane.function[call] != wanted:
                break
            same += 1
        lane.close(same, now)
        for function in stack[same:]:
            lane.open(function, now)
        now += weight
    lane.close(0, now)
    return lane


def lane_of_events(title: str, events: Iterable[tuple[bool, int, int]], end: int) -> Lane:
    """Begins and ends of calls (whether it begins, function, ns), in order of time.

    A call that ends closes those in it; one that never ends, ends with the lane. Both are counted,
    and ends without a begin, which are left out. Time that goes back stands still.
    """
    lane = Lane(title)
    calls: Counter[int] = Counter()
    now: int | None = None
    for begins, function, at in events:
        now = at if now is None else max(now, at)
        if begins:
            lane.open(function, now)
            calls[function] += 1
        elif not calls[function]:
            lane.repaired += 1
        else:
            place = len(lane.opened) - 1
            while (inner := lane.function[lane.opened[place]]) != function:
                calls[inner] -= 1
                place -= 1
            calls[function] -= 1
            lane.repaired += len(lane.opened) - place - 1
            lane.close(place, now)
    lane.repaired += len(lane.opened)
    lane.close(0, max(now or 0, end))
    return lane


def frame_name(name: str, file: str, line: int) -> str:
    """A frame as torch.profiler writes it: ``train.py(12): step``; without a file the name."""
    if file == PYINSTRUMENT_BUILT_IN:
        return f"<built-in function {name}>"
    return f"{file}({line}): {name}" if file not in ("", PYINSTRUMENT_THREAD) else name


def trace_of_lanes(
    lanes: Sequence[Lane], functions: Sequence[str], process: str, epoch_ns: int = 0
) -> Trace:
    """The trace with a thread for each lane, whose functions are named by their number."""
    sizes = [len(lane.ts) for lane in lanes]
    number = np.array([n for lane in lanes for n in lane.function], np.int32)
    size = len(number)
    threads = [str(place) for place, count in enumerate(sizes, 1) for _ in range(count)]
    titles: Mapping[tuple[str, str], str] = {
        (process, str(place)): lane.title for place, lane in enumerate(lanes, 1)
    }
    events = Events(
        ts=np.array([ts for lane in lanes for ts in lane.ts], np.int64),
        dur=np.array([dur for lane in lanes for dur in lane.dur], np.int64),
        name=from_codes(number, list(functions)),
        category=text_codes([CATEGORY] * size),
        process=text_codes([process] * size),
        thread=text_codes(threads),
    )
    return assemble(events, names=Names({process: process}, titles), epoch_ns=epoch_ns)
