"""What the run is bound by, and which op is worth most of it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.cold_start import cold_spans
from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.findings.device_idle import WARM_UP, of_launches
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.instances import longest_call
from gpuprof_widgets.analyses.findings.one_call import about_one_call
from gpuprof_widgets.analyses.findings.wording import code, kernel_code
from gpuprof_widgets.analyses.graph_replays import is_mostly_replayed
from gpuprof_widgets.analyses.path_graph import KERNEL_DELAY, LAUNCH_DELAY, STREAM_WAIT
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.analyses.what_if import what_ifs
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.callers import BACKWARD
from gpuprof_widgets.trace.model import Record, Trace

BOUNDS = {
    "the CPU": ("python", "cpu op", "runtime"),
    "the GPU's compute": ("compute",),
    "communication": ("communication",),
    "copies": ("copy", "memset"),
    "delays between launches and kernels": (LAUNCH_DELAY, KERNEL_DELAY, STREAM_WAIT),
}
"""What a run can be bound by; of waiting for data and for the GPU other rules speak."""

CPU = "the CPU"
REMEDIES = {
    CPU: "Fewer, larger ops (torch.compile, fused or foreach variants), CUDA graphs, or a larger "
    "batch leave less to do for it.",
    "the GPU's compute": "Compute less (smaller sizes, nothing twice or in vain), in 16 bits where "
    "it is 32, or move less between kernels (torch.compile fuses them).",
    "communication": "Begin it earlier, so that compute hides it (async_op=True, smaller buckets "
    "of DDP), or send less and less often (bf16, gradient accumulation).",
    "copies": "Leave data where it is, or copy it while the GPU computes: from pinned memory, with "
    "non_blocking=True, on a stream of its own.",
    "delays between launches and kernels": "The kernels are too short for their launches: larger "
    "ones, or CUDA graphs, which launch many at once.",
}
REPLAYED = {
    CPU: "Fewer, larger ops (torch.compile, fused or foreach variants), more of the step in one "
    "CUDA graph, or a larger batch leave less to do for it.",
    "delays between launches and kernels": "The kernels are very short: larger ones (larger "
    "batches, torch.compile) have fewer such delays.",
}
"""The same where graphs are replayed already."""

PYTHON_BETWEEN = (
    "Most of that is Python between the ops: make it shorter (logging, metrics, loops over "
    "tensors), or batches larger."
)
ONE_CALL = "Most of that is one call, {name}, of {time}: {what}"
FIRST_CALLS = "Most of that is first calls, which load libraries and kernels{launches}: {warm_up}."
MOST = 0.5
"""Of the CPU's part of the path."""


def critical_path_bound(record: Record, *, critical_path_share: float = 0.05) -> list[Finding]:
    """Fires where one op, with what it launches, is worth 5 % of the run, and a bound is known.

    Worth is what the run would take less if the op cost nothing (`what_if`): time that others hide
    does not count, unlike in the sums of the rules `gpu_ops` and `cpu_ops`.

    ``critical_path_share``: By which the run would be shorter if an op cost nothing; below it, few
        would look.
    """
    if not len(record.trace.index.gpu):
        return []
    path, table = critical_path(record), what_ifs(record)
    bound, share = _bound(path)
    op = _worth_most(record, table) if bound else None
    if op is None or op["saved_share"] < critical_path_share:
        return []
    text = (
        f"The run is bound by {bound}: {format_share(share)} of its critical path. If "
        f"{code(op['name'])} cost nothing, it would take {format_share(op['saved_share'])} less "
        f"({format_ns(op['saved_ns'])})."
    )
    where = longest_call(record, op["name"], "cpu_op")
    cost, saved = int(op["saved_ns"]), float(op["saved_share"])
    of_kernels = _of_kernels(table, critical_path_share)
    if bound == CPU:
        remedy = f"{_of_what_the_cpu_did(record, path)} {of_kernels}"
    else:
        what = _remedies(record.trace)[bound]
        said = (of_kernels, what, _of_the_cpu(path, critical_path_share))
        remedy = " ".join(filter(None, said))
    return [Finding(text, cost, saved, remedy=remedy, **where)]


def _of_what_the_cpu_did(record: Record, path: pd.DataFrame) -> str:
    """What to do about the CPU's part: about one long or all first calls, Python, or its ops."""
    trace = record.trace
    mine = path[path["kind"].isin(BOUNDS[CPU])]
    time = mine["dur_ns"]
    longest = mine.nlargest(1, "dur_ns").iloc[0]
    if longest["kind"] == "runtime" and longest["dur_ns"] > MOST * time.sum():
        name, length = code(str(longest["name"])), format_ns(longest["dur_ns"])
        what = about_one_call(trace, int(longest["row"]))
        return ONE_CALL.format(name=name, time=length, what=what)
    segments = (mine["start_ns"].to_numpy(np.int64), mine["end_ns"].to_numpy(np.int64))
    if intervals.overlap(segments, cold_spans(record)).sum() > MOST * time.sum():
        return FIRST_CALLS.format(launches=of_launches(record), warm_up=WARM_UP)
    if time[mine["kind"] == "python"].sum() > MOST * time.sum():
        return PYTHON_BETWEEN
    return _remedies(trace)[CPU]


def _remedies(trace: Trace) -> dict[str, str]:
    return REMEDIES | REPLAYED if is_mostly_replayed(trace) else REMEDIES


def _of_kernels(table: pd.DataFrame, least_share: float) -> str:
    """What GPU work would save: that which takes most of the path was tried (`what_ifs`)."""
    tried = table[(table["what"] == "kernel") & (table["saved_ns"] > 0)]
    if not len(tried):
        return "Of the kernels and copies none would save anything, even if it cost nothing."
    most = tried.iloc[0]
    share, time = format_share(most["saved_share"]), format_ns(most["saved_ns"])
    if most["saved_share"] < least_share:
        return f"No kernel or copy would save more than {time} ({share}) if it cost nothing."
    name = kernel_code(str(most["name"]))
    return f"Of the kernels and copies {name} would save most if it cost nothing: {share} ({time})."


def _of_the_cpu(path: pd.DataFrame, least_share: float) -> str:
    """What part of a path that is mostly the GPU's stays however fast that is."""
    mine = path["kind"].isin(BOUNDS[CPU])
    share = int(path.loc[mine, "dur_ns"].sum()) / max(int(path["dur_ns"].sum()), 1)
    if share < least_share:
        return ""
    return (
        f"But {format_share(share)} of the path is the CPU's (Python, ops, launches): "
        "that stays however fast the GPU is."
    )


def _bound(path: pd.DataFrame) -> tuple[str, float]:
    """The one that takes most of the path, and its share; "" where that is none of `BOUNDS`."""
    by_kind = path.groupby("kind")["dur_ns"].sum()
    total = max(int(by_kind.sum()), 1)
    groups = {name: int(by_kind.reindex(kinds).sum()) for name, kinds in BOUNDS.items()}
    name = max(groups, key=lambda one: groups[one])
    others = by_kind.drop([kind for kinds in BOUNDS.values() for kind in kinds], errors="ignore")
    known = groups[name] > others.max() if len(others) else groups[name] > 0
    return (name, groups[name] / total) if known else ("", 0.0)


def _worth_most(record: Record, table: pd.DataFrame) -> pd.Series | None:
    """The op that saves most; autograd's slice around a backward op says less than that op."""
    slices = record.trace.slices
    ops = set(slices["name"].to_numpy(object)[record.trace.index.is_op])
    are_named = [name in ops and not str(name).startswith(BACKWARD) for name in table["name"]]
    found = table[np.array(are_named, bool)]
    return found.iloc[0] if len(found) else None
