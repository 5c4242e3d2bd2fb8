"""What the site has on docs/findings.md: thresholds, and a section per rule with an example.

Examples are made by running the rule: on a recorded run if one of the tests' data has such a
finding, else on the trace that the tests of the rule make by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from gpuprof_widgets import Profile
from gpuprof_widgets.analyses.docstrings import paragraphs_of
from gpuprof_widgets.analyses.findings import FINDINGS, Finding, findings
from gpuprof_widgets.analyses.findings.thresholds import thresholds_of
from gpuprof_widgets.analyses.ranks.findings import FINDINGS as OF_RANKS
from scripts.make_reference import (
    bold_lead,
    filled,
    linked_to,
    markdown,
    table,
    wrapped,
)

ROOT = Path(__file__).parents[1]

GPU, CPU = "tests/data/gpu", "tests/data/recorded"

RECORDED = {
    "device_idle": f"{GPU}/a_step_of_many_small_kernels.gpuprof",
    "dataloader": f"{GPU}/a_dataset_that_prepares_its_items_in_python.gpuprof",
    "synchronising": f"{GPU}/the_loss_read_in_every_step.gpuprof",
    "exposed_communication": f"{CPU}/training.rank0.gpuprof",
    "one_stream": f"{GPU}/batches_copied_from_pageable_memory.gpuprof",
    "backward": f"{CPU}/a_trainer_with_one_call_in_the_cell.gpuprof",
    "recomputation": f"{CPU}/activation_checkpointing.gpuprof",
    "without_no_grad": f"{CPU}/evaluation_that_forgot_torch_no_grad.gpuprof",
    "short_kernels": f"{GPU}/a_step_of_many_small_kernels.gpuprof",
    "pageable_copies": f"{GPU}/batches_copied_from_pageable_memory.gpuprof",
    "tensor_cores_idle": f"{GPU}/matrix_products_in_32_bits.gpuprof",
    "written_out_attention": f"{GPU}/attention_written_out.gpuprof",
    "optimizer_loops": f"{GPU}/a_step_of_many_small_kernels.gpuprof",
    "critical_path": f"{GPU}/a_training_that_keeps_its_gpu_busy.gpuprof",
    "lines": f"{GPU}/a_boolean_mask_in_every_step.gpuprof",
    "gpu_ops": f"{GPU}/a_training_that_keeps_its_gpu_busy.gpuprof",
    "cpu_ops": f"{CPU}/a_trainer_with_one_call_in_the_cell.gpuprof",
    "cpu_threads": f"{CPU}/more_threads_than_processors.gpuprof",
    "python_time": f"{CPU}/pandas_only.gpuprof",
    "blocking_calls": f"{CPU}/waiting_for_a_service.gpuprof",
    "file_io": f"{CPU}/a_checkpoint_in_every_step.gpuprof",
    "memory": f"{GPU}/the_allocator_emptied_in_every_step.gpuprof",
    "compilation": f"{CPU}/torch_compile_with_sequences_of_every_length.gpuprof",
    "overhead": f"{GPU}/a_dataset_that_prepares_its_items_in_python.gpuprof",
}
"""Records with a finding of a rule; the other rules have a trace that is made by hand."""

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

Rule = Callable[..., list[Finding]]


def rules() -> str:
    """Return the thresholds and a section per rule, in Markdown."""
    sections = [_section(name, rule) for name, rule in FINDINGS.ours.items()]
    of_ranks = [_section(name, rule) for name, rule in OF_RANKS.items()]
    ranks_intro = (
        "`gpuprof_widgets.ranks(paths).findings()` and `gpuprof ranks DIR` compare "
        "[many ranks](topics/ranks.md#ranks)."
    )
    parts = [thresholds(), "## The rules", _index(), *sections]
    return "\n\n".join([*parts, "## Rules that compare ranks", ranks_intro, *of_ranks]) + "\n"


def _index() -> str:
    """Return the rules with the title of each one's example."""
    names = [*FINDINGS.ours, *OF_RANKS]
    rows = ((f"[`{name}`](#{name})", example(name)[0].title) for name in names)
    return table(("rule", "title of an example"), rows)


def thresholds() -> str:
    """Return the table of all thresholds of findings."""
    return _table_of(thresholds_of(*FINDINGS.ours.values(), *OF_RANKS.values()))


def _table_of(defaults: dict[str, float]) -> str:
    rows = (
        (f"`{name}`", str(default), markdown(MEANINGS[name], _target))
        for name, default in defaults.items()
    )
    return table(("threshold", "default", "what it is"), rows)


def _section(name: str, rule: Rule) -> str:
    return "\n\n".join([f"### `{name}`", *_definition(rule), *_thresholds(rule), _example(name)])


def _definition(rule: Rule) -> Iterator[str]:
    for paragraph in paragraphs_of(rule):
        yield filled(bold_lead(paragraph), _target)


def _thresholds(rule: Rule) -> Iterator[str]:
    if defaults := thresholds_of(rule):
        yield _table_of(defaults)


def _example(name: str) -> str:
    """Return title, sentence and remedy of a finding of this rule, and what it was found in."""
    finding, source = example(name)
    lines = [f"**{finding.title}**", finding.text]
    lines += [f"*Remedy:* {finding.remedy}"] if finding.remedy else []
    quoted = "\n>\n".join(
        "\n".join(f"> {line}" for line in wrapped(each).splitlines()) for each in lines
    )
    return f"{source}\n\n{quoted}"


BY_HAND = "Example, from a trace that was made by hand (its times are not real):"


@cache
def example(name: str) -> tuple[Finding, str]:
    """Return a finding of this rule, and what it was found in, in words."""
    if name in OF_RANKS:
        return _of_ranks(name), BY_HAND
    if name in RECORDED:
        path = Path(RECORDED[name])
        where = "on a CPU" if RECORDED[name].startswith(CPU) else "on an H200"
        found = [each for each in _found(path) if each.rule == name]
        what = path.name.partition(".rank")[0].removesuffix(path.suffix).replace("_", " ")
        return found[0], f"Example, recorded {where} (*{what}*):"
    from tests.test_findings import CASES

    record = CASES[name][0]
    found = [each for each in findings(record) if each.rule == name] or FINDINGS[name](record)
    return found[0], BY_HAND


def _of_ranks(name: str) -> Finding:
    from tests.job import STARTS, in_lockstep, run_of
    from tests.test_ranks_functions import WORK, calls_alone

    alone = [calls_alone(rank, of) for rank, of in WORK.items()]
    run = run_of(*(alone if name == "slow_functions" else in_lockstep(STARTS)))
    return next(each for each in run.findings() if each.rule == name)


@cache
def _found(path: Path) -> list[Finding]:
    return list(Profile.load(ROOT / path).findings())


def _target(name: str) -> str:
    """Return the link for a name of a rule or an analysis; "" if it is neither."""
    if name in FINDINGS.ours or name in OF_RANKS:
        return f"#{name}"
    return linked_to(name, "analyses.md")
