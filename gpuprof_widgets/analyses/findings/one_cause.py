"""Findings on parts of one cause: a CPU that prepares launches too slowly for the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuprof_widgets.analyses.critical_path import whole_path
from gpuprof_widgets.analyses.findings.critical_path import CPU, bound_of
from gpuprof_widgets.analyses.findings.finding import Finding, gpu_name
from gpuprof_widgets.analyses.findings.idle_cause import HOST, began_with_waits, idle_cause
from gpuprof_widgets.analyses.findings.stalls import main_stalls
from gpuprof_widgets.analyses.gpu_work import devices_at_work
from gpuprof_widgets.analyses.host_states import CPU_OPS, LAUNCHING
from gpuprof_widgets.analyses.idle import device_gaps
from gpuprof_widgets.trace.model import Record

PARTS = ("short_kernels", "launch_bound", "optimizer_loops", "broadcast_buffers")
"""Rules that cost time of the GPU's gaps or of the CPU's path; also `critical_path`, if the CPU has
most of it."""


def with_parts(record: Record, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, those on parts of why a GPU is idle right after the one on that.

    That is where a GPU mostly waits for a CPU that prepares launches, and no other GPU works.
    """
    listed = list(findings)
    device = _waits_for_launches(record)
    if device is None:
        return listed
    gpu = gpu_name(device)
    on_idle = (one for one in listed if one.rule == "device_idle" and one.remedy)
    whole = next((one for one in on_idle if one.title.startswith(f"{gpu} ")), None)
    if whole is None:
        return listed
    gpu = gpu.replace("The", "the")
    because = (
        f" This is one part of why {gpu} is idle: the CPU launches its work too slowly. Such parts "
        "overlap, so do not add them up."
    )
    on_cpu = bound_of(whole_path(record))[0] == CPU
    rules = (*PARTS, "critical_path") if on_cpu else PARTS
    parts: list[Finding] = []
    others: list[Finding] = []
    for one in listed:
        is_part = one.rule in rules and one.cost_ns < whole.cost_ns
        (parts if is_part else others).append(one)
    told = [replace(one, text=one.text + because, part_of=whole.rule) for one in parts]
    after = others.index(whole) + 1
    return [*others[:after], *told, *others[after:]]


def _waits_for_launches(record: Record) -> int | None:
    """Return the only GPU at work if it is mostly idle for ops and launches; else None."""
    gaps, at_work = device_gaps(record), devices_at_work(record.trace)
    if len(at_work) != 1 or not len(gaps):
        return None
    if main_stalls(record, gaps) or began_with_waits(gaps):
        return None
    cause = idle_cause(record, at_work[0])
    is_late = cause.name == HOST and cause.delayed_by in (CPU_OPS, LAUNCHING)
    return at_work[0] if is_late else None
