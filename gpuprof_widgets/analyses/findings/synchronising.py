"""Calls in which the CPU stood still until the GPU was done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of, shorter
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.region_owners import forward_of, region_around
from gpuprof_widgets.analyses.wait_costs import wait_costs
from gpuprof_widgets.analyses.waits import FREEING, waits
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record, Trace

MOST = 3  # findings; further ops are rarely worth reading about
ALL_THE_WHILE = 0.95
"""Of the waiting, from which on the GPU was busy in all of it but for the call's own overhead."""

REMEDIES = {
    "aten::item": "Read results less often: add up on the GPU and call .item() once per epoch.",
    "aten::_local_scalar_dense": "Read results less often: .item(), float() and printing wait.",
    "aten::nonzero": "The shape of its result depends on data, so the CPU has to wait for it: "
    "torch.where or a mask of fixed shape does not.",
    "aten::index": "A boolean mask has to be counted first, so the CPU has to wait: torch.where or "
    "masked_fill keep a fixed shape.",
}
COPY_REMEDIES = {
    "DtoH": "Keep results on the GPU, read them less often or later (non_blocking=True needs "
    "pinned memory and a synchronisation before reading).",
    "HtoD (Pageable": "Copy from pinned memory (pin_memory=True of the DataLoader, or "
    ".pin_memory()) with non_blocking=True.",
    "HtoD (Pinned": "Its memory is pinned already: non_blocking=True suffices.",
}
"""What to do about a wait for a copy, by its direction and the kind of memory in its name."""
FREEING_REMEDY = (
    "Memory ran short and the allocator gave cached blocks back first: use less of it, or set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)
NOT_IN_THE_TRACE = (
    "Meanwhile the GPU did nothing that the trace holds, so what the call waited for is not in it: "
    "another process on this GPU, another GPU or rank, or work from before the recording."
)
AT_THE_END = (
    "No GPU work came after this call, which waits for the results: only less work before it makes "
    "that shorter."
)
HARDLY = 0.1
"""Of the waiting, up to which the GPU was busy if it was for something else."""
LATENCY_NS = 1_000_000
"""No work that the GPU has queued begins so late, nor does a call return so late after it."""
OTHERWISE = "The CPU launches nothing while it waits: move the call out of the loop if you can."
ONCE = "The CPU launches nothing while it waits: leave the call out, or make it later, if you can."

SYNCHRONISING_SHARE = 0.02


def synchronising(
    record: Record, *, synchronising_share: float = SYNCHRONISING_SHARE
) -> list[Finding]:
    """At most three findings: the ops whose waits took 2 % of the run or more, by their cost.

    The cost is what the GPU idled for it (`wait_costs`): to wait for a GPU that is busy, and has
    more to do then, costs nothing. Not the waits of backward ops, which the rule `backward` names
    with their forward op.

    ``synchronising_share``: Waiting for the GPU in calls of one op.
    """
    table = waits(record)
    table = table[table["kind"] == "synchronise"]
    table = table.assign(cost_ns=wait_costs(record.trace, table))
    of_backward = forward_of(record.trace)[table["row"]] >= 0
    table = table[~of_backward & ~_profilers_own(record, table)]
    groups = [group for _, group in table.groupby(["op_name", "name"], sort=False)]
    run, least = run_ns(record), synchronising_share
    long = [one for one in groups if share_of(one["dur_ns"].sum(), run) >= least]
    said = [_finding(record, group) for group in long]
    return sorted(said, key=lambda finding: -finding.cost_ns)[:MOST]


def _profilers_own(record: Record, table: pd.DataFrame) -> Any:
    """The wait outside of any op with which a recording ends: the profiler's, not the user's."""
    index = record.trace.index
    ended = index.end[index.is_op & (index.column("count") > 0)]
    return (table["op"] < 0) & (table["start_ns"] >= ended.max(initial=0)) & (len(ended) > 0)


def _finding(record: Record, group: pd.DataFrame) -> Finding:
    longest = group.iloc[0]
    waited, share = int(group["dur_ns"].sum()), share_of(group["dur_ns"].sum(), run_ns(record))
    cost = int(group["cost_ns"].sum())
    calls = format_count(len(group), "call")
    who = code(longest["op_name"]) if longest["op_name"] else "The CPU"
    text = (
        f"{who} waited {format_ns(waited)} for the GPU ({format_share(share)} of the time), "
        f"in {calls} of {code(longest['name'])}{_mostly_for(record.trace, group)}"
        f"{_mostly_at(record, group)}{_lost(record, group)}."
    )
    start = int(longest["start_ns"])
    return Finding(
        text,
        cost,
        share_of(cost, run_ns(record)),
        start,
        start + int(longest["dur_ns"]),
        tuple(group["row"].astype(int)),
        _remedy(record.trace, group),
    )


def _lost(record: Record, group: pd.DataFrame) -> str:
    """What the run lost by it, where that is less than the waiting, and that the GPU was busy."""
    waited, cost = int(group["dur_ns"].sum()), int(group["cost_ns"].sum())
    busy = int(group["gpu_busy_ns"].sum()) >= ALL_THE_WHILE * waited
    said = "; the GPU was busy all the while" if busy else ""
    if not cost:
        said += ", and had more to do: the waiting cost nothing"
    elif cost < waited:
        said += f"{', and' if busy else ';'} {shorter(cost, record)} without"
    return said


def _remedy(trace: Trace, group: pd.DataFrame) -> str:
    """What to do about the op, else about the copies that took most of the waiting."""
    waited = int(group["dur_ns"].sum())
    if waited >= LATENCY_NS * len(group) and group["gpu_busy_ns"].sum() < HARDLY * waited:
        return NOT_IN_THE_TRACE
    if FREEING.fullmatch(group["name"].iloc[0]):
        return FREEING_REMEDY
    began = trace.index.ts[trace.index.gpu].max(initial=0)
    ends = int((group["start_ns"] + group["dur_ns"]).min())
    in_no_op = bool((group["op"] < 0).all())  # an op's result is read in every step, the last too
    if in_no_op and began < ends:
        return AT_THE_END
    op = group["op_name"].iloc[0]
    if op in REMEDIES:
        return REMEDIES[op]
    copy = str(group.groupby("copy_name")["dur_ns"].sum().idxmax())
    fitting = (remedy for kind, remedy in COPY_REMEDIES.items() if kind in copy)
    return next(fitting, OTHERWISE if len(group) > 1 else ONCE)


def _mostly_for(trace: Trace, group: pd.DataFrame) -> str:
    """The GPU work that was busy longest during the waits, on the streams that were waited for."""
    known = group[group["gpu"] >= 0]
    if not len(known):
        return ""
    index, gpu = trace.index, trace.index.gpu
    stream = trace.tracks["lane"].to_numpy()[index.track]
    gpu = gpu[np.isin(stream[gpu], stream[known["gpu"]])]
    waited = intervals.union(known["start_ns"], known["start_ns"] + known["dur_ns"])
    codes, at = np.unique(index.name[gpu], return_inverse=True)
    busy = np.zeros(len(codes), np.int64)
    np.add.at(busy, at, intervals.overlap((index.ts[gpu], index.end[gpu]), waited))
    longest = min(index.names[code] for code in codes[busy == busy.max()])
    return f", mostly for {code(longest)}"


def _mostly_at(record: Record, group: pd.DataFrame) -> str:
    """The module and the cell line in which most of the waiting was, where they are known."""
    trace = record.trace
    module = region_around(trace, "module")[group["row"]]
    line = region_around(trace, "cell_line")[group["row"]]
    lines = trace.args.get("line")
    places = pd.DataFrame(
        {
            "module": trace.index.names_of(module),
            "line": -1 if lines is None else lines.reindex(line).fillna(-1).to_numpy(np.int64),
            "dur_ns": group["dur_ns"].to_numpy(),
        }
    )
    most = places.groupby(["module", "line"], as_index=False)["dur_ns"].sum()
    top = most.iloc[int(most["dur_ns"].to_numpy().argmax())]
    said = [f"in {code(top['module'])}"] if top["module"] else []
    said += [f"on line {top['line']}"] if top["line"] >= 0 else []
    return f", {'mostly ' * (len(most) > 1)}{' '.join(said)}" if said else ""
