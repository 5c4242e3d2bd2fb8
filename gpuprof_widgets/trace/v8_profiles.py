"""CPU profiles of V8 (Chrome, Node, Deno): a tree of calls, and samples of it in order of time.

The format is ``Profiler.Profile`` of the Chrome DevTools Protocol. A ``.cpuprofile`` file is one
profile; a performance recording of DevTools holds one in pieces (``ProfileChunk``). Times are µs of
a monotonic clock: the first of ``timeDeltas`` counts from ``startTime``, each later one from the
sample before. V8 may write a sample late, so a delta can be negative. Lines count from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.stack_lanes import CallTree, Lane, frame_name, lane_of_tree_samples

JAVASCRIPT = "JavaScript"

NOTHING_RAN = frozenset(("(root)", "(idle)"))
"""V8's names of the bottom of all stacks, and of a waiting thread, which are no functions."""
GARBAGE_COLLECTOR = "(garbage collector)"
ANONYMOUS = "(anonymous)"
LONGEST_NS = 2**62

Number = int | float
Ints = NDArray[np.int64]


class BrokenProfileError(ValueError):
    """A profile whose parts do not fit together; the message says which."""


class CallFrame(msgspec.Struct):
    """A function: its name, its script, and the line in it (from 0; -1: unknown)."""

    functionName: str = ""  # noqa: N815  # as the file has it
    url: str = ""
    lineNumber: int = -1  # noqa: N815  # as the file has it


class Node(msgspec.Struct):
    """A function on a path of calls; files have its children, recordings its parent."""

    id: int
    callFrame: CallFrame  # noqa: N815  # as the file has it
    parent: int | None = None
    children: list[int] | None = None


@dataclass
class CpuProfile:
    """One profile of a thread; ``start`` and ``end`` are µs, ``end`` None if unknown."""

    start: Number
    end: Number | None = None
    nodes: list[Node] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    deltas: list[Number] = field(default_factory=list)


@dataclass
class Numbers:
    """The number of each function's name, over all profiles of a file."""

    of: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.of.setdefault(name, len(self.of))


def check_whole(profile: CpuProfile) -> None:
    """Raise a `BrokenProfileError` if a node or sample names a node that does not exist."""
    known = {node.id for node in profile.nodes}
    for place, node in enumerate(profile.nodes):
        for other in [*(node.children or ()), *([] if node.parent is None else [node.parent])]:
            if other not in known:
                raise BrokenProfileError(f"nodes[{place}] names the node {other}, which is missing")
    for place, sample in enumerate(profile.samples):
        if sample not in known:
            raise BrokenProfileError(f"samples[{place}] names the node {sample}, which is missing")


def lane_of_profile(
    title: str, profile: CpuProfile, functions: Numbers, most: int, path: Path
) -> Lane:
    """Turn the samples into ``most`` calls at most; a sample lasts until the next one.

    The last one lasts until the profile ends, or as long as most if the end is unknown. The stack
    is empty where a sample's node is unknown. As in DevTools, the garbage collector is on top of
    the function that ran before.
    """
    if len(profile.samples) != len(profile.deltas):
        raise BrokenProfileError(
            f"it has {len(profile.samples):,} samples and {len(profile.deltas):,} timeDeltas, "
            "where each sample has one"
        )
    tree, node_of, collectors = _tree(profile.nodes, functions)
    times, order = _times(profile)
    collecting: dict[int, int] = {}
    nodes: list[int] = []
    running = 0
    for place in order:
        sample = profile.samples[place]
        if sample in collectors:
            if running not in collecting:
                collecting[running] = tree.add(running, functions[GARBAGE_COLLECTOR])
            nodes.append(collecting[running])
        else:
            running = node_of.get(sample, 0)
            nodes.append(running)
    return lane_of_tree_samples(title, tree, nodes, times, most, path)


def _times(profile: CpuProfile) -> tuple[list[int], list[int]]:
    """Return the sorted times (ns) of the samples and the last one's end, and the sort order."""
    taken = _ns([profile.start, *profile.deltas]).cumsum()[1:]
    if not len(taken):
        return [], []
    order = np.argsort(taken, kind="stable")
    times = taken[order]
    last = int(times[-1])
    end = last if profile.end is None else int(_ns([profile.end])[0])
    if end <= last:
        end = last + typical_interval(times)
    return [*times.tolist(), end], order.tolist()


def typical_interval(times: Ints) -> int:
    """Return the median interval (ns) between these sorted moments; 0 if there is none.

    Several samples of one moment count as one.
    """
    between = np.diff(times)
    between = between[between > 0]
    return int(np.median(between)) if len(between) else 0


def _ns(microseconds: Sequence[Number]) -> Ints:
    """Return whole nanoseconds, exact where the file has whole microseconds."""
    with np.errstate(over="ignore"):  # infinity is refused as well
        rough = np.array(microseconds, dtype=np.float64) * 1000
        length = np.abs(rough).sum()
    if not length < LONGEST_NS:
        raise BrokenProfileError("its times are too large: in ns they add up to more than 2**62")
    if all(type(each) is int for each in microseconds):
        return np.array(microseconds, dtype=np.int64) * 1000
    return np.rint(rough).astype(np.int64)


def _tree(
    nodes: Sequence[Node], functions: Numbers
) -> tuple[CallTree, dict[int, int], frozenset[int]]:
    """Return the tree, each node's place in it by id, and the ids of garbage collectors."""
    by_id: dict[int, Node] = {}
    for node in nodes:
        if node.id in by_id:
            raise BrokenProfileError(f"two of its nodes have the id {node.id}")
        by_id[node.id] = node
    caller = {node.id: node.parent for node in nodes if node.parent is not None}
    for node in nodes:
        for child in node.children or ():
            if caller.setdefault(child, node.id) != node.id:
                raise BrokenProfileError(
                    f"the node {child} has two callers, {caller[child]} and {node.id}"
                )
    tree = CallTree()
    place: dict[int, int] = {}
    for node in nodes:
        path = _path(node.id, caller, by_id, place)
        for each in reversed(path):
            frame = by_id[each].callFrame
            above = place.get(caller.get(each, each), 0)
            nothing = frame.functionName in NOTHING_RAN and not frame.url
            place[each] = above if nothing else tree.add(above, functions[_named(frame)])
    of_garbage = {n.id for n in nodes if n.callFrame.functionName == GARBAGE_COLLECTOR}
    return tree, place, frozenset(of_garbage)


def _path(
    node: int, caller: dict[int, int], by_id: dict[int, Node], place: dict[int, int]
) -> list[int]:
    """Return the node and its callers that have no place yet, innermost first."""
    path: dict[int, None] = {}
    current: int | None = node
    while current is not None and current in by_id and current not in place:
        if current in path:
            raise BrokenProfileError(f"the node {current} is among its own callers")
        path[current] = None
        current = caller.get(current)
    return list(path)


def _named(frame: CallFrame) -> str:
    name = frame.functionName or ANONYMOUS
    # Without a line, the script alone does not identify the function.
    return frame_name(name, frame.url if frame.lineNumber >= 0 else "", frame.lineNumber + 1)
