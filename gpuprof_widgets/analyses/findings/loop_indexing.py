"""A loop in Python that takes a tensor apart row by row."""

from __future__ import annotations

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.limits import Limits
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.indexing_loops import indexing_loops
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.trace.model import Record

REMEDY = (
    "Index all rows at once: slices, boolean masks, `torch.gather`, `torch.where` or broadcasting "
    "do in one call what the loop does in one per row."
)
EVIDENCE = 2_000
"""Slices that light up."""


def loop_indexing(record: Record, limits: Limits) -> list[Finding]:
    """Fires where the same ops follow `aten::select` ten times in a row, for 1 % of the run.

    torch's ForLoopIndexingPattern (10 repeats). The cost is the loop's time but for one round.
    """
    loops = indexing_loops(record)
    loops = loops[loops["rounds"] >= limits.loop_indexing_rounds]
    cost = int((loops["dur_ns"] - loops["dur_ns"] // loops["rounds"].clip(lower=1)).sum())
    share = share_of(cost, run_ns(record))
    if not cost or share < limits.loop_indexing_share:
        return []
    longest = loops.iloc[int(loops["dur_ns"].to_numpy(int).argmax())]
    rounds, start = int(loops["rounds"].sum()), int(longest["start_ns"])
    text = (
        f"Indexing a tensor row by row took {format_ns(int(loops['dur_ns'].sum()))} "
        f"({format_share(share)} of the time could be saved): {rounds:,} rounds of "
        f"{code('aten::select')}{_with(str(longest['ops']))}."
    )
    rows = tuple(int(row) for loop in loops["rows"] for row in loop)[:EVIDENCE]
    end = start + int(longest["dur_ns"])
    return [Finding("loop_indexing", text, cost, share, start, end, rows, REMEDY)]


def _with(ops: str) -> str:
    others = ops.split(", ")[1:]
    return f" with {', '.join(code(op) for op in others)}" if others else ""
