"""Collectives by operation, size and group: how often, how long, and how fast."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collective_calls import COLUMNS as CALL_COLUMNS
from gpuprof_widgets.analyses.collective_calls import collective_calls
from gpuprof_widgets.analyses.collective_words import bus_share
from gpuprof_widgets.analyses.grouped import Groups, durations_by_group, group_rows
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE

KEYS = ["name", "backend", "dtype", "bytes", "group", "ranks", "device"]
BANDWIDTH = ("algorithm_bytes_per_s", "bus_bytes_per_s")
COLUMNS = (
    *(*KEYS, "count", "total_bytes", "total_ns", "mean_ns", "min_ns", "max_ns", "exposed_ns"),
    *(*BANDWIDTH, "best_bus_bytes_per_s"),
)


def collectives(record: Record, *, instances: bool = False) -> pd.DataFrame:
    """One row per operation, data type, message size and group, the longest in total first.

    Columns (ns, bytes, bytes per s): ``name``, ``backend``, ``dtype``, ``bytes`` (of one message;
    -1: not recorded), ``group``, ``ranks``, ``device``, ``count``, ``total_bytes``, ``total_ns``,
    ``mean_ns``, ``min_ns``, ``max_ns``, ``exposed_ns`` (not covered by compute; of
    several at a time the one that began first has it, so that they add up to the exposed time);
    ``algorithm_bytes_per_s`` (bytes over time), ``bus_bytes_per_s`` (that times what the busiest
    link carries of a message) and ``best_bus_bytes_per_s`` (of the shortest). Where a size is
    unknown, ``total_bytes`` is -1 and a bandwidth NaN. The time of one rank holds its waiting for
    the others, so that bandwidth is a lower bound; the shortest is the nearest to moving data only.
    `gpuprof_widgets.ranks` tells the two apart.

    ``instances``: a row per collective instead, in order of time, with the columns of
    `collective_calls` and both bandwidths.

    Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md), see `bus_share`.
    """
    calls = collective_calls(record)
    if not len(calls):
        columns = (*CALL_COLUMNS, *BANDWIDTH) if instances else COLUMNS
        return lacking(columns, what_is_lacking(calls))
    return with_bandwidth(calls, "bytes", "dur_ns") if instances else _grouped(calls)


def _grouped(calls: pd.DataFrame) -> pd.DataFrame:
    groups, first = collective_groups(calls)
    times = durations_by_group(groups, calls["dur_ns"].to_numpy(np.int64), len(first))
    exposed = np.zeros(len(first), np.int64)
    np.add.at(exposed, groups, calls["exposed_ns"].to_numpy(np.int64))
    table = calls[KEYS].iloc[first].reset_index(drop=True)
    table = table.assign(
        count=times["calls"],
        total_bytes=np.where(table["bytes"] < 0, NONE, times["calls"] * table["bytes"]),
        total_ns=times["total_ns"],
        mean_ns=times["average_ns"],
        min_ns=times["min_ns"],
        max_ns=times["max_ns"],
        exposed_ns=exposed,
    )
    best = with_bandwidth(table, "bytes", "min_ns")["bus_bytes_per_s"]
    table = with_bandwidth(table, "total_bytes", "total_ns").assign(best_bus_bytes_per_s=best)
    return table[list(COLUMNS)]


def collective_groups(calls: pd.DataFrame) -> tuple[Groups, Groups]:
    """Of each call the number of its row in the table, and of each row the first call."""
    groups, first = group_rows({key: calls[key].to_numpy() for key in KEYS})
    total = np.bincount(groups, calls["dur_ns"], minlength=len(first))
    order = np.argsort(-total, kind="stable")
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    return place[groups], first[order]


def with_bandwidth(table: pd.DataFrame, size: str, time: str) -> pd.DataFrame:
    """The table with algorithm and bus bandwidth of these bytes in these ns; NaN: unknown."""
    ns, moved = (table[key].to_numpy(np.float64) for key in (time, size))
    known = (ns > 0) & (moved >= 0)
    algorithm = np.divide(moved * 1e9, ns, out=np.full(len(table), np.nan), where=known)
    pairs = zip(table["name"], table["ranks"], strict=True)
    share = np.array([bus_share(name, ranks) for name, ranks in pairs], np.float64)
    columns = dict(zip(BANDWIDTH, (algorithm, algorithm * share), strict=True))
    return table.assign(**columns)
