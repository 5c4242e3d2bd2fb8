"""Findings: why a run is slow, in sentences. A rule is a function and a row of FINDINGS.

A rule takes the record, and its thresholds as keywords (see `thresholds`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps

from gpuprof_widgets.analyses.findings.attention import written_out_attention
from gpuprof_widgets.analyses.findings.backward import backward, python_autograd, recomputation
from gpuprof_widgets.analyses.findings.communication import broadcast_buffers, exposed_communication
from gpuprof_widgets.analyses.findings.compilation import compilation
from gpuprof_widgets.analyses.findings.cpu_ops import cpu_ops
from gpuprof_widgets.analyses.findings.critical_path import critical_path_bound
from gpuprof_widgets.analyses.findings.dispatch import cpu_threads, loop_indexing
from gpuprof_widgets.analyses.findings.finding import Finding, Findings
from gpuprof_widgets.analyses.findings.gpu_idle import device_idle
from gpuprof_widgets.analyses.findings.growing_tensors import CATS, growing_cat
from gpuprof_widgets.analyses.findings.input import dataloader, file_io
from gpuprof_widgets.analyses.findings.kernels import (
    fp32_matmul,
    gpu_ops,
    matmul_sizes,
    tensor_cores_idle,
)
from gpuprof_widgets.analyses.findings.launches import cold_calls, launch_bound, short_kernels
from gpuprof_widgets.analyses.findings.lines import (
    costliest_line,
    other_lines,
    without_functions_in_line,
)
from gpuprof_widgets.analyses.findings.memory import fragmentation, memory, memory_room
from gpuprof_widgets.analyses.findings.missing_work import (
    MUCH_WITHOUT_OP,
    no_kernels,
    time_without_op,
    unlinked,
)
from gpuprof_widgets.analyses.findings.model import (
    anomaly_detection,
    bias_before_norm,
    without_no_grad,
    zeroed_gradients,
)
from gpuprof_widgets.analyses.findings.one_cause import with_parts
from gpuprof_widgets.analyses.findings.optimizers import optimizer_loops
from gpuprof_widgets.analyses.findings.other_programs import for_its_framework
from gpuprof_widgets.analyses.findings.places import costliest_op, with_places
from gpuprof_widgets.analyses.findings.python_time import (
    exclude_collections,
    garbage_collection,
    python_time,
)
from gpuprof_widgets.analyses.findings.recording import (
    ending,
    expected,
    one_off,
    overhead,
    step_overhead,
)
from gpuprof_widgets.analyses.findings.tensor_copies import COPIES, cpu_copies
from gpuprof_widgets.analyses.findings.thresholds import check_limits, limits_for, thresholds_of
from gpuprof_widgets.analyses.findings.transfers import (
    made_anew,
    needless_copies,
    one_stream,
    pageable_copies,
    peer_copies,
)
from gpuprof_widgets.analyses.findings.waits import (
    blocking_calls,
    python_waiting,
    suspended,
    synchronising,
)
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.registry import Registry
from gpuprof_widgets.trace.model import Record, Trace

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
        "ending": ending,
        "no_kernels": no_kernels,
        "device_idle": device_idle,
        "dataloader": dataloader,
        "synchronising": synchronising,
        "exposed_communication": exposed_communication,
        "broadcast_buffers": broadcast_buffers,
        "one_stream": one_stream,
        "launch_bound": launch_bound,
        "cold_calls": cold_calls,
        "backward": backward,
        "recomputation": recomputation,
        "python_autograd": python_autograd,
        "anomaly_detection": anomaly_detection,
        "without_no_grad": without_no_grad,
        "short_kernels": short_kernels,
        "pageable_copies": pageable_copies,
        "needless_copies": needless_copies,
        "peer_copies": peer_copies,
        "tensor_cores_idle": tensor_cores_idle,
        "fp32_matmul": fp32_matmul,
        "matmul_sizes": matmul_sizes,
        "written_out_attention": written_out_attention,
        "loop_indexing": loop_indexing,
        "growing_cat": growing_cat,
        "cpu_copies": cpu_copies,
        "zeroed_gradients": zeroed_gradients,
        "optimizer_loops": optimizer_loops,
        "bias_before_norm": bias_before_norm,
        "critical_path": critical_path_bound,
        "lines": costliest_line,
        "other_lines": other_lines,
        "suspended": suspended,
        "gpu_ops": gpu_ops,
        "cpu_ops": cpu_ops,
        "cpu_threads": cpu_threads,
        "garbage_collection": garbage_collection,
        "python_time": python_time,
        "python_waiting": python_waiting,
        "blocking_calls": blocking_calls,
        "file_io": file_io,
        "memory": memory,
        "memory_room": memory_room,
        "fragmentation": fragmentation,
        "made_anew": made_anew,
        "expected": expected,
        "step_overhead": step_overhead,
        "compilation": compilation,
        "one_off": one_off,
        "overhead": overhead,
        "unlinked": unlinked,
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
    listed = for_its_framework(record, listed)
    listed = exclude_collections(record, listed, **limits_for(exclude_collections, limits))
    listed = without_functions_in_line(record, listed)
    listed = with_places(record, _without_repeats(record, listed))
    first = _rules_first(record.trace)
    listed = sorted(listed, key=lambda finding: (finding.rule not in first, -finding.cost_ns))
    return with_parts(record, listed)


def _rules_first(trace: Trace) -> set[str]:
    """Return the rules on what the user asked about and what all else depends on."""
    much = time_without_op(trace) >= MUCH_WITHOUT_OP
    return {"expected", "no_kernels", *(["unlinked"] if much else [])}


MORE_SPECIFIC = {
    "cpu_ops": {"cpu_copies": COPIES, "growing_cat": CATS},
    "gpu_ops": {"growing_cat": CATS},
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
    name = costliest_op(record.trace, finding)
    explained = sum(other.cost_ns for other in listed if name in more_specific.get(other.rule, ()))
    return 2 * explained > finding.cost_ns
