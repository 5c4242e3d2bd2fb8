"""Kernels that ops launch one after another again and again: what could be fused."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.sequences import ARROW, LENGTH, occurrences, sequences
from gpuprof_widgets.analyses.stacks import BACKWARD_PREFIX
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.kernel_names import function_name
from gpuprof_widgets.views.panels.panel import Panel
from gpuprof_widgets.views.table import Column

MOST = 100
LONGEST = 300
"""Letters of a sequence; of a longer one the page shows the beginning."""
SHORTEST = 30
"""Letters of each kernel's name in it, which is without its template arguments."""

COLUMNS = (
    Column("op_name", "Op", "text"),
    Column("sequence", "Launches", "text"),
    Column("kernels", "Kernels", "number"),
    Column("calls", "Calls", "count", "count"),
    Column("gpu_ns", "GPU time", "ns", "sum", "gpu_ns"),
    Column("launching_ns", "CPU launching", "ns"),
    Column("cpu_ns", "CPU time", "ns", "time"),
    Column("short_kernels", "Shorter than launch", "share"),
)


def sequences_panel(record: Record) -> Panel | None:
    """A row per op and sequence; its events are the op's calls."""
    table = sequences(record, top=MOST)
    if not len(table):
        return None
    rows = table.assign(
        op_name=table["op_name"].str.removeprefix(BACKWARD_PREFIX),
        sequence=[_short(text) for text in table["sequence"]],
        gpu_ns=table["total_ns"],
        cpu_ns=table["op_ns"],
    )
    return Panel(
        "Sequences",
        COLUMNS,
        rows[[column.key for column in COLUMNS]],
        _calls(record, table),
        notes=(
            f"Outermost ops that launch {LENGTH} or more kernels in a call, by what they launch: "
            "fused to one, they are launched once and pass no intermediate results through memory.",
        ),
        sort="gpu_ns",
    )


def _short(sequence: str) -> str:
    names = [function_name(name) for name in sequence.split(ARROW)]
    names = [name if len(name) <= SHORTEST else name[: SHORTEST - 1] + "…" for name in names]
    text = ARROW.join(names)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _calls(record: Record, table: pd.DataFrame) -> pd.DataFrame:
    trace = record.trace
    found = occurrences(trace, None, LENGTH)
    dur = pd.Series(trace.slices["dur"].to_numpy()[found.rows])
    start = trace.slices["ts"].to_numpy()[found.op]
    first = pd.Series(found.op).groupby(found.group).transform("first")
    place = pd.Series(table.index, table["first"].to_numpy())
    columns = {
        "group": place.reindex(first).to_numpy(),
        "start_ns": start,
        "end_ns": start + trace.slices["dur"].to_numpy()[found.op],
        "row": found.op,
        "gpu_ns": dur.groupby(found.call).sum().to_numpy(),
    }
    events = pd.DataFrame(columns)
    listed = events["group"].notna()
    return events[listed].astype({"group": int})
