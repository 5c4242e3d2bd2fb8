"""Samples of Python's stacks, as slices on the threads' Python tracks: the option ``python``."""

from __future__ import annotations

import linecache
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from threading import get_ident
from types import CodeType
from typing import Any

import numpy as np

from gpuprof_widgets.capture.code import is_installed, name_in_package
from gpuprof_widgets.capture.delayed_stacks import DelayedStacks, Stack
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
        region = _region(trace, self._label)
        if region is None:
            return trace
        if self._timer.lost:
            self._lost[self._timer.lost] = None
        if self._threads.error is not None:
            self._error = f"samples of other threads end early: {self._threads.error!r}"
        names = _FrameNames(self._stacks, self._cell_labels)
        stacks = DelayedStacks(self._stacks)
        exact_slices = ExactSlices.of_lanes(trace)
        added, new_tracks = list[NewSlice](), list[NewTrack]()
        for samples in self._by_thread(self._timer, self._threads):
            is_run, thread = samples.thread == self._main, samples.thread
            if not is_run and thread in self._before and not names.are_users(stacks, samples):
                continue
            lane = self._lane(trace, region, samples)
            exact = exact_slices(lane)
            if is_run:
                self._learn(stacks, self._threads, exact, trace)
            found = self._read(samples, stacks, names, exact, trace, region)
            if is_run:
                self._samples += len(found)
                self._gaps += [after.at - before.until for before, after in pairwise(found)]
            if any(sample.stack for sample in found):
                track = len(trace.tracks) + len(new_tracks)
                span = _span(trace, region)
                added += slices_of_samples(found, track, exact, span, is_run=is_run)
                new_tracks.append(self._track(trace, region, samples, lane))
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

    def _learn(
        self, stacks: DelayedStacks, threads: ThreadSampler, exact: ExactSlices, trace: Trace
    ) -> None:
        """Learn from the thread that samples where ops are called."""
        numbers = threads.of_main.tolist()
        for moment, stack in zip(numbers[::2], numbers[1::2], strict=True):
            stacks.saw(stack, exact.ops(self._time(moment, trace)))

    def _read(
        self,
        samples: ThreadSamples,
        stacks: DelayedStacks,
        names: _FrameNames,
        exact: ExactSlices,
        trace: Trace,
        region: int,
    ) -> list[Sample]:
        """Return the samples of a thread in the region."""
        numbers = samples.numbers.tolist()
        begin, end = _span(trace, region)
        found = []
        for place in range(0, len(numbers), ThreadSamples.FIELDS):
            *moments, look, last_look, stack = numbers[place : place + ThreadSamples.FIELDS]
            at, until, read = (self._time(moment, trace) for moment in moments)
            if not (begin < at and until < end):
                continue
            if until < read:  # by a signal
                middle = (at + until) // 2  # `at` itself may be just before the op that kept it
                planned = stacks.when_planned(stack, exact.ops_around(middle, read))
                frames = without_later_calls(names.of(planned), middle, read, exact)
            else:
                frames = names.of(stacks.stack_of[stack])
            found.append(Sample(at, until, look, last_look, frames))
        return found

    def _lane(self, trace: Trace, region: int, samples: ThreadSamples) -> int | None:
        """Return the lane of a thread's ops; None if it has none."""
        tracks = trace.tracks
        of_run = tracks.iloc[int(trace.slices["track"].iloc[region])]
        if samples.thread == self._main:
            return int(of_run["lane"])
        same = tracks[
            (tracks["kind"] == "cpu")
            & (tracks["process"] == of_run["process"])
            & (tracks["thread"] == str(samples.native))
        ]
        return int(same["lane"].iloc[0]) if len(same) else None

    def _track(
        self, trace: Trace, region: int, samples: ThreadSamples, lane: int | None
    ) -> NewTrack:
        tracks = trace.tracks
        of_run = tracks.iloc[int(trace.slices["track"].iloc[region])]
        if lane is not None:
            beside = tracks[(tracks["lane"] == lane) & (tracks["kind"] == "cpu")].iloc[0]
            process, number, label = beside["process"], beside["thread"], beside["label"]
        else:
            number = str(samples.native or samples.thread)
            process, label = of_run["process"], f"thread {number}"
        return NewTrack("python", f"{label} · Python", str(process), str(number), lane)

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


def _region(trace: Trace, label: str) -> int | None:
    """Return the row of the run's region; None if it is missing."""
    slices = trace.slices
    rows = np.flatnonzero((slices["category"] == "user_annotation") & (slices["name"] == label))
    return int(rows[slices["dur"].to_numpy()[rows].argmax()]) if len(rows) else None


def _span(trace: Trace, row: int) -> tuple[int, int]:
    ts, dur = (int(trace.slices[key].iloc[row]) for key in ("ts", "dur"))
    return ts, ts + dur


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
