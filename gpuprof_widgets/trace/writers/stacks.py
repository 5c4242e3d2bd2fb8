"""Stacks as speedscope's JSON, and as collapsed stacks.

speedscope's format is https://www.speedscope.app/file-format-schema.json: a profile for every
thread and stream in order of time, and cProfile's. Its stacks are strict, while slices of a thread
may cross (a `record_function` ends after the Python frame in which it began): where an outer slice
ends first, the inner ones are closed with it and opened again at once, so that every name keeps its
time. Slices without a duration have no place in it.

Collapsed stacks are a line per call path and its self time in ns, which flamegraph.pl draws. The
format is that of Brendan Gregg's FlameGraph (stackcollapse-*.pl): names from the outside in with
semicolons between, a space, a number. It has no way to write a semicolon or a line break in a name:
they become a comma and a space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.pstats import BUILT_IN, function_place

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
UNIT = "nanoseconds"
EXPORTER = "gpuprof_widgets"

_encode = msgspec.json.Encoder().encode


class _Frames:
    """The frames of all profiles, each once."""

    def __init__(self) -> None:
        self._number: dict[tuple[str, str, int], int] = {}
        self._of_slice: dict[tuple[str, str], int] = {}

    def number(self, name: str, file: str = "", line: int = 0) -> int:
        return self._number.setdefault((name, file, line), len(self._number))

    def of_slice(self, name: str, category: str) -> int:
        """Return the number of a slice's frame: only Python frames have a file and a line."""
        number = self._of_slice.get((name, category))
        if number is None:
            place = (name, "", 0)
            if category == "python_function":
                file, line, function = function_place(name)
                place = (function, "", 0) if file == BUILT_IN else (function, file, line)
            number = self._of_slice[name, category] = self.number(*place)
        return number

    def listed(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "file": file, "line": line} if file else {"name": name}
            for name, file, line in self._number
        ]


def speedscope(
    trace: Trace | None, trees: Mapping[str, pd.DataFrame], *, name: str
) -> Iterator[bytes]:
    """Yield the file piece by piece: the lanes of the trace, then these call trees as samples.

    ``trace``: None for the trees alone; ``trees``: by title, with ``parent``, ``name`` and
    ``self_ns``, parents first.
    """
    frames = _Frames()
    lanes = () if trace is None else _lanes(trace, frames)
    profiles = [*lanes, *(_samples(title, tree, frames) for title, tree in trees.items())]
    head = {"$schema": SCHEMA, "name": name, "exporter": EXPORTER, "activeProfileIndex": 0}
    yield _encode(head)[:-1] + b',"profiles":['
    for number, profile in enumerate(profiles):
        yield b",\n" * bool(number)
        yield from profile
    yield b'],\n"shared":' + _encode({"frames": frames.listed()}) + b"}\n"


def _lanes(trace: Trace, frames: _Frames) -> Iterator[Iterable[bytes]]:
    """Yield a profile for each thread, with its Python frames, and for each stream."""
    slices = trace.slices
    long = np.flatnonzero((slices["dur"] > 0).to_numpy())
    track = slices["track"].to_numpy()[long]
    lane = trace.tracks["lane"].to_numpy()[track] if len(trace.tracks) else track
    titles = trace.tracks.groupby("lane")["label"].first()
    for number in pd.unique(lane):
        yield _lane(trace, long[lane == number], str(titles[number]), frames)


def _lane(trace: Trace, rows: np.ndarray[Any, Any], title: str, frames: _Frames) -> Iterator[bytes]:
    slices = trace.slices.iloc[rows]
    ts = slices["ts"].to_numpy()
    end = ts + slices["dur"].to_numpy()
    is_op = (trace.tracks["kind"].to_numpy() != "python")[slices["track"].to_numpy()]
    order = np.lexsort((is_op, -end, ts))  # a frame that begins and ends with an op called it
    names, categories = slices["name"].to_numpy(object), slices["category"].to_numpy(object)
    frame = [frames.of_slice(str(names[row]), str(categories[row])) for row in order]
    head = {
        "type": "evented",
        "name": title,
        "unit": UNIT,
        "startValue": min(trace.start_ns, int(ts.min())),
        "endValue": max(trace.end_ns, int(end.max())),
    }
    yield _encode(head)[:-1] + b',"events":['
    separator = b"\n"
    for kind, row, at in brackets(ts[order].tolist(), end[order].tolist()):
        yield separator + b'{"type":"%s","frame":%d,"at":%d}' % (kind, frame[row], at)
        separator = b",\n"
    yield b"]}"


def brackets(starts: list[int], ends: list[int]) -> Iterator[tuple[bytes, int, int]]:
    """Yield O and C of each slice with its time, as a strict stack; slices are sorted by start."""
    stack: list[int] = []
    for row, start in enumerate(starts):
        yield from _closed(stack, ends, start)
        stack.append(row)
        yield b"O", row, start
    yield from _closed(stack, ends, max(ends, default=0))


def _closed(stack: list[int], ends: list[int], until: int) -> Iterator[tuple[bytes, int, int]]:
    """Close the slices that end by then; reopen those inside of them that last longer."""
    while stack and (at := min(ends[row] for row in stack)) <= until:
        outermost = next(place for place, row in enumerate(stack) if ends[row] == at)
        inner = stack[outermost:]
        del stack[outermost:]
        yield from ((b"C", row, at) for row in reversed(inner))
        for row in inner:
            if ends[row] > at:
                stack.append(row)
                yield b"O", row, at


def _samples(title: str, tree: pd.DataFrame, frames: _Frames) -> Iterator[bytes]:
    """Yield the nodes of a call tree with self time, as stacks with that weight."""
    stacks: list[list[int]] = []
    samples, weights = [], []
    columns = (tree["parent"].tolist(), tree["name"].tolist(), tree["self_ns"].tolist())
    for parent, name, self_ns in zip(*columns, strict=True):
        frame = frames.number(str(name))
        stacks.append([] if parent < 0 else [*stacks[parent], frame])
        if self_ns > 0:
            samples.append(stacks[-1] or [frame])
            weights.append(self_ns)
    yield _encode(
        {
            "type": "sampled",
            "name": title,
            "unit": UNIT,
            "startValue": 0,
            "endValue": sum(weights),
            "samples": samples,
            "weights": weights,
        }
    )


_CLEAN = {ord(";"): ","} | dict.fromkeys([*range(32), 127, 0x85, 0x2028, 0x2029], " ")
UNNAMED = "(no name)"


def collapsed_stacks(tree: pd.DataFrame) -> Iterator[bytes]:
    """Yield the lines of a call tree (``depth``, ``name``, ``self_ns``; parents first).

    The root is no frame, but its self time has a line with its name.
    """
    path: list[str] = []  # one at a time: those of a deep tree together are as long as its square
    columns = (tree["depth"].tolist(), tree["name"].tolist(), tree["self_ns"].tolist())
    for depth, name, self_ns in zip(*columns, strict=True):
        path[depth:] = [frame_text(str(name))]
        if self_ns > 0:
            yield f"{';'.join(path[1:] or path)} {self_ns}\n".encode("utf-8", "backslashreplace")


def frame_text(name: str) -> str:
    """Return a name as the format can hold it."""
    return name.translate(_CLEAN).strip() or UNNAMED
