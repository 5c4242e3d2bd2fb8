"""Tensors that a loop makes anew in each round although they are always the same."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.line_owners import line_of
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

ALWAYS_THE_SAME = frozenset(
    {"aten::zeros", "aten::ones", "aten::full", "aten::arange", "aten::eye", "aten::linspace"}
)
"""Factories whose result depends on their arguments alone: no random numbers, no user's data."""

REMEDY = (
    "Make it once before the loop (register_buffer in a module), and zero_() or copy_() into it "
    "where it changes."
)


def made_anew(
    record: Record, *, made_anew_share: float = 0.02, made_anew_rounds: int = 3
) -> list[Finding]:
    """At most one finding: the line whose factory calls cost most, from 2 % of the run on.

    Only calls on a line of the cell that ran three times or more (elsewhere nothing tells that they
    are made again), the outermost ones, those of one op together. Cost: their time on the CPU.

    ``made_anew_share``: Making a constant tensor in each round of a loop.
    ``made_anew_rounds``: Executions of one line from which on it is a loop's.
    """
    table = _calls(record.trace)
    loops = [one for _, one in table.groupby(["cell", "line", "name"])]
    loops = [one for one in loops if one["execution"].nunique() >= made_anew_rounds]
    if not loops:
        return []
    most = max(loops, key=lambda one: int(one["dur_ns"].sum()))
    cost = int(most["dur_ns"].sum())
    share = share_of(cost, run_ns(record))
    if share < made_anew_share:
        return []
    longest = most.iloc[int(most["dur_ns"].to_numpy().argmax())]
    start = int(longest["start_ns"])
    text = (
        f"{code(longest['name'])} made a tensor anew in {format_count(len(most), 'call')} on line "
        f"{longest['line']}: {format_ns(cost)}, {format_share(share)} of the time."
    )
    rows, end = tuple(most["row"]), start + int(longest["dur_ns"])
    return [Finding(text, cost, share, start, end, rows, REMEDY)]


def _calls(trace: Trace) -> pd.DataFrame:
    """The outermost factory calls in lines of a cell: slice, its cell and line, and its times.

    Not those that another op makes for its own use, as ops of the backward pass do for gradients.
    """
    makes = trace.index.named(ALWAYS_THE_SAME) & trace.index.on_tracks("cpu")
    inside = np.append(trace.index.op_around, NONE)[trace.index.parent] >= 0
    around = line_of(trace)
    rows = np.flatnonzero(makes & ~inside & (around >= 0))
    slices = trace.slices.iloc[rows]
    cell, line = (trace.args.get(key, pd.Series(dtype=object)) for key in ("cell", "line"))
    places = around[rows]
    return pd.DataFrame(
        {
            "row": rows,
            "name": slices["name"].to_numpy(object),
            "cell": cell.reindex(places).to_numpy(object),
            "line": line.reindex(places).to_numpy(),
            "execution": places,
            "start_ns": slices["ts"].to_numpy(),
            "dur_ns": slices["dur"].to_numpy(),
        }
    )
