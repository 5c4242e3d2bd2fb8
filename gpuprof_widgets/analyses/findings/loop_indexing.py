"""A loop in Python that takes a tensor apart row by row."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.indexing_loops import indexing_loops
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.analyses.stacks import BACKWARD_PREFIX
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record

REMEDY = (
    "Index all rows at once: slices, boolean masks, `torch.gather`, `torch.where` or broadcasting "
    "do in one call what the loop does in one per row."
)
UNLIKE_ROUNDS = 10
"""Times as many rounds have to be there where they are not alike: then it is a loop for sure."""
UNLIKE_OPS = 5
"""Per select where rounds are not alike: no step of a training indexes as often, nor a module."""
SHORT_NS = 50_000
"""Of an op: where it takes longer, its work costs more than that there are so many calls."""
TRAINING = re.compile(rf"{BACKWARD_PREFIX}.*|Optimizer\.(step|zero_grad)#.*")
"""What a loop that only indexes does not do."""
EVIDENCE = 2_000
"""Slices that light up."""


def loop_indexing(
    record: Record, *, loop_indexing_rounds: int = 10, loop_indexing_share: float = 0.01
) -> list[Finding]:
    """Fires where the same short ops follow `aten::select` ten times in a row, for 1 % of the run.

    torch's ForLoopIndexingPattern (10 repeats). Of rounds that are not alike there have to be 100.
    The loop of a training, which takes one batch per step, is none; those in a DataLoader are told
    by `dataloader`. The cost is the loop's time but for one round.

    ``loop_indexing_rounds``: Rounds from which on a loop that indexes row by row counts (torch:
        10).
    ``loop_indexing_share``: In such loops, but for one round of each.
    """
    loops = indexing_loops(record)
    least = loop_indexing_rounds
    unlike = (loops["rounds"] >= UNLIKE_ROUNDS * least) & (loops["per_select"] <= UNLIKE_OPS)
    of_rows = (loops["alike"] >= least) | unlike
    loops = loops[of_rows & (loops["per_op_ns"] < SHORT_NS)]
    loops = loops[~(_train(record, loops) | in_a_loader(record, loops))]
    cost = int((loops["dur_ns"] - loops["dur_ns"] // loops["rounds"].clip(lower=1)).sum())
    share = share_of(cost, run_ns(record))
    if not cost or share < loop_indexing_share:
        return []
    longest = loops.iloc[int(loops["dur_ns"].to_numpy(int).argmax())]
    rounds, start = int(loops["rounds"].sum()), int(longest["start_ns"])
    whole = format_ns(int(loops["dur_ns"].sum()))
    text = (
        f"Indexing a tensor row by row took {whole} ({format_share(share)} of the time): "
        f"{rounds:,} calls of {code('aten::select')}{_with(longest)}."
    )
    end = start + int(longest["dur_ns"])
    rows = tuple(int(row) for loop in loops["rows"] for row in loop)
    return [Finding(text, cost, share, start, end, rows[:EVIDENCE], REMEDY)]


def _train(record: Record, loops: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which loops go back through a graph or step an optimizer in every tenth round or more."""
    slices = record.trace.slices
    steps = np.sort(slices["ts"].to_numpy(np.int64)[record.trace.index.matching(TRAINING)])
    start = loops["start_ns"].to_numpy(np.int64)
    inside = np.searchsorted(steps, [start, start + loops["dur_ns"].to_numpy(np.int64)])
    return np.asarray(10 * (inside[1] - inside[0]) >= loops["rounds"].to_numpy(np.int64))


def in_a_loader(record: Record, loops: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which loops run while a DataLoader of the main process makes its batch."""
    loading = waits(record)
    loading = loading[loading["kind"] == "dataloader"]
    start = loading["start_ns"].to_numpy(np.int64)
    spans = intervals.union(start, start + loading["dur_ns"].to_numpy(np.int64))
    return intervals.inside(loops["start_ns"].to_numpy(np.int64), spans)


def _with(loop: pd.Series) -> str:
    """The other ops of a round, where all rounds are alike."""
    others = loop["ops"].split(", ")[1:] if loop["alike"] == loop["rounds"] else []
    return f", each with {', '.join(code(op) for op in others)}" if others else ""
