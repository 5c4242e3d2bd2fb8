"""No GPU took part: which ops took the CPU's time; waits for input are `dataloader`'s to tell."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.instances import are_op_names, longest_call, own_times
from gpuprof_widgets.analyses.findings.limits import Limits
from gpuprof_widgets.analyses.findings.memory import memory
from gpuprof_widgets.analyses.findings.one_call import uneven_calls
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.lacking import PYTORCH, recorder_of, which_other_kind
from gpuprof_widgets.analyses.op_rows import gpu_rows, on_tracks
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.waits import is_taking
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import WRITTEN_CATEGORY

RANKED = 3
SHORT_NS = 20_000
"""Of one call: below it, finding the op's code and making its result take most of that."""
SHORT_CALLS = (
    "One call takes {each}, much of which any op costs: make calls fewer, on larger tensors, or "
    "fuse them (torch.compile)."
)
LONG_CALLS = (
    "One call takes {each}: smaller sizes, narrower types (torch.bfloat16), more threads "
    "(torch.set_num_threads) or a GPU make it shorter."
)
UNUSED_GPU = "PyTorch sees a GPU: if nothing ran on it, move model and data there (.to('cuda'))."
IN_A_REGION = "Mark regions within it to see what in it takes that."


def cpu_ops(record: Record, limits: Limits) -> list[Finding]:
    """Fires where no GPU work was recorded; not for files of Python's profilers, which have none.

    Of a memory snapshot it says that it is one, unless its memory is worth a finding.
    """
    if _is_of_python_alone(record) or len(gpu_rows(record.trace)):
        return []
    if kind := which_other_kind(record.trace):
        return [] if memory(record, limits) else [Finding("cpu_ops", f"T{kind[1:]}.")]
    table = operators(record, sort="cpu_self")
    if WRITTEN_CATEGORY in record.trace.args:
        return _of_regions(record, table[table["cpu_self_ns"] > 0], limits)
    waiting = record.trace.slices["name"][is_taking(record.trace)].unique()
    table = table[are_op_names(table) & (table["cpu_self_ns"] > 0)]
    table, waits = table[~table["name"].isin(waiting)], table["name"].isin(waiting)
    nothing = _no_gpu(record)
    if waits.any() and not len(table):
        return [Finding("cpu_ops", nothing)]
    if not len(table):
        op = "PyTorch op" if recorder_of(record) == PYTORCH else "op"
        return [Finding("cpu_ops", f"{nothing} No {op} was recorded either.")]
    return [_finding(record, table, f"{nothing} ", "CPU op time", limits)]


def _is_of_python_alone(record: Record) -> bool:
    """Whether the file is one of cProfile's, or of another profiler of nothing but Python."""
    if "cuda" in record.metadata:
        return False
    if not len(record.trace):
        return True
    return recorder_of(record) != PYTORCH and bool(on_tracks(record.trace, "python").all())


def _of_regions(record: Record, table: pd.DataFrame, limits: Limits) -> list[Finding]:
    """Of a trace of which no more is known than the regions that its program marked."""
    if not len(table):
        return []
    return [_finding(record, table, "", "the time in named regions", limits)]


def _no_gpu(record: Record) -> str:
    if record.metadata.get("cuda") is False:
        return "No GPU activity was recorded: PyTorch sees no GPU here."
    return "No GPU activity was recorded."


def _finding(
    record: Record, table: pd.DataFrame, before: str, whole: str, limits: Limits
) -> Finding:
    share = table["cpu_self_ns"] / table["cpu_self_ns"].sum()
    top, cost = table.iloc[0], int(table["cpu_self_ns"].iloc[0])
    text = (
        f"{before}{code(top['name'])} took {format_share(share.iloc[0])} of {whole} "
        f"({format_ns(cost)} in {format_count(top['calls'], 'call')})"
    )
    rest = [
        f"{code(name)} {format_share(part)}"
        for name, part in zip(table["name"].iloc[1:RANKED], share.iloc[1:RANKED], strict=True)
        if part >= limits.cpu_op_share
    ]
    text += f", then {', '.join(rest)}." if rest else "."
    place = longest_call(record, top["name"], str(top["category"]))
    remedy = _remedy(record, top)
    return Finding("cpu_ops", text, cost, share_of(cost, run_ns(record)), remedy=remedy, **place)


def _remedy(record: Record, top: pd.Series) -> str:
    """What to do about the op that took most, by how long its calls are."""
    if WRITTEN_CATEGORY in record.trace.args:
        return IN_A_REGION
    if record.metadata.get("cuda"):
        return UNUSED_GPU
    rows, own = own_times(record, top["name"], str(top["category"]))
    longest = int(own.argmax())
    if said := uneven_calls(
        record,
        int(rows[longest]),
        longest_ns=float(own[longest]),
        all_ns=float(own.sum()),
        other_ns=float(np.median(np.delete(own, longest))) if len(own) > 1 else 0,
        calls=len(own),
    ):
        return said
    each_ns = float(np.median(record.trace.slices["dur"].to_numpy()[rows]))
    each, own_ns = format_ns(each_ns), float(np.median(own))
    if own_ns < each_ns / 2:
        each += f" ({format_ns(own_ns)} itself)"
    return (SHORT_CALLS if each_ns < SHORT_NS else LONG_CALLS).format(each=each)
