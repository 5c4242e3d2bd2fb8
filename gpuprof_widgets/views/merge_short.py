"""Fewer rows for the page: short events of one caller and name become one that says how many."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, NONE
from gpuprof_widgets.views.page_rows import Ints, Mask, PageRows


def merge_short(rows: PageRows, longest_ns: int, slots: int) -> PageRows:
    """Merge events of at most ``longest_ns`` with those of the same caller and name near them.

    A merged row lasts as long as all of its events together and counts them, so totals stay. Longer
    events stay as they are, and nothing is merged across one of them; the outermost short events
    are near if they begin in the same of ``slots`` parts of the trace. Callers, and the ops of GPU
    slices, stay the same.
    """
    return _gathered(rows, _grouped(rows, rows.dur <= longest_ns, slots))


@dataclass(frozen=True)
class _Groups:
    """Group and caller (a row) of each row; per group its first row and its start in ns."""

    of_row: Ints
    parent: Ints
    first: Ints
    ts: Ints


def _grouped(rows: PageRows, short: Mask, slots: int) -> _Groups:
    # What a long event outlasts cannot hold it: its caller is the next long one around it.
    parent = np.where(short, rows.parent, links.nearest_ancestor(rows.parent, ~short))
    in_merged = (parent >= 0) & short & short[parent]
    run, slot = _runs(rows, short), rows.ts // _slot_ns(rows, slots)
    alone = np.where(short, NONE, np.arange(len(rows)))
    is_gpu = rows.in_categories(GPU_CATEGORIES)
    of_row, first, ts = (np.full(len(rows), NONE, np.int64) for _ in range(3))
    length = 0
    for at in _callers_first(rows, is_gpu):
        above = _of(of_row, parent[at])
        place = (np.where(in_merged[at], NONE, where[at]) for where in (run, slot))
        region = _numbered(rows.track[at], above, *place, alone[at])
        op = np.where(is_gpu[at], _of(of_row, rows.op[at]), NONE)
        group = _numbered(region, rows.label[at], rows.shape[at], op)
        sample = _first_of(group)
        new = slice(length, length + len(sample))
        begin = np.where(in_merged[at], _of(ts, above), rows.ts[at[_first_of(region)][region]])
        dur = np.bincount(group, rows.dur[at]).astype(np.int64)
        of_row[at], first[new] = length + group, at[sample]
        ts[new] = begin[sample] + _before(region[sample], at[sample], dur)
        length += len(sample)
    return _Groups(of_row, parent, first[:length], ts[:length])


def _of(values: Ints, index: Ints) -> Ints:
    """The values at these places, none where there is no place."""
    return np.where(index >= 0, values[index], NONE)


def _slot_ns(rows: PageRows, slots: int) -> int:
    end = int((rows.ts + rows.dur).max(initial=0))
    return max((end - int(rows.ts.min(initial=end))) // slots, 1)


def _callers_first(rows: PageRows, is_gpu: Mask) -> list[Ints]:
    """Rows level by level, GPU rows last: who calls or launches a row has its group before it."""
    deepest = int(rows.depth.max(initial=0)) + 1
    return list(links.rows_by(rows.depth + deepest * is_gpu).values())


def _runs(rows: PageRows, short: Mask) -> Ints:
    """A number that changes between siblings where a long one stands."""
    order = np.lexsort((np.arange(len(rows)), rows.parent, rows.track))
    run = np.empty(len(rows), np.int64)
    run[order] = np.cumsum(~short[order])
    return run


def _numbered(*columns: Ints) -> Ints:
    """Numbers from 0 on for the distinct combinations of the columns' values."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, value = np.unique(column, return_inverse=True)
        _, code = np.unique(code * (len(value) + 1) + value.reshape(-1), return_inverse=True)
        code = code.reshape(-1)
    return code


def _first_of(region: Ints) -> Ints:
    """Index of the first member of each region or group."""
    _, first = np.unique(region, return_index=True)
    return first


def _before(region: Ints, first: Ints, dur: Ints) -> Ints:
    """Time of the groups that stand before each group in its region, in the order of first rows."""
    order = np.lexsort((first, region))
    total = np.cumsum(dur[order]) - dur[order]
    starts = np.append(True, np.diff(region[order]) != 0)
    start_total = np.maximum.accumulate(np.where(starts, total, 0))
    before = np.empty(len(dur), np.int64)
    before[order] = total - start_total
    return before


def _gathered(rows: PageRows, groups: _Groups) -> PageRows:
    """The groups as rows, in the order of the page: by track and start, callers first."""
    first = groups.first
    order = np.lexsort((first, rows.depth[first], groups.ts, rows.track[first]))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    chosen = first[order]

    def summed(values: Ints) -> Ints:
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, groups.of_row, values)
        return sums[order]

    def moved(targets: Ints) -> Ints:
        kept = targets[chosen]
        return np.where(kept >= 0, position[groups.of_row[kept]], NONE)

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
