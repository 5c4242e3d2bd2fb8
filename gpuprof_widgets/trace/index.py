"""`Index`: arrays that many analyses need of a trace, each computed once, on first use.

``trace.index.gpu``, ``trace.index.in_category("cpu_op")``, ``trace.index.segments(track)``: the
index lives as long as its trace, and its arrays are read-only. Arrays are over slice rows; -1
(`NONE`) in an array of rows means "none".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, NONE, RUNTIME_ENDINGS, UNCUT_ARGS

CLIMBS = 8
"""Number of levels up that are searched for the slice still open, before a search over all."""

Array = TypeVar("Array", bound=npt.NDArray[Any])
Value = TypeVar("Value", bound=np.generic)

REGION = re.compile(r"ProfilerStep[#*].*|enumerate\(Data(Loader|Pipe)\)#.*|Optimizer\.\w+#.*")
"""Regions that torch itself opens: torch 1.8 wrote them as ops, later versions as annotations."""


@dataclass(frozen=True)
class Segments:
    """Disjoint, sorted intervals of one track, and the row of the innermost slice in each."""

    start: Ints
    end: Ints
    row: Codes


def kept(answer: Callable[..., Array]) -> Callable[..., Array]:
    """Cache a method's array for each combination of arguments, and make it read-only."""

    @wraps(answer)
    def answering(index: Index, *args: Hashable) -> Array:
        asked = (answer.__name__, *args)
        if asked not in index.answers:
            index.answers[asked] = _read_only(answer(index, *args))
        known: Array = index.answers[asked]
        return known

    return answering


class Index:
    """The columns of a trace as arrays, and arrays derived from them alone."""

    def __init__(
        self,
        slices: pd.DataFrame,
        tracks: pd.DataFrame,
        args: Mapping[str, pd.Series],
        start_ns: int,
        end_ns: int,
    ) -> None:
        # Not the trace itself: it holds its index, and a reference cycle is freed late.
        self._slices, self._tracks, self._args = slices, tracks, args
        self._start_ns, self._end_ns = start_ns, end_ns
        self.answers: dict[tuple[Hashable, ...], Any] = {}

    def __len__(self) -> int:
        return len(self._slices)

    @kept
    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of numbers, or the codes of a column of texts."""
        values = self._slices[name]
        return values.cat.codes.to_numpy() if name in ("name", "category") else values.to_numpy()

    @property
    def ts(self) -> Ints:
        """Start of each slice, ns."""
        return self.column("ts")

    @property
    def dur(self) -> Ints:
        """Duration of each slice, ns."""
        return self.column("dur")

    @cached_property
    def end(self) -> Ints:
        """End of each slice, ns."""
        return _read_only(self.ts + self.dur)

    @property
    def track(self) -> Codes:
        """Row of each slice's track."""
        return self.column("track")

    @property
    def parent(self) -> Codes:
        """Row of each slice's parent."""
        return self.column("parent")

    @property
    def name(self) -> npt.NDArray[np.signedinteger[Any]]:
        """The code of each slice's name: its place among `names`."""
        return self.column("name")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The different names of slices."""
        return tuple(map(str, self._slices["name"].cat.categories.tolist()))

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """The different categories of slices."""
        return tuple(map(str, self._slices["category"].cat.categories.tolist()))

    @kept
    def in_category(self, *categories: str) -> Mask:
        """Which slices have one of these categories."""
        mask = np.zeros(len(self), bool)
        for code in (self.categories.index(each) for each in categories if each in self.categories):
            mask |= self.column("category") == code
        return mask

    @kept
    def on_tracks(self, *kinds: str) -> Mask:
        """Which slices lie on tracks of these kinds."""
        return np.asarray(self._tracks["kind"].isin(kinds).to_numpy(bool)[self.track], bool)

    def names_of(self, rows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.object_]:
        """Return the names of these slices; "" for -1."""
        return np.asarray(np.array([*self.names, ""], object)[take(self.name, rows)])

    def texts_of(self, rows: npt.NDArray[np.integer[Any]]) -> pd.Index:
        """Return the names of these slices as an Index for a table, which is faster to build."""
        return self._texts.take(take(self.name, rows))

    @cached_property
    def _texts(self) -> pd.Index:
        return pd.Index([*self.names, ""])

    def named(self, names: frozenset[str]) -> Mask:
        """Which slices have one of these names."""
        return self._with_names([self._code_of[each] for each in names if each in self._code_of])

    def matching(self, pattern: re.Pattern[str]) -> Mask:
        """Which slices have a name that the pattern matches in full."""
        return self._with_names(self._codes_matching(pattern).tolist())

    @kept
    def _codes_matching(self, pattern: re.Pattern[str]) -> Rows:
        return np.flatnonzero([pattern.fullmatch(each) is not None for each in self.names])

    @cached_property
    def _code_of(self) -> dict[str, int]:
        return {name: code for code, name in enumerate(self.names)}

    def _with_names(self, codes: list[int]) -> Mask:
        """Return a mask from the rows of each name, because most names have few slices."""
        order, edges = self._by_name
        mask = np.zeros(len(self), bool)
        for code in codes:
            mask[order[edges[code] : edges[code + 1]]] = True
        return mask

    @cached_property
    def _by_name(self) -> tuple[Rows, Rows]:
        """All rows sorted by name, and the start of each name's rows."""
        order = np.argsort(self.name, kind="stable")
        return order, np.searchsorted(self.name[order], np.arange(len(self.names) + 1))

    @cached_property
    def is_gpu(self) -> Mask:
        """Which slices ran on a GPU: kernels, copies, memsets."""
        return self.in_category(*GPU_CATEGORIES)

    @cached_property
    def gpu(self) -> Rows:
        """The rows of kernels, copies and memsets."""
        return _read_only(np.flatnonzero(self.is_gpu))

    @cached_property
    def is_launch(self) -> Mask:
        """Which slices are calls of a device's runtime or driver (CUDA, ROCm, XPU, ...)."""
        ends = (each for each in self.categories if each.endswith(RUNTIME_ENDINGS))
        return self.in_category(*ends)

    @cached_property
    def launcher(self) -> Codes:
        """Row of the call, else of the op, that launched each GPU slice."""
        launch = self.column("launch")
        return _read_only(np.where(launch >= 0, launch, self.column("op")).astype(np.int32))

    @kept
    def ancestor(self, *categories: str) -> Codes:
        """Return the innermost slice of these categories around each slice, itself excluded."""
        return links.nearest_ancestor(self.parent, self.in_category(*categories))

    @kept
    def within(self, *categories: str) -> Codes:
        """Return the innermost slice of these categories around each slice, itself included."""
        rows = np.arange(len(self), dtype=np.int32)
        return np.where(self.in_category(*categories), rows, self.ancestor(*categories))

    @cached_property
    def is_op(self) -> Mask:
        """Which slices are ops, without torch's own regions."""
        return _read_only(self.in_category("cpu_op") & ~self.matching(REGION))

    @cached_property
    def op_around(self) -> Codes:
        """The innermost op around each slice, itself included."""
        return _read_only(links.itself_or_ancestor(self.parent, self.is_op))

    @cached_property
    def outermost_op(self) -> Codes:
        """The outermost op around each slice, itself included."""
        return _read_only(links.outermost(self.parent, self.is_op))

    def arg(self, key: str) -> tuple[Codes, list[Any]]:
        """Return each slice's place in a list of an arg's distinct values, and that list.

        Values with equal text are the same; they are in the order of their first slices. The place
        is -1 for slices without the arg.
        """
        if ("arg", key) not in self.answers:
            self.answers["arg", key] = self._arg(key)
        known: tuple[Codes, list[Any]] = self.answers["arg", key]
        return known

    def _arg(self, key: str) -> tuple[Codes, list[Any]]:
        places = np.full(len(self), NONE, np.int32)
        if key not in self._args:
            return _read_only(places), []
        values = self._args[key].astype(object).tolist()
        # Readers share equal lists as one object, so few have to be turned into text to compare.
        of_value, objects = pd.factorize(np.fromiter(map(id, values), np.int64, len(values)))
        first = np.empty(len(objects), np.intp)
        first[of_value[::-1]] = np.arange(len(values))[::-1]  # the last one written is the first
        by_text: dict[str, tuple[int, Any]] = {}
        different = (values[at] for at in first.tolist())
        place = [by_text.setdefault(str(each), (len(by_text), each))[0] for each in different]
        places[self._args[key].index.to_numpy()] = np.array(place, np.int32)[of_value]
        return _read_only(places), [each for _, each in by_text.values()]

    @cached_property
    def uncut(self) -> tuple[Ints, Ints]:
        """Start and end of every slice before windows cut it (cut slices begin together)."""
        if not self._args.keys() & UNCUT_ARGS:
            return self.ts, self.end
        ts, dur = self.ts.copy(), self.dur.copy()
        for key, values in zip(UNCUT_ARGS, (ts, dur), strict=True):
            if key in self._args:
                values[self._args[key].index.to_numpy()] = self._args[key].to_numpy()
        return _read_only(ts), _read_only(ts + dur)

    @cached_property
    def device(self) -> Codes:
        """Index of the GPU of each slice; -1 on the CPU."""
        return _read_only(self._tracks["device"].to_numpy(np.int32)[self.track])

    @cached_property
    def stream(self) -> Ints:
        """The stream of each slice; -1 on the CPU."""
        return _read_only(self._tracks["stream"].to_numpy(np.int64)[self.track])

    def rows_of_track(self, track: int) -> Rows:
        """Return the slices of a track, by which slices are sorted."""
        bounds = np.array([track, track + 1], self.track.dtype)  # another type would be copied
        return np.arange(*np.searchsorted(self.track, bounds))

    def innermost_open(self, rows: Rows, times: Ints) -> Codes:
        """Return for each moment the innermost open slice of these rows of one track; else -1.

        It is the latest-started slice that has not ended.
        """
        at = links.innermost_open(self.ts[rows], self.end[rows], times)
        return take(rows, at).astype(np.int32)

    def segments(self, track: int) -> Segments:
        """Return a track's time cut where its innermost slice changes; row -1 if none is open."""
        if ("segments", track) not in self.answers:
            rows, bounds = self.rows_of_track(track), [self._start_ns, self._end_ns]
            edges = _read_only(intervals.distinct(self.ts[rows], self.end[rows], bounds))
            row = _read_only(self._open(rows, edges[:-1]))
            self.answers["segments", track] = Segments(edges[:-1], edges[1:], row)
        known: Segments = self.answers["segments", track]
        return known

    def _open(self, rows: Rows, times: Ints) -> Codes:
        """Return `innermost_open` of all slices of a track, by their parents.

        The open slice is the latest-started one, or an ancestor of it. A few steps up mostly reach
        it; where a deep stack ends, there would be as many steps as levels.
        """
        at = np.searchsorted(self.ts[rows], times, side="right") - 1
        row = take(rows, at).astype(np.int32)
        ended = np.flatnonzero(row >= 0)
        for _ in range(CLIMBS):
            ended = ended[self.end[row[ended]] <= times[ended]]
            row[ended] = self.parent[row[ended]]
            ended = ended[row[ended] >= 0]
        if len(ended):
            row[ended] = self.innermost_open(rows, times[ended])
        return row


def take(
    column: npt.NDArray[Value], rows: npt.NDArray[np.integer[Any]], missing: Any = NONE
) -> npt.NDArray[Value]:
    """Return the column's values at these rows, ``missing`` for rows of -1."""
    if not len(column):
        return np.full(len(rows), missing, column.dtype)
    values: npt.NDArray[Value] = column[rows]
    values[rows < 0] = missing
    return values


def _read_only(values: Array) -> Array:
    values = values.view()
    values.flags.writeable = False
    return values
