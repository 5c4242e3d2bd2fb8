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
from gpuprof_widgets.analyses.findings.thresholds import MEANINGS, thresholds_of
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
