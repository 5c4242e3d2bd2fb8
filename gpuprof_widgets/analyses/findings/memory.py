"""How much memory the run needed at most, what for, and where the allocator failed."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.allocator import allocator_events
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.memory import allocations, fullest, memory_peak
from gpuprof_widgets.analyses.memory_categories import (
    ACTIVATIONS,
    BEFORE,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    TEMPORARIES,
)
from gpuprof_widgets.analyses.quantity import format_bytes, format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record

WORTH_A_NAME = 0.15  # of the peak
MOST = 3  # failures told

RETRY_REMEDY = (
    "The GPU is nearly full: a smaller batch, activation checkpointing, or "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where memory is in fragments."
)
STALL_REMEDY = (
    "The first steps fill the allocator's cache: warm up before measuring (--warmup). In later "
    "steps sizes that change from step to step keep it growing."
)
MOSTLY_OF = {
    ACTIVATIONS: "Activations live until their backward pass: torch.utils.checkpoint recomputes "
    "them, autocast halves them.",
    PARAMETERS: "Parameters take half the memory in bf16; FSDP spreads them over the GPUs.",
    GRADIENTS: "Gradients are as large as the parameters: optimizer.zero_grad() after each step "
    "lets them go, FSDP spreads them over the GPUs.",
    OPTIMIZER_STATE: "Adam keeps two values per parameter: SGD keeps one at most; FSDP and "
    "ZeroRedundancyOptimizer spread them over the GPUs.",
    TEMPORARIES: "Temporaries are gone after their op: do what makes the largest in parts (of the "
    "batch or sequence), or in place.",
}
"""What to do about a GPU's peak that is mostly of one category."""

MEMORY_PEAK_BYTES = 2**20
ALLOCATOR_STALL_SHARE = 0.02


def memory(
    record: Record,
    *,
    memory_peak_bytes: int = MEMORY_PEAK_BYTES,
    memory_block_share: float = 0.3,
    allocator_stall_share: float = ALLOCATOR_STALL_SHARE,
) -> list[Finding]:
    """The peak of the fullest device, and failures, retries and stalls of the allocator.

    ``memory_peak_bytes``: Peak below which memory is nobody's trouble.
    ``memory_block_share``: Of the peak, in one block that is not a parameter.
    ``allocator_stall_share``: Time in cudaMalloc and cudaFree.
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
    alive = _alive(record, device, moment)
    where = "memory" if device == "CPU" else f"memory of {device}"
    text = (
        f"Peak {where} {format_bytes(total)} at {format_ns(moment)}: "
        f"{_categories(rows)}{_biggest(alive, total, block_share)}."
    )
    sizes = rows.groupby("category")["bytes"].sum()
    most = str(sizes.idxmax()) if device != "CPU" and 2 * sizes.max() > total else ""
    # To look at: the ops that allocated it.
    ops = alive["op"].where(alive["op"] >= 0, alive["row"])
    shown = tuple(dict.fromkeys(int(row) for row in ops))
    return [Finding(text, 0, 0.0, moment, moment + 1, shown, MOSTLY_OF.get(most, ""))]


def _alive(record: Record, device: str, moment: int) -> pd.DataFrame:
    """What was allocated in the record and alive at that moment, the largest first."""
    table = allocations(record)
    ends = table["end_ns"].where(table["end_ns"] >= 0, record.trace.end_ns + 1)
    alive = (table["device"] == device) & (table["start_ns"] <= moment) & (ends > moment)
    return table[alive & (table["row"] >= 0)].sort_values("bytes", ascending=False, kind="stable")


def _categories(rows: pd.DataFrame) -> str:
    """The categories that matter, the largest with who allocated most of it."""
    sizes = rows.groupby("category")["bytes"].sum().sort_values(ascending=False, kind="stable")
    total = int(rows["allocated_bytes"].iloc[0])
    shown = [name for name in sizes.index if sizes[name] >= WORTH_A_NAME * total][:3]
    shown = shown or [str(sizes.index[0])]
    words = [f"{format_share(sizes[name] / total)} {_as_word(name)}" for name in shown]
    owner = _owner(rows[rows["category"] == shown[0]])
    words[0] += f" (most from {owner})" if owner else ""
    return ", ".join(words)


def _as_word(category: str) -> str:
    return "from before the record" if category == BEFORE else category


def _owner(rows: pd.DataFrame) -> str:
    """Module and line of the owner with most bytes, else its op; "" where nobody is known."""
    places = rows.groupby(["module_name", "line_name"], as_index=False)["bytes"].sum()
    most = places.iloc[int(places["bytes"].to_numpy().argmax())]
    known = [str(most[name]) for name in ("module_name", "line_name") if most[name]]
    known = known or [str(rows.groupby("op_name")["bytes"].sum().idxmax())]
    return ", ".join(code(name) for name in known if name)


def _biggest(alive: pd.DataFrame, total: int, least_share: float) -> str:
    """The one block that is a large part of the peak."""
    if not len(alive) or alive["bytes"].iloc[0] < least_share * total:
        return ""
    top = alive.iloc[0]
    by = f", allocated in {code(top['op_name'])}" if top["op_name"] else ""
    return f"; one block alone is {format_bytes(top['bytes'])}{by}"


def _failure(record: Record, row: pd.Series) -> Finding:
    size = f" for {format_bytes(row['bytes'])}" if row["bytes"] > 0 else ""
    owner = row["op_name"] or row["line_name"]
    who = code(owner) if owner else "The code"
    start = int(row["start_ns"])
    text = f"{who} asked {row['device'] or 'the GPU'}{size} and it was out of memory."
    cost = max(record.trace.span_ns - start, 0)
    return Finding(text, cost, 0.0, start, start + 1, (int(row["row"]),), RETRY_REMEDY)


def _retries(record: Record, events: pd.DataFrame) -> list[Finding]:
    """How often by torch's own count, and the time of those that the trace shows."""
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
    share = share_of(cost, run_ns(record))
    rows = tuple(int(row) for row in retries["row"])
    return [Finding(text, cost, share, rows=rows, remedy=RETRY_REMEDY)]


def _stalls(record: Record, events: pd.DataFrame, least_share: float) -> list[Finding]:
    """The driver's own calls for memory, where they took a part of the run that matters."""
    calls = events[events["kind"].isin(["malloc", "free"])]
    cost = int(calls["dur_ns"].sum())
    share = share_of(cost, run_ns(record))
    if share < least_share:
        return []
    longest = calls.iloc[int(calls["dur_ns"].to_numpy().argmax())]
    start = int(longest["start_ns"])
    who = f" in {code(longest['op_name'])}" if longest["op_name"] else ""
    text = (
        f"{format_count(len(calls), 'call')} of the driver for GPU memory took {format_ns(cost)} "
        f"({format_share(share)} of the time), the longest {code(longest['name'])}{who} "
        f"{format_ns(longest['dur_ns'])}."
    )
    rows = tuple(int(row) for row in calls["row"])
    end = start + int(longest["dur_ns"])
    return [Finding(text, cost, share, start, end, rows, STALL_REMEDY)]
