"""Stacks that sampling profilers wrote into a Chrome trace: a lane for each sampled thread.

There are three forms. DevTools and Node write a CPU profile of V8 in pieces (`v8_profiles`): the
event ``Profile`` of a thread holds its start, and each ``ProfileChunk`` of the same id adds nodes
and samples. Sample events (``ph: P``) and the file's global ``samples`` are one moment each, with a
stack in ``stackFrames``; they do not say how long it lasted.
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
"""Longest duration of a sample in typical intervals, if its thread's next sample comes later."""

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
    """The lanes so far, the thread and language of each, and notes on unreadable content."""

    most: int
    path: Path
    functions: Numbers = field(default_factory=Numbers)
    lanes: list[Lane] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    languages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Number of calls that the file may still have."""
        return self.most - sum(len(lane.ts) for lane in self.lanes)

    def add(self, thread: Thread, lane: Lane, language: str = "") -> None:
        if lane.ts:
            self.languages.append(language)
            self.lanes.append(lane)
            self.threads.append(thread)


def with_sampled_lanes(parts: Parts, file: Gathered, size: int, path: Path) -> Parts:
    """Add a lane for each sampled thread; ``size`` is that of the file in bytes."""
    events = file.others["P"]
    if not events and not file.samples:
        return parts
    lanes = _Lanes(most_calls(size), path)
    of_v8 = [event for event in events if event.name in (PROFILE, CHUNK)]
    _add_profiles(of_v8, lanes)
    others = [event for event in events if event.name not in (PROFILE, CHUNK)]
    _add_samples(_by_thread(others, file.samples, parts), file, lanes)
    if not lanes.lanes:
        return replace(parts, notes=[*parts.notes, *lanes.notes])
    threads, names = _apart(lanes, parts)
    sampled = events_of_lanes(lanes.lanes, list(lanes.functions.of), threads)
    language = lanes.languages[0] if len(set(lanes.languages)) == 1 else ""
    count = len(lanes.lanes)
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
                languages=dict(zip(threads, lanes.languages, strict=True)),
            ),
            notes=[*parts.notes, note, *lanes.notes],
            metadata={**parts.metadata, SAMPLED: True, LANGUAGE: language},
        )
    )


def _apart(lanes: _Lanes, parts: Parts) -> tuple[list[Thread], dict[Thread, str]]:
    """Return a thread for each lane, as lanes of one thread cross, and the new threads' names."""
    count: dict[Thread, int] = defaultdict(int)
    threads, names = [], {}
    for process, thread in lanes.threads:
        count[process, thread] += 1
        number = count[process, thread]
        lane_thread = thread if number == 1 else f"{thread} (samples {number})"
        if number > 1:
            known = parts.names.threads.get((process, thread), f"thread {thread}")
            names[process, lane_thread] = f"{known} (samples {number})"
        threads.append((process, lane_thread))
    return threads, names


def _add_profiles(events: Sequence[Event], lanes: _Lanes) -> None:
    """Add the CPU profiles of V8 that these events hold."""
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
            lanes.notes.append(
                f"{named} was left out: its {PROFILE!r} event, which says when it began, is missing"
            )
            continue
        thread = key[0], id_text(starts[key].tid)
        try:
            profile, broken = _profile(starts[key], chunks[key])
            lane = lane_of_profile("", profile, lanes.functions, lanes.room, lanes.path)
        except (BrokenProfileError, msgspec.ValidationError) as error:
            lanes.notes.append(f"{named} was left out: {error}")
            continue
        lanes.add(thread, lane, JAVASCRIPT)
        if broken:
            lanes.notes.append(f"{named} was read up to a broken chunk: {broken}")
        if unknown := _unknown(profile):
            lanes.notes.append(
                f"{unknown:,} of {len(profile.samples):,} samples of {named} name a node that "
                "the file lacks: nothing is shown there"
            )


def _profile(start: Event, chunks: Iterable[Event]) -> tuple[CpuProfile, str]:
    """Return a profile up to its first broken chunk, and the error of that chunk ("" if none).

    Later chunks have no time, because the deltas before them are missing.
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
    """Count the samples of nodes that the profile does not have."""
    known = {node.id for node in profile.nodes}
    return sum(sample not in known for sample in profile.samples)


def _by_thread(
    events: Iterable[Event], listed: Iterable[Event], parts: Parts
) -> dict[tuple[Thread, str], list[Event]]:
    """Group the samples by thread and kind (cycles, page faults, ...).

    The ``listed`` ones, the file's global samples, name the thread only; its process is the one
    that has a thread of this id.
    """
    samples: dict[tuple[Thread, str], list[Event]] = defaultdict(list)
    for event in events:
        samples[(id_text(event.pid), id_text(event.tid)), event.name].append(event)
    processes: dict[str, set[str]] = defaultdict(set)
    for process, thread in _threads(parts):
        processes[thread].add(process)
    for event in listed:
        thread = id_text(event.tid)
        candidates = processes[thread]
        process = next(iter(candidates)) if len(candidates) == 1 else id_text(event.pid)
        samples[(process, thread), event.name].append(event)
    return samples


def _threads(parts: Parts) -> set[Thread]:
    process, thread = parts.events.process, parts.events.thread
    codes = set(zip(process.codes.tolist(), thread.codes.tolist(), strict=True))
    of_events = {(str(process.categories[p]), str(thread.categories[t])) for p, t in codes}
    return of_events | set(parts.names.threads)


def _add_samples(
    samples: dict[tuple[Thread, str], list[Event]], file: Gathered, lanes: _Lanes
) -> None:
    """Add a lane for the samples of each thread and kind."""
    stacks = _Stacks(file.stack_frames, lanes.functions)
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
        sampled = [nodes[row] or 0 for row in kept]
        steps, starts = _with_gaps(sampled, moments.tolist(), typical)
        lane = lane_of_tree_samples(kind, stacks.tree, steps, starts, lanes.room, lanes.path)
        lanes.add(thread, lane)
    counted = [
        (without, "have no stack, or one whose frames are missing or call one another in a circle"),
        (untimed, "have no valid ts"),
        (alone, "are the only ones of their thread, so that it is not known how long they lasted"),
    ]
    of = f"of {total:,} samples"
    lanes.notes += [f"{count:,} {of} {reason}: left out" for count, reason in counted if count]
    if total - without - untimed - alone:
        lanes.notes.append(
            "a sample lasts until the next one of its thread, at most twice as long as is typical"
        )


def _with_gaps(
    nodes: Sequence[int], moments: Sequence[int], typical: int
) -> tuple[list[int], list[int]]:
    """Return nodes and their times, with an empty stack (node 0) where the next sample is late.

    One more time is the end of the last sample.
    """
    longest = LONGEST_OF_TYPICAL * typical
    steps: list[int] = []
    starts: list[int] = []
    ends = [*moments[1:], moments[-1] + typical]
    for node, at, end in zip(nodes, moments, ends, strict=True):
        steps.append(node)
        starts.append(at)
        if end - at > longest:
            steps.append(0)
            starts.append(at + longest)
    return steps, [*starts, ends[-1]]


class _Stacks:
    """Turns the stacks of samples into nodes of one tree."""

    def __init__(self, frames: Any, functions: Numbers) -> None:
        self.tree = CallTree()
        self._frames: dict[str, Any] = frames if isinstance(frames, dict) else {}
        self._functions = functions
        self._of_frame: dict[str, int | None] = {}
        self._of_path: dict[tuple[int, int], int] = {}

    def node_of(self, event: Event) -> int | None:
        """Return the innermost node of a sample's stack; None if it has no stack."""
        if event.sf is not None:
            return self._node(str(event.sf))
        names = event.stack if isinstance(event.stack, list) else []
        node = 0
        for name in names:
            node = self._inner(node, str(name))
        return node or None

    def _node(self, frame: str) -> int | None:
        """Return the node of a frame by its id.

        It is None if the frame, or a caller, is missing or calls itself.
        """
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
