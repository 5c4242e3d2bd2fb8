"""The slices as the page needs them, with their texts coded; and the cell lines and modules.

`page_rows` makes a row of every slice. Where that is too much for a page, `with_busiest_tracks`
leaves out tracks, and `merge_short` merges short events of one caller and name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.flops import slice_flops
from gpuprof_widgets.analyses.lines import (
    Line,
    cell_lines,
    inner_lines,
    line_keys,
    lines_beyond_limit,
    lines_within,
)
from gpuprof_widgets.analyses.op_calls import shape_codes
from gpuprof_widgets.analyses.operators import Allocations, allocations
from gpuprof_widgets.analyses.owners import LineSource, line_sources
from gpuprof_widgets.analyses.waits import SYNCHRONISING, is_synchronising
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import AnyInts, Mask
from gpuprof_widgets.trace.edit import kept_slices
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import (
    GPU_CATEGORIES,
    MODULE_CATEGORIES,
    NONE,
    OP_CATEGORIES,
    RUNTIME_ENDINGS,
)
from gpuprof_widgets.trace.tracks import DEVICE_KINDS

AnyRecord = TypeVar("AnyRecord", bound=Record)

COPY_SIZE = "bytes"
"""Arg that holds a copy's size."""

ORDINARY, WAITS, WAITS_FOR_ITS_COPY, FIRST_LINE = 0, 1, 2, 3
"""Kinds of slices; those of cell lines follow: two for each line, the second for later pieces."""

AT_LEAST, AT_MOST, ABOUT = "≥", "≤", "≈"

MOST_TRACKS = 1_000
"""A file of 300,000 threads took minutes to draw, and its page as long to open."""


@dataclass(frozen=True)
class PageRows:
    """One row per slice, in the order of the slices; times in ns, ``began`` and ``ended`` before
    a window cut them.

    ``label`` points into ``label_pairs``, pairs of indices into ``names`` and ``categories``, and
    into ``label_kinds`` (see `slice_kinds`).
    ``owner`` is a GPU slice's launch or, where the trace has none, its op; links are -1 for none.
    ``bytes`` is the size of a copy or an allocation (negative: released), ``device_bytes`` that of
    an allocation on a device; ``flops`` does not count nested ops.
    """

    ts: AnyInts
    dur: AnyInts
    track: AnyInts
    label: AnyInts
    began: AnyInts
    ended: AnyInts
    parent: AnyInts
    depth: AnyInts
    owner: AnyInts
    op: AnyInts
    forward: AnyInts
    count: AnyInts
    shape: AnyInts
    bytes: AnyInts
    device_bytes: AnyInts
    flops: AnyInts
    names: list[str]
    categories: list[str]
    label_pairs: list[tuple[int, int]]
    label_kinds: list[int]
    shapes: list[str]

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def span_ns(self) -> int:
        """Time from the first start to the last end in ns, at least 1."""
        return max(int(np.ptp(np.append(self.ts, self.ts + self.dur))), 1) if len(self) else 1

    def in_categories(self, wanted: Collection[str]) -> Mask:
        """Return which rows have one of these categories."""
        labels = [self.categories[category] in wanted for _, category in self.label_pairs]
        return np.array(labels, bool)[self.label]

    def nests(self, ts: AnyInts, end: AnyInts) -> bool:
        """Whether nesting by these times gives the parents; coarse ticks and windows hide some.

        It does where a parent is open when its child starts, and whatever opened in between has
        ended: the row before the child and its ancestors, up to the parent. To look takes a tenth
        of the time of `links.nest`.
        """
        row = np.arange(len(self))
        child = np.flatnonzero(self.parent >= 0)
        parent = self.parent[child]
        if np.any(parent >= child) or np.any(end[parent] <= ts[child]):
            return False
        above = np.where(np.diff(self.track, prepend=NONE) == 0, row - 1, NONE)
        below = np.flatnonzero(above != self.parent)
        while len(below):
            between = above[below]
            if np.any(between < 0) or np.any(end[between] > ts[below]):
                return False
            above[below] = self.parent[between]
            below = below[above[below] != self.parent[below]]
        return True

    def op_follows(self) -> bool:
        """Whether the ops of launches and GPU slices follow from nesting around the launch."""
        is_op = self.in_categories(OP_CATEGORIES)
        around = links.nearest_ancestor(self.parent, is_op)
        owner_op = np.where(is_op[self.owner], self.owner, around[self.owner])
        launching = [name for name in self.categories if name.endswith(RUNTIME_ENDINGS)]
        launch_op = np.where(self.in_categories(launching), around, NONE)
        return bool(np.array_equal(np.where(self.owner >= 0, owner_op, launch_op), self.op))


def page_rows(trace: Trace) -> PageRows:
    """Return the slices of a trace with their texts coded."""
    slices = trace.slices
    label, pairs, kinds, names, categories = _labels(trace)
    shape, shapes = shape_codes(trace)
    launch, op = slices["launch"].to_numpy(), slices["op"].to_numpy()
    began, ended = trace.index.uncut
    is_gpu = slices["category"].isin(GPU_CATEGORIES).to_numpy()
    count, memory = slices["count"].to_numpy(), allocations(trace)
    return PageRows(
        ts=slices["ts"].to_numpy(),
        dur=slices["dur"].to_numpy(),
        track=slices["track"].to_numpy(),
        label=label,
        began=began,
        ended=ended,
        parent=slices["parent"].to_numpy(),
        depth=slices["depth"].to_numpy(),
        owner=np.where(is_gpu, np.where(launch >= 0, launch, op), NONE),
        op=op,
        forward=slices["forward"].to_numpy(),
        count=count,
        shape=shape,
        bytes=_sizes(trace, memory),
        device_bytes=_scattered(memory.row, np.where(memory.on_cpu, 0, memory.size), len(trace)),
        flops=slice_flops(trace) * (count > 0),
        names=names,
        categories=categories,
        label_pairs=pairs,
        label_kinds=kinds,
        shapes=shapes,
    )


def _labels(trace: Trace) -> tuple[AnyInts, list[tuple[int, int]], list[int], list[str], list[str]]:
    """Return each slice's label, the labels' (name, category) pairs and kinds, and the texts."""
    name, category = trace.slices["name"].cat, trace.slices["category"].cat
    kind = slice_kinds(trace)
    width, height = max(len(category.categories), 1), int(kind.max(initial=0)) + 1
    codes = name.codes.to_numpy().astype(np.int64) * width + category.codes.to_numpy()
    used, label = np.unique(codes * height + kind, return_inverse=True)
    pair, kinds = np.divmod(used, height)
    name_codes, name_index = np.unique(pair // width, return_inverse=True)
    category_codes, category_index = np.unique(pair % width, return_inverse=True)
    pairs = list(zip(name_index.tolist(), category_index.tolist(), strict=True))
    names = [str(name.categories[code]) for code in name_codes]
    categories = [str(category.categories[code]) for code in category_codes]
    return label.reshape(-1), pairs, kinds.tolist(), names, categories


def _sizes(trace: Trace, memory: Allocations) -> AnyInts:
    """Return the bytes of each slice's allocation or copy."""
    sizes = _scattered(memory.row, memory.size, len(trace))
    copied = trace.args.get(COPY_SIZE)
    if copied is not None and copied.dtype == np.int64:
        sizes[copied.index.to_numpy()] = copied.to_numpy()
    return sizes


def _scattered(rows: npt.NDArray[np.intp], values: AnyInts, length: int) -> AnyInts:
    """Return a column with the values in these rows and zeros elsewhere."""
    column = np.zeros(length, np.int64)
    column[rows] = values
    return column


def slice_kinds(trace: Trace) -> AnyInts:
    """Return per slice which cell line it is, or whether it waits.

    A label belongs to one kind, so that a kind costs the page nothing per slice.
    """
    kinds = np.full(len(trace), ORDINARY, np.int64)
    known = cell_lines(trace)
    if len(known.row):
        waiting, by_name = is_synchronising(trace), trace.index.matching(SYNCHRONISING)
        kinds[waiting] = np.where(by_name[waiting], WAITS, WAITS_FOR_ITS_COPY)
        kinds[known.row] = FIRST_LINE + 2 * known.of_slice[known.row] + known.resumed
    return kinds


def page_lines(record: Record, label_kinds: list[int]) -> dict[str, Any] | None:
    """Return the cell lines for the page's header, by label; None where none were recorded."""
    known = cell_lines(record.trace)
    if not len(known.row):
        return None
    keys = line_keys(known, record)
    cells = list(dict.fromkeys(keys["cell"]))
    place = line_places(record)
    ran = [place[key] for key in zip(known.lines["cell"], known.lines["line"], strict=True)]
    sources = {source.name: source for source in line_sources(record)}
    unknown = LineSource("", 1, (), ())  # of a cell without its source: the lines' code must do
    shown = [(cell, sources.get(cell, unknown)) for cell in cells]
    return {
        "cells": [{"name": c, "first": s.first, "text": list(s.text)} for c, s in shown],
        "lines": [
            [cells.index(cell), int(line), code]
            for cell, line, code in keys.itertuples(index=False)
        ],
        "labels": [
            [label, ran[(kind - FIRST_LINE) // 2], (kind - FIRST_LINE) % 2]
            for label, kind in enumerate(label_kinds)
            if kind >= FIRST_LINE
        ],
        "waits": [label for label, kind in enumerate(label_kinds) if kind == WAITS],
        "copy_waits": [
            label for label, kind in enumerate(label_kinds) if kind == WAITS_FOR_ITS_COPY
        ],
        "limit": (record.metadata.get("lines") or {}).get("limit", 0),
        "incomplete": [
            [place[line], int(runs.is_cut), [place[other] for other in runs.others]]
            for line, runs in incomplete_lines(record).items()
            if line in place
        ],
    }


@dataclass(frozen=True)
class IncompleteRuns:
    """What the numbers of a line lack and what they have of others.

    ``is_cut``: it ran more often than is recorded; ``others``: the lines whose further runs count
    for it.
    """

    is_cut: bool
    others: tuple[Line, ...]

    def sign(self, column: str) -> str:
        """Return what the line's number in a column of `lines` is: at least, at most or about it.

        As engine/lines.ts does.
        """
        has_others = bool(self.others) and column not in ("calls", "wall_ns")
        if self.is_cut:
            return ABOUT if has_others else AT_LEAST
        return AT_MOST if has_others else ""


def incomplete_lines(record: Record) -> dict[Line, IncompleteRuns]:
    """Return the lines that `lines` calls incomplete."""
    known = cell_lines(record.trace)
    cut = lines_beyond_limit(known, record)
    within = inner_lines(known, record.trace) if cut else {}
    return {
        line: IncompleteRuns(line in cut, tuple(sorted(lines_within(within, line, cut) - {line})))
        for line in sorted(set(cut).union(*cut.values()))
    }


def line_places(record: Record) -> dict[tuple[str, int], int]:
    """Return where each line stands in the header's ``lines``, by its cell and number."""
    known = cell_lines(record.trace)
    if not len(known.row):
        return {}
    keys = line_keys(known, record)
    return {
        (str(cell), int(line)): at
        for at, (cell, line) in enumerate(zip(keys["cell"], keys["line"], strict=True))
    }


def module_classes(trace: Trace) -> dict[str, str]:
    """Return the class of each module by name, or the classes of modules that share a name."""
    kinds = trace.args.get("class")
    if kinds is None:
        return {}
    is_module = trace.index.in_category(*MODULE_CATEGORIES)
    kinds = kinds[is_module[kinds.index.to_numpy()]]
    names = trace.slices["name"].to_numpy(object)[kinds.index.to_numpy()]
    by_name = kinds.astype(object).set_axis(names).groupby(level=0)
    return {str(name): ", ".join(sorted(set(map(str, group)))) for name, group in by_name}


def with_busiest_tracks(record: AnyRecord, most: int = MOST_TRACKS) -> AnyRecord:
    """Return the record with at most ``most`` tracks, or the same object if it has no more.

    GPU tracks are kept first, then those on which the most time was spent.
    """
    if len(record.trace.tracks) <= most:
        return record
    slices, tracks = record.trace.slices, record.trace.tracks
    outermost = np.where(slices["depth"] == 0, slices["dur"], 0)
    busy_ns = np.bincount(slices["track"], weights=outermost, minlength=len(tracks))
    on_host = ~tracks["kind"].isin(DEVICE_KINDS).to_numpy()
    shown = np.sort(np.lexsort((-busy_ns, on_host))[:most])
    return replace(record, trace=_of_tracks(record.trace, shown))


def hidden_tracks_note(shown: Record, record: Record) -> tuple[str, ...]:
    """Return a sentence on the tracks of the record that are not shown, if there are any."""
    if shown is record:
        return ()
    return (
        f"This page has {len(shown.trace.tracks):,} of {len(record.trace.tracks):,} tracks: those "
        "of GPUs and the busiest. Its views and tables count only these. The findings, the "
        "commands and the analyses in Python count all tracks.",
    )


def _of_tracks(trace: Trace, shown: npt.NDArray[np.intp]) -> Trace:
    """Return the trace with these tracks alone, in their order."""
    number = np.full(len(trace.tracks), -1, np.int32)
    number[shown] = np.arange(len(shown), dtype=np.int32)
    kept = kept_slices(trace, number[trace.slices["track"].to_numpy()] >= 0)
    slices = kept.slices.assign(track=number[kept.slices["track"].to_numpy()])
    tracks = trace.tracks.iloc[shown].reset_index(drop=True)
    return replace(kept, slices=slices, tracks=tracks)


def without_shapes(rows: PageRows) -> PageRows:
    """Return the rows as if no shapes had been recorded."""
    return replace(rows, shape=np.full_like(rows.shape, NONE), shapes=[])


def merge_short(rows: PageRows, longest_ns: int, slot_ns: int) -> PageRows:
    """Merge events of at most ``longest_ns`` with those of the same caller and name near them.

    A merged row lasts as long as all of its events together and counts them, so totals stay. Longer
    events stay as they are, and nothing is merged across them. Outermost short events are near each
    other if they begin in the same ``slot_ns`` of the trace. Callers, and the ops of GPU slices,
    stay the same.
    """
    return _gathered(rows, _grouped(rows, rows.dur <= longest_ns, slot_ns))


@dataclass(frozen=True)
class _Groups:
    """Each row's group and caller (a row); each group's first row and start in ns."""

    of_row: AnyInts
    parent: AnyInts
    first: AnyInts
    ts: AnyInts


def _grouped(rows: PageRows, short: Mask, slot_ns: int) -> _Groups:
    # A short event cannot contain a long one once merged: the caller is the next long one around.
    parent = np.where(short, rows.parent, links.nearest_ancestor(rows.parent, ~short))
    in_merged = (parent >= 0) & short & short[parent]
    run, slot = _runs(rows, short), rows.ts // slot_ns
    alone = np.where(short, NONE, np.arange(len(rows)))
    is_gpu = rows.in_categories(GPU_CATEGORIES)
    of_row, first, ts = (np.full(len(rows), NONE, np.int64) for _ in range(3))
    length = 0
    # Level by level, GPU rows last: callers and launchers come before.
    deepest = int(rows.depth.max(initial=0)) + 1
    for at in links.rows_by(rows.depth + deepest * is_gpu).values():
        above = take(of_row, parent[at])
        place = (np.where(in_merged[at], NONE, where[at]) for where in (run, slot))
        region = _numbered(rows.track[at], above, *place, alone[at])
        op = np.where(is_gpu[at], take(of_row, rows.op[at]), NONE)
        group = _numbered(region, rows.label[at], rows.shape[at], op)
        sample = _first_of(group)
        new = slice(length, length + len(sample))
        begin = np.where(in_merged[at], take(ts, above), rows.ts[at[_first_of(region)][region]])
        dur = np.bincount(group, rows.dur[at]).astype(np.int64)
        of_row[at], first[new] = length + group, at[sample]
        ts[new] = begin[sample] + _before(region[sample], at[sample], dur)
        length += len(sample)
    return _Groups(of_row, parent, first[:length], ts[:length])


def _runs(rows: PageRows, short: Mask) -> AnyInts:
    """Return per row a number that changes between siblings at every long one."""
    order = np.lexsort((np.arange(len(rows)), rows.parent, rows.track))
    run = np.empty(len(rows), np.int64)
    run[order] = np.cumsum(~short[order])
    return run


def _numbered(*columns: AnyInts) -> AnyInts:
    """Return numbers from 0 on for the distinct combinations of the columns' values."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, value = np.unique(column, return_inverse=True)
        _, code = np.unique(code * (len(value) + 1) + value.reshape(-1), return_inverse=True)
        code = code.reshape(-1)
    return code


def _first_of(region: AnyInts) -> AnyInts:
    """Return the index of the first member of each region or group."""
    _, first = np.unique(region, return_index=True)
    return first


def _before(region: AnyInts, first: AnyInts, dur: AnyInts) -> AnyInts:
    """Return the time of the groups before each group in its region, in order of first rows."""
    order = np.lexsort((first, region))
    total = np.cumsum(dur[order]) - dur[order]
    starts = np.append(True, np.diff(region[order]) != 0)
    start_total = np.maximum.accumulate(np.where(starts, total, 0))
    before = np.empty(len(dur), np.int64)
    before[order] = total - start_total
    return before


def _gathered(rows: PageRows, groups: _Groups) -> PageRows:
    """Return the groups as rows, in the order of the page: by track and start, callers first."""
    first = groups.first
    order = np.lexsort((first, rows.depth[first], groups.ts, rows.track[first]))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    chosen = first[order]

    def summed(values: AnyInts) -> AnyInts:
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, groups.of_row, values)
        return sums[order]

    def moved(targets: AnyInts) -> AnyInts:
        return take(position[groups.of_row], targets[chosen])

    ts, dur = groups.ts[order], summed(rows.dur)
    before = (rows.ts - rows.began)[chosen]
    after = (rows.ended - rows.ts - rows.dur)[chosen]
    return replace(
        rows,
        ts=ts,
        dur=dur,
        began=ts - before,
        ended=ts + dur + after,
        count=summed(rows.count),
        bytes=summed(rows.bytes),
        device_bytes=summed(rows.device_bytes),
        flops=summed(rows.flops),
        track=rows.track[chosen],
        label=rows.label[chosen],
        shape=rows.shape[chosen],
        depth=rows.depth[chosen],
        parent=moved(groups.parent),
        owner=moved(rows.owner),
        op=moved(rows.op),
        forward=moved(rows.forward),
    )
