"""Stacks over time as slices, a lane per thread: the content of samplers and flame graph files."""

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
"""Category of the functions of any language."""

PYINSTRUMENT_BUILT_IN, PYINSTRUMENT_THREAD = "<built-in>", "<thread>"
"""Names in place of a file, in pyinstrument's frames and in its files for speedscope."""

SELF_FRAME = "[self]"
"""Name of pyinstrument's frames for a function's self time."""

NO_ORDER = "totals, not in order of time"
"""End of the title of a lane whose calls are side by side, because their file has no times."""

NO_UNIT = (
    "the file does not say what its numbers count: each 1 is shown as 1 ns, which is right for "
    "files that gpuprof_widgets wrote; in most other files each 1 is a sample, and only the shares "
    "mean something"
)
"""The note on a file of stacks whose numbers have no unit."""

FREE_CALLS, CALLS_PER_BYTE = 500_000, 2
"""Limit on the calls that a file's samples make of its tree: so many are free, and so many more per
byte. Stacks that leap up and down a deep tree would let a small file fill the memory."""


@dataclass
class Lane:
    """The calls of one thread, outer before inner ones: function number, start, duration (ns).

    ``repaired`` counts calls that ended before an inner one, or had no end or no begin.
    """

    title: str
    function: list[int] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    dur: list[int] = field(default_factory=list)
    repaired: int = 0
    opened: list[int] = field(default_factory=list)

    def open(self, function: int, now: int) -> None:
        """Begin a call within the one that was opened last."""
        self.opened.append(len(self.function))
        self.function.append(function)
        self.ts.append(now)
        self.dur.append(0)

    def close(self, down_to: int, now: int) -> None:
        """End all open calls except the outermost ``down_to``."""
        for call in self.opened[down_to:]:
            self.dur[call] = now - self.ts[call]
        del self.opened[down_to:]


def lane_of_samples(
    title: str, samples: Iterable[Sequence[int]], weights: Iterable[int], start: int
) -> Lane:
    """Turn consecutive samples, outermost function first, into calls; equal neighbours are one."""
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
    """Functions by the path of their callers; a node's caller comes before it.

    Node 0 is the bottom of all stacks, and no function.
    """

    caller: list[int] = field(default_factory=lambda: [-1])
    function: list[int] = field(default_factory=lambda: [-1])
    depth: list[int] = field(default_factory=lambda: [0])

    def add(self, caller: int, function: int) -> int:
        """Add a node, and return its number."""
        self.caller.append(caller)
        self.function.append(function)
        self.depth.append(self.depth[caller] + 1)
        return len(self.caller) - 1


def lane_of_tree(title: str, tree: CallTree, self_ns: Sequence[int]) -> Lane:
    """Turn each node into a call; the calls of one caller are side by side, in the tree's order.

    A call lasts as long as its callees, and then its ``self_ns``. The real times are unknown, as
    the title says.
    """
    total = list(self_ns)
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
    """Turn samples, each the innermost node from its time (ns) on, into calls.

    One more time is the end of the last sample. A function that goes on is one call. More than
    ``most`` calls raise a `TraceError`.
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
    """Return the number of calls that the samples of a file of ``size`` bytes may make."""
    return FREE_CALLS + CALLS_PER_BYTE * size


def lane_of_events(title: str, events: Iterable[tuple[bool, int, int]], end: int) -> Lane:
    """Turn begins and ends (whether it begins, function, ns), in order of time, into calls.

    A call that ends closes the calls in it; one that never ends, ends with the lane. Both count as
    repaired, and so do ends without a begin, which are left out. Time never goes back.
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
    """Return a frame as torch.profiler writes it: ``train.py(12): step``, or a name alone."""
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
    """Return a trace with a thread for each lane; ``functions`` are the names by number.

    ``language`` is that of the functions, "" if unknown.
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
    """Return the calls of all lanes as events, each on its thread (process id, thread id)."""
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
