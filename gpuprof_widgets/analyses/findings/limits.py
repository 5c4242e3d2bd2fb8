"""From which figure on a rule speaks: every threshold, in one place, and overridable.

``profile.findings(dataloader_share=0.1)``, `gpuprof findings --limit dataloader_share=0.1`. Where a
figure is a custom of the field its source is named: TB is PyTorch's TensorBoard plugin
(torch_tb_profiler/profiler/data.py), HTA Holistic Trace Analysis, torch is torch.profiler's
_pattern_matcher, nsys is `nsys analyze`, XProf is TensorFlow's profiler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from gpuprof_widgets.exceptions import OptionError


@dataclass(frozen=True)
class Limits:
    """The thresholds of all rules; shares are between 0 and 1, of the run unless said otherwise."""

    device_idle_share: float = 0.05
    """GPU idle: below it the longest gap is not mentioned."""
    dataloader_share: float = 0.05
    """Waiting for the input pipeline (TB: 5 %; XProf: 5 % moderate, 20 % high)."""
    synchronising_share: float = 0.02
    """Waiting for the GPU in calls of one op."""
    backward_share: float = 0.02
    """A backward op worth a finding at all."""
    backward_large_share: float = 0.25
    """Of the backward pass: an op that alone takes it."""
    backward_ratio: float = 5.0
    """Times its forward op's time; about two are usual."""
    backward_notable_share: float = 0.1
    """Of the backward pass: below it a disproportion is often but noise."""
    recomputation_share: float = 0.05
    """Computing the forward anew in the backward pass (activation checkpointing)."""
    python_autograd_share: float = 0.05
    """In the Python of a custom `torch.autograd.Function`, outside of the ops that it calls."""
    without_no_grad_ops: int = 50
    """Ops that autograd noted for a backward pass that never came."""
    line_share: float = 0.2
    """The costliest line's own time."""
    suspended_share: float = 0.1
    """Suspended in ``await``, while no line and no op ran."""
    gpu_op_share: float = 0.1
    """Of all GPU time: an op that is named."""
    cpu_op_share: float = 0.05
    """Of the CPU op time: the second and third op that are named."""
    cpu_ops_share: float = 0.02
    """All ops on the CPU: below it none of them is named."""
    cpu_threads_share: float = 0.05
    """Ops that threads share, where these hold one another up."""
    python_share: float = 0.1
    """A Python function; of Python's time without idle threads, where the run's is not known."""
    python_waiting_share: float = 0.5
    """Of a function's own time: from here on it mostly waits for the GPU."""
    gc_share: float = 0.05
    """In Python's garbage collector."""
    compilation_share: float = 0.05
    """Compiling (torch.compile)."""
    blocking_share: float = 0.1
    """In calls that wait for a timer, the network, another process or thread."""
    file_io_share: float = 0.05
    """Reading and writing files."""
    memory_peak_bytes: int = 2**20
    """Peak below which memory is nobody's trouble."""
    memory_block_share: float = 0.3
    """Of the peak, in one block that is not a parameter."""
    allocator_stall_share: float = 0.02
    """Time in cudaMalloc and cudaFree."""
    memory_full_share: float = 0.9
    """Of the device's memory (TB: 90 %)."""
    memory_unused_share: float = 0.3
    """Of what PyTorch has reserved, free when most was allocated."""
    memory_unused_of_device: float = 0.1
    """Of the device's memory: fewer unused bytes are nobody's trouble."""
    made_anew_share: float = 0.02
    """Making a constant tensor in each round of a loop."""
    made_anew_rounds: int = 3
    """Executions of one line from which on it is a loop's."""
    short_kernels_share: float = 0.5
    """Of the GPU slices: shorter than their launch (HTA shows them from the first on)."""
    short_kernels_least: int = 10
    """Fewer short ones are not many, whatever their share."""
    short_kernels_cost_share: float = 0.03
    """Launching short kernels while the GPU is idle (XProf: kernel launch 3 %, 15 % high)."""
    pageable_copies_share: float = 0.02
    """In calls that copy from pageable memory (nsys lists every one: cuda_memcpy_async)."""
    needless_copies_share: float = 0.01
    """Copies there and straight back, or of a constant in every step."""
    peer_copies_share: float = 0.02
    """Copies from GPU to GPU."""
    communication_share: float = 0.1
    """Doing nothing but communicate, on a GPU or a CPU (TB: over 10 % of the step)."""
    launching_share: float = 0.15
    """GPU idle from the launch call to the kernel (XProf: kernel launch 3 %, 15 % high)."""
    cold_calls_share: float = 0.05
    """GPU idle while first calls load libraries and kernels."""
    one_stream_share: float = 0.05
    """Copies and communication alone on the stream that computes as well."""
    tensor_cores_share: float = 0.1
    """Of GPU time, in ops that could use tensor cores while nothing does (XProf: 10 %; TB: any)."""
    fp32_matmul_share: float = 0.05
    """Of GPU time, in matrix products in full fp32 where the GPU has TF32 (torch: any)."""
    matmul_sizes_share: float = 0.02
    """Of GPU time, in products in 16 bits with sizes that are no multiples of 8 (torch: any)."""
    precision_saving_share: float = 0.005
    """By which the run would be shorter with tensor cores, TF32 or other sizes; below: not said."""
    loop_indexing_rounds: int = 10
    """Rounds from which on a loop that indexes row by row counts (torch: 10)."""
    loop_indexing_share: float = 0.01
    """In such loops, but for one round of each."""
    zeroed_gradients_share: float = 0.005
    """Filling gradients with zeros (torch: any)."""
    optimizer_loops_share: float = 0.02
    """Updating one tensor after the other (torch: any)."""
    optimizer_loops_ops: int = 20
    """Ops that launch a kernel in one step of an optimizer: fewer are no loop."""
    bias_before_norm_calls: int = 1
    """Convolutions with a bias right before BatchNorm (torch: any)."""
    critical_path_share: float = 0.05
    """By which the run would be shorter if an op cost nothing; below it, few would look."""
    recording_share: float = 0.05
    """Of the cell's time, spent on recording it."""
    recording_least_ns: int = 1_000_000
    """Spent on recording: less is nobody's trouble, whatever its share."""
    unlinked_share: float = 0.02
    """Of GPU events or of their time, without a launch in the trace."""
    straggler_share: float = 0.05
    """Of the run, by which one rank holds up all others (`ranks`; HTA names the two latest)."""
    rank_waiting_share: float = 0.05
    """Of the run, in which the average rank waits for others (TB: communication over 10 %)."""
    rank_function_share: float = 0.05
    """Of a rank's time in Python, by which it is longer in one function than the fastest rank."""
    step_slowdown: float = 1.1
    """Times as slow as unrecorded steps; below it, it is the difference between any few steps."""
    first_step_ratio: float = 2.0
    """Times the median step: from here on the first one did one-off work."""


def limits_of(overrides: dict[str, Any]) -> Limits:
    """The customary limits with these in their place.

    Raises an `OptionError` for an unknown name, and for what is no finite number.
    """
    known = [field.name for field in fields(Limits)]
    for name, limit in overrides.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
            raise OptionError(f"no finding has the limit {name!r}{hint}")
        if not -math.inf < limit < math.inf:
            raise OptionError(f"{name} takes a finite number, not {limit}")
    return replace(Limits(), **overrides)
