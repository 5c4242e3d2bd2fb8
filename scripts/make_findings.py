"""docs/findings.md: a section per rule, with an example that is made by running the rule.

See make_docs.py. Examples are of recorded runs if one of the tests' data has such a finding, else
of the traces that the tests of the rule make by hand.
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
    GENERATED,
    bold_lead,
    filled,
    linked_to,
    markdown,
    table,
    wrapped,
)

ROOT = Path(__file__).parents[1]

INTRO = """\
# Findings and their thresholds

`profile.findings()` and `gpuprof findings TRACE` say why a run is slow, in sentences, the costliest
first ([Command line](command_line.md#gpuprof-findings)). Each comes from a rule, which reports
once a threshold is exceeded; another package can [add rules](extending.md#a-finding).

A finding has

- a `title` that says in ten words at most what costs, for the
  [rows of the page](views.md#summary-and-findings),
- a `text`: the same in sentences, with the numbers,
- a `cost_ns`: the time it stands for, by which findings are sorted. It is no promise of a gain;
  each section says what it means. Do not add up costs: one cause may have several findings,
- a `remedy`: what to try, for the case at hand; empty if there is nothing to do.

Below, *the run* is the recorded time: of the cell, the trace, the chosen range or step."""

THRESHOLDS = """\
## Thresholds

Each threshold can be overridden for one call:

```python
import gpuprof_widgets

profile = gpuprof_widgets.load("run.gpuprof")
profile.findings(dataloader_share=0.1)
```

```sh
gpuprof findings trace.json.gz --limit dataloader_share=0.1
```

Shares are between 0 and 1, and of the run unless the table says otherwise. If a default comes from
another tool, that tool is named: TB is PyTorch's TensorBoard plugin
(`torch_tb_profiler/profiler/data.py`), HTA Holistic Trace Analysis, torch is `torch.profiler`'s
`_pattern_matcher`, nsys is `nsys analyze`, XProf is TensorFlow's profiler. `straggler_share` and
those that begin with `rank_` apply to [many ranks](topics/ranks.md#ranks):
`gpuprof_widgets.ranks(paths).findings(straggler_share=0.1)`."""

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


def page() -> str:
    """Return docs/findings.md."""
    rules = [_section(name, rule) for name, rule in FINDINGS.ours.items()]
    of_ranks = [_section(name, rule) for name, rule in OF_RANKS.items()]
    parts = [GENERATED, INTRO, _index(), THRESHOLDS, thresholds()]
    ranks_intro = (
        "`gpuprof_widgets.ranks(paths).findings()` and `gpuprof ranks DIR` compare "
        "[many ranks](topics/ranks.md#ranks)."
    )
    parts += ["## The rules", *rules, "## Rules that compare ranks", ranks_intro, *of_ranks]
    return "\n\n".join(parts) + "\n"


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
