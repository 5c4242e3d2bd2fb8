"""Reading back a trace that `chrome_writer` wrote: rows, links and bounds as they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.assemble import split_ids
from gpuprof_widgets.trace.beside_events import (
    KEY,
    PACKED_COLUMNS,
    RELATIVE_COLUMNS,
    VERSION,
    rows_at,
    unpack,
)
from gpuprof_widgets.trace.events import Events, column
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import FLOW_COLUMNS, NONE, SLICE_COLUMNS
from gpuprof_widgets.trace.tracks import with_types


def written_by_us(header: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What our writer put beside the events, if it wrote this file."""
    beside = header.get(KEY)
    known = isinstance(beside, dict) and beside.get("version") == VERSION
    return beside if known else None


def restore(
    events: Events, counters: pd.DataFrame, beside: Mapping[str, Any], epoch_ns: int
) -> Trace:
    """The trace as it was written; ``events`` are its rows in order.

    Raises `ValueError`, or what looking up a wrong value raises, where it is no such trace.
    """
    rows = len(events)
    packed = {name: unpack(beside["columns"][name], rows) for name in PACKED_COLUMNS}
    packed |= {name: rows_at(packed[name]) for name in RELATIVE_COLUMNS}
    ids, args = split_ids(events, np.arange(rows))
    category = _categories(events, beside.get("categories"))
    plain = {"ts": events.ts, "dur": events.dur, "name": events.name, "category": category}
    values: dict[str, Any] = plain | packed | ids
    trace = Trace(
        slices=pd.DataFrame({name: values[name] for name in SLICE_COLUMNS}),
        tracks=with_types(beside["tracks"]),
        counters=counters,
        flows=_flows(beside["flows"]),
        args=args,
        start_ns=int(beside["start_ns"]),
        end_ns=int(beside["end_ns"]),
        epoch_ns=epoch_ns,
    )
    _check(trace)
    return trace


def _categories(events: Events, told: Mapping[str, Any] | None) -> pd.Categorical:
    """Our categories, where the events themselves have those of another program."""
    if told is None:
        return events.category
    names = np.array([str(name) for name in told["names"]], dtype=object)
    codes = unpack(told["of"], len(events))
    if len(codes) != len(events) or not _within(codes, 0, len(names)):
        raise ValueError("its categories are not those of its slices")
    return column(names[codes].tolist(), "category")  # type: ignore[no-any-return]


def _check(trace: Trace) -> None:
    """Rows and tracks exist, and no slice is above itself: else analyses would fail, or not end."""
    slices, rows = trace.slices, len(trace.slices)
    track, ts = slices["track"].to_numpy(), slices["ts"].to_numpy()
    inside = slices["count"].to_numpy() > 0  # what stands for something inside a window may not be
    start, end = ts[inside], ts[inside] + slices["dur"].to_numpy()[inside]
    later = (np.diff(track) > 0) | ((np.diff(track) == 0) & (np.diff(ts) >= 0))
    sound = [
        later.all(),
        not trace.tracks.isna().any(axis=None),
        ((start >= trace.start_ns) & (end <= trace.end_ns)).all(),
        _within(track, 0, len(trace.tracks)),
        _within(slices["parent"].to_numpy() - np.arange(rows), -rows - 1, 0),
        *(_within(slices[name].to_numpy(), NONE, rows) for name in RELATIVE_COLUMNS),
        *(_within(trace.flows[name].to_numpy(), 0, rows) for name in ("source", "target")),
    ]
    if not all(sound):
        raise ValueError("its rows do not belong together")


def _within(values: Any, low: int, end: int) -> bool:
    return bool(((values >= low) & (values < end)).all())


_MOST_FLOWS = 1 << 24


def _flows(packed: Mapping[str, Any]) -> pd.DataFrame:
    kinds = np.array([*packed["kinds"], ""], dtype=object)
    values = {
        "source": unpack(packed["source"], _MOST_FLOWS),
        "target": unpack(packed["target"], _MOST_FLOWS),
        "kind": kinds[unpack(packed["kind"], _MOST_FLOWS)].tolist(),
    }
    return pd.DataFrame({name: column(values[name], FLOW_COLUMNS[name]) for name in FLOW_COLUMNS})
