"""Findings on memory: the peak and what used it, the allocator's failures, fragmentation."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.allocator import allocator_events, memory_segments
from gpuprof_widgets.analyses.columns import format_bytes, format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import (
    Finding,
    code,
    place_in,
    run_ns,
    share_of,
)
from gpuprof_widgets.analyses.memory import (
    allocations,
    blocks_at_peak,
    fullest,
    memory_curve,
    memory_peak,
)
from gpuprof_widgets.analyses.memory_categories import ACTIVATIONS, BEFORE, TEMPORARIES
from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GRADIENTS, NONE, OPTIMIZER_STATE, PARAMETERS

WORTH_A_NAME = 0.15  # of the peak
MOST = 3  # failures told

RETRY_REMEDY = (
    "Use less memory: a smaller batch, or activation checkpointing. If memory is fragmented, set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)
STALL_REMEDY = (
    "The first steps fill the allocator's cache: warm up before measuring (--warmup). In later "
    "steps, the cache only grows if sizes change from step to step."
)
EMPTYING_REMEDY = (
    "Leave torch.cuda.empty_cache() out of the loop. It waits for the GPU and gives the cached "
    "memory back to the driver, and the next step has to ask for it again."
)
MOSTLY_OF = {
    ACTIVATIONS: "Activations live until their backward pass. torch.utils.checkpoint recomputes "
    "them, and autocast halves them.",
    PARAMETERS: "Parameters take half the memory in bf16. FSDP spreads them over the GPUs.",
    GRADIENTS: "Gradients are as large as the parameters. optimizer.zero_grad() after each step "
    "frees them, and FSDP spreads them over the GPUs.",
    OPTIMIZER_STATE: "Adam keeps two values per parameter, and SGD one at most. FSDP and "
    "ZeroRedundancyOptimizer spread them over the GPUs.",
    TEMPORARIES: "Temporaries are freed after their op. Run the op with the largest temporaries in "
    "parts (of the batch or sequence), or in place.",
}
"""What to do about a GPU's peak that is mostly one category."""

MEMORY_PEAK_BYTES = 2**20
ALLOCATOR_STALL_SHARE = 0.02


def memory(
    record: Record,
    *,
    memory_peak_bytes: int = MEMORY_PEAK_BYTES,
    memory_block_share: float = 0.3,
    allocator_stall_share: float = ALLOCATOR_STALL_SHARE,
) -> list[Finding]:
    """Report the peak of the fullest device, and failures, retries and stalls of the allocator.

    Cost: 0 for the peak; the time of the driver's calls and retries; for a request that failed, the
    time from then to the end of the run.
    """
    events = allocator_events(record)
    failed = events[events["kind"] == "out of memory"].head(MOST)
    failures = [_failure(record, row) for _, row in failed.iterrows()]
    return [
        *failures,
        *_retries(record, events),
        *_peak(record, memory_peak_bytes, memory_block_share),
        *_stalls(record, events, allocator_stall_share),
    ]


def _peak(record: Record, least_bytes: int, block_share: float) -> list[Finding]:
    rows = fullest(memory_peak(record))
    if not len(rows) or rows["allocated_bytes"].iloc[0] < least_bytes:
        return []
    device = str(rows["device"].iloc[0])
    total, moment = int(rows["allocated_bytes"].iloc[0]), int(rows["ts_ns"].iloc[0])
    alive = blocks_at_peak(record, device)
    alive = alive[alive["row"] >= 0]  # those whose allocation was recorded
    where = "memory" if device == "CPU" else f"memory of {device}"
    text = f"Peak {where} was {format_bytes(total)}, at {format_ns(moment)}: {_categories(rows)}."
    for block in alive.head(1).to_dict("records"):
        if block["bytes"] >= block_share * total:
            by = f", allocated in {code(block['op_name'])}" if block["op_name"] else ""
            text += f" One block alone is {format_bytes(block['bytes'])}{by}."
    sizes = rows.groupby("category")["bytes"].sum()
    most = str(sizes.idxmax()) if device != "CPU" and 2 * sizes.max() > total else ""
    # Highlight the ops that allocated what was alive.
    ops = alive["op"].where(alive["op"] >= 0, alive["row"])
    shown = tuple(dict.fromkeys(int(row) for row in ops))
    remedy, title = MOSTLY_OF.get(most, ""), f"Peak {where} is {format_bytes(total)}"
    return [Finding(text, 0, 0.0, moment, moment + 1, shown, remedy, title=title)]


def _categories(rows: pd.DataFrame) -> str:
    """Name the categories that matter, the largest with the owner of most of it."""
    sizes = rows.groupby("category")["bytes"].sum().sort_values(ascending=False, kind="stable")
    total = int(rows["allocated_bytes"].iloc[0])
    shown = [name for name in sizes.index if sizes[name] >= WORTH_A_NAME * total][:3]
    shown = shown or [str(sizes.index[0])]
    named = {name: "from before the recording" if name == BEFORE else name for name in shown}
    words = [f"{format_share(sizes[name] / total)} {named[name]}" for name in shown]
    rows = rows[rows["category"] == shown[0]]
    place: Any = rows.groupby(["module_name", "line_name"])["bytes"].sum().idxmax()
    known = list(filter(None, place)) or [str(rows.groupby("op_name")["bytes"].sum().idxmax())]
    owner = ", ".join(code(name) for name in known if name)
    words[0] += f" (most from {owner})" if owner else ""
    return ", ".join(words)


def _failure(record: Record, row: pd.Series) -> Finding:
    size = f" for {format_bytes(row['bytes'])}" if row["bytes"] > 0 else " for memory"
    free = int(record.trace.args.get("Device Free", pd.Series()).get(row["row"], NONE))
    room = f". {format_bytes(free)} were free" if free >= 0 else ""
    owner = row["op_name"] or row["line_name"]
    who = code(owner) if owner else "The code"
    start, rows, device = int(row["start_ns"]), (row["row"],), row["device"] or "The GPU"
    asking = f"{who} asked" if owner else "the code asked"
    text = f"{device} ran out of memory when {asking}{size}{room}."
    cost = max(record.trace.span_ns - start, 0)
    title = f"{device} ran out of memory{f' in {who}' if owner else ''}"
    return Finding(text, cost, 0.0, start, start + 1, rows, RETRY_REMEDY, title=title)


def _retries(record: Record, events: pd.DataFrame) -> list[Finding]:
    """Report the retries by torch's own count, and the time of those in the trace."""
    retries = events[events["kind"] == "retry"]
    counted = int(record.metadata.get("memory", {}).get("retries", 0))
    number = max(counted, len(retries))
    if not number:
        return []
    cost = int(retries["dur_ns"].sum())
    took = f", which took {format_ns(cost)}" if cost else ""
    text = (
        f"The allocator had to free cached GPU memory and ask again in "
        f"{format_count(number, 'allocation')}{took}."
    )
    share, rows = share_of(cost, run_ns(record)), tuple(retries["row"])
    title = "The allocator frees its cache and asks again"
    return [Finding(text, cost, share, rows=rows, remedy=RETRY_REMEDY, title=title)]


def _stalls(record: Record, events: pd.DataFrame, least_share: float) -> list[Finding]:
    """Report the driver's calls for memory, where they took enough of the run."""
    calls = events[events["kind"].isin(["malloc", "free"])]
    cost = int(calls["dur_ns"].sum())
    share = share_of(cost, run_ns(record))
    if share < least_share:
        return []
    longest = calls.iloc[int(calls["dur_ns"].to_numpy().argmax())]
    who = f" in {code(longest['op_name'])}" if longest["op_name"] else ""
    text = (
        f"{format_count(len(calls), 'driver call')} for GPU memory took {format_ns(cost)} "
        f"({format_share(share)} of the time). The longest, {code(longest['name'])}{who}, took "
        f"{format_ns(longest['dur_ns'])}."
    )
    title, place = "The driver's calls for GPU memory take time", place_in(calls, longest)
    frees = calls[calls["kind"] == "free"]
    since = calls.loc[calls["start_ns"] >= frees["start_ns"].min(), "dur_ns"].sum()
    emptied = empties_cache(record, frees["op"]) and 2 * since > cost
    remedy = EMPTYING_REMEDY if emptied else STALL_REMEDY
    return [Finding(text, cost, share, remedy=remedy, title=title, **place)]


def empties_cache(record: Record, op: pd.Series) -> bool:
    """Return whether `torch.cuda.empty_cache` made most of these calls of ``cudaFree``.

    It is no op, and a function of that name was recorded: by cProfile, as a frame or in a line. One
    call of it is no loop. ``op``: the op of each ``cudaFree``, -1 outside of all ops.
    """
    named = "|".join(map(str, record.trace.slices["name"].cat.categories))
    functions = () if record.calls is None else python_calls(record)["name"]
    return 2 * int((op < 0).sum()) > len(op) > 1 and (
        "empty_cache" in named or "empty_cache" in set(functions)
    )


FULL_REMEDY = (
    "A larger batch or a longer sequence may fail. To make room, use a smaller batch, activation "
    "checkpointing (torch.utils.checkpoint) or autocast."
)
FRAGMENTED_REMEDY = (
    "The free pieces are too small for the next request. Set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or keep sizes the same from step to step."
)

MEMORY_UNUSED_SHARE = 0.3


def memory_room(
    record: Record,
    *,
    memory_full_share: float = 0.9,
    memory_unused_share: float = MEMORY_UNUSED_SHARE,
    memory_unused_of_device: float = 0.1,
) -> list[Finding]:
    """Report each GPU whose memory was nearly full, or whose reserved memory was largely unused.

    Fires if the most that was reserved (or allocated, if the trace has nothing else) is
    ``memory_full_share`` of the device's memory, and if at the allocated peak
    ``memory_unused_share`` of the reserved memory was free, if that is also a tenth of the device.

    Cost: none.
    """
    devices = record.metadata.get("devices") or []
    gpus = [gpu for gpu in devices if gpu.get("total_memory_bytes")]
    totals = {f"GPU {gpu['index']}": int(gpu["total_memory_bytes"]) for gpu in gpus}
    findings = []
    for device, moments in memory_curve(record).groupby("device", sort=False):
        if not (total := totals.get(str(device), 0)):
            continue
        held = moments[["allocated_bytes", "reserved_bytes"]].max(axis=1)
        share = int(held.max()) / total
        if share >= memory_full_share:
            most = moments.iloc[int(held.to_numpy().argmax())]
            text = (
                f"{device} had {format_share(share)} of its {format_bytes(total)} of memory taken "
                f"at {format_ns(most['ts_ns'])}."
            )
            title = f"The memory of {device} is nearly full"
            findings.append(_at(most, text, FULL_REMEDY, title))
        unused = memory_unused_share, memory_unused_of_device * total
        findings += _fragmented(str(device), moments, *unused)
    return findings


def _fragmented(
    device: str, moments: pd.DataFrame, least_share: float, least_bytes: float
) -> list[Finding]:
    known = moments[(moments["reserved_bytes"] > 0) & (moments["allocated_bytes"] >= 0)]
    if not len(known):
        return []
    peak = known.iloc[int(known["allocated_bytes"].to_numpy().argmax())]
    unused = int(peak["reserved_bytes"] - peak["allocated_bytes"])
    share = unused / int(peak["reserved_bytes"])
    if share < least_share or unused < least_bytes:
        return []
    text = (
        f"PyTorch had reserved {format_bytes(peak['reserved_bytes'])} on {device} when most was "
        f"allocated. {format_bytes(unused)} ({format_share(share)}) of that was not in use."
    )
    title = f"Much of the memory reserved on {device} is unused"
    return [_at(peak, text, FRAGMENTED_REMEDY, title)]


def _at(moment: Any, text: str, remedy: str, title: str) -> Finding:
    start = int(moment["ts_ns"])
    return Finding(text, start_ns=start, end_ns=start + 1, remedy=remedy, title=title)


def fragmentation(
    record: Record,
    *,
    memory_peak_bytes: int = MEMORY_PEAK_BYTES,
    memory_unused_share: float = MEMORY_UNUSED_SHARE,
) -> list[Finding]:
    """Report each GPU of a memory snapshot whose free memory was in pieces that were too small.

    Fires if ``memory_unused_share`` of the reserved memory was free (at least
    ``memory_peak_bytes``), and no piece would hold the request that failed, or else the largest
    block that was ever allocated: pieces that would are what the allocator keeps for reuse.

    Cost: none.
    """
    findings, events = [], allocator_events(record)
    failed = events[events["kind"] == "out of memory"]
    for device, segments in memory_segments(record).groupby("device"):
        free, reserved = int(segments["free_bytes"].sum()), int(segments["bytes"].sum())
        if free < max(memory_peak_bytes, memory_unused_share * reserved):
            continue
        requests = failed.loc[failed["device"] == device, "bytes"]
        requested = max(int(requests.iloc[-1]), 0) if len(requests) else 0
        blocks = allocations(record)
        wanted = requested or int(max(blocks.loc[blocks["device"] == device, "bytes"], default=0))
        largest = int(segments["largest_free_bytes"].max())
        if not largest < wanted <= free:
            continue
        pieces = format_count(int(segments["free_blocks"].sum()), "piece")
        needed = f"The largest allocated block was {format_bytes(wanted)}"
        needed = f"A request for {format_bytes(wanted)} failed" if requested else needed
        text = (
            f"PyTorch had reserved {format_bytes(reserved)} on {device} when the snapshot was "
            f"taken. {format_bytes(free)} ({format_share(free / reserved)}) of that was free, in "
            f"{pieces} of at most {format_bytes(largest)}. {needed}."
        )
        title = f"The free memory of {device} is in small pieces"
        findings.append(Finding(text, remedy=FRAGMENTED_REMEDY, title=title))
    return findings
