"""Finding for runs without GPU work: which ops took the CPU's time (`dataloader` reports waits)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.cold_start import (
    COMMUNICATION,
    COMPILATION,
    DISPATCH,
    is_communication,
    is_compiling,
    is_dispatch,
)
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.backward import SHORT_NS, VIEWS
from gpuprof_widgets.analyses.findings.dispatch import multiplies_bf16, too_few_threads
from gpuprof_widgets.analyses.findings.finding import (
    Finding,
    code,
    kind_of_run,
    place_of,
    run_ns,
    share_of,
)
from gpuprof_widgets.analyses.findings.launches import COMPILED
from gpuprof_widgets.analyses.findings.memory import (
    ALLOCATOR_STALL_SHARE,
    MEMORY_PEAK_BYTES,
    memory,
)
from gpuprof_widgets.analyses.findings.model import was_on
from gpuprof_widgets.analyses.findings.recording import unanswered_launches
from gpuprof_widgets.analyses.findings.uneven_calls import interrupted_by_others, uneven_calls
from gpuprof_widgets.analyses.operators import cpu_self, op_rows
from gpuprof_widgets.analyses.reasons import PYTORCH, recorder_of, which_other_kind
from gpuprof_widgets.analyses.waits import is_taking
from gpuprof_widgets.trace.arrays import Mask
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import WINDOW, WRITTEN_CATEGORY

RANKED = 3
SHORT_CALLS = "{call} takes {each}, much of it the overhead of any op: {fewer}."
FEWER_OR_FUSED = "make fewer calls, on larger tensors, or fuse them (torch.compile)"
FEWER = "make fewer calls, on larger tensors"
LONG_CALLS = "{call} takes {each}: smaller sizes{narrower} or a GPU make it shorter."
MEASURED_BESIDE_OTHERS = (
    " Other programs used the CPUs at the same time. Without them, it takes less."
)
IN_BF16 = ", bfloat16 (which this CPU multiplies in hardware)"
LAUNCHING = "On the CPU it mostly launches kernels. Their time on the GPU is not in this trace."
UNUSED_GPU = "PyTorch sees a GPU. If nothing ran on it, move model and data there (.to('cuda'))."
DEBUGGING = "Autograd's anomaly mode was on, which makes forward ops longer. Switch it off first."
IN_A_REGION = "Mark regions within it to see what takes the time."


def cpu_ops(
    record: Record,
    *,
    cpu_op_share: float = 0.05,
    cpu_ops_share: float = 0.02,
    memory_peak_bytes: int = MEMORY_PEAK_BYTES,
    allocator_stall_share: float = ALLOCATOR_STALL_SHARE,
) -> list[Finding]:
    """Fires if no GPU work was recorded; not for files of profilers that know Python alone.

    Collectives, torch.compile's own work and dispatch to Python are no ops to make faster: they are
    named if they took more than all ops. For a memory snapshot it says that it is one, unless its
    memory is worth a finding.

    Cost: the CPU self time of the costliest op.
    """
    trace = record.trace
    of_python_alone = not len(trace) or (
        recorder_of(record) != PYTORCH and trace.index.on_tracks("python").all()
    )
    if len(trace.index.gpu) or ("cuda" not in record.metadata and of_python_alone):
        return []
    if reason := which_other_kind(trace):
        of_memory = memory(
            record,
            memory_peak_bytes=memory_peak_bytes,
            allocator_stall_share=allocator_stall_share,
        )
        title = "A memory snapshot has no times"
        return [] if of_memory else [Finding(f"T{reason[1:]}.", title=title)]
    calls = cpu_calls(trace)
    if WRITTEN_CATEGORY in trace.args:  # nothing but the regions that the program marked is known
        regions = "all named regions"
        return [_finding(record, calls, "", regions, cpu_op_share)] if calls["own_ns"].any() else []
    calls = calls[trace.index.is_op[calls["row"]]]
    compiling = is_compiling(trace)
    communicating = is_communication(trace) & ~compiling
    dispatch = is_dispatch(trace) & ~compiling & ~communicating
    plumbing = {COMMUNICATION: communicating, COMPILATION: compiling, DISPATCH: dispatch}
    computes = ~(is_taking(trace) | np.logical_or.reduce([*plumbing.values()]))
    ops = calls[computes[calls["row"]]]
    computing_ns = int(ops["own_ns"].sum())
    other_time = _other_time(calls, plumbing, computing_ns)
    no_gpu = _no_gpu_sentence(record)
    took, kind = int(record.metadata.get("wall_ns") or 0), kind_of_run(record)
    if computing_ns and WINDOW not in record.metadata and computing_ns < cpu_ops_share * took:
        text = (
            f"PyTorch's ops took {format_ns(computing_ns)} of this {kind}'s {format_ns(took)} "
            f"({format_share(computing_ns / took)}). Ops of threads that the {kind} starts are not "
            f"recorded.{other_time}"
        )
        return [Finding(text, title="PyTorch's ops took little of the time")]
    if computing_ns:
        finding = _finding(record, ops, f"{no_gpu} ".lstrip(), "CPU op time", cpu_op_share)
        return [replace(finding, text=finding.text + other_time)]
    text = no_gpu + other_time if len(calls) else _no_op_sentence(record)
    title = "No op that computes was recorded" if len(calls) else "No PyTorch op was recorded"
    return [Finding(text.lstrip(), title=title)] if text else []


def cpu_calls(trace: Trace) -> pd.DataFrame:
    """Return one row per call on the CPU: ``row``, ``name`` and ``own_ns``, its self time."""
    ops, slices = op_rows(trace), trace.slices
    self_ns = np.zeros(len(ops), np.int64)
    np.add.at(self_ns, ops.host, cpu_self(trace, ops))
    row = ops.row[~ops.repeat]
    names = slices["name"].iloc[row].reset_index(drop=True)
    return pd.DataFrame({"row": row, "name": names, "own_ns": self_ns[~ops.repeat]})


def _other_time(calls: pd.DataFrame, plumbing: Mapping[str, Mask], least_ns: int) -> str:
    """Return a sentence on the kinds of plumbing that took more than all ops; else ""."""
    took: dict[str, int] = {}
    for kind, mask in plumbing.items():
        by_name = calls[mask[calls["row"]]].groupby("name", observed=True)["own_ns"].sum()
        kind_ns = int(by_name.sum())
        if kind_ns > least_ns:
            took[f"{kind} {format_ns(kind_ns)} ({code(str(by_name.idxmax()))})"] = kind_ns
    names = ", ".join(sorted(took, key=lambda text: -took[text]))
    return f" This leaves out time in which no op computes: {names}." if names else ""


def _no_gpu_sentence(record: Record) -> str:
    """Say that no GPU took part where one could have; "" where `no_kernels` says more."""
    if record.metadata.get("cuda") is False or len(unanswered_launches(record.trace)):
        return ""
    if record.trace.tracks["kind"].isin(["gpu", "copy"]).any():
        return "No GPU work ran in this range."
    return "No GPU activity was recorded."


def _no_op_sentence(record: Record) -> str:
    """Say that no op was recorded: one quiet line, as for a cell of imports."""
    if len(unanswered_launches(record.trace)):
        return ""
    metadata = record.metadata
    if metadata.get("own_torch_profiler"):
        return (
            "No PyTorch op is in this record: your own torch.profiler has those that ran. Look at "
            "its results, or run this without it."
        )
    if WINDOW in metadata and "cuda" in metadata:
        return "No PyTorch op ran in this range."
    if took := int(metadata.get("wall_ns") or 0):
        return (
            f"No PyTorch op ran in this {kind_of_run(record)}, which took {format_ns(took)}. There "
            "is nothing of PyTorch to explain."
        )
    op = "PyTorch op" if recorder_of(record) == PYTORCH else "op"
    return f"{_no_gpu_sentence(record)} No {op} was recorded either."


def _finding(
    record: Record, calls: pd.DataFrame, before: str, whole: str, least_share: float
) -> Finding:
    self_ns = calls.groupby("name", sort=False, observed=True)["own_ns"].sum()
    self_ns = self_ns.sort_values(ascending=False, kind="stable")
    share, name, cost = self_ns / self_ns.sum(), str(self_ns.index[0]), int(self_ns.iloc[0])
    calls = calls[calls["name"] == name]
    counted = record.trace.index.column("count")[calls["row"]]
    share_of_run = share_of(cost, run_ns(record))
    of_run = f"{format_share(share_of_run)} of the time, " if 0 < share_of_run <= 1 else ""
    text = (
        f"{before}{code(name)} took {format_ns(cost)} in "
        f"{format_count(int(counted.sum()), 'call')} "
        f"({of_run}{format_share(share.iloc[0])} of {whole})"
    )
    rest = [
        f"{code(str(name))} ({format_share(part)})"
        for name, part in share.iloc[1:RANKED].items()
        if part >= least_share
    ]
    text += f". Next: {' and '.join(rest)}." if rest else "."
    text += " PyTorch sees no GPU here." if record.metadata.get("cuda") is False else ""
    remedy = _remedy(record, name, calls[counted > 0])
    place = place_of(record.trace, calls["row"].to_numpy())
    of_all = "regions" if WRITTEN_CATEGORY in record.trace.args else "CPU ops"
    title = f"{code(name)} takes the most time of all {of_all}"
    return Finding(text, cost, share_of_run, remedy=remedy, title=title, **place)


def _remedy(record: Record, name: str, calls: pd.DataFrame) -> str:
    """Return what to do about the op that took most, by the duration of its calls."""
    if WRITTEN_CATEGORY in record.trace.args:
        return IN_A_REGION
    if len(unanswered_launches(record.trace)):
        return LAUNCHING
    if record.metadata.get("cuda"):
        return UNUSED_GPU
    if was_on(record):
        return DEBUGGING
    if not len(calls):  # all of them began before the range
        return ""
    self_ns = calls["own_ns"].to_numpy()
    longest = int(self_ns.argmax())
    compiled = COMPILED.fullmatch(name) or record.trace.index.matching(COMPILED).any()
    fuse = FEWER if compiled else FEWER_OR_FUSED
    call = "The median call" if len(calls) > 1 else "Its only call"
    beside_others = MEASURED_BESIDE_OTHERS if interrupted_by_others(record) else ""
    if name in VIEWS:
        each = format_ns(float(np.median(self_ns)))
        return SHORT_CALLS.format(call=call, each=each, fewer=fuse) + beside_others
    if remedy := uneven_calls(
        record,
        int(calls["row"].iloc[longest]),
        longest_ns=float(self_ns[longest]),
        all_ns=float(self_ns.sum()),
        other_ns=float(np.median(np.delete(self_ns, longest))) if len(self_ns) > 1 else 0,
        calls=len(self_ns),
    ):
        return remedy
    each_ns = float(np.median(record.trace.index.dur[calls["row"]]))
    each, median_ns = format_ns(each_ns), float(np.median(self_ns))
    if median_ns < each_ns / 2:
        each += f" ({format_ns(median_ns)} itself)"
    if each_ns < SHORT_NS:
        return SHORT_CALLS.format(call=call, each=each, fewer=fuse) + beside_others
    narrower = IN_BF16 if multiplies_bf16(record, name) else ""
    long = LONG_CALLS.format(call=call, each=each, narrower=narrower)
    return f"{too_few_threads(record, name)} {long}{beside_others}".lstrip()
