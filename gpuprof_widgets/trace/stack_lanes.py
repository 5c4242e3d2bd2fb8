"""Stacks over time as slices: what samplers and files for flame graphs hold, a lane per thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.events import Events, Names, from_codes, text_codes
from gpuprof_widgets.trace.model import Trace

CATEGORY = "python_function"
"""Whatever language they are of: functions that call one another."""

PYINSTRUMENT_BUILT_IN, PYINSTRUMENT_THREAD = "<built-in>", "<thread>"
"""Files that are none, in pyinstrument's frames and in what it writes for speedscope."""

SELF_FRAME = "[self]"
"""What pyinstrument calls a function's own time where it writes that as a frame."""

NO_ORDER = "totals, not in order of time"
"""Behind the title of a lane whose calls stand side by side, as their file has no times."""

NO_UNIT = (
    "the file does not say what its numbers count: each 1 is shown as 1 ns, which is right for "
    "what gpuprof_widgets wrote; of others they are samples, mostly, and shares alone mean "
    "something"
)
"""The note on a file of stacks whose numbers have no unit."""

FREE_CALLS, CALLS_PER_BYTE = 500_000, 2
"""As many calls may the samples of a file make of its tree; stacks that leap up and down a deep one
would make a small file fill the memory."""


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


@dataclass
class CallTree:
    """Functions by the path of those that called them; a node's caller stands before it.

    Node 0 is the bottom of all stacks, and no function.
    """

    caller: list[int] = field(default_factory=lambda: [-1])
    function: list[int] = field(default_factory=lambda: [-1])
    depth: list[int] = field(default_factory=lambda: [0])

    def add(self, caller: int, function: int) -> int:
        """The number of a new node."""
        self.caller.append(caller)
        self.function.append(function)
        self.depth.append(self.depth[caller] + 1)
        return len(self.caller) - 1


def lane_of_tree(title: str, tree: CallTree, own: Sequence[int]) -> Lane:
    """The tree's nodes as a call each, those of one caller side by side, in the tree's order.

    A call lasts as long as those in it and then its ``own`` time (ns), which the caller's is behind
    them; when it really was is not known, as the title says.
    """
    total = list(own)
    for node in range(len(total) - 1, 0, -1):
        total[tree.caller[node]] += total[node]
    lane = Lane(f"{title} · {NO_ORDER}")
    free = [0] * len(total)
    for node in range(1, len(total)):
        caller = tree.caller[node]
        free[node] = free[caller]
        free[caller] += total[node]
        if total[node]:
            lane.function.append(tree.function[node])
            lane.ts.append(free[node])
            lane.dur.append(total[node])
    return lane


def lane_of_tree_samples(
    title: str, tree: CallTree, nodes: Sequence[int], times: Sequence[int], most: int, path: Path
) -> Lane:
    """Samples, each the innermost node from its time (ns) on; one more time is the last one's end.

    What goes on is one call. Raises a `TraceError` where that makes more than ``most`` calls.
    """
    lane = Lane(title)
    caller, depth = tree.caller, tree.depth
    last = 0
    for node, at, until in zip(nodes, times, times[1:], strict=False):
        if until <= at:
            continue
        entered = []
        common, inner = last, node
        while common != inner:
            if depth[inner] >= depth[common]:
                entered.append(inner)
                inner = caller[inner]
            else:
                common = caller[common]
        if len(lane.function) + len(entered) > most:
            raise TraceError(
                f"{path}: its samples jump up and down a tree {max(depth):,} functions deep, which "
                f"makes more than {most:,} calls. It was made to do harm."
            )
        lane.close(depth[common], at)
        for each in reversed(entered):
            lane.open(tree.function[each], at)
        last = node
    lane.close(0, times[-1] if times else 0)
    return lane


def most_calls(size: int) -> int:
    """How many calls the samples of a file of so many bytes may make of its tree."""
    return FREE_CALLS + CALLS_PER_BYTE * size


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
    lanes: Sequence[Lane],
    functions: Sequence[str],
    process: str,
    epoch_ns: int = 0,
    language: str = "Python",
) -> Trace:
    """The trace with a thread for each lane, whose functions are named by their number.

    ``language``: what the functions are of, "" where that is not known.
    """
    threads = [(process, str(place)) for place, _ in enumerate(lanes, 1)]
    titles = {thread: lane.title for thread, lane in zip(threads, lanes, strict=True)}
    events = events_of_lanes(lanes, functions, threads)
    languages = dict.fromkeys(threads, language)
    names = Names({process: process}, titles, languages=languages)
    return assemble(events, names=names, epoch_ns=epoch_ns)


def events_of_lanes(
    lanes: Sequence[Lane], functions: Sequence[str], threads: Sequence[tuple[str, str]]
) -> Events:
    """The calls of all lanes, each on its thread (ids of the process and in it)."""
    number = np.array([n for lane in lanes for n in lane.function], np.int32)
    sizes = [len(lane.ts) for lane in lanes]
    place = np.repeat(np.arange(len(lanes), dtype=np.int32), sizes)
    return Events(
        ts=np.array([ts for lane in lanes for ts in lane.ts], np.int64),
        dur=np.array([dur for lane in lanes for dur in lane.dur], np.int64),
        name=from_codes(number, list(functions)),
        category=text_codes([CATEGORY] * len(number)),
        process=_used(place, [process for process, _ in threads]),
        thread=_used(place, [thread for _, thread in threads]),
    )


def _used(place: NDArray[np.int32], texts: Sequence[str]) -> pd.Categorical:
    return from_codes(place, texts).remove_unused_categories()
