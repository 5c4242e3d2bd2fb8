"""Assemble a `Trace` from events: tracks, order, nesting, links and memory counters.

Every reader ends here, and so do the hand-made traces of the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints, Rows
from gpuprof_widgets.trace.events import (
    EventFlows,
    Events,
    FlowEnd,
    Names,
    flow_table,
    no_events,
    text_codes,
)
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import FlowRows, link_forward, link_launches, link_ops
from gpuprof_widgets.trace.schema import COUNTER_COLUMNS, MEMORY_EVENT, NONE, SLICE_COLUMNS
from gpuprof_widgets.trace.tracks import lay_out

ID_ARGS = {
    "correlation": ("correlation",),
    "external_id": ("External id", "external id"),
    "sequence": ("Sequence number",),
    "forward_thread": ("Fwd thread id",),
}
"""Slice columns that come from args, with the keys under which torch's versions write them."""

TOTALS = {"allocated": "Total Allocated", "reserved": "Total Reserved"}
"""Args of memory events with a device's totals in bytes, by the word for them in counters."""


def assemble(
    events: Events,
    *,
    names: Names | None = None,
    counters: pd.DataFrame | None = None,
    forward_flows: tuple[Sequence[FlowEnd], Sequence[FlowEnd]] = ((), ()),
    flows: EventFlows | None = None,
    epoch_ns: int = 0,
    rank: int = NONE,
) -> Trace:
    """Build the trace: times count from its start, rows are sorted, nested and linked.

    ``counters`` are the file's own, on the clock of the events; memory counters are added.
    ``forward_flows`` are the sources and targets of the file's fwdbwd arrows, on the same clock;
    ``flows`` are arrows of other kinds, between rows of ``events``.
    """
    memory = memory_counters(events)
    if counters is None or not len(counters):
        counters = memory
    else:  # memory counters of names that the file's own lack
        counters = joined_counters([counters, memory[~memory["name"].isin(counters["name"])]])
    tracks, track = lay_out(events, names or Names(), rank)
    moments = np.concatenate([events.ts, events.ts + events.dur, counters["ts"].to_numpy()])
    start, end = (int(moments.min()), int(moments.max())) if len(moments) else (0, 0)
    order = np.lexsort((-events.dur, events.ts, track))
    ids, args = split_ids(events, order)
    events = replace(events, args={})  # they are large, and copied now
    slices = _nested(events, track, order, start, ids)
    flow_rows = _flow_rows(slices, tracks, forward_flows, start)
    launch = link_launches(slices)
    op, forward = link_ops(slices, launch), link_forward(slices, flow_rows)
    slices = slices.assign(launch=launch, op=op, forward=forward)
    return Trace(
        slices=slices,
        tracks=tracks,
        counters=counters.assign(ts=counters["ts"] - start),
        flows=_flows(slices, flow_rows, flows or EventFlows(), links.places_in(order)),
        args=args,
        start_ns=0,
        end_ns=end - start,
        epoch_ns=epoch_ns + start,
    )


def empty_trace() -> Trace:
    """Return a trace without slices, for data without timestamps."""
    return assemble(no_events())


def split_ids(events: Events, order: Rows) -> tuple[dict[str, Ints], dict[str, pd.Series]]:
    """Return the id columns by event row, and all other args by slice row."""
    ids = {name: np.full(len(events), NONE, dtype=np.int64) for name in ID_ARGS}
    owner = {key: name for name, keys in ID_ARGS.items() for key in keys}
    row = links.places_in(order)
    sorted_rows: dict[int, tuple[Rows, pd.Index, pd.Index]] = {}
    args = {}
    for key in sorted(events.args):
        series = events.args[key]
        if key in owner:
            series, rows, numbers = _numbers_in(series)
            ids[owner[key]][rows] = numbers
        if len(series):
            before = series.index
            if id(before) not in sorted_rows:
                rows = row[before.to_numpy()]
                place = np.argsort(rows, kind="stable")
                sorted_rows[id(before)] = place, pd.Index(rows[place], dtype=np.int64), before
            place, index, _ = sorted_rows[id(before)]
            args[key] = pd.Series(series.to_numpy()[place], index=index, dtype=series.dtype)
    return ids, args


def _numbers_in(series: pd.Series) -> tuple[pd.Series, Ints, Ints]:
    """Return the values that are no ids, the rows of the ids, and the ids (int64)."""
    if series.dtype == np.int64:
        return series.iloc[:0], series.index.to_numpy(), series.to_numpy()
    numbers = [_id_number(value) for value in series.tolist()]
    known = np.array([number is not None for number in numbers], dtype=bool)
    ids = np.array([number for number in numbers if number is not None], dtype=np.int64)
    return series[~known], series.index.to_numpy()[known], ids


def _id_number(value: Any) -> int | None:
    """Return the value as an id; None for null, a list, or an integer beyond 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    whole = isinstance(value, str) or number == value
    return number if whole and abs(number) < 2**63 else None


def _nested(
    events: Events, track: Codes, order: Rows, start: int, ids: dict[str, Ints]
) -> pd.DataFrame:
    """Return the slices table, sorted and nested, without links; takes the ids out of ``ids``."""
    ts, dur = events.ts[order] - start, events.dur[order]
    track = track[order]
    parent, depth = links.nest(ts, ts + dur, track)
    no_row = np.full(len(events), NONE, dtype=np.int32)
    columns: dict[str, Any] = {
        "ts": ts,
        "dur": dur,
        "name": events.name.take(order),
        "category": events.category.take(order),
        "track": track,
        "depth": depth,
        "parent": parent,
        "count": np.ones(len(events), dtype=np.int32),
        **{name: ids.pop(name)[order] for name in list(ids)},
        **{name: no_row.copy() for name in ("launch", "op", "forward")},
    }
    return pd.DataFrame({name: columns[name] for name in SLICE_COLUMNS}, copy=False)


def _flow_rows(
    slices: pd.DataFrame,
    tracks: pd.DataFrame,
    flows: tuple[Sequence[FlowEnd], Sequence[FlowEnd]],
    start: int,
) -> FlowRows:
    """Return the slice rows at both ends of the file's fwdbwd arrows that have both ends."""
    if not any(flows):
        nothing = np.empty(0, dtype=np.int32)
        return nothing, nothing
    cpu = tracks[tracks["kind"] == "cpu"]
    track_of = dict(zip(zip(cpu["process"], cpu["thread"], strict=True), cpu.index, strict=True))
    numbered = slices[slices["sequence"] >= 0]
    places = zip(numbered["track"], numbered["ts"], strict=True)
    at = dict(zip(places, numbered.index, strict=True))
    row: list[dict[Any, int]] = [
        {e.id: at.get((track_of.get((e.process, e.thread)), e.ts - start), NONE) for e in ends}
        for ends in flows
    ]
    both = [(s, row[1][k]) for k, s in row[0].items() if s >= 0 and row[1].get(k, NONE) >= 0]
    pairs = np.array(both, dtype=np.int32).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _flows(
    slices: pd.DataFrame, flow_rows: FlowRows, others: EventFlows, row: Ints
) -> pd.DataFrame:
    """Return the arrows from launch to GPU slice, from forward to backward op, and all others.

    ``others`` are between rows of events, whose rows in the slices ``row`` has.
    """
    launch, forward = slices["launch"].to_numpy(), slices["forward"].to_numpy()
    gpu = np.flatnonzero(launch >= 0)
    forwards, backwards = flow_rows
    if not len(forwards):
        linked = np.flatnonzero(forward >= 0)
        _, first = np.unique(forward[linked], return_index=True)
        backwards = linked[first].astype(np.int32)
        forwards = forward[backwards]
    return flow_table(
        np.concatenate([launch[gpu], forwards, row[others.source]]),
        np.concatenate([gpu, backwards, row[others.target]]),
        ["launch"] * len(gpu) + ["fwdbwd"] * len(backwards) + list(others.kind),
    )


def memory_counters(events: Events) -> pd.DataFrame:
    """Return the bytes in use per device, from torch's memory events, as a counters table.

    Counters are named "CPU allocated", "GPU 0 reserved", and so on. Traces of torch 1.8 have only
    the sizes of allocations: their counters sum these up from 0 at the start.
    """
    size = events.args.get("Bytes", pd.Series(dtype=np.int64))
    codes = np.flatnonzero(events.name.categories == MEMORY_EVENT)
    size = size[np.isin(events.name.codes[size.index.to_numpy(dtype=np.int64)], codes)]
    size = size if size.dtype == np.int64 else size.iloc[:0]
    ts, names, values = [np.empty(0, np.int64)], list[str](), [np.empty(0)]
    for device, sizes in size.groupby(_devices(events, size.index)):
        for word, value in _readings(events, sizes):
            ts.append(events.ts[value.index.to_numpy()])
            names += [f"{device} {word}"] * len(value)
            values.append(value.to_numpy(dtype=np.float64))
    return counter_table(np.concatenate(ts), names, np.concatenate(values))


def _readings(events: Events, size: pd.Series) -> Iterator[tuple[str, pd.Series]]:
    """Yield the totals that are known, by word; torch writes 0 for unknown ones (reserved CPU)."""
    for word, key in TOTALS.items():
        total = events.args.get(key)
        if total is not None:
            total = total.reindex(size.index, fill_value=0)
            if total.any():
                yield word, total
        elif word == "allocated":
            yield word, size.cumsum()


def counter_table(ts: ArrayLike, names: list[str], values: ArrayLike) -> pd.DataFrame:
    """Return a counters table, sorted by name and time; equal times keep their order."""
    table = pd.DataFrame(
        {
            "ts": np.asarray(ts, dtype=np.int64),
            "name": text_codes(names),
            "value": np.asarray(values, dtype=np.float64),
        }
    )[list(COUNTER_COLUMNS)]
    order = np.lexsort((table["ts"], table["name"].cat.codes))
    return table.iloc[order].reset_index(drop=True)


def joined_counters(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the readings (``ts``, ``name``, ``value``) of several tables as a counters table."""
    return counter_table(
        np.concatenate([table["ts"].to_numpy(np.int64) for table in tables]),
        [str(name) for table in tables for name in table["name"]],
        np.concatenate([table["value"].to_numpy(np.float64) for table in tables]),
    )


def _devices(events: Events, rows: pd.Index) -> NDArray[np.object_]:
    """Return the device of each memory event: "CPU", "GPU 0", ..."""
    none = pd.Series(dtype=np.int64)
    kinds = events.args.get("Device Type", none).reindex(rows, fill_value=0)
    numbers = events.args.get("Device Id", none).reindex(rows, fill_value=-1)
    pairs = zip(kinds, numbers, strict=True)
    return np.array(["CPU" if kind == 0 else f"GPU {number}" for kind, number in pairs], object)
