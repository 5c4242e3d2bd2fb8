"""How the streams of each GPU share its time, and how much moving of data compute hid.

`streams` tells how busy each stream was, alone and beside others; `overlaps` how much of the
communication and of the copies ran while the GPU computed.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.gpu_work import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    KINDS,
    devices,
    devices_at_work,
    kind_codes,
    kind_times,
    open_within,
    rows_on,
)
from gpuprof_widgets.analyses.reasons import empty_table
from gpuprof_widgets.analyses.regions import NO_STEPS, rank_of, time_ranges
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace

COLUMNS = (
    *("device", "stream", "calls", "busy_ns", "busy_share", *(f"{kind}_ns" for kind in KINDS)),
    *("alone_ns", "shared_ns", "serialised_ns", "start_ns", "end_ns"),
)
PAIR_COLUMNS = ("device", "stream", "other", "overlap_ns", "share")
CONCURRENCY_COLUMNS = ("device", "active", "time_ns", "share")
BY = ("stream", "pair", "concurrency")
NO_GPU = "the trace has no GPU work on any stream"
ONE_STREAM = "no GPU worked on more than one stream: there are no pairs"


def streams(record: Record, *, by: str = "stream") -> pd.DataFrame:
    """How busy each stream was and how much of that beside others; the busiest first.

    Options:

    - ``by``: "stream" (a row per stream), "pair" (a row per two streams) or "concurrency" (a row
      per number of busy streams).

    Columns:

    - ``device``, ``stream``: the stream.
    - ``calls``: number of its GPU slices.
    - ``busy_ns``: at least one of its slices ran.
    - ``busy_share``: ``busy_ns`` divided by the trace's time.
    - ``compute_ns``, ``communication_ns``, ``copy_ns``, ``memset_ns``: a slice of that kind ran on
      it.
    - ``alone_ns``, ``shared_ns``: of ``busy_ns``, no other stream of the GPU was busy, or another
      one was; they add up to ``busy_ns``.
    - ``serialised_ns``: communication and copies (except DtoD) on a stream that also computes,
      while no stream computed. A stream works in order, so they could not overlap with its own
      compute. This is measured time, not possible gain: traces do not tell whether any compute was
      independent of them.
    - ``start_ns``, ``end_ns``: its first and last work.

    Columns with ``by="pair"``:

    - ``device``, ``stream``, ``other``: the two streams.
    - ``overlap_ns``: both were busy.
    - ``share``: ``overlap_ns`` divided by the time of the less busy one.

    Columns with ``by="concurrency"``:

    - ``device``: the GPU.
    - ``active``: number of busy streams, from 0 on.
    - ``time_ns``: time with that many; these add up to the trace's time.
    - ``share``: ``time_ns`` divided by the trace's time.

    Source: defined here; the times are unions of intervals.
    """
    if by not in BY:
        raise OptionError(f"streams are counted by one of {', '.join(BY)}, not by {by!r}")
    of_device, columns = {
        "stream": (_streams, COLUMNS),
        "pair": (_pairs, PAIR_COLUMNS),
        "concurrency": (_concurrency, CONCURRENCY_COLUMNS),
    }[by]
    trace = record.trace
    used = devices(trace) if by == "concurrency" else devices_at_work(trace)
    tables = [of_device(trace, device).assign(device=device) for device in used]
    if not tables:
        return empty_table(columns, NO_GPU)
    table = pd.concat(tables, ignore_index=True)[list(columns)]
    return table if len(table) else empty_table(columns, ONE_STREAM)


def _streams(trace: Trace, device: int) -> pd.DataFrame:
    rows, code = rows_on(trace, device), kind_codes(trace)
    computing = open_within(trace, rows[code[rows] == KINDS.index(COMPUTE)])
    moving = np.zeros(len(trace), bool)
    moving[rows] = could_overlap(trace, rows, np.array(KINDS, object)[code[rows]])
    of_stream = {number: rows[at] for number, at in rows_by(trace.index.stream[rows]).items()}
    alone = _alone([open_within(trace, members) for members in of_stream.values()])
    table = []
    for (stream, members), alone_ns in zip(of_stream.items(), alone.tolist(), strict=True):
        busy, kind = open_within(trace, members), code[members]
        total = intervals.length(busy)
        could_wait = moving[members] & (kind == KINDS.index(COMPUTE)).any()
        exposed = intervals.difference(open_within(trace, members[could_wait]), computing)
        table.append(
            {
                "stream": stream,
                "calls": int(trace.slices["count"].to_numpy()[members].sum()),
                "busy_ns": total,
                "busy_share": total / max(trace.span_ns, 1),
                **{
                    f"{name}_ns": intervals.length(open_within(trace, members[kind == number]))
                    for number, name in enumerate(KINDS)
                },
                "alone_ns": alone_ns,
                "shared_ns": total - alone_ns,
                "serialised_ns": intervals.length(exposed),
                "start_ns": int(busy[0][0]) if total else trace.start_ns,
                "end_ns": int(busy[1][-1]) if total else trace.start_ns,
            }
        )
    by_busy = pd.DataFrame(table)
    return by_busy.sort_values("busy_ns", ascending=False, kind="stable", ignore_index=True)


def _alone(unions: list[Intervals]) -> Ints:
    """Return per stream the time (ns) in which it was busy and no other was."""
    start, end = (np.concatenate([union[side] for union in unions]) for side in (0, 1))
    stream = np.repeat(np.arange(len(unions)), [len(union[0]) for union in unions])
    edge = np.concatenate([start, end])
    order = np.argsort(edge, kind="stable")
    change = np.repeat([1, -1], len(start))[order]
    active = np.cumsum(change)[:-1]
    number = np.cumsum(change * np.tile(stream, 2)[order])[:-1]  # sum of the busy streams' numbers
    return group_sums(number[active == 1], np.diff(edge[order])[active == 1], len(unions))


def could_overlap(trace: Trace, rows: Rows, kind: npt.NDArray[np.object_]) -> Mask:
    """Return which GPU slices move data to or from another device, so that compute could hide them.

    A copy within the GPU competes with compute for the same memory.
    """
    within = trace.index.matching(re.compile(r".*(DtoD|Device -> Device).*"))[rows]
    return np.asarray((kind == COMMUNICATION) | ((kind == COPY) & ~within), bool)


def _pairs(trace: Trace, device: int) -> pd.DataFrame:
    rows = rows_on(trace, device)
    of_stream = rows_by(trace.index.stream[rows])
    busy = {stream: open_within(trace, rows[at]) for stream, at in of_stream.items()}
    pairs = []
    for stream, other in combinations(busy, 2):
        overlap = intervals.length(intervals.intersection(busy[stream], busy[other]))
        less = min(intervals.length(busy[stream]), intervals.length(busy[other]))
        share = overlap / max(less, 1)
        pairs.append({"stream": stream, "other": other, "overlap_ns": overlap, "share": share})
    table = pd.DataFrame(pairs, columns=list(PAIR_COLUMNS[1:]))
    return table.sort_values("overlap_ns", ascending=False, kind="stable", ignore_index=True)


def _concurrency(trace: Trace, device: int) -> pd.DataFrame:
    rows = rows_on(trace, device)
    of_stream = rows_by(trace.index.stream[rows])
    unions = [open_within(trace, rows[at]) for at in of_stream.values()]
    none = np.empty(0, np.int64)
    starts, ends = (np.concatenate([none, *(union[side] for union in unions)]) for side in (0, 1))
    bounds = np.array([trace.start_ns, trace.end_ns], np.int64)
    edges = intervals.distinct(bounds, starts, ends)
    begun = np.searchsorted(np.sort(starts), edges[:-1], side="right")
    active = begun - np.searchsorted(np.sort(ends), edges[:-1], side="right")
    time = group_sums(active, np.diff(edges), len(unions) + 1)
    share = time / max(trace.span_ns, 1)
    return pd.DataFrame({"active": np.arange(len(time)), "time_ns": time, "share": share})


OVERLAP_COLUMNS = (
    *("rank", "device", "step", "span_ns", "busy_ns", "idle_ns", *(f"{kind}_ns" for kind in KINDS)),
    *("communication_overlapped_ns", "copy_overlapped_ns"),
    *("communication_overlapped_share", "copy_overlapped_share"),
)
OVERLAP_BY = ("device", "step")
OVERLAP_NO_GPU = "the trace has no GPU work: nothing could overlap"


def overlaps(record: Record, *, by: str = "device") -> pd.DataFrame:
    """One row per GPU (and step): total times of each kind of work, and how much was hidden.

    Formula: ``communication_overlapped_share`` = time in which communication and compute ran / time
    in which communication ran; the same for copies.

    Options:

    - ``by``: "device" (the whole trace) or "step" (each step).

    Columns:

    - ``rank``, ``device``: -1: unknown.
    - ``step``: -1: the whole.
    - ``span_ns``, ``busy_ns``, ``idle_ns``: length of the trace or step, and how much of it the GPU
      was busy and idle.
    - ``compute_ns``, ``communication_ns``, ``copy_ns``, ``memset_ns``: at least one such slice ran;
      these may overlap.
    - ``communication_overlapped_ns``, ``copy_overlapped_ns``: of that, compute ran as well.
    - ``communication_overlapped_share``, ``copy_overlapped_share``: of all communication and all
      copies; 0 where there is none.

    Source: HTA's ``get_comm_comp_overlap``.
    """
    if by not in OVERLAP_BY:
        raise OptionError(f"overlaps are by one of {', '.join(OVERLAP_BY)}, not by {by!r}")
    trace = record.trace
    number, start, end = time_ranges(record, by)
    kinds = {device: kind_times(trace, device) for device in devices(trace)}
    if not kinds or not len(number):
        return empty_table(OVERLAP_COLUMNS, NO_STEPS if kinds else OVERLAP_NO_GPU)
    tables = []
    for device, unions in kinds.items():
        starts, ends = (np.concatenate(edges) for edges in zip(*unions.values(), strict=True))
        busy = intervals.overlap((start, end), intervals.union(starts, ends))
        columns: dict[str, Any] = {"device": device, "step": number, "span_ns": end - start}
        columns |= {"busy_ns": busy, "idle_ns": end - start - busy}
        for kind, union in unions.items():
            columns[f"{kind}_ns"] = intervals.overlap((start, end), union)
        for kind in (COMMUNICATION, COPY):
            both = intervals.intersection(unions[kind], unions[COMPUTE])
            hidden = intervals.overlap((start, end), both)
            columns[f"{kind}_overlapped_ns"] = hidden
            columns[f"{kind}_overlapped_share"] = hidden / np.maximum(columns[f"{kind}_ns"], 1)
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True).assign(rank=rank_of(trace))[list(OVERLAP_COLUMNS)]
