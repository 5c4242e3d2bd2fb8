"""The thresholds of findings: keywords of the rules, which users can override by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any

from gpuprof_widgets.exceptions import OptionError

AnyRule = Callable[..., list[Any]]

MEANINGS = {
    "device_idle_share": "GPU idle time; below it the longest gap is not mentioned.",
    "dataloader_share": "Waiting for the input pipeline (TB: 5 %; XProf: 5 % moderate, 20 % high).",
    "synchronising_share": "Waiting for the GPU in calls of one op.",
    "communication_share": "Only communicating, on a GPU or a CPU (TB: over 10 % of the step).",
    "broadcast_buffers_share": "Broadcasting buffers on the CPU's part of the critical path.",
    "one_stream_share": "Copies and communication that run alone on the stream that also computes.",
    "launching_share": (
        "GPU idle between the launch call and the kernel (XProf: kernel launch 3 %, 15 % high)."
    ),
    "short_kernels_share": (
        "Share of GPU slices that are shorter than their launch (HTA shows every one)."
    ),
    "short_kernels_least": "Least number of such slices.",
    "short_kernels_cost_share": (
        "Launching short kernels while the GPU is idle (XProf: kernel launch 3 %, 15 % high)."
    ),
    "cold_calls_share": "GPU idle while first calls load libraries and kernels.",
    "backward_share": "Least share of a backward op that is named.",
    "backward_large_share": "Of the backward pass: an op that takes this much is named by itself.",
    "backward_ratio": "Ratio to the time of its forward op; about two is usual.",
    "backward_notable_share": "Of the backward pass: below it a large ratio is often noise.",
    "recomputation_share": (
        "Recomputing the forward in the backward pass (activation checkpointing)."
    ),
    "python_autograd_share": (
        "The Python of a custom `torch.autograd.Function`, without the ops that it calls."
    ),
    "without_no_grad_ops": "Ops that autograd recorded for a backward pass that did not run.",
    "pageable_copies_share": (
        "Calls that copy from pageable memory (nsys lists every one: cuda_memcpy_async)."
    ),
    "needless_copies_share": (
        "Copies there and straight back, or of the same constant in every step."
    ),
    "peer_copies_share": "Copies from GPU to GPU.",
    "tensor_cores_share": (
        "Of GPU time: ops that could use tensor cores, if nothing does (XProf: 10 %; TB: any)."
    ),
    "fp32_matmul_share": (
        "Of GPU time: matrix products in full fp32 on a GPU with TF32 (torch: any)."
    ),
    "precision_saving_share": (
        "Least share of the run that tensor cores, TF32 or other sizes would save."
    ),
    "matmul_sizes_share": (
        "Of GPU time: 16-bit products whose sizes are no multiples of 8 (torch: any)."
    ),
    "written_out_attention_share": "Ops between the products of attention that is written out.",
    "loop_indexing_rounds": "Least rounds of a loop that indexes row by row (torch: 10).",
    "loop_indexing_share": "Time in such loops, except for one round of each.",
    "growing_cat_share": "Growing tensors by `torch.cat`, on one line.",
    "growing_cat_calls": "Least number of such calls in one place.",
    "cpu_copies_share": "Copying tensors on the CPU: clones, casts, other layouts.",
    "zeroed_gradients_share": "Filling gradients with zeros (torch: any).",
    "optimizer_loops_share": "Updating one tensor after another (torch: any).",
    "optimizer_loops_ops": "Least number of ops with a kernel in one optimizer step.",
    "bias_before_norm_calls": "Convolutions with a bias right before BatchNorm (torch: any).",
    "critical_path_share": "Share of the run that would be saved if an op cost nothing.",
    "gpu_op_share": "Of all GPU time: least share of an op that is named.",
    "line_share": "The costliest line's own time.",
    "other_line_share": "The time of the function in the line.",
    "suspended_share": "Suspended in ``await``, while no line and no op ran.",
    "cpu_op_share": "Of the CPU op time: least share of the second and third op that are named.",
    "cpu_ops_share": "All ops on the CPU; below it none of them is named.",
    "memory_peak_bytes": "Peak below which nothing is said about memory.",
    "allocator_stall_share": "Time in cudaMalloc and cudaFree.",
    "cpu_threads_share": "Ops that threads share while the threads hold one another up.",
    "gc_share": "Time in Python's garbage collector.",
    "python_share": (
        "Time of a Python function: of the run, or of Python's time without idle threads if the "
        "run's is not known."
    ),
    "python_waiting_share": "Of a function's own time: waiting for the GPU.",
    "blocking_share": "Calls that wait for a timer, the network, another process or thread.",
    "file_io_share": "Reading and writing files.",
    "memory_block_share": "Of the peak: one block that is not a parameter.",
    "memory_full_share": "Of the device's memory (TB: 90 %).",
    "memory_unused_share": (
        "Of the memory that PyTorch has reserved: unused when most was allocated."
    ),
    "memory_unused_of_device": "Of the device's memory: least unused memory that is mentioned.",
    "made_anew_share": "Making a constant tensor in each round of a loop.",
    "made_anew_rounds": "Least executions of the line that makes it.",
    "step_slowdown": "Ratio to the time of unrecorded steps; any few steps differ by less.",
    "compilation_share": "Compiling (torch.compile).",
    "first_step_ratio": "Ratio to the median step from which on the first step did one-off work.",
    "recording_share": "Of the recorded time: spent on recording.",
    "recording_least_ns": "Least time spent on recording, whatever its share.",
    "unlinked_share": "Of GPU events, or of their time: without a launch in the trace.",
    "rank_waiting_share": (
        "Time that the average rank waits for others (TB: communication over 10 %)."
    ),
    "straggler_share": (
        "Time by which one rank holds up all others (`ranks`; HTA names the two latest)."
    ),
    "rank_function_share": (
        "Of a rank's time in Python: how much longer it is in one function than the fastest rank."
    ),
}
"""What each threshold is; shares are of the run unless it says otherwise.

Its default stands in the signature of each rule that has it.
"""


def thresholds_of(*rules: AnyRule) -> dict[str, float]:
    """Return the defaults of the thresholds of these rules, by name, in the order of the rules."""
    return {
        parameter.name: parameter.default
        for rule in rules
        for parameter in signature(rule).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def check_limits(limits: Mapping[str, Any], *rules: AnyRule) -> None:
    """Raise `OptionError` for a threshold that no rule has, or that is not a finite number."""
    known = thresholds_of(*rules) if limits else {}
    for name, limit in limits.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
            raise OptionError(f"no finding has the limit {name!r}{hint}")
        if not -math.inf < limit < math.inf:
            raise OptionError(f"{name} takes a finite number, not {limit}")


def limits_for(rule: AnyRule, limits: Mapping[str, float]) -> dict[str, float]:
    """Return those of the limits that the rule has."""
    return {name: limit for name, limit in limits.items() if name in thresholds_of(rule)}
