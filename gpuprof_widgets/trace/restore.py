"""Reading back a trace that `chrome_writer` wrote: rows, links and bounds as they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.assemble import split_ids
from gpuprof_widgets.trace.chrome_writer import (
    KEY,
    PACKED_COLUMNS,
    RELATIVE_COLUMNS,
    VERSION,
    rows_at,
    unpack,
)
from gpuprof_widgets.trace.events import Events, column
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import FLOW_COLUMNS, SLICE_COLUMNS
from gpuprof_widgets.trace.tracks import with_types


def written_by_us(header: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What our writer put beside the events, if it wrote this file."""
    beside = header.get(KEY)
    known = isinstance(beside, dict) and beside.get("version") == VERSION
    return beside if known else None


def restore(
    events: Events, counters: pd.DataFrame, beside: Mapping[str, Any], epoch_ns: int
) -> Trace:
    """The trace as it was written; ``events`` are its rows in order."""
    packed = {name: unpack(beside["columns"][name]) for name in PACKED_COLUMNS}
    packed |= {name: rows_at(packed[name]) for name in RELATIVE_COLUMNS}
    ids, args = split_ids(events, np.arange(len(events)))
    plain = {"ts": events.ts, "dur": events.dur, "name": events.name, "category": events.category}
    values: dict[str, Any] = plain | packed | ids
    return Trace(
        slices=pd.DataFrame({name: values[name] for name in SLICE_COLUMNS}),
        tracks=with_types(beside["tracks"]),
        counters=counters,
        flows=_flows(beside["flows"]),
        args=args,
        start_ns=beside["start_ns"],
        end_ns=beside["end_ns"],
        epoch_ns=epoch_ns,
    )


def _flows(packed: Mapping[str, Any]) -> pd.DataFrame:
    kinds = np.array([*packed["kinds"], ""], dtype=object)
    values = {
        "source": unpack(packed["source"]),
        "target": unpack(packed["target"]),
        "kind": kinds[unpack(packed["kind"])].tolist(),
    }
    return pd.DataFrame({name: column(values[name], FLOW_COLUMNS[name]) for name in FLOW_COLUMNS})
