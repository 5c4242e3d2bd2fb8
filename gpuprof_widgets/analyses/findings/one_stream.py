"""Copies or communication on the stream that computes: what they could overlap with has to wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.wording import code
from gpuprof_widgets.analyses.gpu_kinds import COMMUNICATION, COPY, gpu_kinds
from gpuprof_widgets.analyses.idle import stream_of
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.streams import could_overlap, streams
from gpuprof_widgets.trace.model import Record

EVIDENCE = 2_000
REMEDIES = {
    COPY: "Copy the next batch on a stream of its own while this one is computed: pinned memory "
    "(pin_memory=True), non_blocking=True, a torch.cuda.Stream() and wait_stream() before use.",
    COMMUNICATION: "Give it a stream of its own: asynchronous collectives (async_op=True, and "
    "wait() only where the result is needed), as DDP and FSDP do.",
}


@of_gpu_work
def one_stream(record: Record, *, one_stream_share: float = 0.05) -> list[Finding]:
    """One finding per stream on which copies and communication hold up compute for 5 % of the run.

    The cost is what it could save at most, which is no more than the stream computes: whether any
    compute was independent of them is not in the trace.

    ``one_stream_share``: Copies and communication alone on the stream that computes as well.
    """
    table = streams(record)
    cost = table[["serialised_ns", "compute_ns"]].min(axis=1)
    share = cost / max(record.trace.span_ns, 1)
    rows = table.assign(cost_ns=cost, share=share)[share >= one_stream_share]
    return [_finding(record, row) for row in rows[rows["cost_ns"] > 0].to_dict("records")]


def _finding(record: Record, row: dict[Any, Any]) -> Finding:
    slices = record.trace.slices
    rows, kinds = _moving(record, int(row["device"]), int(row["stream"]))
    dur = slices["dur"].to_numpy()[rows]
    longest = int(dur.argmax())
    start = int(slices["ts"].iloc[rows[longest]])
    alone = int(row["serialised_ns"])
    alone_share = alone / max(record.trace.span_ns, 1)
    device = "the GPU" if row["device"] < 0 else f"GPU {row['device']}"
    text = (
        f"Stream {row['stream']} of {device} computes and moves data by turns: "
        f"for {format_ns(alone)} ({format_share(alone_share)} of the time) nothing was computed "
        f"while {_what(kinds)} ran on it, the longest is "
        f"{code(str(slices['name'].iloc[rows[longest]]))}."
    )
    evidence = tuple(rows[np.argsort(-dur, kind="stable")][:EVIDENCE])
    times = [int(dur[kinds == kind].sum()) for kind in REMEDIES]
    remedy = list(REMEDIES.values())[int(np.argmax(times))]
    place = (start, start + int(dur[longest]))
    return Finding(text, row["cost_ns"], row["share"], *place, evidence, remedy)


def _what(kinds: npt.NDArray[np.object_]) -> str:
    copies, collectives = (int((kinds == kind).sum()) for kind in (COPY, COMMUNICATION))
    counted = [f"{copies:,} {'copy' if copies == 1 else 'copies'}"] if copies else []
    counted += [format_count(collectives, "collective")] if collectives else []
    return " and ".join(counted)


def _moving(
    record: Record, device: int, stream: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.object_]]:
    """Copies and communication on a stream, and which of both each is."""
    trace = record.trace
    rows, kinds = gpu_kinds(trace)
    mine = (trace.index.device[rows] == device) & (stream_of(trace, rows) == stream)
    mine &= could_overlap(trace, rows, kinds)
    return rows[mine], kinds[mine]
