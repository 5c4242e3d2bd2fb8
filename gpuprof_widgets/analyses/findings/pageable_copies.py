"""Copies to the GPU from memory that is not pinned: the CPU has to carry them itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.synchronising import SYNCHRONISING_SHARE, synchronising
from gpuprof_widgets.analyses.findings.wording import code, copies_counted, run_ns, share_of
from gpuprof_widgets.analyses.quantity import format_bytes, format_ns, format_share
from gpuprof_widgets.trace.model import Record

REMEDY = (
    "Copy from pinned memory: pin_memory=True in the DataLoader (or .pin_memory() once), and "
    ".to(device, non_blocking=True); then the CPU goes on and the copy runs beside kernels."
)


@of_gpu_work
def pageable_copies(
    record: Record,
    *,
    pageable_copies_share: float = 0.02,
    synchronising_share: float = SYNCHRONISING_SHARE,
) -> list[Finding]:
    """Fires where calls that copy from pageable memory to a GPU took 2 % of the run or more.

    The runtime first copies such data into pinned memory of its own, within the call (CUDA Runtime
    API, "API synchronization behavior"; `nsys analyze`: cuda_memcpy_async). Not for copies whose
    waits `synchronising` has reported.

    ``pageable_copies_share``: In calls that copy from pageable memory (nsys lists every one:
        cuda_memcpy_async).

    The other threshold is that of `synchronising`.
    """
    table = copies(record)
    slow = (table["direction"] == "HtoD") & (table["source"] == "pageable")
    table = table[slow.to_numpy(bool)]
    waits = synchronising(record, synchronising_share=synchronising_share)
    said = [row for finding in waits for row in finding.rows]
    table = table[~np.isin(table["launch"].to_numpy(np.int64), said)]
    held = table["call_ns"].to_numpy(np.int64) + table["wait_ns"].to_numpy(np.int64)
    cost = int(held.sum())
    share = share_of(cost, run_ns(record))
    if not len(table) or share < pageable_copies_share:
        return []
    longest = table.iloc[int(held.argmax())]
    start = int(longest["start_ns"])
    text = (
        f"{copies_counted(len(table))} from pageable memory to "
        f"the GPU{_size(table)} held the CPU up for {format_ns(cost)} ({format_share(share)} of "
        f"the time){_mostly(table, held)}."
    )
    rows, end = tuple(table["row"]), start + int(longest["dur_ns"])
    return [Finding(text, cost, share, start, end, rows, REMEDY)]


def _size(table: pd.DataFrame) -> str:
    """How much, and how fast it went."""
    known = table[(table["bytes"] >= 0).to_numpy(bool)]
    size, took = int(known["bytes"].sum()), int(known["dur_ns"].sum())
    if not size or not took:
        return ""
    return f" ({format_bytes(size)} at {format_bytes(size * 1e9 / took)}/s)"


def _mostly(table: pd.DataFrame, held: npt.NDArray[np.int64]) -> str:
    by = pd.Series(held, table["op_name"].to_numpy(object)).groupby(level=0).sum()
    op = str(by.idxmax())
    return f", mostly in {code(op)}" if op else ""
