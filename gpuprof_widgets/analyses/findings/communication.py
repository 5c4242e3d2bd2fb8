"""Findings on communication: what no compute hides, and broadcasts of buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof_widgets.analyses.breakdown import EXPOSED, HOST, breakdown
from gpuprof_widgets.analyses.collectives import collective_calls
from gpuprof_widgets.analyses.columns import format_ns, format_share
from gpuprof_widgets.analyses.critical_path import cpu_path_ns, whole_path
from gpuprof_widgets.analyses.findings.critical_path import CPU, bound_of
from gpuprof_widgets.analyses.findings.finding import (
    EVIDENCE,
    Finding,
    copies_counted,
    gpu_name,
    kernel_code,
    run_ns,
    share_of,
    shorter,
    spread,
)
from gpuprof_widgets.analyses.findings.idle_cause import segments_of
from gpuprof_widgets.analyses.gpu_work import COMMUNICATION, gpu_kinds
from gpuprof_widgets.analyses.what_if import saved_without_ns
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace

LITTLE = 0.1
"""Share of exposed communication: where no more would be saved without it, it bounds nothing."""
LATE_RANK = (
    "Where a collective mostly waits, another rank is late: compare the ranks with gpuprof ranks."
)
EXPOSED_COMMUNICATION_REMEDY = (
    "Overlap communication with compute, as DDP and FSDP do in the backward pass (smaller buckets "
    "begin earlier; larger buckets have less overhead). Or send less, and less often (bf16, "
    f"gradient accumulation with no_sync(), a compression hook). {LATE_RANK}"
)
BOUND_ELSEWHERE = f"First shorten the critical path, which bounds the run. {LATE_RANK}"
"""The remedy where shorter communication alone would save little."""
NO_SHORTER = "the run would be no shorter: the CPU bounds it"


def exposed_communication(record: Record, *, communication_share: float = 0.1) -> list[Finding]:
    """Report each GPU (or the CPU, without one) that only communicates for 10 % of the run.

    Cost: the time in which nothing but communication ran. If the CPU bounds the run, by how much
    the run would be shorter without communication: it gains little from a faster one.
    """
    table = breakdown(record)
    rows = table[table["class"] == EXPOSED].to_dict("records")
    rows = [row for row in rows if row["time_ns"] and row["share"] >= communication_share]
    return [_exposed_communication_finding(record, row) for row in rows]


def _exposed_communication_finding(record: Record, row: dict[Any, Any]) -> Finding:
    device, exposed, share = int(row["device"]), int(row["time_ns"]), format_share(row["share"])
    index, on_cpu = record.trace.index, row["state"] == HOST
    start, end = segments_of(record, device, EXPOSED)
    longest = int((end - start).argmax())
    if on_cpu:
        calls, who = collective_calls(record), "The CPU"
        rows = calls["row"][calls["device"] == device].to_numpy(np.intp)
        communicating = "the CPU had a collective in flight and was in no op that computes"
    else:
        work, kind = gpu_kinds(record.trace)
        rows = work[(index.device[work] == device) & (kind == COMMUNICATION)]
        who = gpu_name(device)
        communicating = f"{who.replace('The', 'the')} did nothing but communicate"
    ts, ends = index.ts[rows], index.end[rows]
    shown = intervals.overlap((ts, ends), (start, end))
    hidden = 1 - exposed / intervals.length(intervals.union(ts, ends))
    (name,) = index.names_of(rows[[shown.argmax()]])
    saved_ns = None if on_cpu else saved_without_communication(record)
    cost = exposed if saved_ns is None else min(saved_ns, exposed)
    is_all = cost == exposed
    text = (
        f"For {format_ns(exposed)} ({share} of the time), {communicating}. Compute hid "
        f"{format_share(hidden) if hidden else 'none'} of its communication. The most exposed call "
        f"is {kernel_code(name)} ({format_ns(int(shown.max()))})."
    )
    if not is_all:
        saved = shorter(cost, record) if cost > 0 else NO_SHORTER
        text += f" Without communication, {saved}."
    evidence = tuple(rows[np.argsort(-shown, kind="stable")][:EVIDENCE])
    place = (int(start[longest]), int(end[longest]))
    remedy = BOUND_ELSEWHERE if cost <= LITTLE * exposed else EXPOSED_COMMUNICATION_REMEDY
    title = f"{who} only communicates {share} of the time"
    cost_share = row["share"] if is_all else share_of(cost, run_ns(record))
    return Finding(text, cost, cost_share, *place, evidence, remedy, title=title)


def saved_without_communication(record: Record) -> int | None:
    """Return by how much a run that its CPU bounds would be shorter without communication, in ns.

    None for other runs: the critical path knows nothing of full launch queues.
    """
    bound, _ = bound_of(whole_path(record))
    rows, kind = gpu_kinds(record.trace)
    return saved_without_ns(record, rows[kind == COMMUNICATION]) if bound == CPU else None


DDP_FORWARD = "DistributedDataParallel.forward"
"""The region of a forward pass of DDP (torch/nn/parallel/distributed.py)."""
FLATTEN, BROADCAST, COPY = "aten::flatten_dense_tensors", "c10d::broadcast_", "aten::copy_"
BROADCASTING = frozenset(
    {FLATTEN, BROADCAST, COPY, "aten::unflatten_dense_tensors", "record_param_comms"}
)
"""What DDP does with its buffers before the forward pass (c10d::broadcast_coalesced): it flattens
them, sends them, and copies what came back into each."""
BROADCAST_BUFFERS_REMEDY = (
    "Pass `broadcast_buffers=False` to DistributedDataParallel. Then each rank keeps its own "
    "buffers, such as the running statistics of batch norm (equal anyway with SyncBatchNorm)."
)


def broadcast_buffers(record: Record, *, broadcast_buffers_share: float = 0.02) -> list[Finding]:
    """Fires if DDP's broadcasts of buffers before forward passes take 2 % of the run.

    Cost: what the CPU does for them on the critical path. The broadcasts themselves are short, but
    each buffer is copied by an op of its own.
    """
    broadcasts = _broadcasts(record.trace)
    if not broadcasts:
        return []
    rows = np.concatenate(broadcasts)
    cost = cpu_path_ns(record, rows)
    share = share_of(cost, run_ns(record))
    if not cost or share < broadcast_buffers_share:
        return []
    index = record.trace.index
    spans = [(int(index.ts[ops[0]]), int(index.end[ops[-1]])) for ops in broadcasts]
    spent = sum(end - start for start, end in spans)
    copies = int(np.count_nonzero(index.names_of(rows) == COPY))
    text = (
        "`DistributedDataParallel` sent the model's buffers from rank 0 to all ranks before "
        f"{'the forward pass' if len(spans) == 1 else f'{len(spans):,} forward passes'}, with "
        f"{copies_counted(copies)} of single tensors. This took {format_ns(spent)} of the CPU's "
        f"time. Without it, {shorter(cost, record)}."
    )
    title = "`DistributedDataParallel` broadcasts the buffers before each forward pass"
    place = max(spans, key=lambda span: span[1] - span[0])
    return [Finding(text, cost, share, *place, spread(rows), BROADCAST_BUFFERS_REMEDY, title=title)]


def _broadcasts(trace: Trace) -> list[Rows]:
    """Return the ops of each broadcast of DDP's buffers, in the order in which they ran."""
    index, parent = trace.index, trace.index.parent
    regions = index.named(frozenset({DDP_FORWARD})) & index.on_tracks("cpu")
    within = np.flatnonzero(take(regions, parent, False) & ~index.is_launch)
    found = []
    for rows in rows_by(parent[within]).values() if len(within) else ():
        ops = within[rows]
        names = index.names_of(ops)
        if FLATTEN not in names:
            continue
        first = int((names == FLATTEN).argmax())
        others = np.flatnonzero(~np.isin(names[first:], list(BROADCASTING)))
        run = slice(first, first + int(others[0]) if len(others) else None)
        if BROADCAST in names[run]:
            found.append(ops[run])
    return found
