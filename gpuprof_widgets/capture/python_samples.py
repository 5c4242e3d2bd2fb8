"""Samples of Python's stacks, as slices on the threads' Python tracks: the option ``python``.

CPython handles a signal where a function begins, at jumps back and after calls of C. By then an op
has ended, and the function that called it may have returned. But the thread that samples other
threads runs where the main thread is in an op or other long code of C: it saw the call. Other time
goes to the code since the last place where signals were handled, as far as stacks tell it.
`DelayedStacks` does that.
"""

from __future__ import annotations

import dis
import linecache
import os
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from threading import get_ident
from types import CodeType
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.capture.code import is_installed, name_in_package
from gpuprof_widgets.capture.frame_filter import users_frames
from gpuprof_widgets.capture.part import Context, Part, both_clocks, time_of_day
from gpuprof_widgets.capture.sampled_frames import (
    ExactSlices,
    Frame,
    Sample,
    slices_of_samples,
    without_later_calls,
)
from gpuprof_widgets.capture.stack_samplers import (
    INTERVAL_NS,
    Stacks,
    ThreadSampler,
    ThreadSamples,
    TimerSampler,
)
from gpuprof_widgets.trace.edit import NewSlice, NewTrack, with_slices
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.pstats import frame_name
from gpuprof_widgets.trace.schema import NONE, SAMPLED

_PACKAGES = ("site-packages", "dist-packages")
LONGEST_TEXT = 200
Stack = tuple[int, ...]
"""As in `Stacks`: two numbers for each frame, the innermost first."""
GOLDEN_RATIO = 0.618033988749895
"""Its multiples, less their whole parts, are as even as can be, however many they are."""


_OURS = str(Path(__file__).parent) + os.sep
"""Files whose functions hear of signals and collections: nothing in a user's code calls them."""


def python_samples(context: Context) -> Part | None:
    """Return the part if samples are asked for and no exact frames are recorded."""
    options = context.options
    return PythonSamples(context) if options.samples_python and not options.stack else None


class PythonSamples(Part):
    """Samples the stacks of all threads, and adds them to the trace as frames."""

    loses = "no samples of Python"

    def __init__(self, context: Context) -> None:
        self._cell_labels = context.cell_labels
        self._label = context.label
        self._timer: TimerSampler | None = None
        self._threads: ThreadSampler | None = None
        self.discard()

    def discard(self) -> None:
        self._gaps: list[int] = []
        self._samples = 0
        self._found: bool | None = None
        self._code: dict[str, dict[int, str]] = defaultdict(dict)
        self._lost = self._error = ""

    def start(self) -> None:
        self._stacks = Stacks()
        self._main, self._before = get_ident(), set(sys._current_frames())
        self._timer = TimerSampler(self._stacks)
        self._timer.start()
        self._threads = ThreadSampler(self._stacks, self._timer)
        self._began = both_clocks()
        self._threads.start()

    def stop(self) -> None:
        for sampler in (self._threads, self._timer):  # the first one uses the second
            if sampler is not None:
                sampler.stop()
        self._ended = both_clocks()

    def refine(self, trace: Trace) -> Trace:
        """Add the samples of this window as frames."""
        assert self._timer is not None
        assert self._threads is not None
        slices, tracks = trace.slices, trace.tracks
        is_region = (slices["category"] == "user_annotation") & (slices["name"] == self._label)
        if not is_region.any():
            return trace
        region = slices[is_region].sort_values("dur", kind="stable").iloc[-1]
        begin, end = int(region["ts"]) + 1, int(region["ts"] + region["dur"])
        of_run = tracks.iloc[int(region["track"])]
        self._lost = self._timer.lost or self._lost
        if self._threads.error is not None:
            self._error = f"samples of other threads end early: {self._threads.error!r}"
        names, stacks = _FrameNames(self._stacks, self._cell_labels), DelayedStacks(self._stacks)
        all_slices = ExactSlices(trace)
        exact = all_slices.of_lane(int(of_run["lane"]))
        noted = self._threads.of_main.tolist()
        for moment, stack in zip(noted[::2], noted[1::2], strict=True):
            at = self._time(moment, trace)
            stacks.note(at, stack, [exact.names[row] for row in exact.open(at, "cpu_op")])
        threads: defaultdict[str, list[ThreadSamples]] = defaultdict(list)
        for samples in (self._timer.samples, *self._threads.samples):
            number = str(samples.native or samples.thread)
            threads[of_run["thread"] if samples.thread == self._main else number].append(samples)
        added, new_tracks = list[NewSlice](), list[NewTrack]()
        for number, parts in threads.items():
            is_run = number == of_run["thread"]
            new_track = _new_track(tracks, of_run["process"], number)
            exact = all_slices.of_lane(new_track.lane)
            span = range(begin, end)
            read = [self._read(one, stacks, names, exact, trace, span) for one in parts]
            if is_run:
                read = [list(chain.from_iterable(read))]
                self._samples += len(read[0])
                self._gaps += [after.at - before.until for before, after in pairwise(read[0])]
            frames = [frame for found in read for sample in found for frame in sample.stack]
            is_idle = parts[0].thread in self._before and not any(frame.line for frame in frames)
            if not frames or (is_idle and not is_run):
                continue
            for found in filter(None, read):
                # Other threads may exist for a part of the run.
                since = begin if is_run else max(found[0].at - INTERVAL_NS // 2, begin)
                until = end if is_run else min(found[-1].until + INTERVAL_NS // 2, end)
                track = len(tracks) + len(new_tracks)
                added += slices_of_samples(found, track, exact, since, until)
            new_tracks.append(new_track)
        for file, lines in names.code.items():
            self._code[file] |= lines
        self._timer = self._threads = None
        self._found = bool(added) or bool(self._found)
        return with_slices(trace, added, new_tracks)

    def _time(self, moment: int, trace: Trace) -> int:
        """Return the time in the trace of a moment of `perf_counter_ns`."""
        return time_of_day(moment, began=self._began, ended=self._ended) - trace.epoch_ns

    def _read(
        self,
        samples: ThreadSamples,
        stacks: DelayedStacks,
        names: _FrameNames,
        exact: ExactSlices,
        trace: Trace,
        span: range,
    ) -> list[Sample]:
        """Return the samples of a thread within a span."""
        numbers, found = samples.numbers.tolist(), list[Sample]()
        for place in range(0, len(numbers), ThreadSamples.FIELDS):
            *moments, stack = numbers[place : place + ThreadSamples.FIELDS]
            at, until, read = (self._time(moment, trace) for moment in moments)
            if at not in span or until not in span:
                continue
            frames = names.of(stacks.stack_of[stack])
            if until < read:  # by a signal
                middle = (at + until) // 2  # `at` itself may be just before the op that kept it
                if (noted := stacks.in_op(middle, read, exact)) is not None:
                    frames = names.of(noted)
                else:
                    frames = names.of(stacks.before(stack))
                    frames = without_later_calls(frames, middle, read, exact)
            found.append(Sample(at, until, frames))
        return found

    def metadata(self) -> dict[str, Any]:
        """Return ``sampled`` and ``python_samples``; see docs/record.md."""
        if not self._found:
            return {}
        return {
            SAMPLED: True,
            "python_samples": {
                "by_signal": not self._lost,
                "samples": self._samples,
                "interval_ns": INTERVAL_NS,
                "median_ns": int(np.median(self._gaps or [INTERVAL_NS])),
                "code": {
                    file: {str(line): lines[line] for line in sorted(lines)}
                    for file, lines in sorted(self._code.items())
                },
            },
        }

    def notes(self) -> list[str]:
        """Say where samples are less than they should be."""
        notes = [self._error] if self._error else []
        if self._found is False:
            return ["Python was not sampled: the run was too short for a sample", *notes]
        if not self._lost:
            return notes
        return [
            f"Python was sampled from a second thread, because {self._lost}: code between ops is "
            "found too rarely, and ops too often",
            *notes,
        ]


def _new_track(tracks: pd.DataFrame, process: str, number: str) -> NewTrack:
    """Return the track for a thread's samples, in the lane of its ops if it has some."""
    is_own = (tracks["process"] == process) & (tracks["thread"] == number)
    own = tracks[is_own & (tracks["kind"] == "cpu")]
    if len(own):
        label, lane = own["label"].iloc[0], int(own["lane"].iloc[0])
        return NewTrack("python", f"{label} · Python", process, number, lane)
    return NewTrack("python", f"thread {number} · Python", process, number)


class _FrameNames:
    """Names the frames of stacks; ``code`` is the text of the user's lines in them, by file."""

    def __init__(self, stacks: Stacks, cell_labels: Mapping[str, str]) -> None:
        self.code: dict[str, dict[int, str]] = defaultdict(dict)
        self._codes = stacks.codes
        self._cell_labels = cell_labels
        self._stacks: dict[Stack, tuple[Frame, ...]] = {}
        self._frames: dict[tuple[int, int], Frame] = {}
        self._names: dict[str, str] = {}
        folders = {f"{Path(path).absolute()}{os.sep}" for path in sys.path}
        self._folders = sorted(folders, key=len, reverse=True)

    def of(self, stack: Stack) -> tuple[Frame, ...]:
        """Return the user's frames of a stack and what they called, outermost first."""
        if stack not in self._stacks:
            frames = list(zip(stack[::2], stack[1::2], strict=True))[::-1]
            kept = users_frames([self._codes[code].co_filename for code, _ in frames])
            self._stacks[stack] = tuple(self._frame(*frames[place]) for place in kept)
        return self._stacks[stack]

    def _frame(self, number: int, at: int) -> Frame:
        if (number, at) not in self._frames:
            self._frames[number, at] = self._named(self._codes[number], at)
        return self._frames[number, at]

    def _named(self, code: CodeType, at: int) -> Frame:
        path, is_cells = code.co_filename, code.co_filename in self._cell_labels
        file = self._cell_labels.get(path) or self._shown(path)
        frame = Frame(frame_name(code.co_name, file, code.co_firstlineno), 0, is_cells)
        if is_installed(path) and not is_cells:
            return frame
        lines = (line for start, end, line in code.co_lines() if start <= at < end)
        line = next(lines, None) or code.co_firstlineno
        if line not in self.code[file]:
            self.code[file][line] = linecache.getline(path, line).strip()[:LONGEST_TEXT]
        return frame._replace(line=line)

    def _shown(self, path: str) -> str:
        """Return the path as torch.profiler shows it, from the folder of ``sys.path`` on.

        But packages stay behind ``site-packages``, for they are not the user's, except torch; and
        of two files that would look the same, the second keeps its whole path.
        """
        if path not in self._names:
            folder = next((folder for folder in self._folders if path.startswith(folder)), "")
            short, inside = path[len(folder) :], Path(folder).name
            is_package = inside in _PACKAGES or name_in_package(path) is not None
            if is_package and not short.startswith(f"torch{os.sep}"):
                short = f"site-packages{os.sep}{short}"
            self._names[path] = path if short in self._names.values() else short
        return self._names[path]


Stretch = tuple[Stack, int, range]
"""The callers of a frame, its code, and the offsets of instructions of that."""


class DelayedStacks:
    """Finds the stacks at the moments of signals.

    All stacks are one tree: a node is the instruction of a frame, its parent that of its caller.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._codes = stacks.codes
        self.stack_of = {number: stack for stack, number in stacks.number.items()}
        self._node: dict[tuple[int, int, int], int] = {}
        self._offsets: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._called: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._stretches: dict[int, list[Stretch]] = {}
        self._turns: defaultdict[int, int] = defaultdict(int)
        self._nodes_of = {number: self._add(stack) for number, stack in self.stack_of.items()}
        self._note_times: list[int] = []
        self._note_stacks: list[int] = []
        self._notes_of_op: defaultdict[str, list[int]] = defaultdict(list)

    def _add(self, stack: Stack) -> list[int]:
        """Return the nodes of a stack, the innermost first, and -1 for what called them all."""
        nodes = [NONE]
        for code, at in zip(stack[-2::-2], stack[::-2], strict=True):
            caller = nodes[-1]
            if not self._codes[code].co_filename.startswith(_OURS):
                self._called[caller][code] = None
            self._offsets[caller, code].add(at)
            nodes.append(self._node.setdefault((caller, code, at), len(self._node)))
        return nodes[::-1]

    def note(self, at: int, number: int, ops: Sequence[str]) -> None:
        """Take note of a stack that the second thread read as these ops ran; in order of time."""
        for op in ops:
            self._notes_of_op[op].append(len(self._note_times))
        self._note_times.append(at)
        self._note_stacks.append(number)

    def in_op(self, at: int, read: int, exact: ExactSlices) -> Stack | None:
        """Return the stack that was noted nearest to a moment, of a stack that was ``read`` later.

        It was noted in the op of that moment, in long code of C, or in another op of that name;
        None if no such note was taken.
        """
        ended = [row for row in exact.open(at, "cpu_op")[::-1] if exact.ends[row] <= read]
        start, end = (exact.ts[ended[0]], exact.ends[ended[0]]) if ended else (at, read)
        places: Sequence[int] = range(
            bisect_left(self._note_times, start), bisect_left(self._note_times, end)
        )
        if not places:
            same_name = (self._notes_of_op.get(exact.names[row]) for row in ended)
            places = next(filter(None, same_name), [])
        after = bisect_left(places, at, key=self._note_times.__getitem__)
        near = places[max(after - 1, 0) : after + 1]
        nearest = min(near, key=lambda place: abs(self._note_times[place] - at), default=None)
        return None if nearest is None else self.stack_of[self._note_stacks[nearest]]

    def before(self, number: int) -> Stack:
        """Return one of the places since signals were handled before a stack was read, in turn."""
        if number not in self._stretches:
            self._stretches[number] = self._stretches_before(number)
        stretches = self._stretches[number]
        self._turns[number] += 1
        total = sum(len(offsets) for _, _, offsets in stretches)
        place = int(self._turns[number] * GOLDEN_RATIO % 1 * total)
        for callers, code, offsets in stretches:
            if place < len(offsets):
                return (code, offsets[place], *callers)
            place -= len(offsets)
        return self.stack_of[number]

    def _stretches_before(self, number: int) -> list[Stretch]:
        """Return the instructions before one, from the call that was seen last in its function on.

        Of the functions that were called there, these are the last instructions.
        """
        stack, nodes = self.stack_of[number], self._nodes_of[number]
        calls = [(nodes[0], stack)]
        if self._opname(stack) == "RESUME":  # it was about to be called
            stack, nodes, calls = stack[2:], nodes[1:], []
        if not stack:
            return []
        (code, at), callers = stack[:2], stack[2:]
        before = max((one for one in self._offsets[nodes[1], code] if one < at), default=None)
        start = at if before is None else before
        if self._opname(stack) == "JUMP_BACKWARD":
            found = dis.get_instructions(self._codes[code])
            target = next(int(one.argval) for one in found if one.offset == at)
            start = max(before or 0, target)
        if before is not None:
            calls.append((self._node[nodes[1], code, before], (code, before, *callers)))
        stretches = [(callers, code, range(start, at + 2, 2))]
        for node, call in calls:
            for called in self._called[node]:
                last = max(self._offsets[node, called])
                stretches.append((call, called, range(last, len(self._codes[called].co_code), 2)))
        return stretches

    def _opname(self, stack: Stack) -> str:
        return dis.opname[self._codes[stack[0]].co_code[stack[1]]] if stack else ""
