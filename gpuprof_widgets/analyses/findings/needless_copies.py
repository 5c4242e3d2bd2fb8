"""Copies that need not be made."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, copies_counted, run_ns, share_of
from gpuprof_widgets.analyses.needless_copies import EVERY_STEP, THERE_AND_BACK
from gpuprof_widgets.analyses.quantity import format_bytes, format_ns, format_share
from gpuprof_widgets.trace.model import Record

REMEDIES = {
    THERE_AND_BACK: "Leave the data where it is needed next: do on the GPU what the CPU did in "
    "between, or copy only the result.",
    EVERY_STEP: "Copy it once: register_buffer in the module moves it with the model, or create it "
    "on the device (device=x.device).",
}


def needless_copies(record: Record, *, needless_copies_share: float = 0.01) -> list[Finding]:
    """At most one finding per reason (see `copies`) whose copies took 1 % of the run or more.

    Cost: for each copy its time on the GPU, or the CPU's in waiting for it where that is longer.

    ``needless_copies_share``: Copies there and straight back, or of a constant in every step.
    """
    table = copies(record)
    said = [
        _finding(record, table[(table["needless"] == why).to_numpy(bool)], why) for why in REMEDIES
    ]
    return [finding for finding in said if finding.share >= needless_copies_share]


def _finding(record: Record, table: pd.DataFrame, why: str) -> Finding:
    cost = _costs(table)
    total = int(cost.sum())
    share = share_of(total, run_ns(record))
    if not len(table):
        return Finding("")
    longest = table.iloc[int(cost.argmax())]
    start = int(longest["start_ns"])
    took = f"{format_ns(total)}, {format_share(share)} of the time"
    text = f"{_said(table, why)}{_mostly(table, cost)}: {took}."
    return Finding(
        text,
        total,
        share,
        start,
        start + int(longest["dur_ns"]),
        tuple(table["row"]),
        REMEDIES[why],
    )


def _costs(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    waiting = table["call_ns"].where(table["blocking"].astype(bool), 0) + table["wait_ns"]
    took = table["dur_ns"].to_numpy(np.int64)
    return np.asarray(np.maximum(took, waiting.to_numpy(np.int64)), np.int64)


def _said(table: pd.DataFrame, why: str) -> str:
    size = format_bytes(int(table["bytes"].sum()))
    if why == THERE_AND_BACK:
        count = copies_counted(len(table))
        return f"{size} went between CPU and GPU and straight back, in {count}"
    each = format_bytes(int(table["bytes"].iloc[0])) if table["bytes"].nunique() == 1 else size
    return f"The same {each} are copied to the GPU anew in every step"


def _mostly(table: pd.DataFrame, cost: npt.NDArray[np.int64]) -> str:
    """The op and the module in which most of it was."""
    by = table.assign(cost=cost).groupby(["op_name", "module"])["cost"].sum()
    place: Any = by.idxmax()
    op, module = place
    said = [f", mostly in {code(op)}"] if op else []
    said += [f" of {code(module)}"] if module else []
    return "".join(said)
