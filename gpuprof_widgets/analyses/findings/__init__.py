"""Findings: why a run is slow, in sentences. A rule is a function and a row of FINDINGS.

A rule takes the record, and its thresholds as keywords (see `thresholds`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps

from gpuprof_widgets.analyses.findings import (
    attention,
    backward,
    communication,
    compilation,
    cpu_ops,
    critical_path,
    dispatch,
    gpu_idle,
    growing_tensors,
    kernels,
    launches,
    lines,
    memory,
    model,
    other_programs,
    places,
    python_time,
    recording,
    transfers,
    waits,
)
from gpuprof_widgets.analyses.findings.finding import Finding, Findings
from gpuprof_widgets.analyses.findings.input import dataloader, file_io
from gpuprof_widgets.analyses.findings.thresholds import check_limits, limits_for, thresholds_of
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.registry import Registry
from gpuprof_widgets.trace.model import Record

__all__ = ["FINDINGS", "Finding", "findings"]

Rule = Callable[..., list[Finding]]


def of_package(name: str, rule: object, package: str) -> Rule:
    """Return another package's rule, which warns and finds nothing where it fails."""
    if not callable(rule):
        raise TypeError(f"a finding is a function, not {type(rule).__name__}")
    for limit, default in thresholds_of(rule).items():
        if not isinstance(default, int | float):
            raise TypeError(f"its threshold {limit} has no number as its default")

    @wraps(rule)
    def guarded(record: Record, **limits: float) -> list[Finding]:
        try:
            result = list(rule(record, **limits))
            if not all(isinstance(finding, Finding) for finding in result):
                raise TypeError("it returned something other than findings")
            return result
        except Exception as error:  # other people's code may raise anything
            warnings.warn(
                f"the finding {name} of {package} is left out: {type(error).__name__}: {error}",
                stacklevel=2,
            )
            return []

    return guarded


FINDINGS: Registry[Rule] = Registry(
    "gpuprof_widgets.findings",
    {
        "ending": recording.ending,
        "no_kernels": recording.no_kernels,
        "device_idle": gpu_idle.device_idle,
        "dataloader": dataloader,
        "synchronising": waits.synchronising,
        "exposed_communication": communication.exposed_communication,
        "broadcast_buffers": communication.broadcast_buffers,
        "one_stream": transfers.one_stream,
        "launch_bound": launches.launch_bound,
        "cold_calls": launches.cold_calls,
        "backward": backward.backward,
        "recomputation": backward.recomputation,
        "python_autograd": backward.python_autograd,
        "anomaly_detection": model.anomaly_detection,
        "without_no_grad": model.without_no_grad,
        "short_kernels": launches.short_kernels,
        "pageable_copies": transfers.pageable_copies,
        "needless_copies": transfers.needless_copies,
        "peer_copies": transfers.peer_copies,
        "tensor_cores_idle": kernels.tensor_cores_idle,
        "fp32_matmul": kernels.fp32_matmul,
        "matmul_sizes": kernels.matmul_sizes,
        "written_out_attention": attention.written_out_attention,
        "loop_indexing": dispatch.loop_indexing,
        "growing_cat": growing_tensors.growing_cat,
        "cpu_copies": transfers.cpu_copies,
        "zeroed_gradients": model.zeroed_gradients,
        "optimizer_loops": model.optimizer_loops,
        "bias_before_norm": model.bias_before_norm,
        "critical_path": critical_path.critical_path_bound,
        "lines": lines.costliest_line,
        "other_lines": lines.other_lines,
        "suspended": waits.suspended,
        "gpu_ops": kernels.gpu_ops,
        "cpu_ops": cpu_ops.cpu_ops,
        "cpu_threads": dispatch.cpu_threads,
        "garbage_collection": python_time.garbage_collection,
        "python_time": python_time.python_time,
        "python_waiting": waits.python_waiting,
        "blocking_calls": waits.blocking_calls,
        "file_io": file_io,
        "memory": memory.memory,
        "memory_room": memory.memory_room,
        "fragmentation": memory.fragmentation,
        "made_anew": transfers.made_anew,
        "expected": recording.expected,
        "step_overhead": recording.step_overhead,
        "compilation": compilation.compilation,
        "one_off": recording.one_off,
        "overhead": recording.overhead,
        "unlinked": recording.unlinked,
    },
    of_package,
)
"""The rules by name; those that compare ranks are in `analyses.ranks.findings`."""


def findings(record: Record, **limits: float) -> Findings:
    """Return why the run is slow, in sentences with numbers, the costliest first.

    Ties keep the order of `FINDINGS`; parts of one cause come right after it. Three rules come
    before all others: what of ``expect`` did not run, as the user asked for it, that no GPU work
    was recorded, and that a tenth of the GPU's time belongs to no op.

    The list prints as these sentences. ``limits``: other thresholds than the defaults, by their
    names; the error about an unknown one lists them all.
    """
    check_limits(limits, *FINDINGS.values())
    listed = _apply_rules(record, limits) if limits else _with_defaults(record)
    if not len(record.trace) and record.calls is None:
        return Findings(listed, "the record has neither slices nor Python calls")
    return Findings(listed)


@remembered
def _with_defaults(record: Record) -> list[Finding]:
    return _apply_rules(record, {})


def _apply_rules(record: Record, limits: Mapping[str, float]) -> list[Finding]:
    listed = [
        replace(finding, rule=name)
        for name, rule in FINDINGS.items()
        for finding in rule(record, **limits_for(rule, limits))
    ]
    listed = other_programs.for_its_framework(record, listed)
    listed = python_time.exclude_collections(
        record, listed, **limits_for(python_time.exclude_collections, limits)
    )
    listed = lines.without_functions_in_line(record, listed)
    listed = places.with_places(record, _without_repeats(record, listed))
    first = {"expected", "no_kernels"}  # what the user asked about, what all else depends on
    if recording.time_without_op(record.trace) >= recording.MUCH_WITHOUT_OP:
        first.add("unlinked")
    listed = sorted(listed, key=lambda finding: (finding.rule not in first, -finding.cost_ns))
    return critical_path.with_parts(record, listed)


MORE_SPECIFIC = {
    "cpu_ops": {"cpu_copies": transfers.COPIES, "growing_cat": growing_tensors.CATS},
    "gpu_ops": {"growing_cat": growing_tensors.CATS},
}
"""By the rules that name the costliest op: those that say more of some ops."""


def _without_repeats(record: Record, listed: list[Finding]) -> list[Finding]:
    """Drop findings of which another says more.

    Python functions that wait in calls that `synchronising` reports, the costliest op where another
    rule explains most of its time, and that of the GPU where `critical_path` tells of it too.
    """
    on_path = {finding.rows for finding in listed if finding.rule == "critical_path"}
    reported = {
        row for finding in listed if finding.rule == "synchronising" for row in finding.rows
    }
    return [
        finding
        for finding in listed
        if (finding.rule != "python_waiting" or not reported.intersection(finding.rows))
        and (finding.rule != "gpu_ops" or finding.rows not in on_path)
        and not _is_explained(record, finding, listed)
    ]


def _is_explained(record: Record, finding: Finding, listed: list[Finding]) -> bool:
    """Whether the costliest op is one of which another rule explains most of the time."""
    more_specific = MORE_SPECIFIC.get(finding.rule)
    if not more_specific or not finding.rows:
        return False
    name = places.costliest_op(record.trace, finding)
    explained = sum(other.cost_ns for other in listed if name in more_specific.get(other.rule, ()))
    return 2 * explained > finding.cost_ns
