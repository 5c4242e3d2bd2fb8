"""What the number of threads has to do with the time of ops on the CPU: too many, or too few."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof_widgets.analyses.collective_words import world_size_of
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import run_ns, share_of
from gpuprof_widgets.analyses.quantity import format_count, format_ns
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record

PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "addmv", "mv"),
        *("convolution", "_convolution", "convolution_backward", "mkldnn_convolution"),
        *("thnn_conv2d", "_slow_conv2d_forward", "_slow_conv2d_backward", "mkldnn_linear"),
    )
)
"""Matrix products, and convolutions, which are done as some: threads share one, and bfloat16 helps
where the CPU multiplies in it."""

SHARED = PRODUCTS | frozenset(
    f"aten::{name}{end}"
    for name in (
        *("add", "sub", "mul", "div", "pow", "exp", "log", "sqrt", "rsqrt", "where", "copy"),
        *("tanh", "tanh_backward", "sigmoid", "sigmoid_backward", "gelu", "gelu_backward"),
        *("silu", "silu_backward", "relu", "clamp_min", "threshold_backward", "sum", "mean"),
        *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
        *("native_layer_norm", "native_layer_norm_backward", "native_batch_norm"),
        *("native_batch_norm_backward", "native_group_norm", "sort", "cat"),
        *("_scaled_dot_product_flash_attention_for_cpu", "max_pool2d_with_indices"),
    )
    for end in ("", "_")
)
"""Ops whose work torch shares out among threads (at::parallel_for in ATen/native, or BLAS)."""

TAKEN_PER_S = 50
"""From which on CPUs are contested, per second of CPU time: a thread that shares one with another
is interrupted some 100 to 300 times (Linux gives it 3 to 10 ms at a time), one alone but a few."""
TAKEN_LEAST = 20

MORE_THAN_CPUS = (
    "PyTorch runs an op on {threads} threads, and this process may use {cpus_here}: threads wait "
    "for one another, in ops that took {took}."
)
RANKS = (
    "This is one of {ranks} ranks, and each runs an op on {threads} threads: where they share "
    "{cpus_here}, threads wait for one another, here in ops that took {took}."
)
CONTESTED = (
    "Others wanted the {cpus_here} of this process as well (programs, ranks, workers of a "
    "DataLoader): the system took one from its threads {taken:,} times in {used} of CPU time. "
    "PyTorch runs an op on {threads} threads, which waits for the slowest of them: times of ops "
    "here are longer than they would be alone, and less even."
)
SET = "Set torch.set_num_threads({fewer})."
SET_IN_EACH = "Set torch.set_num_threads({fewer}) in each rank."
TRY = (
    "Measure again while nothing else runs; if others always do, try "
    "torch.set_num_threads({fewer})."
)
FEWER_THAN_CPUS = (
    "PyTorch runs an op on {threads}, and this process may use {cpus_here}: "
    "torch.set_num_threads({cpus}) shares it out."
)


def cpu_threads(record: Record, *, cpu_threads_share: float = 0.05) -> list[Finding]:
    """Fires where threads hold one another up in ops that take 5 % of the run or more.

    They do where there are more of them than CPUs, counting the ranks that share these, and where
    others want the CPUs too. What that costs is not known: of more threads than CPUs the finding
    stands for the time of the ops, of the rest for none. Silent where a GPU took part.

    ``cpu_threads_share``: Ops that threads share, where these hold one another up.
    """
    threads, cpus = _threads_and_cpus(record)
    if threads < 2 or not cpus or len(record.trace.index.gpu):
        return []
    took, run = _shared_ns(record), run_ns(record)
    if share_of(took, run) < cpu_threads_share:
        return []
    ranks, cpus_here = world_size_of(record.metadata), format_count(cpus, "CPU")
    told: dict[str, Any] = {"threads": threads, "cpus_here": cpus_here, "took": format_ns(took)}
    if threads > cpus:
        text, remedy, cost = MORE_THAN_CPUS.format(**told), SET.format(fewer=cpus), took
    elif ranks > 1 and ranks * threads > cpus:
        each = max(1, cpus // ranks)
        text, remedy = RANKS.format(**told, ranks=ranks), SET_IN_EACH.format(fewer=each)
        cost = took
    elif _are_contested(record):
        use = record.metadata["cpu_use"]
        told |= {"taken": int(use["preemptions"]), "used": format_ns(int(use["cpu_ns"]))}
        text, remedy, cost = CONTESTED.format(**told), TRY.format(fewer=threads // 2), 0
    else:
        return []
    return [Finding(text, cost, share_of(cost, run), remedy=remedy)]


def _shared_ns(record: Record) -> int:
    """How long ops ran that threads share, on all threads of the program together."""
    slices = record.trace.slices
    shared = record.trace.index.named(SHARED) & record.trace.index.in_category("cpu_op")
    start = slices["ts"].to_numpy(np.int64)[shared]
    return intervals.length(
        intervals.union(start, start + slices["dur"].to_numpy(np.int64)[shared])
    )


def _are_contested(record: Record) -> bool:
    """Whether the system often took the CPU from threads of the process that had work."""
    use = record.metadata.get("cpu_use") or {}
    taken, used = int(use.get("preemptions", 0)), int(use.get("cpu_ns", 0))
    return taken >= TAKEN_LEAST and taken * 1_000_000_000 >= TAKEN_PER_S * used


def too_few_threads(record: Record, name: str) -> str:
    """That more threads would share the op out; "" unless CPUs are known to be free for them."""
    threads, cpus = _threads_and_cpus(record)
    alone = world_size_of(record.metadata) <= 1 and not _are_contested(record)
    if not 0 < threads < cpus or name not in SHARED or not alone:
        return ""
    told = {"threads": format_count(threads, "thread"), "cpus": cpus}
    return FEWER_THAN_CPUS.format(**told, cpus_here=format_count(cpus, "CPU"))


def multiplies_bf16(record: Record, name: str) -> bool:
    """Whether bfloat16 makes the op shorter: a product, on a CPU that multiplies in it."""
    return name in PRODUCTS and bool(record.metadata.get("cpu_bf16"))


def _threads_and_cpus(record: Record) -> tuple[int, int]:
    """Threads of an op and CPUs of the process, 0 where the record does not say."""
    told = record.metadata
    return int(told.get("torch_threads") or 0), int(told.get("cpus") or 0)
