"""What a profile says, in plain words. A finding is one function, its rule, and a row of FINDINGS.

A rule takes the record, and its thresholds as keywords (see `thresholds`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps

from gpuprof_widgets.analyses.findings.anomaly_detection import anomaly_detection
from gpuprof_widgets.analyses.findings.backward import backward
from gpuprof_widgets.analyses.findings.bias_before_norm import bias_before_norm
from gpuprof_widgets.analyses.findings.blocking_calls import blocking_calls
from gpuprof_widgets.analyses.findings.change import with_lines
from gpuprof_widgets.analyses.findings.cold_calls import cold_calls
from gpuprof_widgets.analyses.findings.compilation import compilation
from gpuprof_widgets.analyses.findings.cpu_ops import cpu_ops
from gpuprof_widgets.analyses.findings.cpu_threads import cpu_threads
from gpuprof_widgets.analyses.findings.critical_path import critical_path_bound
from gpuprof_widgets.analyses.findings.dataloader import dataloader
from gpuprof_widgets.analyses.findings.device_idle import device_idle
from gpuprof_widgets.analyses.findings.ending import ending
from gpuprof_widgets.analyses.findings.expected import expected
from gpuprof_widgets.analyses.findings.exposed_communication import exposed_communication
from gpuprof_widgets.analyses.findings.file_io import file_io
from gpuprof_widgets.analyses.findings.finding import Finding, Findings
from gpuprof_widgets.analyses.findings.fp32_matmul import fp32_matmul
from gpuprof_widgets.analyses.findings.fragmentation import fragmentation
from gpuprof_widgets.analyses.findings.garbage_collection import (
    garbage_collection,
    less_collections,
)
from gpuprof_widgets.analyses.findings.gpu_ops import gpu_ops
from gpuprof_widgets.analyses.findings.launch_bound import launch_bound
from gpuprof_widgets.analyses.findings.lines import costliest_line
from gpuprof_widgets.analyses.findings.loop_indexing import loop_indexing
from gpuprof_widgets.analyses.findings.made_anew import made_anew
from gpuprof_widgets.analyses.findings.matmul_sizes import matmul_sizes
from gpuprof_widgets.analyses.findings.memory import memory
from gpuprof_widgets.analyses.findings.memory_room import memory_room
from gpuprof_widgets.analyses.findings.needless_copies import needless_copies
from gpuprof_widgets.analyses.findings.no_kernels import no_kernels
from gpuprof_widgets.analyses.findings.one_off import one_off
from gpuprof_widgets.analyses.findings.one_stream import one_stream
from gpuprof_widgets.analyses.findings.optimizer_loops import optimizer_loops
from gpuprof_widgets.analyses.findings.other_frameworks import for_its_framework
from gpuprof_widgets.analyses.findings.overhead import overhead
from gpuprof_widgets.analyses.findings.pageable_copies import pageable_copies
from gpuprof_widgets.analyses.findings.peer_copies import peer_copies
from gpuprof_widgets.analyses.findings.python_autograd import python_autograd
from gpuprof_widgets.analyses.findings.python_time import python_time
from gpuprof_widgets.analyses.findings.python_waiting import python_waiting
from gpuprof_widgets.analyses.findings.recomputation import recomputation
from gpuprof_widgets.analyses.findings.short_kernels import short_kernels
from gpuprof_widgets.analyses.findings.step_overhead import step_overhead
from gpuprof_widgets.analyses.findings.suspended import suspended
from gpuprof_widgets.analyses.findings.synchronising import synchronising
from gpuprof_widgets.analyses.findings.tensor_cores_idle import tensor_cores_idle
from gpuprof_widgets.analyses.findings.thresholds import (
    check_limits,
    limits_for,
    thresholds_of,
)
from gpuprof_widgets.analyses.findings.unlinked import unlinked
from gpuprof_widgets.analyses.findings.without_no_grad import without_no_grad
from gpuprof_widgets.analyses.findings.zeroed_gradients import zeroed_gradients
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.registry import Registry
from gpuprof_widgets.trace.model import Record

__all__ = ["FINDINGS", "Finding", "findings"]

Rule = Callable[..., list[Finding]]


def of_package(name: str, rule: object, package: str) -> Rule:
    """Return another package's rule, which has nothing to say but a warning where it fails."""
    if not callable(rule):
        raise TypeError(f"a finding is a function, not {type(rule).__name__}")
    for limit, threshold in thresholds_of(rule).items():
        if not isinstance(threshold.default, int | float):
            raise TypeError(f"its threshold {limit} has no number as its default")

    @wraps(rule)
    def asked(record: Record, **limits: float) -> list[Finding]:
        try:
            said = list(rule(record, **limits))
            if not all(isinstance(finding, Finding) for finding in said):
                raise TypeError("it returned something else than findings")
            return said
        except Exception as error:  # other people's code may raise anything
            warnings.warn(
                f"the finding {name} of {package} is left out: {type(error).__name__}: {error}",
                stacklevel=2,
            )
            return []

    return asked


FINDINGS: Registry[Rule] = Registry(
    "gpuprof_widgets.findings",
    {
        "ending": ending,
        "no_kernels": no_kernels,
        "device_idle": device_idle,
        "dataloader": dataloader,
        "synchronising": synchronising,
        "exposed_communication": exposed_communication,
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
        "loop_indexing": loop_indexing,
        "zeroed_gradients": zeroed_gradients,
        "optimizer_loops": optimizer_loops,
        "bias_before_norm": bias_before_norm,
        "critical_path": critical_path_bound,
        "lines": costliest_line,
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
"""The rules by name; those over many ranks are in `analyses.ranks.findings`."""


def findings(record: Record, **limits: float) -> Findings:
    """Why it is slow, in sentences with numbers, the costliest first.

    What all rules say about the run; ties in the order of `FINDINGS`. Before all others stands what
    of ``expect`` did not run, as the user asked for that, and that the GPU's side was not recorded.

    The list prints as these sentences. ``limits``: other thresholds than the customary ones, by
    their names in docs/findings.md.
    """
    check_limits(limits, *FINDINGS.values())
    said = _said(record, limits) if limits else _customary(record)
    if not len(record.trace) and record.calls is None:
        return Findings(said, "the record has neither slices nor Python calls")
    return Findings(said)


@remembered
def _customary(record: Record) -> list[Finding]:
    return _said(record, {})


def _said(record: Record, limits: Mapping[str, float]) -> list[Finding]:
    said = [
        replace(finding, rule=name)
        for name, rule in FINDINGS.items()
        for finding in rule(record, **limits_for(rule, limits))
    ]
    said = for_its_framework(record, said)
    said = less_collections(record, said, **limits_for(less_collections, limits))
    return sorted(with_lines(record, _told_once(said)), key=_rank)


def _rank(finding: Finding) -> tuple[bool, int]:
    """What the user asked about and what all else depends on come first; then the costliest."""
    return finding.rule not in ("expected", "no_kernels"), -finding.cost_ns


def _told_once(said: list[Finding]) -> list[Finding]:
    """Without functions of Python that wait in calls of which `synchronising` tells already."""
    told = {row for one in said if one.rule == "synchronising" for row in one.rows}
    return [one for one in said if one.rule != "python_waiting" or not told.intersection(one.rows)]
