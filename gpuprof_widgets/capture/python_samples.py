"""Python's stacks every 2 ms, as slices on the threads' Python tracks: the option ``python``."""

from __future__ import annotations

import linecache
import os
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from threading import get_ident
from types import CodeType
from typing import Any

import numpy as np

from gpuprof_widgets.capture.frame_filter import is_installed, users_frames
from gpuprof_widgets.capture.part import Context, Part, both_clocks, time_of_day
from gpuprof_widgets.capture.sampled_frames import (
    ExactSlices,
    Frame,
    Sample,
    slices_of_samples,
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
from gpuprof_widgets.trace.schema import SAMPLED
from gpuprof_widgets.trace.stack_lanes import frame_name

_PACKAGES = ("site-packages", "dist-packages")


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
        self._found = False
        self._code: dict[str, dict[int, str]] = defaultdict(dict)
        self._by_signal = True

    def start(self) -> None:
        self._stacks = Stacks()
        self._main, self._before = get_ident(), set(sys._current_frames())
        self._timer = TimerSampler(self._stacks)
        is_timed = self._timer.start()
        self._by_signal &= is_timed
        without = self._main if is_timed else 0
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
        samples = dict(self._threads.of_thread)
        if len(self._timer.samples.numbers):
            samples[self._main] = self._timer.samples
        names = _FrameNames(self._stacks, self._cell_labels)
        added, new_tracks = list[NewSlice](), list[NewTrack]()
        for thread, of_thread in samples.items():
            found = self._read(of_thread, names, trace, region)
            is_run = thread == self._main
            if is_run:
                self._samples += len(found)
                self._gaps += [after.at - before.at for before, after in pairwise(found)]
            elif thread in self._before and not _is_users(found):
                continue
            lane = self._lane(trace, region, thread)
            track = len(trace.tracks) + len(new_tracks)
            run = _span(trace, region) if is_run else None
            if any(sample.stack for sample in found):
                added += slices_of_samples(found, track, ExactSlices(trace, lane), run)
                new_tracks.append(self._track(trace, region, thread, lane))
        for file, lines in names.code.items():
            self._code[file] |= lines
        self._timer = self._threads = None
        self._found |= bool(added)
        return with_slices(trace, added, new_tracks)

    def _read(
        self, samples: ThreadSamples, names: _FrameNames, trace: Trace, region: int
    ) -> list[Sample]:
        """Return the samples of a thread in the region."""
        numbers = iter(samples.numbers)
        found = []
        begin, end = _span(trace, region)
        for first, last, look, stack in zip(numbers, numbers, numbers, numbers, strict=True):
            at, until = (
                time_of_day(moment, began=self._began, ended=self._ended) - trace.epoch_ns
                for moment in (first, last)
            )
            if begin < at and until < end:
                found.append(Sample(at, until, look, names.stack(stack)))
        return found

    def _lane(self, trace: Trace, region: int, thread: int) -> int | None:
        """Return the lane of a thread's ops; None if it has none."""
        assert self._threads is not None
        tracks = trace.tracks
        of_run = tracks.iloc[int(trace.slices["track"].iloc[region])]
        if thread == self._main:
            return int(of_run["lane"])
        native = str(self._threads.native.get(thread, ""))
        same = tracks[
            (tracks["kind"] == "cpu")
            & (tracks["process"] == of_run["process"])
            & (tracks["thread"] == native)
        ]
        return int(same["lane"].iloc[0]) if len(same) else None

    def _track(self, trace: Trace, region: int, thread: int, lane: int | None) -> NewTrack:
        assert self._threads is not None
        tracks = trace.tracks
        of_run = tracks.iloc[int(trace.slices["track"].iloc[region])]
        if lane is not None:
            beside = tracks[(tracks["lane"] == lane) & (tracks["kind"] == "cpu")].iloc[0]
            process, number, label = beside["process"], beside["thread"], beside["label"]
        else:
            number = str(self._threads.native.get(thread, thread))
            process, label = of_run["process"], f"thread {number}"
        return NewTrack("python", f"{label} · Python", str(process), str(number), lane)

    def metadata(self) -> dict[str, Any]:
        """Return ``sampled`` and ``python_samples``; see docs/record.md."""
        if not self._found:
            return {}
        return {
            SAMPLED: True,
            "python_samples": {
                "by_signal": self._by_signal,
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
        if not self._found:
            return ["Python was not sampled: the run ended before the first sample, after 2 ms"]
        if self._by_signal:
            return []
        return [
            "Python was sampled from a second thread, as timers need Linux and Python's main "
            "thread: code between ops is found too rarely, and ops too often"
        ]


def _region(trace: Trace, label: str) -> int | None:
    """Return the row of the run's region; None if it is missing."""
    slices = trace.slices
    rows = np.flatnonzero((slices["category"] == "user_annotation") & (slices["name"] == label))
    return int(rows[slices["dur"].to_numpy()[rows].argmax()]) if len(rows) else None


def _span(trace: Trace, row: int) -> tuple[int, int]:
    ts, dur = (int(trace.slices[key].iloc[row]) for key in ("ts", "dur"))
    return ts, ts + dur


def _is_users(samples: Sequence[Sample]) -> bool:
    """Whether any of the stacks has code of the user's."""
    return any(frame.line for sample in samples for frame in sample.stack)


class _FrameNames:
    """Names the frames of stacks; ``code`` is the text of the user's lines in them, by file."""

    def __init__(self, stacks: Stacks, cell_labels: Any) -> None:
        self.code: dict[str, dict[int, str]] = defaultdict(dict)
        self._stack_of = {number: stack for stack, number in stacks.number.items()}
        self._codes = stacks.codes
        self._cell_labels = cell_labels
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self._lines: dict[int, tuple[list[int], list[int]]] = {}
        folders = {f"{Path(path).absolute()}{os.sep}" for path in sys.path}
        self._folders = sorted(folders, key=len, reverse=True)

    def stack(self, number: int) -> tuple[Frame, ...]:
        """Return the user's frames of a stack and what they called, outermost first."""
        if number not in self._stacks:
            numbers = self._stack_of[number]
            frames = [
                (self._codes[code], at)
                for code, at in zip(numbers[::2], numbers[1::2], strict=True)
            ][::-1]
            kept = users_frames([code.co_filename for code, _ in frames])
            self._stacks[number] = tuple(self._frame(*frames[place]) for place in kept)
        return self._stacks[number]

    def _frame(self, code: CodeType, at: int) -> Frame:
        path = code.co_filename
        file = self._cell_labels.get(path) or self._shown(path)
        name = frame_name(code.co_name, file, code.co_firstlineno)
        if path not in self._cell_labels and is_installed(path):
            return Frame(name, 0)
        line = self._line(code, at)
        if line and line not in self.code[file]:
            self.code[file][line] = linecache.getline(path, line).strip()
        return Frame(name, line, path in self._cell_labels)

    def _shown(self, path: str) -> str:
        """Return the path as torch.profiler shows it, from the folder of ``sys.path`` on.

        But packages stay behind ``site-packages``, for they are not the user's, except torch.
        """
        folder = next((folder for folder in self._folders if path.startswith(folder)), "")
        short = path[len(folder) :]
        inside = Path(folder).name
        if inside in _PACKAGES and not short.startswith(f"torch{os.sep}"):
            return f"{inside}{os.sep}{short}"
        return short

    def _line(self, code: CodeType, at: int) -> int:
        """Return the line of an instruction; the function's first one if it has none."""
        if id(code) not in self._lines:
            ranges = [(start, line or 0) for start, _, line in code.co_lines()]
            self._lines[id(code)] = [s for s, _ in ranges], [line for _, line in ranges]
        starts, lines = self._lines[id(code)]
        return lines[max(bisect_right(starts, at) - 1, 0)] or code.co_firstlineno
