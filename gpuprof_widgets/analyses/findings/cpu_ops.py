"""No GPU took part: which ops took the CPU's time; waits for input are `dataloader`'s to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
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
from gpuprof_widgets.analyses.findings.backward import LOOKS
from gpuprof_widgets.analyses.findings.dispatch import multiplies_bf16, too_few_threads
from gpuprof_widgets.analyses.findings.finding import Finding, code, run_ns, share_of, uneven_calls
from gpuprof_widgets.analyses.findings.launches import COMPILED, unanswered_launches
from gpuprof_widgets.analyses.findings.memory import (
    ALLOCATOR_STALL_SHARE,
    MEMORY_PEAK_BYTES,
    memory,
)
from gpuprof_widgets.analyses.findings.model import was_on
from gpuprof_widgets.analyses.operators import cpu_self, op_rows
from gpuprof_widgets.analyses.reasons import PYTORCH, recorder_of, which_other_kind
from gpuprof_widgets.analyses.waits import is_taking
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import WINDOW, WRITTEN_CATEGORY

Mask = npt.NDArray[np.bool_]

RANKED = 3
SHORT_NS = 20_000
"""Of one call: below it, finding the op's code and making its result take most of that."""
SHORT_CALLS = "One call takes {each}, much of which any op costs: {fewer}."
FEWER_OR_FUSED = "make calls fewer, on larger tensors, or fuse them (torch.compile)"
FEWER = "make calls fewer, on larger tensors"
LONG_CALLS = "One call takes {each}: smaller sizes{narrower} or a GPU make it shorter."
IN_BF16 = ", bfloat16 (in which this CPU multiplies)"
LAUNCHING = "On the CPU it mostly launches: what it took the GPU is not in this trace."
UNUSED_GPU = "PyTorch sees a GPU: if nothing ran on it, move model and data there (.to('cuda'))."
DEBUGGING = "Autograd's anomaly mode was on, which makes forward ops longer: switch it off first."
IN_A_REGION = "Mark regions within it to see what in it takes that."

Kinds = Mapping[str, Mask]


def cpu_ops(
    record: Record,
    *,
    cpu_op_share: float = 0.05,
    cpu_ops_share: float = 0.02,
    memory_peak_bytes: int = MEMORY_PEAK_BYTES,
    allocator_stall_share: float = ALLOCATOR_STALL_SHARE,
) -> list[Finding]:
    """Fires where no GPU work was recorded; not for files of Python's profilers, which have none.

    Collectives, torch.compile's own work and what hands calls over to Python are no ops to make
    faster: where one of these took more than all ops it is told. Of a memory snapshot it says
    that it is one, unless its memory is worth a finding.

    ``cpu_op_share``: Of the CPU op time: the second and third op that are named.
    ``cpu_ops_share``: All ops on the CPU: below it none of them is named.

    The other thresholds are those of `memory`.
    """
    trace = record.trace
    if _is_of_python_alone(record) or len(trace.index.gpu):
        return []
    if kind := which_other_kind(trace):
        of_memory = memory(
            record,
            memory_peak_bytes=memory_peak_bytes,
            allocator_stall_share=allocator_stall_share,
        )
        return [] if of_memory else [Finding(f"T{kind[1:]}.")]
    calls = _calls(trace)
    if WRITTEN_CATEGORY in trace.args:  # no more is known than regions that its program marked
        regions = "the time in named regions"
        return [_finding(record, calls, "", regions, cpu_op_share)] if calls["own_ns"].any() else []
    calls = calls[trace.index.is_op[calls["row"]]]
    plumbing = _plumbing(trace)
    at_work = ~(is_taking(trace) | np.logical_or.reduce([*plumbing.values()]))
    ops = calls[at_work[calls["row"]]]
    computing = int(ops["own_ns"].sum())
    if computing and _is_little(record, computing, cpu_ops_share):
        return [Finding(_little(record, computing) + _beside(calls, plumbing, computing))]
    if computing:
        finding = _finding(record, ops, f"{_no_gpu(record)} ".lstrip(), "CPU op time", cpu_op_share)
        return [replace(finding, text=finding.text + _beside(calls, plumbing, computing))]
    said = _no_gpu(record) + _beside(calls, plumbing, 0) if len(calls) else _no_op(record)
    return [Finding(said.lstrip())] if said else []


def _is_little(record: Record, computing_ns: int, least_share: float) -> bool:
    """Whether the ops of a run of ours took so little that none of them is worth a look."""
    took = int(record.metadata.get("wall_ns") or 0)
    return WINDOW not in record.metadata and computing_ns < least_share * took


def _little(record: Record, computing_ns: int) -> str:
    took = int(record.metadata["wall_ns"])
    what = "run" if record.metadata.get("execution_count") is None else "cell"
    return (
        f"PyTorch's ops took {format_ns(computing_ns)} of this {what}'s {format_ns(took)} "
        f"({format_share(share_of(computing_ns, took))}); those of threads that it starts are not "
        "recorded."
    )


def _calls(trace: Trace) -> pd.DataFrame:
    """One row per call on the CPU: ``row``, ``name``, ``own_ns`` without the ops within it."""
    ops, slices = op_rows(trace), trace.slices
    own = np.zeros(len(ops), np.int64)
    np.add.at(own, ops.host, cpu_self(trace, ops))
    row = ops.row[~ops.repeat]
    names = slices["name"].iloc[row].reset_index(drop=True)
    return pd.DataFrame({"row": row, "name": names, "own_ns": own[~ops.repeat]})


def _plumbing(trace: Trace) -> Kinds:
    """Which slices are no ops to make faster, by what they are."""
    compiling = is_compiling(trace)
    communicating = is_communication(trace) & ~compiling
    return {
        COMMUNICATION: communicating,
        COMPILATION: compiling,
        DISPATCH: is_dispatch(trace) & ~compiling & ~communicating,
    }


def _beside(calls: pd.DataFrame, plumbing: Kinds, least_ns: int) -> str:
    """What took more than all ops and is none, in a sentence of its own; else ""."""
    took: dict[str, int] = {}
    for kind, wanted in plumbing.items():
        own = calls[wanted[calls["row"]]].groupby("name", observed=True)["own_ns"].sum()
        if own.sum() > least_ns:
            took[f"{kind} {format_ns(own.sum())} ({code(str(own.idxmax()))})"] = int(own.sum())
    told = ", ".join(sorted(took, key=lambda text: -took[text]))
    return f" Not counted, as no op computes there: {told}." if told else ""


def _is_of_python_alone(record: Record) -> bool:
    """Whether the file is one of cProfile's, or of another profiler of nothing but Python."""
    if "cuda" in record.metadata:
        return False
    if not len(record.trace):
        return True
    return recorder_of(record) != PYTORCH and bool(record.trace.index.on_tracks("python").all())


def _no_gpu(record: Record) -> str:
    """That no GPU took part, where one could have; "" where `no_kernels` says more, or none can."""
    if record.metadata.get("cuda") is False or len(unanswered_launches(record.trace)):
        return ""
    if record.trace.tracks["kind"].isin(["gpu", "copy"]).any():
        return "No GPU work ran in this range."
    return "No GPU activity was recorded."


def _no_op(record: Record) -> str:
    """Of our own recording one quiet line, as a cell of imports has nothing else to tell."""
    if len(unanswered_launches(record.trace)):
        return ""
    told = record.metadata
    if WINDOW in told and "cuda" in told:
        return "No PyTorch op ran in this range."
    if took := int(told.get("wall_ns") or 0):
        what = "run" if told.get("execution_count") is None else "cell"
        return (
            f"No PyTorch op ran in this {what}, which took {format_ns(took)}: there is nothing of "
            "PyTorch to explain."
        )
    op = "PyTorch op" if recorder_of(record) == PYTORCH else "op"
    return f"{_no_gpu(record)} No {op} was recorded either."


def _finding(
    record: Record, calls: pd.DataFrame, before: str, whole: str, least_share: float
) -> Finding:
    own = calls.groupby("name", sort=False, observed=True)["own_ns"].sum()
    own = own.sort_values(ascending=False, kind="stable")
    share, name, cost = own / own.sum(), str(own.index[0]), int(own.iloc[0])
    calls = calls[calls["name"] == name]
    counted = record.trace.slices["count"].to_numpy()[calls["row"]]
    text = (
        f"{before}{code(name)} took {format_share(share.iloc[0])} of {whole} "
        f"({format_ns(cost)} in {format_count(int(counted.sum()), 'call')})"
    )
    rest = [
        f"{code(str(name))} {format_share(part)}"
        for name, part in share.iloc[1:RANKED].items()
        if part >= least_share
    ]
    text += f", then {', '.join(rest)}" if rest else ""
    text += "; PyTorch sees no GPU here." if record.metadata.get("cuda") is False else "."
    remedy = _remedy(record, name, calls[counted > 0])
    place = _longest(record.trace, calls)
    return Finding(text, cost, share_of(cost, run_ns(record)), *place, remedy)


def _longest(trace: Trace, calls: pd.DataFrame) -> tuple[int, int, tuple[int, ...]]:
    """Where to look: start, end and row of the longest call."""
    ts, dur = (trace.slices[column].to_numpy()[calls["row"]] for column in ("ts", "dur"))
    longest = int(dur.argmax())
    start = int(ts[longest])
    return start, start + int(dur[longest]), (int(calls["row"].iloc[longest]),)


def _remedy(record: Record, name: str, calls: pd.DataFrame) -> str:
    """What to do about the op that took most, by how long its calls are."""
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
    own = calls["own_ns"].to_numpy()
    longest = int(own.argmax())
    compiled = COMPILED.fullmatch(name) or record.trace.index.matching(COMPILED).any()
    fuse = FEWER if compiled else FEWER_OR_FUSED
    if name in LOOKS:
        return SHORT_CALLS.format(each=format_ns(float(np.median(own))), fewer=fuse)
    if said := uneven_calls(
        record,
        int(calls["row"].iloc[longest]),
        longest_ns=float(own[longest]),
        all_ns=float(own.sum()),
        other_ns=float(np.median(np.delete(own, longest))) if len(own) > 1 else 0,
        calls=len(own),
    ):
        return said
    each_ns = float(np.median(record.trace.slices["dur"].to_numpy()[calls["row"]]))
    each, own_ns = format_ns(each_ns), float(np.median(own))
    if own_ns < each_ns / 2:
        each += f" ({format_ns(own_ns)} itself)"
    if each_ns < SHORT_NS:
        return SHORT_CALLS.format(each=each, fewer=fuse)
    narrower = IN_BF16 if multiplies_bf16(record, name) else ""
    long = LONG_CALLS.format(each=each, narrower=narrower)
    return f"{too_few_threads(record, name)} {long}".lstrip()
