"""How much launched work waited for the GPU, over time and per stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.grouped import PERCENTILES, durations_by_group
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.launches import UNLINKED, by_call, launches
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.table_with_reason import LACKS, what_is_lacking
from gpuprof_widgets.trace.model import Record

Ints = npt.NDArray[np.int64]

FULL = 1024
"""Outstanding launches from which on a further launch waits until one has started (HTA)."""

COLUMNS = ("device", "stream", "ts_ns", "length")
QUEUE_COLUMNS = (
    *("device", "stream", "launches", "longest", "average", "waiting_ns", "full_ns", "full_share"),
    *("latency_p50_ns", "latency_p99_ns", "queue_ns", "pure_latency_ns"),
    *("short", "slow_calls", "late"),
)


@remembered
def queue_length(record: Record) -> pd.DataFrame:
    """One row per change of a stream's queue: how much launched work had not started.

    Columns: ``device``, ``stream``, ``ts_ns``, ``length`` (kernels, copies, memsets and graphs from
    here on): one more at the start of each launch call, one less when its work starts, of a graph
    the first of it. It ends at 0 and never is below.

    HTA (get_queue_length_time_series) has a row per launch and per start, also where several fall
    on one moment, and knows calls by eight names; here all calls with work on a GPU count. Work
    that began before its call, where clocks disagree, is queued for no time instead of being
    counted as -1. In a window what was launched before is queued from its start; what starts after
    its end is not known.
    """
    table = launches(record)
    if not len(table):
        return lacking(COLUMNS, what_is_lacking(table))
    table = by_call(table)
    called = np.maximum(table["call_start_ns"].to_numpy(), record.trace.start_ns)
    started = np.maximum(table["start_ns"].to_numpy(), called)
    device, stream = (np.tile(table[key].to_numpy(), 2) for key in ("device", "stream"))
    ts = np.concatenate([called, started])
    change = np.repeat(np.array([1, -1]), len(table))
    order = np.lexsort((ts, stream, device))
    device, stream, ts = device[order], stream[order], ts[order]
    length = np.cumsum(change[order])  # a stream's changes add up to 0, so each begins anew
    last = np.append(_changes(device, stream, ts), True)
    columns = {"device": device, "stream": stream, "ts_ns": ts, "length": length}
    return pd.DataFrame({key: values[last] for key, values in columns.items()})


def queues(record: Record) -> pd.DataFrame:
    """One row per stream on which work was launched, by device and stream.

    Columns: ``device``, ``stream``, ``launches``; of the queue (see `queue_length`): ``longest``,
    ``average`` (over the trace's time), ``waiting_ns`` (at least one launch had not started),
    ``full_ns`` and ``full_share`` (1,024 or more outstanding: the CPU is blocked; HTA's
    get_time_spent_blocked_on_full_queue); of its launches (ns; see `launches`): ``latency_p50_ns``,
    ``latency_p99_ns``, the sums ``queue_ns`` and ``pure_latency_ns``, and how many were ``short``,
    ``slow_calls`` and ``late``. ``attrs["unlinked"]``: GPU slices whose launch is missing.
    """
    table, length = launches(record), queue_length(record)
    if not len(table):
        return lacking(QUEUE_COLUMNS, what_is_lacking(table))
    attrs: Any = {key: table.attrs[key] for key in (UNLINKED, LACKS) if key in table.attrs}
    table = by_call(table)
    both = {key: pd.concat([table[key], length[key]]) for key in ("device", "stream")}
    device, devices = pd.factorize(both["device"].to_numpy(np.int64), sort=True)
    stream, streams = pd.factorize(both["stream"].to_numpy(np.int64), sort=True)
    number, pairs = pd.factorize(device * len(streams) + stream, sort=True)
    of_launch, of_length = np.split(number, [len(table)])
    columns = [
        pd.DataFrame({"device": devices[pairs // len(streams)]}),
        pd.DataFrame({"stream": streams[pairs % len(streams)]}),
        _of_queue(length, of_length, record.trace.span_ns, len(pairs)),
        _of_launches(table, of_launch, len(pairs)),
    ]
    summary = pd.concat(columns, axis=1)[list(QUEUE_COLUMNS)]
    summary.attrs = attrs
    return summary


def _changes(*keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Per row but the last: whether the next one differs."""
    return np.asarray(np.logical_or.reduce([key[1:] != key[:-1] for key in keys]), bool)


def _of_queue(
    length: pd.DataFrame, group: npt.NDArray[np.intp], span: int, groups: int
) -> pd.DataFrame:
    ts, value = length["ts_ns"].to_numpy(), length["length"].to_numpy()
    lasted = np.append(np.diff(ts), 0)
    lasted[np.append(np.diff(group) != 0, True)] = 0  # each stream ends with an empty queue
    longest = np.zeros(groups, np.int64)
    np.maximum.at(longest, group, value)
    full = _sum(group, lasted * (value >= FULL), groups)
    columns = {
        "longest": longest,
        "average": _sum(group, lasted * value, groups) / max(span, 1),
        "waiting_ns": _sum(group, lasted * (value > 0), groups),
        "full_ns": full,
        "full_share": full / max(span, 1),
    }
    return pd.DataFrame(columns)


def _of_launches(table: pd.DataFrame, group: npt.NDArray[np.intp], groups: int) -> pd.DataFrame:
    latency = durations_by_group(group, table["latency_ns"].to_numpy(), groups)
    names = {key: f"latency_{key}" for key in PERCENTILES}
    columns = {
        "launches": latency["calls"],
        **{names[key]: latency[key] for key in ("p50_ns", "p99_ns")},
        **{key: _sum(group, table[key].to_numpy(), groups) for key in SUMMED},
        **{name: _sum(group, table[key].to_numpy(), groups) for name, key in FLAGS.items()},
    }
    return pd.DataFrame(columns)


SUMMED = ("queue_ns", "pure_latency_ns")
FLAGS = {"short": "short", "slow_calls": "slow_call", "late": "late"}


def _sum(group: npt.NDArray[np.intp], values: npt.NDArray[np.int64], groups: int) -> Ints:
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values.astype(np.int64))
    return total
