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
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from threading import get_ident
from types import CodeType
from typing import Any, NamedTuple

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
from gpuprof_widgets.trace.schema import SAMPLED

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
        self._found = self._was_short = False
        self._code: dict[str, dict[int, str]] = defaultdict(dict)
        self._lost: dict[str, None] = {}
        self._error = ""

    def start(self) -> None:
        self._stacks = Stacks()
        self._main, self._before = get_ident(), set(sys._current_frames())
        self._timer = TimerSampler(self._stacks)
        self._timer.start()
        without = 0 if self._timer.lost else self._main
        self._threads = ThreadSampler(self._stacks, self._timer, without=without)
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
        span = int(region["ts"]), int(region["ts"] + region["dur"])
        of_run = tracks.iloc[int(region["track"])]
        if self._timer.lost:
            self._lost[self._timer.lost] = None
        if self._threads.error is not None:
            self._error = f"samples of other threads end early: {self._threads.error!r}"
        names = _FrameNames(self._stacks, self._cell_labels)
        stacks, whole = DelayedStacks(self._stacks), ExactSlices(trace)
        added, new_tracks = list[NewSlice](), list[NewTrack]()
        for samples in self._by_thread(self._timer, self._threads):
            is_run, thread = samples.thread == self._main, samples.thread
            if not is_run and thread in self._before and not names.are_users(stacks, samples):
                continue
            new_track = _new_track(tracks, of_run, samples, is_run=is_run)
            exact = whole.of_lane(new_track.lane)
            if is_run:
                noted = self._threads.of_main.tolist()
                for moment, stack in zip(noted[::2], noted[1::2], strict=True):
                    at = self._time(moment, trace)
                    stacks.note(at, stack, [exact.name(row) for row in exact.ops(at)])
            found = list(self._read(samples, stacks, names, exact, trace, span))
            if is_run:
                self._samples += len(found)
                self._gaps += [after.at - before.until for before, after in pairwise(found)]
            if any(sample.stack for sample in found):
                track = len(tracks) + len(new_tracks)
                added += slices_of_samples(found, track, exact, span, is_run=is_run)
                new_tracks.append(new_track)
        for file, lines in names.code.items():
            self._code[file] |= lines
        self._timer = self._threads = None
        self._found |= bool(added)
        self._was_short = not added
        return with_slices(trace, added, new_tracks)

    def _by_thread(self, timer: TimerSampler, threads: ThreadSampler) -> list[ThreadSamples]:
        """Return the samples of each thread, the run's first and only once."""
        of_run = timer.samples
        for samples in threads.samples:
            if samples.thread == self._main:
                of_run.numbers.extend(samples.numbers)
        others = [samples for samples in threads.samples if samples.thread != self._main]
        return [of_run, *others]

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
        span: tuple[int, int],
    ) -> Iterator[Sample]:
        """Yield the samples of a thread within a span."""
        numbers = samples.numbers.tolist()
        for place in range(0, len(numbers), ThreadSamples.FIELDS):
            *moments, look, last_look, stack = numbers[place : place + ThreadSamples.FIELDS]
            at, until, read = (self._time(moment, trace) for moment in moments)
            if not (span[0] < at and until < span[1]):
                continue
            frames = names.of(stacks.stack_of[stack])
            if until < read:  # by a signal
                middle = (at + until) // 2  # `at` itself may be just before the op that kept it
                if (noted := stacks.in_op(middle, read, exact)) is not None:
                    frames = names.of(noted)
                else:
                    frames = names.of(stacks.before(stack))
                    frames = without_later_calls(frames, middle, read, exact)
            yield Sample(at, until, look, last_look, frames)

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
        notes = [
            f"Python was sampled from a second thread, because {reason}: code between ops is found "
            "too rarely, and ops too often"
            for reason in self._lost
        ]
        if self._was_short and not self._found:
            notes = ["Python was not sampled: the run was too short for a sample"]
        return [*notes, self._error] if self._error else notes


def _new_track(
    tracks: pd.DataFrame, of_run: pd.Series, samples: ThreadSamples, *, is_run: bool
) -> NewTrack:
    """Return the track for a thread's samples, in the lane of its ops if it has some."""
    number = str(samples.native or samples.thread)
    if is_run:
        is_own = tracks["lane"] == of_run["lane"]
    else:
        is_own = (tracks["process"] == of_run["process"]) & (tracks["thread"] == number)
    for own in tracks[is_own & (tracks["kind"] == "cpu")].head(1).itertuples():
        return NewTrack("python", f"{own.label} · Python", own.process, own.thread, int(own.lane))
    return NewTrack("python", f"thread {number} · Python", str(of_run["process"]), number)


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

    def are_users(self, stacks: DelayedStacks, samples: ThreadSamples) -> bool:
        """Whether any of a thread's stacks has code of the user's."""
        numbers = set(samples.numbers[ThreadSamples.FIELDS - 1 :: ThreadSamples.FIELDS])
        return any(frame.line for number in numbers for frame in self.of(stacks.stack_of[number]))

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
        path = code.co_filename
        file = self._cell_labels.get(path) or self._shown(path)
        frame = Frame(
            frame_name(code.co_name, file, code.co_firstlineno), 0, path in self._cell_labels
        )
        if path not in self._cell_labels and is_installed(path):
            return frame
        return self._in_line(code, frame, _line(code, at))

    def _in_line(self, code: CodeType, frame: Frame, line: int) -> Frame:
        path = code.co_filename
        texts = self.code[self._cell_labels.get(path) or self._shown(path)]
        if line not in texts:
            texts[line] = linecache.getline(path, line).strip()[:LONGEST_TEXT]
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


def _line(code: CodeType, at: int) -> int:
    """Return the line of an instruction; the function's first one if it has none."""
    ranges = code.co_lines()
    found = next((line for start, end, line in ranges if start <= at < end), None)
    return found or code.co_firstlineno


class _Stretch(NamedTuple):
    """Instructions of a frame, from one offset up to another; ``node`` is the frame's caller."""

    node: int
    code: int
    start: int
    end: int


class DelayedStacks:
    """Finds the stacks at the moments of signals.

    All stacks are one tree: a node is the instruction of a frame, its parent that of its caller.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._codes = stacks.codes
        self.stack_of = {number: stack for stack, number in stacks.number.items()}
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._parts: list[tuple[int, int, int]] = []
        self._offsets: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._called: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._stretches: dict[int, list[_Stretch]] = {}
        self._turns: defaultdict[int, int] = defaultdict(int)
        self._node_of = {number: self._node_of_stack(one) for number, one in self.stack_of.items()}
        self._note_times: list[int] = []
        self._note_stacks: list[int] = []
        self._notes_of_op: defaultdict[str, list[int]] = defaultdict(list)

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
        ended = [row for row in exact.ops(at) if exact.end(row) <= read]
        start, end = (exact.start(ended[0]), exact.end(ended[0])) if ended else (at, read)
        places: Sequence[int] = range(
            bisect_left(self._note_times, start), bisect_left(self._note_times, end)
        )
        if not places:
            same_name = (self._notes_of_op.get(exact.name(row)) for row in ended)
            places = next(filter(None, same_name), [])
        after = bisect_left(places, at, key=self._note_times.__getitem__)
        near = places[max(after - 1, 0) : after + 1]
        nearest = min(near, key=lambda place: abs(self._note_times[place] - at), default=None)
        return None if nearest is None else self.stack_of[self._note_stacks[nearest]]

    def before(self, number: int) -> Stack:
        """Return one of the places since signals were handled before a stack was read, in turn."""
        if number not in self._stretches:
            self._stretches[number] = self._stretches_before(self._node_of[number])
        stretches = self._stretches[number]
        self._turns[number] += 1
        total = sum(one.end - one.start for one in stretches)
        place = int(self._turns[number] * GOLDEN_RATIO % 1 * total)
        for node, code, start, end in stretches:
            if place < end - start:
                return (code, (start + place) // 2 * 2, *self._stack(node))
            place -= end - start
        return self.stack_of[number]

    def _stretches_before(self, node: int) -> list[_Stretch]:
        """Return the instructions before one, from the call that was seen last in its function on.

        Of the functions that were called there, these are the last instructions.
        """
        calls = [node]
        if node >= 0 and self._opname(node) == "RESUME":  # it was about to be called
            node, calls = self._parts[node][0], []
        if node < 0:
            return []
        parent, code, at = self._parts[node]
        before = max((one for one in self._offsets[parent, code] if one < at), default=None)
        start = at if before is None else before
        if self._opname(node) == "JUMP_BACKWARD":
            found = dis.get_instructions(self._codes[code])
            target = next(int(one.argval) for one in found if one.offset == at)
            start = max(before or 0, target)
        stretches = [_Stretch(parent, code, start, at + 2)]
        if before is not None:
            calls.append(self._nodes[parent, code, before])
        for call in calls:
            for called in self._called[call]:
                last, end = max(self._offsets[call, called]), len(self._codes[called].co_code)
                stretches.append(_Stretch(call, called, last, end))
        return stretches

    def _opname(self, node: int) -> str:
        _, code, at = self._parts[node]
        return dis.opname[self._codes[code].co_code[at]]

    def _stack(self, node: int) -> Stack:
        numbers: list[int] = []
        while node >= 0:
            node, code, at = self._parts[node]
            numbers += (code, at)
        return tuple(numbers)

    def _node_of_stack(self, stack: Stack) -> int:
        node = -1
        for code, at in zip(stack[-2::-2], stack[::-2], strict=True):
            if not self._codes[code].co_filename.startswith(_OURS):
                self._called[node][code] = None
            self._offsets[node, code].add(at)
            parts = node, code, at
            node = self._nodes.setdefault(parts, len(self._parts))
            if node == len(self._parts):
                self._parts.append(parts)
        return node
