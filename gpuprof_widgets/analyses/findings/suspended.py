"""How long the code was suspended in `await` while nothing of it ran."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses import op_rows as rows
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.lines import WORTH_NS
from gpuprof_widgets.analyses.findings.wording import run_ns, share_of, statement
from gpuprof_widgets.analyses.line_sources import line_sources
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record

REMEDY = (
    "What it awaits is to be shortened, or to be awaited together with other things "
    "(asyncio.gather, asyncio.create_task)."
)

NEARLY_ALL = 0.95  # of the time, in one line

_AWAIT = re.compile(r"\bawait\b")


def suspended(record: Record, *, suspended_share: float = 0.1) -> list[Finding]:
    """Fires where that is a tenth of the run or more: in no line's time, and in no op's.

    ``suspended_share``: Suspended in ``await``, while no line and no op ran.
    """
    if not (awaiting := _awaiting(record)):
        return []
    table = _suspensions(record, awaiting)
    cost = int(table["dur_ns"].sum())
    share = share_of(cost, run_ns(record))
    if cost < WORTH_NS or share < suspended_share:
        return []
    by_line = table.groupby(["cell", "line", "code"], as_index=False)["dur_ns"].sum()
    top = by_line.iloc[int(by_line["dur_ns"].argmax())].to_dict()
    most = int(top["dur_ns"])
    part = "" if most >= NEARLY_ALL * cost else f"{format_ns(most)} of it "
    of = f" of {top['cell']}" if len(record.metadata["lines"]["cells"]) > 1 else ""
    text = (
        f"The code was suspended in `await` for {format_ns(cost)} ({format_share(share)} of the "
        f"time), {part}in line {top['line']}{of} {statement(str(top['code']))}: "
        "no line and no op ran meanwhile."
    )
    longest = table.iloc[int(table["dur_ns"].argmax())].to_dict()
    return [
        Finding(
            text,
            cost,
            share,
            start_ns=longest["end_ns"] - longest["dur_ns"],
            end_ns=longest["end_ns"],
            rows=tuple(table["row"]),
            remedy=REMEDY,
        )
    ]


def _suspensions(record: Record, awaiting: set[tuple[str, int]]) -> pd.DataFrame:
    """One row per stretch in which no line and no op was open until a line went on that awaits.

    Columns: ``row`` (the slice with which that line goes on), its ``cell``, ``line`` and ``code``,
    ``end_ns``, ``dur_ns``.
    """
    trace = record.trace
    known, slices = cell_lines(trace), trace.slices
    keys = zip(known.lines["cell"], known.lines["line"], strict=True)
    awaits = np.array([*(key in awaiting for key in keys), False])[known.of_slice[known.row]]
    row = np.sort(known.row[known.resumed & awaits])
    ops = rows.op_rows(trace).row
    ops = ops[~trace.index.in_category("user_annotation")[ops]]
    ran = np.concatenate([known.row, ops])
    ts = slices["ts"].to_numpy()
    open_ = intervals.union(ts[ran], ts[ran] + slices["dur"].to_numpy()[ran])
    start, end = intervals.gaps(open_, trace.start_ns, trace.end_ns)
    # What goes on opens from the outside in: the heads of loops and blocks, then what awaits.
    begun = np.sort(ts[np.concatenate([known.row[~known.resumed], ops])])
    at = np.searchsorted(ts[row], end)
    gap = np.flatnonzero(at < len(row))
    at = at[gap]
    goes_on = np.searchsorted(begun, end[gap]) == np.searchsorted(begun, ts[row[at]])
    gap, row = gap[goes_on], row[at[goes_on]]
    table: pd.DataFrame = known.lines.iloc[known.of_slice[row]].reset_index(drop=True)
    return table.assign(row=row, end_ns=end[gap], dur_ns=end[gap] - start[gap])


def _awaiting(record: Record) -> set[tuple[str, int]]:
    """Cell and line of the statements in whose text there is an `await`."""
    found = set()
    for source in line_sources(record):
        last = source.first + len(source.text)
        for line, following in zip(source.statements, [*source.statements[1:], last], strict=False):
            text = source.text[max(line - source.first, 0) : following - source.first]
            if _AWAIT.search("\n".join(text)):
                found.add((source.name, line))
    return found
