"""What sampling profilers left in a Chrome trace: the stacks of each thread, as a lane beside it.

There are three ways. DevTools and Node write a CPU profile of V8 in pieces (`v8_profiles`): the
event ``Profile`` is of the thread and says when it began, each ``ProfileChunk`` of its id adds
nodes and samples. Sample events (``ph: P``) and the global ``samples`` beside the events are each
one moment, with a stack by ``stackFrames``; how long it lasted they do not say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from gpuprof_widgets.trace.dialects.dialect import Parts, joined
from gpuprof_widgets.trace.gather import Gathered, id_text, times
from gpuprof_widgets.trace.known_args import with_plausible_times
from gpuprof_widgets.trace.schema import LANGUAGE, SAMPLED
from gpuprof_widgets.trace.stack_lanes import (
    CallTree,
    Lane,
    events_of_lanes,
    lane_of_tree_samples,
    most_calls,
)
from gpuprof_widgets.trace.trace_events import Event
from gpuprof_widgets.trace.v8_profiles import (
    JAVASCRIPT,
    BrokenProfileError,
    CpuProfile,
    Node,
    Number,
    Numbers,
    lane_of_profile,
    typical_interval,
)

PROFILE, CHUNK = "Profile", "ProfileChunk"
LONGEST_OF_TYPICAL = 2
"""Times the typical interval a sample lasts at most, if the next one of its thread comes later."""

Thread = tuple[str, str]


class _Start(msgspec.Struct):
    startTime: Number  # noqa: N815  # as the file has it


class _CpuProfile(msgspec.Struct):
    nodes: list[Node] = []
    samples: list[int] = []
    endTime: Number | None = None  # noqa: N815  # as the file has it


class _Chunk(msgspec.Struct):
    cpuProfile: _CpuProfile = msgspec.field(default_factory=_CpuProfile)  # noqa: N815  # as the file has it
    timeDeltas: list[Number] = []  # noqa: N815  # as the file has it
    endTime: Number | None = None  # noqa: N815  # as the file has it


@dataclass
class _Lanes:
    """The lanes found so far, the thread of each, and lines on what could not be read."""

    most: int
    path: Path
    functions: Numbers = field(default_factory=Numbers)
    lanes: list[Lane] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    languages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many calls the file may still have."""
        return self.most - sum(len(lane.ts) for lane in self.lanes)

    def add(self, thread: Thread, lane: Lane, language: str = "") -> None:
        if lane.ts:
            self.languages.append(language)
            self.lanes.append(lane)
            self.threads.append(thread)


def with_sampled_lanes(parts: Parts, file: Gathered, size: int, path: Path) -> Parts:
    """The parts with a lane for each sampled thread; ``size`` is that of the file in bytes."""
    events = file.others["P"]
    if not events and not file.samples:
        return parts
    found = _Lanes(most_calls(size), path)
    of_v8 = [event for event in events if event.name in (PROFILE, CHUNK)]
    _add_profiles(of_v8, found)
    others = [event for event in events if event.name not in (PROFILE, CHUNK)]
    _add_samples(_by_thread(others, file.samples, parts), file, found)
    if not found.lanes:
        return replace(parts, notes=[*parts.notes, *found.notes])
    own_threads, names = _apart(found, parts)
    sampled = events_of_lanes(found.lanes, list(found.functions.of), own_threads)
    language = found.languages[0] if len(set(found.languages)) == 1 else ""
    count = len(found.lanes)
    note = (
        f"{count:,} {'lane' if count == 1 else 'lanes'} of stacks from samples: calls are not "
        "counted, times are estimates"
    )
    return with_plausible_times(
        replace(
            parts,
            events=joined(parts.events, sampled) if len(parts.events) else sampled,
            names=replace(
                parts.names,
                threads={**parts.names.threads, **names},
                languages=dict(zip(own_threads, found.languages, strict=True)),
            ),
            notes=[*parts.notes, note, *found.notes],
            metadata={**parts.metadata, SAMPLED: True, LANGUAGE: language},
        )
    )


def _apart(found: _Lanes, parts: Parts) -> tuple[list[Thread], dict[Thread, str]]:
    """A thread for each lane, as several of one thread cross; the names of those that are new."""
    count: dict[Thread, int] = defaultdict(int)
    threads, names = [], {}
    for process, thread in found.threads:
        count[process, thread] += 1
        number = count[process, thread]
        own = thread if number == 1 else f"{thread} (samples {number})"
        if number > 1:
            known = parts.names.threads.get((process, thread), f"thread {thread}")
            names[process, own] = f"{known} (samples {number})"
        threads.append((process, own))
    return threads, names


# CPU profiles of V8


def _add_profiles(events: Sequence[Event], found: _Lanes) -> None:
    chunks: dict[tuple[str, str], list[Event]] = defaultdict(list)
    starts: dict[tuple[str, str], Event] = {}
    at, _, _ = times(events)
    for row in at.argsort(kind="stable").tolist():
        event = events[row]
        key = id_text(event.pid), id_text(event.id)
        if event.name == CHUNK:
            chunks[key].append(event)
        else:
            starts.setdefault(key, event)
    for key in dict.fromkeys([*starts, *chunks]):
        named = f"the CPU profile {key[1]} of process {key[0]}"
        if key not in starts:
            found.notes.append(
                f"{named} was left out: its {PROFILE!r} event, which says when it began, is missing"
            )
            continue
        thread = key[0], id_text(starts[key].tid)
        try:
            profile, broken = _profile(starts[key], chunks[key])
            lane = lane_of_profile("", profile, found.functions, found.room, found.path)
        except (BrokenProfileError, msgspec.ValidationError) as error:
            found.notes.append(f"{named} was left out: {error}")
            continue
        found.add(thread, lane, JAVASCRIPT)
        if broken:
            found.notes.append(f"{named} was read up to a chunk that is broken: {broken}")
        if unknown := _unknown(profile):
            found.notes.append(
                f"{unknown:,} of {len(profile.samples):,} samples of {named} are of a node that "
                "the file has not: nothing is shown there"
            )


def _profile(start: Event, chunks: Iterable[Event]) -> tuple[CpuProfile, str]:
    """A profile put together, and what is wrong with its first broken chunk.

    What follows that has no time, as its deltas are missing.
    """
    profile = CpuProfile(msgspec.convert((start.args or {}).get("data"), _Start).startTime)
    for event in chunks:
        try:
            chunk = msgspec.convert((event.args or {}).get("data"), _Chunk)
        except msgspec.ValidationError as error:
            return profile, str(error)
        if len(chunk.cpuProfile.samples) != len(chunk.timeDeltas):
            return profile, (
                f"{len(chunk.cpuProfile.samples):,} samples and {len(chunk.timeDeltas):,} "
                "timeDeltas, where each sample has one"
            )
        profile.nodes += chunk.cpuProfile.nodes
        profile.samples += chunk.cpuProfile.samples
        profile.deltas += chunk.timeDeltas
        ends = [end for end in (chunk.endTime, chunk.cpuProfile.endTime) if end is not None]
        profile.end = ends[0] if ends else profile.end
    return profile, ""


def _unknown(profile: CpuProfile) -> int:
    known = {node.id for node in profile.nodes}
    return sum(sample not in known for sample in profile.samples)


# Single samples


def _by_thread(
    events: Iterable[Event], listed: Iterable[Event], parts: Parts
) -> dict[tuple[Thread, str], list[Event]]:
    """The samples of each thread and kind (cycles, page faults, ...).

    Those beside the events tell the thread alone: it is of the process that has one of its id.
    """
    found: dict[tuple[Thread, str], list[Event]] = defaultdict(list)
    for event in events:
        found[(id_text(event.pid), id_text(event.tid)), event.name].append(event)
    processes: dict[str, set[str]] = defaultdict(set)
    for process, thread in _threads(parts):
        processes[thread].add(process)
    for event in listed:
        thread = id_text(event.tid)
        of = processes[thread]
        process = next(iter(of)) if len(of) == 1 else id_text(event.pid)
        found[(process, thread), event.name].append(event)
    return found


def _threads(parts: Parts) -> set[Thread]:
    process, thread = parts.events.process, parts.events.thread
    codes = set(zip(process.codes.tolist(), thread.codes.tolist(), strict=True))
    of_events = {(str(process.categories[p]), str(thread.categories[t])) for p, t in codes}
    return of_events | set(parts.names.threads)


def _add_samples(
    samples: dict[tuple[Thread, str], list[Event]], file: Gathered, found: _Lanes
) -> None:
    stacks = _Stacks(file.stack_frames, found.functions)
    total = without = untimed = alone = 0
    for (thread, kind), events in samples.items():
        total += len(events)
        at, _, timed = times(events)
        untimed += int((~timed).sum())
        nodes = [stacks.node_of(event) for event in events]
        without += sum(node is None for node in nodes)
        kept = [
            row
            for row in at.argsort(kind="stable").tolist()
            if timed[row] and nodes[row] is not None
        ]
        moments = at[kept]
        typical = typical_interval(moments)
        if not typical:
            alone += len(kept)
            continue
        own_nodes, own_times = _lasting(
            [nodes[row] or 0 for row in kept], moments.tolist(), typical
        )
        lane = lane_of_tree_samples(kind, stacks.tree, own_nodes, own_times, found.room, found.path)
        found.add(thread, lane)
    counted = [
        (without, "have no stack, or one whose frames the file has not or that call one another"),
        (untimed, "have no valid ts"),
        (alone, "are the only ones of their thread, so that it is not known how long they lasted"),
    ]
    of = f"of {total:,} samples"
    found.notes += [f"{count:,} {of} {what}: left out" for count, what in counted if count]
    if any(count for count in (total - without - untimed - alone,)):
        found.notes.append(
            "a sample lasts until the next one of its thread, at most twice as long as is typical"
        )


def _lasting(
    nodes: Sequence[int], moments: Sequence[int], typical: int
) -> tuple[list[int], list[int]]:
    """Samples with nothing on the stack where the next one comes late, and the times of all."""
    longest = LONGEST_OF_TYPICAL * typical
    own_nodes: list[int] = []
    own_times: list[int] = []
    ends = [*moments[1:], moments[-1] + typical]
    for node, at, end in zip(nodes, moments, ends, strict=True):
        own_nodes.append(node)
        own_times.append(at)
        if end - at > longest:
            own_nodes.append(0)
            own_times.append(at + longest)
    return own_nodes, [*own_times, ends[-1]]


class _Stacks:
    """The stacks of samples as nodes of one tree."""

    def __init__(self, frames: Any, functions: Numbers) -> None:
        self.tree = CallTree()
        self._frames: dict[str, Any] = frames if isinstance(frames, dict) else {}
        self._functions = functions
        self._of_frame: dict[str, int | None] = {}
        self._of_path: dict[tuple[int, int], int] = {}

    def node_of(self, event: Event) -> int | None:
        """The innermost node of a sample's stack; None if it has none."""
        if event.sf is not None:
            return self._node(str(event.sf))
        names = event.stack if isinstance(event.stack, list) else []
        node = 0
        for name in names:
            node = self._inner(node, str(name))
        return node or None

    def _node(self, frame: str) -> int | None:
        """The node of a frame by its id; None where it, or a caller, is missing or its own one."""
        path: dict[str, Any] = {}
        current: str | None = frame
        node: int | None = 0
        while current is not None:
            if current in self._of_frame:
                node = self._of_frame[current]
                break
            known = self._frames.get(current)
            if not isinstance(known, dict) or current in path:
                node = None
                self._of_frame[current] = None
                break
            path[current] = known
            parent = known.get("parent")
            current = None if parent is None else str(parent)
        for each, known in reversed(path.items()):
            node = None if node is None else self._inner(node, str(known.get("name", "")))
            self._of_frame[each] = node
        return node

    def _inner(self, caller: int, name: str) -> int:
        key = caller, self._functions[name]
        if key not in self._of_path:
            self._of_path[key] = self.tree.add(*key)
        return self._of_path[key]
