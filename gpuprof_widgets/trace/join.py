"""Several traces one after another as one: their tracks unite, what lay between them is cut out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.counters import counter_table
from gpuprof_widgets.trace.events import column, from_codes, typed
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import FLOW_COLUMNS, NONE, SLICE_COLUMNS, TRACK_KINDS
from gpuprof_widgets.trace.tracks import DEVICE_KINDS, with_types

_LINKS = ("parent", "launch", "op", "forward")
_SAME_TRACK = ("kind", "process", "thread", "device", "stream")


def starts_when_joined(traces: Sequence[Trace]) -> list[int]:
    """Where each trace begins on the clock of the joined one (ns): where the one before it ends."""
    spans = [trace.span_ns for trace in traces]
    return [sum(spans[:number]) for number in range(len(spans))]


def joined(traces: Sequence[Trace]) -> Trace:
    """The traces in this order on one clock, that of the first; every link stays within its trace.

    Tracks of the same process, thread, device and stream are one. Nothing is linked anew: ids
    (correlations, external ids) may repeat from trace to trace.
    """
    if len(traces) == 1:
        return traces[0]
    tracks, numbers = _united_tracks(traces)
    slices, rows = _joined_slices(traces, numbers)
    return replace(
        traces[0],
        slices=slices,
        tracks=tracks,
        counters=_joined_counters(traces),
        flows=_joined_flows(traces, rows),
        args=_joined_args(traces, rows),
        start_ns=0,
        end_ns=sum(trace.span_ns for trace in traces),
        epoch_ns=traces[0].epoch_ns + traces[0].start_ns,
    )


def _united_tracks(traces: Sequence[Trace]) -> tuple[pd.DataFrame, list[NDArray[np.int32]]]:
    """One row per track, in display order, and per trace the new number of each of its tracks."""
    keys = [_track_keys(trace.tracks) for trace in traces]
    first: dict[Any, dict[Any, Any]] = {}
    for trace, of_trace in zip(traces, keys, strict=True):
        for key, row in zip(of_trace, trace.tracks.to_dict("records"), strict=True):
            first.setdefault(key, row)
    order = _display_order(first)
    number = {key: index for index, key in enumerate(order)}
    table = pd.DataFrame([first[key] for key in order], columns=traces[0].tracks.columns)
    lanes = list(zip(table["process"], table["thread"], strict=True))
    place = {lane: index for index, lane in enumerate(dict.fromkeys(lanes))}
    table["lane"] = [place[lane] for lane in lanes]
    return with_types(table), [np.array([number[k] for k in ks], dtype=np.int32) for ks in keys]


def _track_keys(tracks: pd.DataFrame) -> list[tuple[Any, ...]]:
    """What makes a track the same in several traces; several alike in one trace are counted."""
    alike = list(zip(*(tracks[name] for name in _SAME_TRACK), strict=True))
    seen: Counter[Any] = Counter()
    keys = []
    for key in alike:
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys


def _display_order(tracks: dict[Any, dict[Any, Any]]) -> list[Any]:
    """CPU threads, devices, the rest, as one trace has them; what came later stands behind."""
    rows = list(tracks.items())
    process: dict[Any, int] = {}
    lane: dict[Any, int] = {}
    for _, row in rows:
        process.setdefault(row["process"], len(process))
        lane.setdefault((row["process"], row["thread"]), len(lane))

    def place(item: tuple[Any, dict[Any, Any]]) -> tuple[int, ...]:
        row = item[1]
        kind, pair = TRACK_KINDS.index(row["kind"]), (row["process"], row["thread"])
        if row["kind"] in DEVICE_KINDS:
            return (1, row["device"], row["stream"], lane[pair], kind)
        section = 2 if row["kind"] == "other" else 0
        return (section, process[row["process"]], lane[pair], kind, 0)

    return [key for key, _ in sorted(rows, key=place)]


def _joined_slices(
    traces: Sequence[Trace], numbers: list[NDArray[np.int32]]
) -> tuple[pd.DataFrame, list[NDArray[np.int64]]]:
    """The slices in their order, and per trace the new row of each old one (-1 for -1)."""
    starts = starts_when_joined(traces)
    tables = [trace.slices for trace in traces]
    columns = {
        name: np.concatenate([table[name].to_numpy() for table in tables])
        for name, kind in SLICE_COLUMNS.items()
        if kind != "category"
    }
    columns["ts"] = np.concatenate(
        [
            trace.slices["ts"].to_numpy() - trace.start_ns + start
            for trace, start in zip(traces, starts, strict=True)
        ]
    )
    columns["track"] = np.concatenate(
        [number[t["track"].to_numpy()] for number, t in zip(numbers, tables, strict=True)]
    )
    order = np.lexsort((-columns["dur"], columns["ts"], columns["track"]))
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    ends = np.cumsum([len(table) for table in tables])[:-1]
    rows = [np.append(part, NONE) for part in np.split(row, ends)]
    for name in _LINKS:
        columns[name] = np.concatenate(
            [moved[table[name].to_numpy()] for moved, table in zip(rows, tables, strict=True)]
        )
    types: dict[str, Any] = dict(SLICE_COLUMNS)
    texts = {name: _texts([table[name] for table in tables]) for name in ("name", "category")}
    values = {
        name: texts[name].take(order)
        if kind == "category"
        else columns[name][order].astype(kind, copy=False)
        for name, kind in types.items()
    }
    return pd.DataFrame(values), rows


def _texts(columns: list[pd.Series]) -> pd.Categorical:
    texts: list[str] = []
    codes = []
    for values in columns:
        codes.append(values.cat.codes.to_numpy().astype(np.int32) + len(texts))
        texts += [str(text) for text in values.cat.categories]
    return from_codes(np.concatenate(codes).astype(np.int32), texts)


def _joined_counters(traces: Sequence[Trace]) -> pd.DataFrame:
    starts = starts_when_joined(traces)
    moments = [
        trace.counters["ts"].to_numpy() - trace.start_ns + start
        for trace, start in zip(traces, starts, strict=True)
    ]
    return counter_table(
        np.concatenate(moments),
        [str(name) for trace in traces for name in trace.counters["name"]],
        np.concatenate([trace.counters["value"].to_numpy() for trace in traces]),
    )


def _joined_flows(traces: Sequence[Trace], rows: list[NDArray[np.int64]]) -> pd.DataFrame:
    pairs = list(zip(traces, rows, strict=True))
    values: dict[str, Any] = {
        end: np.concatenate([row[trace.flows[end].to_numpy()] for trace, row in pairs])
        for end in ("source", "target")
    }
    values["kind"] = [str(kind) for trace in traces for kind in trace.flows["kind"]]
    return pd.DataFrame({name: column(values[name], FLOW_COLUMNS[name]) for name in FLOW_COLUMNS})


def _joined_args(traces: Sequence[Trace], rows: list[NDArray[np.int64]]) -> dict[str, pd.Series]:
    merged: dict[str, dict[int, Any]] = {}
    for trace, row in zip(traces, rows, strict=True):
        for key, values in trace.args.items():
            moved = row[values.index.to_numpy()].tolist()
            merged.setdefault(key, {}).update(zip(moved, values.tolist(), strict=True))
    args = {}
    for key in sorted(merged):
        of_key = sorted(merged[key])
        args[key] = typed([merged[key][r] for r in of_key], np.array(of_key, dtype=np.int64))
    return args
