"""What the file counts over time, as curves: CUPTI metrics, power, utilisation."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import Unit
from gpuprof_widgets.analyses.counters import counters
from gpuprof_widgets.analyses.memory_blocks import memory_events
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Curve, Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
    Column("counter", "Counter", "text"),
    Column("unit", "Unit", "text"),
    Column("readings", "Readings", "count"),
    Column("mean", "Mean", "number"),
    Column("min", "Least", "number"),
    Column("max", "Most", "number"),
)


def counters_panel(record: Record) -> Panel | None:
    """A row and a curve per counter; None where only memory is counted, which has its own view.

    That view needs allocations: of totals alone these curves tell.
    """
    table = counters(record, derived=False)
    if len(table) and len(memory_events(record.trace)):
        table = table[~table["name"].str.fullmatch(r"(CPU|GPU -?\d+) memory")]
    if not len(table):
        return None
    named = table.assign(counter=(table["name"] + " " + table["series"]).str.strip())
    each = list(named.groupby("counter", sort=False))
    rows = pd.DataFrame([_row(record, str(name), readings) for name, readings in each])
    curves = tuple(_curve(str(name), readings) for name, readings in each)
    return Panel("Counters", COLUMNS, rows, curves=curves)


def _row(record: Record, counter: str, readings: pd.DataFrame) -> dict[str, object]:
    """Mean over the time for which a reading held, of what was measured."""
    value = readings["value"].to_numpy()
    held = np.diff(np.append(readings["ts_ns"].to_numpy(), record.trace.end_ns))
    known = ~np.isnan(value)
    weight = held[known] if held[known].sum() else np.ones(int(known.sum()))
    return {
        "counter": counter,
        "unit": readings["unit"].iloc[0],
        "readings": int(known.sum()),
        "mean": np.average(value[known], weights=weight),
        "min": value[known].min(),
        "max": value[known].max(),
    }


def _curve(counter: str, readings: pd.DataFrame) -> Curve:
    unit: Unit = "bytes" if readings["unit"].iloc[0] == "bytes" else "number"
    changes = readings[["ts_ns", "value"]].fillna({"value": 0.0})
    return Curve(counter, unit, changes)
