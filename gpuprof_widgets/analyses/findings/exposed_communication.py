"""Communication that no compute hides: the GPU, or a CPU, moves data and does nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.breakdown import HOST, breakdown
from gpuprof_widgets.analyses.breakdown_segments import EXPOSED, breakdown_segments
from gpuprof_widgets.analyses.collective_calls import collective_calls
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import kernel_code
from gpuprof_widgets.analyses.gpu_kinds import COMMUNICATION, gpu_kinds
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record

EVIDENCE = 2_000
REMEDY = (
    "Let it overlap with compute (DDP and FSDP do so in the backward pass: smaller buckets begin "
    "earlier, larger ones cost less each), or send less and less often: bf16, gradient "
    "accumulation with no_sync(), a compression hook. Where it mostly waits, another rank is late: "
    "gpuprof ranks compares them."
)


def exposed_communication(record: Record, *, communication_share: float = 0.1) -> list[Finding]:
    """One finding per GPU, or CPU without one, that only communicates for 10 % of the run.

    ``communication_share``: Doing nothing but communicate, on a GPU or a CPU (TB: over 10 % of the
        step).
    """
    table = breakdown(record)
    rows = table[table["class"] == EXPOSED].to_dict("records")
    rows = [row for row in rows if row["time_ns"] and row["share"] >= communication_share]
    return [_finding(record, row) for row in rows]


def _finding(record: Record, row: dict[Any, Any]) -> Finding:
    device, exposed = int(row["device"]), int(row["time_ns"])
    segments = breakdown_segments(record)
    segments = segments[(segments["device"] == device) & (segments["class"] == EXPOSED)]
    start, end = (segments[f"{edge}_ns"].to_numpy(np.int64) for edge in ("start", "end"))
    longest = int((end - start).argmax())
    rows = _slices(record, row)
    shown = _shown(record, rows, (start, end))
    ts = record.trace.slices["ts"].to_numpy()[rows]
    total = intervals.length(intervals.union(ts, ts + record.trace.slices["dur"].to_numpy()[rows]))
    name = str(record.trace.slices["name"].iloc[rows[int(shown.argmax())]])
    hidden = _hidden(exposed, total)
    text = (
        f"{_alone(row)} for {format_ns(exposed)} ({format_share(row['share'])} of the time): "
        f"{hidden} of its communication was hidden behind compute; the most exposed call is "
        f"{kernel_code(name)}, {format_ns(int(shown.max()))} of it."
    )
    evidence = tuple(rows[np.argsort(-shown, kind="stable")][:EVIDENCE])
    place = (int(start[longest]), int(end[longest]))
    return Finding(text, exposed, row["share"], *place, evidence, REMEDY)


def _hidden(exposed: int, total: int) -> str:
    share = 1 - exposed / total
    return format_share(share) if share else "nothing"


def _alone(row: dict[Any, Any]) -> str:
    if row["state"] == HOST:
        return "The CPU had a collective in flight and was in no op that computes"
    place = "The GPU" if row["device"] < 0 else f"GPU {row['device']}"
    return f"{place} did nothing but communicate"


def _slices(record: Record, row: dict[Any, Any]) -> npt.NDArray[np.intp]:
    """The communication of the device."""
    if row["state"] == HOST:
        calls = collective_calls(record)
        return np.asarray(calls["row"][calls["device"] == row["device"]], np.intp)
    rows, kind = gpu_kinds(record.trace)
    chosen = (record.trace.index.device[rows] == row["device"]) & (kind == COMMUNICATION)
    return np.asarray(rows[chosen], np.intp)


def _shown(
    record: Record, rows: npt.NDArray[np.intp], exposed: intervals.Intervals
) -> npt.NDArray[np.int64]:
    """How much of each slice nothing else hides."""
    ts = record.trace.slices["ts"].to_numpy()[rows]
    dur = record.trace.slices["dur"].to_numpy()[rows]
    return intervals.overlap((ts, ts + dur), exposed)
