"""Python's stacks every 2 ms, as slices on the threads' Python tracks: the option ``python``.

A function lasts from halfway before the first to halfway behind the last of the samples in a row
that found it. But an op, a line or a module that ran at only one of two samples bounds the change
between them: it was not inside of these, for their times are known exactly.
"""

from __future__ import annotations

import linecache
import os
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import get_ident
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.capture.frame_filter import is_installed, users_frames
from gpuprof_widgets.capture.part import Context, Part, both_clocks, time_of_day
from gpuprof_widgets.capture.stack_samplers import (
    INTERVAL_NS,
    Stacks,
    ThreadSampler,
    ThreadSamples,
    TimerSampler,
)
from gpuprof_widgets.trace.edit import NewSlice, NewTrack, with_slices
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import SAMPLED, SAMPLED_LINES
from gpuprof_widgets.trace.stack_lanes import CATEGORY, frame_name

Ints = NDArray[np.int64]

_PACKAGES = ("site-packages", "dist-packages")


class Frame(NamedTuple):
    """A function as torch.profiler names it, and the line in it; 0 where that is a library's."""

    name: str
    line: int


class Sample(NamedTuple):
    """A stack, outermost frame first, from ``start`` on until ``end`` (ns of the trace)."""

    start: int
    end: int
    stack: tuple[Frame, ...]


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
        self._code: dict[str, dict[int, str]] = defaultdict(dict)
        self._by_signal = True

    def start(self) -> None:
        self._stacks = Stacks()
        self._main, self._before = get_ident(), set(sys._current_frames())
        self._timer = TimerSampler(self._stacks)
        is_timed = self._timer.start()
        self._by_signal &= is_timed
        without = self._main if is_timed else 0
        self._threads = ThreadSampler(self._stacks, self._timer.handler, without=without)
        self._began = both_clocks()
        self._threads.start()

    def stop(self) -> None:
        for sampler in (self._timer, self._threads):
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
        tracks, added, new_tracks = trace.tracks, list[NewSlice](), list[NewTrack]()
        for thread, of_thread in samples.items():
            times, ticks, stacks = self._read(of_thread, trace, region)
            if thread == self._main:
                self._gaps += np.diff(times).tolist()
            frames = [names.stack(number) for number in stacks.tolist()]
            if thread in self._before and thread != self._main and not _is_users(frames):
                continue
            lane = self._lane(trace, region, thread)
            track = len(tracks) + len(new_tracks)
            found = _slices(_bounded(trace, times, ticks, frames, region, lane), track)
            if not found:
                continue
            added += found
            new_tracks.append(self._track(trace, region, thread, lane))
        for file, lines in names.code.items():
            self._code[file] |= lines
        self._timer = self._threads = None
        return with_slices(trace, added, new_tracks)

    def _read(self, samples: ThreadSamples, trace: Trace, region: int) -> tuple[Ints, Ints, Ints]:
        """Return times (ns of the trace), ticks and stacks of the samples in the region."""
        numbers = np.array(samples.numbers, np.int64).reshape(-1, ThreadSamples.FIELDS)
        days = [
            time_of_day(moment, began=self._began, ended=self._ended)
            for moment in numbers[:, 0].tolist()
        ]
        times = np.array(days, np.int64) - trace.epoch_ns
        begin, end = _span(trace, region)
        inside = (times >= begin) & (times <= end)
        return times[inside], numbers[inside, 1], numbers[inside, 2]

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
        if not self._gaps:
            return {}
        return {
            SAMPLED: True,
            "python_samples": {
                "by_signal": self._by_signal,
                "samples": len(self._gaps) + 1,
                "interval_ns": INTERVAL_NS,
                "median_ns": int(np.median(self._gaps)),
                "code": {
                    file: {str(line): lines[line] for line in sorted(lines)}
                    for file, lines in sorted(self._code.items())
                },
            },
        }

    def notes(self) -> list[str]:
        """Say where samples are less than they should be."""
        if not self._gaps:
            return ["Python was not sampled: the run ended before the second sample, after 4 ms"]
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


def _is_users(stacks: Sequence[tuple[Frame, ...]]) -> bool:
    """Whether any of the stacks has code of the user's."""
    return any(frame.line for stack in set(stacks) for frame in stack)


def _bounded(
    trace: Trace,
    times: Ints,
    ticks: Ints,
    stacks: Sequence[tuple[Frame, ...]],
    region: int,
    lane: int | None,
) -> Iterator[Sample]:
    """Yield the samples of a thread with their bounds, by the rule at the top.

    The next sample after a long call of C comes when that ends, and still shows it. So the time in
    which samples are missing is that of the later one.
    """
    if not len(times):
        return
    begin, end = _span(trace, region)
    half = INTERVAL_NS // 2
    is_run = lane == int(trace.tracks["lane"].iloc[int(trace.slices["track"].iloc[region])])
    open_slices = _OpenSlices(trace, lane)
    before = begin if is_run else max(begin, int(times[0]) - half)
    for place, (at, stack) in enumerate(zip(times.tolist(), stacks, strict=True)):
        if place + 1 == len(times):
            yield Sample(before, end if is_run else min(end, at + half), stack)
            return
        following = int(times[place + 1])
        if ticks[place + 1] - ticks[place] > 1:  # the thread did not exist, or ran no Python
            yield Sample(before, at + half, stack)
            before = following - half
        else:
            change = at + min((following - at) // 2, half)
            change = open_slices.bound(at, following, change)
            yield Sample(before, change, stack)
            before = change


class _OpenSlices:
    """Which ops, lines and modules of a thread are open at a moment."""

    def __init__(self, trace: Trace, lane: int | None) -> None:
        tracks = trace.tracks
        of_thread = (tracks["kind"] == "cpu") & (tracks["lane"] == lane)
        self._rows = np.flatnonzero(of_thread.to_numpy()[trace.slices["track"].to_numpy()])
        self._ts = trace.slices["ts"].to_numpy()
        self._end = self._ts + trace.slices["dur"].to_numpy()
        self._parent = trace.slices["parent"].to_numpy()
        self._starts = self._ts[self._rows].tolist()

    def bound(self, one: int, next: int, change: int) -> int:
        """Return the moment of a change between two samples, bound by slices open at only one."""
        ended = [end for ts, end in self._open(one) if end <= next]
        begun = [ts for ts, end in self._open(next) if ts > one]
        return min([max([change, *ended]), *begun])

    def _open(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of the slices that are open at a moment."""
        place = bisect_right(self._starts, at) - 1
        row = int(self._rows[place]) if place >= 0 else -1
        while row >= 0:
            if self._end[row] > at:
                yield int(self._ts[row]), int(self._end[row])
            row = int(self._parent[row])


def _slices(samples: Iterator[Sample], track: int) -> list[NewSlice]:
    """Turn the samples of a thread into slices of its functions.

    A function goes on while its callers stand at the same lines. The lines of the user's functions
    are args, with the time from the slice's start.
    """
    found: list[NewSlice] = []
    opened: list[_Call] = []

    def close(down_to: int, now: int) -> None:
        for call in opened[down_to:]:
            args = {SAMPLED_LINES: call.lines} if call.lines else {}
            found.append(NewSlice(call.start, now - call.start, call.name, CATEGORY, track, args))
        del opened[down_to:]

    end = None
    for sample in samples:
        if end is not None and sample.start != end:
            close(0, end)
        end = sample.end
        same = 0
        for call, frame in zip(opened, sample.stack, strict=False):
            if call.name != frame.name:
                break
            same += 1
            if call.at_line(frame.line, sample.start):
                break
        close(same, sample.start)
        for frame in sample.stack[same:]:
            opened.append(_Call(frame, sample.start))
    close(0, end or 0)
    return found


class _Call:
    """A function that is open, and its lines: how long after its start each began, and which."""

    def __init__(self, frame: Frame, start: int) -> None:
        self.name, self.start = frame.name, start
        self.lines = [[0, frame.line]] if frame.line else []

    def at_line(self, line: int, now: int) -> bool:
        """Go on in a line; return whether it is another one."""
        if not self.lines or self.lines[-1][1] == line:
            return False
        self.lines.append([now - self.start, line])
        return True


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
        return Frame(name, line)

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
