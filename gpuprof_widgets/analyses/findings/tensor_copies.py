"""The finding on tensors that a program copies on the CPU: clones, casts, other layouts."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.attribution import in_backward
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share, group_rows
from gpuprof_widgets.analyses.critical_path import cpu_path_ns
from gpuprof_widgets.analyses.findings.finding import (
    WORTH_NS,
    Finding,
    code,
    longest_slice,
    run_ns,
    share_of,
    slice_range,
    spread,
)
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.op_bytes import OUTPUTS, SIMPLE
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.intp]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

COPIES = frozenset({"aten::clone", "aten::_to_copy", "aten::copy_"})
"""Ops that always copy."""
CLONES = frozenset({"aten::clone"})
CASTS = frozenset({"aten::to", "aten::_to_copy", "aten::type_as"})
LAYOUTS = frozenset({"aten::contiguous", "aten::reshape", "aten::flatten"})
COPYING = COPIES | CASTS | LAYOUTS
"""Ops that a program calls to copy, or that copy where they must."""
WRITES = frozenset({"aten::copy_"})
"""Writing into another tensor, as `x[i] = y` and `load_state_dict` do, is no needless copy."""
COMPUTING = frozenset({*SIMPLE, *OUTPUTS}) - WRITES
ROUNDS = 3
"""Rounds of a loop in which a line copies: copying data once is what is advised."""
NO_USER = re.compile(r"Optimizer\.\w+#.*|enumerate\(Data(Loader|Pipe)\)#.*")
"""Regions whose copies are not the user's to leave out, or that `dataloader` reports."""
OF_TORCH = re.compile(r".+::.+")

REMEDIES = {
    "clone": (
        CLONES,
        "A clone is needed only if the clone or its original is changed in place afterwards. Leave "
        "out the other clones.",
    ),
    "cast": (
        CASTS,
        "Make the data in the format in which it is used (`np.float32`), or convert all of it "
        "once. Do not convert it in each iteration, or back and forth.",
    ),
    "layout": (
        LAYOUTS,
        "`contiguous()` copies a transposed or permuted tensor into another layout. So do "
        "`reshape` and `flatten` of such a tensor. Leave them out if the next op takes the tensor "
        "as it is, as most ops do. Or make the data in the layout in which it is used.",
    ),
}
"""Per kind of copies its ops and what to do."""
NAMED_SHARE = 0.2
"""Share of the copying from which on an op is named, and gets its remedy."""


def cpu_copies(record: Record, *, cpu_copies_share: float = 0.1) -> list[Finding]:
    """Fires if the program's own copies of tensors on the CPU took a tenth of the run or more.

    Only the outermost call counts, and only what the program called: not the copies that other ops
    make for themselves, nor those of the backward pass, an optimizer or a DataLoader, nor what is
    written into another tensor. An op on a line counts if three runs of the line called it, or if
    the program computed something between its calls. Copies to or from a GPU are those of other
    rules.

    Cost: the time of these copies; if a GPU took part, at most that on the critical path.
    """
    trace = record.trace
    rows = _copies_of_the_program(trace)
    if not len(rows) or _lacks_gpu_work(record):
        return []
    start = trace.index.ts[rows]
    cost = intervals.length(intervals.union(start, trace.index.end[rows]))
    run = run_ns(record)
    if cost < WORTH_NS or share_of(cost, run) < cpu_copies_share:
        return []
    if len(trace.index.gpu):
        cost = min(cost, cpu_path_ns(record, rows))
        if cost < WORTH_NS or share_of(cost, run) < cpu_copies_share:
            return []
    share = share_of(cost, run)
    by_name = pd.Series(trace.index.dur[rows]).groupby(trace.index.names_of(rows)).sum()
    by_name = by_name.sort_values(ascending=False, kind="stable") / by_name.sum()
    text = (
        f"Copying tensors on the CPU took {format_ns(cost)} ({format_share(share)} of the time) "
        f"in {format_count(len(rows), 'call')}{_mostly(by_name)}."
    )
    place = slice_range(trace, longest_slice(trace, rows))
    title = "Copies of tensors take the CPU's time"
    return [Finding(text, cost, share, *place, spread(rows), _remedy(by_name), title=title)]


def _lacks_gpu_work(record: Record) -> bool:
    """Whether another program recorded the CPU alone beside GPUs: a copy may be to or from one."""
    ours, gpus = "cuda" in record.metadata, record.metadata.get("devices")
    return bool(gpus) and not ours and not len(record.trace.index.gpu)


def _copies_of_the_program(trace: Trace) -> Rows:
    """Return the outermost calls, in order, that copied on the CPU because the program says so."""
    index = trace.index
    copies = index.named(COPIES) & index.is_op & index.on_tracks("cpu")
    if not copies.any():
        return np.empty(0, np.intp)
    copying = index.named(COPYING) & index.is_op
    others = index.is_op & index.matching(OF_TORCH) & ~copying
    others |= index.matching(NO_USER)
    copies &= ~in_backward(trace) & (links.nearest_ancestor(index.parent, others) < 0)
    outermost = np.append(links.outermost(index.parent, copying), NONE)
    launching = np.zeros(len(trace) + 1, bool)
    launching[outermost[np.flatnonzero(index.is_launch)]] = True
    launching[outermost[index.column("op")[index.gpu]]] = True
    rows = np.unique(outermost[np.flatnonzero(copies)])
    rows = rows[~launching[rows] & ~index.named(WRITES)[rows]]
    return _repeated(trace, np.asarray(rows, np.intp), outermost[:-1] < 0)


def _repeated(trace: Trace, rows: Rows, apart: Mask) -> Rows:
    """Return the calls of those ops that a line calls in round after round.

    ``apart``: slices that lie in no copy.
    """
    index = trace.index
    order = np.lexsort((index.ts, index.track))
    computed = np.empty(len(trace), np.int64)
    computed[order] = np.cumsum((index.named(COMPUTING) & apart)[order])
    execution = line_of(trace)[rows]
    line = np.append(cell_lines(trace).of_slice, NONE)[execution]
    group, _ = group_rows({"line": line, "name": index.name[rows]})
    rounds = pd.DataFrame({"run": execution, "computed": computed[rows]}).groupby(group)
    often = rounds.transform("nunique").max(axis=1) >= ROUNDS
    return rows[often.to_numpy(bool)]


def _mostly(by_name: pd.Series) -> str:
    """Name the ops that copied most, of shares of the copying."""
    if len(by_name) == 1:
        return f" of {code(str(by_name.index[0]))}"
    named = by_name[(by_name >= NAMED_SHARE).to_numpy()]
    if not len(named):
        return f", the most in {code(str(by_name.index[0]))}"
    words = [f"{code(str(name))} ({format_share(share)})" for name, share in named.items()]
    return f", mostly of {' and '.join([', '.join(words[:-1]), words[-1]] if words[1:] else words)}"


def _remedy(by_name: pd.Series) -> str:
    """Return what to do about each kind of copies that took much of the copying."""
    shares = {
        kind: float(by_name[by_name.index.isin(ops)].sum()) for kind, (ops, _) in REMEDIES.items()
    }
    kinds = sorted(shares, key=lambda kind: -shares[kind])
    chosen = [kind for kind in kinds if shares[kind] >= NAMED_SHARE]
    return " ".join(REMEDIES[kind][1] for kind in chosen or kinds[:1])
