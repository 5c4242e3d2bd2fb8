"""Finding on what bounds the run: the critical path, and the op without which it is shorter.

Also which findings tell of parts of one cause: a CPU that prepares launches too slowly for the GPU.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.cold_start import cold_spans
from gpuprof_widgets.analyses.columns import format_ns, format_share, group_sums
from gpuprof_widgets.analyses.critical_path import Path, op_around, whole_path
from gpuprof_widgets.analyses.findings.finding import Finding, code, gpu_name, kernel_code, place_of
from gpuprof_widgets.analyses.findings.gpu_idle import WARM_UP, first_launches
from gpuprof_widgets.analyses.findings.idle_cause import HOST, began_with_waits, idle_cause
from gpuprof_widgets.analyses.findings.kernels import GPU_OP_SHARE, gpu_ops
from gpuprof_widgets.analyses.findings.places import costliest_op
from gpuprof_widgets.analyses.findings.uneven_calls import (
    STALLED,
    TIMES_USUAL,
    about_one_call,
    main_stalls,
    stalled_ops,
)
from gpuprof_widgets.analyses.gpu_work import devices_at_work
from gpuprof_widgets.analyses.host_states import CPU_OPS, LAUNCHING
from gpuprof_widgets.analyses.idle import device_gaps
from gpuprof_widgets.analyses.owners import is_mostly_replayed
from gpuprof_widgets.analyses.path_graph import (
    KERNEL_DELAY,
    KINDS,
    LAUNCH_DELAY,
    PYTHON,
    RUNTIME,
    STREAM_WAIT,
)
from gpuprof_widgets.analyses.what_if import what_ifs
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import BACKWARD

CPU, GPU = "the CPU", "the GPU"
BOUNDS = {
    CPU: (PYTHON, "cpu op", RUNTIME),
    GPU: ("compute",),
    "communication": ("communication",),
    "copies": ("copy", "memset"),
    "delays between launches and kernels": (LAUNCH_DELAY, KERNEL_DELAY, STREAM_WAIT),
}
"""What can bound a run; other rules report waiting for data and for the GPU."""

IN_16_BITS = "compute in 16 instead of 32 bits, "
OF_16_BITS = re.compile(
    r"[bhf]f?16|bfloat16|fp16|half(?!_pixel)|hgemm|[hs]884|h1688|s16816"
    r"|nvjet_(?:sm\d+_)?(?:[ht]s[ht]|qq)|e4m3|e5m2|fp8",
    re.IGNORECASE,
)
"""In names of kernels that compute in 16 bits or fewer."""
STALLS, OTHERWISE = "stalls", "otherwise"
TITLES = {
    STALLS: "The CPU stalls in {op}, which the run waits for",
    CPU: "The run waits for {op} on the CPU: {share}",
    GPU: "The GPU bounds the run: {op} costs {share}",
    OTHERWISE: "The run waits for {op} {share} of the time",
}
REMEDIES = {
    CPU: "Give the CPU less to do: fewer, larger ops (torch.compile, fused or foreach variants), "
    "CUDA graphs, or a larger batch.",
    GPU: f"Compute less (smaller sizes, no result twice or unused), {IN_16_BITS}or move less data "
    "between kernels (torch.compile fuses them).",
    "communication": "Begin communication earlier, so that compute hides it (async_op=True, "
    "smaller buckets of DDP), or send less and less often (bf16, gradient accumulation).",
    "copies": "Leave data where it is, or copy it while the GPU computes: from pinned memory, with "
    "non_blocking=True, on a separate stream.",
    "delays between launches and kernels": "The kernels are too short for their launches: use "
    "larger kernels, or CUDA graphs, which launch many at once.",
}
REPLAYED = {
    CPU: "Give the CPU less to do: fewer, larger ops (torch.compile, fused or foreach variants), "
    "more of the step in one CUDA graph, or a larger batch.",
    "delays between launches and kernels": "The kernels are very short: use larger kernels "
    "(larger batches, torch.compile), which have fewer such delays.",
}
"""The same where CUDA graphs are replayed already."""

PYTHON_BETWEEN = (
    "Most of the CPU's time is Python between the ops: shorten it (logging, metrics, loops over "
    "tensors), or use larger batches."
)
ONE_CALL = "Most of the CPU's time is one call of {name} ({time}): {advice}"
FIRST_CALLS = (
    "Most of the CPU's time is first calls, which load libraries and kernels{launches}. {warm_up}."
)
MOST = 0.5
"""Share of the CPU's part of the path that counts as most of it."""


def critical_path_bound(
    record: Record, *, critical_path_share: float = 0.05, gpu_op_share: float = GPU_OP_SHARE
) -> list[Finding]:
    """Fires if the run's bound is known and would be 5 % shorter without one op.

    Time that other work hides does not count, unlike in the sums of `gpu_ops` and `cpu_ops`. If the
    GPU's compute bounds the run and the op is that of `gpu_ops`, one finding says both.

    Cost: what the run would save if the op cost nothing, with what it launches (`what_if`).
    """
    if not len(record.trace.index.gpu):
        return []
    path, table = whole_path(record), what_ifs(record)
    bound, share = bound_of(path)
    op = _worth_most(record, table) if bound else None
    if op is None or op["saved_share"] < critical_path_share:
        return []
    calls = _calls_on_path(record.trace, path, str(op["name"]))
    in_stalls = ""
    if bound == CPU:
        dur = record.trace.index.dur
        long = calls[np.isin(calls, stalled_ops(record).row)]
        if 2 * int(dur[long].sum()) > int(dur[calls].sum()):
            in_stalls = (
                f" Most of its time lies in {len(long):,} of its {len(calls):,} calls, in which "
                f"the CPU stalled: each took at least {TIMES_USUAL} times as long as the median "
                "call."
            )
    text = (
        f"The run is bound by {bound} ({format_share(share)} of its critical path). If "
        f"{code(op['name'])} cost nothing, the run would be {format_share(op['saved_share'])} "
        f"({format_ns(op['saved_ns'])}) shorter.{in_stalls}"
    )
    cost, saved = int(op["saved_ns"]), float(op["saved_share"])
    title = TITLES[STALLS if in_stalls else bound if bound in TITLES else OTHERWISE]
    title = title.format(op=code(op["name"]), share=format_share(saved))
    for on_gpu in gpu_ops(record, gpu_op_share=gpu_op_share) if bound == GPU else []:
        if costliest_op(record.trace, on_gpu) == op["name"]:
            text = f"{on_gpu.text} {text}"
            remedy = f"{on_gpu.remedy} {_cpu_part(path, critical_path_share)}".rstrip()
            named = replace(on_gpu, text=text, title=title, remedy=remedy)
            return [replace(named, cost_ns=cost, share=saved)]
    kernels_sentence = _kernels_sentence(table, critical_path_share)
    if bound == CPU:
        remedy = f"{_cpu_remedy(record, path, in_stalls)} {kernels_sentence}"
    else:
        remedies = _remedies(record.trace)[bound]
        if OF_16_BITS.search(kernels_sentence) or _is_in_16_bits(record.trace, path):
            remedies = remedies.replace(IN_16_BITS, "")
        sentences = (kernels_sentence, remedies, _cpu_part(path, critical_path_share))
        remedy = " ".join(filter(None, sentences))
    place = place_of(record.trace, calls)
    return [Finding(text, cost, saved, remedy=remedy, title=title, **place)]


def _calls_on_path(trace: Trace, path: Path, name: str) -> Rows:
    """Return the calls of this op that the path goes through."""
    calls = trace.index.named(frozenset({name})) & trace.index.in_category("cpu_op")
    call = links.itself_or_ancestor(trace.index.parent, calls)
    call = take(call, take(op_around(trace), path.row))
    rows = np.unique(call[call >= 0]).astype(np.intp)
    if not len(rows):  # what is on the path is a kernel of that name, whose launch is missing
        rows = np.flatnonzero(calls)
    return rows


def _cpu_remedy(record: Record, path: Path, in_stalls: str) -> str:
    """Return the remedy for the CPU's part: a long call, first calls, stalls, Python or ops."""
    trace = record.trace
    on_cpu = path.is_of(*BOUNDS[CPU])
    time = np.where(on_cpu, path.dur, 0)
    most, longest = MOST * time.sum(), int(time.argmax())
    if path.is_of(RUNTIME)[longest] and time[longest] > most:
        row, length = int(path.row[longest]), format_ns(time[longest])
        (name,) = trace.index.names_of(path.row[[longest]])
        return ONE_CALL.format(name=code(name), time=length, advice=about_one_call(trace, row))
    segments = (path.start[on_cpu], path.end[on_cpu])
    if intervals.overlap(segments, cold_spans(record)).sum() > most:
        return FIRST_CALLS.format(launches=first_launches(record), warm_up=WARM_UP)
    if in_stalls:
        return STALLED
    if time[path.is_of(PYTHON)].sum() > most:
        return PYTHON_BETWEEN
    return _remedies(trace)[CPU]


def _remedies(trace: Trace) -> dict[str, str]:
    return REMEDIES | REPLAYED if is_mostly_replayed(trace) else REMEDIES


def _kernels_sentence(table: pd.DataFrame, least_share: float) -> str:
    """Say which kernel or copy would save most; `what_ifs` tries the longest on the path."""
    tried = table[(table["what"] == "kernel") & (table["saved_ns"] > 0)]
    if not len(tried):
        return "No kernel or copy would save anything, even if it cost nothing."
    most = tried.iloc[0]
    share, time = format_share(most["saved_share"]), format_ns(most["saved_ns"])
    if most["saved_share"] < least_share:
        return f"No kernel or copy would save more than {time} ({share}) if it cost nothing."
    name = kernel_code(str(most["name"]))
    return (
        f"Of all kernels and copies, {name} would save the most if it cost nothing: "
        f"{share} ({time})."
    )


def _is_in_16_bits(trace: Trace, path: Path) -> bool:
    """Whether half of the path's time on the GPU is that of kernels of 16 bits or fewer."""
    time = np.where(path.is_of(*BOUNDS[GPU]), path.dur, 0)
    is_narrow = np.array([bool(OF_16_BITS.search(name)) for name in trace.index.names], bool)
    narrow = take(is_narrow, take(trace.index.name, path.row), False)
    return bool(2 * time[narrow].sum() >= time.sum())


def _cpu_part(path: Path, least_share: float) -> str:
    """Say how much of a path that is mostly the GPU's is the CPU's; "" where that is little."""
    share = int(path.dur[path.is_of(*BOUNDS[CPU])].sum()) / max(int(path.dur.sum()), 1)
    if share < least_share:
        return ""
    return (
        f"A faster GPU would not shorten the {format_share(share)} of the path that the CPU takes "
        "(Python, ops, launches)."
    )


def bound_of(path: Path) -> tuple[str, float]:
    """Return what takes most of the path, and its share; "" where that is none of `BOUNDS`."""
    time = dict(zip(KINDS, group_sums(path.kind, path.dur, len(KINDS)).tolist(), strict=True))
    total = max(sum(time.values()), 1)
    groups = {name: sum(time.pop(kind) for kind in kinds) for name, kinds in BOUNDS.items()}
    name = max(groups, key=lambda group: groups[group])
    known = groups[name] > max(time.values())
    return (name, groups[name] / total) if known else ("", 0.0)


def _worth_most(record: Record, table: pd.DataFrame) -> pd.Series | None:
    """Return the op that saves most, not autograd's slice around a backward op."""
    index = record.trace.index
    ops = {index.names[code] for code in intervals.distinct(index.name[index.is_op])}
    are_named = [name in ops and not str(name).startswith(BACKWARD) for name in table["name"]]
    ops_table = table[np.array(are_named, bool)]
    return ops_table.iloc[0] if len(ops_table) else None


PARTS = ("short_kernels", "launch_bound", "optimizer_loops", "broadcast_buffers")
"""Rules that cost time of the GPU's gaps or of the CPU's path; also `critical_path`, if the CPU has
most of it."""


def with_parts(record: Record, listed: list[Finding]) -> list[Finding]:
    """Return the findings, those on parts of why a GPU is idle right after the one on that.

    That is where a GPU mostly waits for a CPU that prepares launches, and no other GPU works.
    """
    gaps, at_work = device_gaps(record), devices_at_work(record.trace)
    if len(at_work) != 1 or not len(gaps) or main_stalls(record, gaps) or began_with_waits(gaps):
        return listed
    cause, gpu = idle_cause(record, at_work[0]), gpu_name(at_work[0])
    if cause.name != HOST or cause.delayed_by not in (CPU_OPS, LAUNCHING):
        return listed
    on_idle = (one for one in listed if one.rule == "device_idle" and one.remedy)
    whole = next((one for one in on_idle if one.title.startswith(f"{gpu} ")), None)
    if whole is None:
        return listed
    because = (
        f" This is one part of why {gpu.replace('The', 'the')} is idle: the CPU launches its work "
        "too slowly. Such parts overlap, so do not add them up."
    )
    on_cpu = bound_of(whole_path(record))[0] == CPU
    rules = (*PARTS, "critical_path") if on_cpu else PARTS
    parts = [one for one in listed if one.rule in rules and one.cost_ns < whole.cost_ns]
    others = [one for one in listed if one not in parts]
    told = [replace(one, text=one.text + because, part_of=whole.rule) for one in parts]
    after = others.index(whole) + 1
    return [*others[:after], *told, *others[after:]]
