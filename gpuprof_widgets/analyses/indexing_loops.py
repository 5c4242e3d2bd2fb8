"""Loops that index a tensor row by row: the same ops after ``aten::select`` again and again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.op_rows import are_ops, in_category, named
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace

Ints = npt.NDArray[np.int64]

SELECT = "aten::select"
COLUMNS = ("ops", "rounds", "start_ns", "dur_ns", "rows")


def indexing_loops(record: Record) -> pd.DataFrame:
    """One row per loop of two rounds or more, in order of time.

    A round is ``aten::select`` and the ops beside it (not within it) up to the next one, under the
    same op or annotation; a loop is rounds of the same ops one after the other, the last one
    perhaps with more after it. Columns (times in ns): ``ops`` (of a round, by comma), ``rounds``,
    ``start_ns``, ``dur_ns``, ``rows`` (the selects' slices, a tuple). Definition: torch's
    ForLoopIndexingPattern.
    """
    trace = record.trace
    row, group = siblings(trace)
    selects = np.flatnonzero(named(trace, frozenset({SELECT}))[row])
    if len(selects) < 2:  # no round comes twice
        return pd.DataFrame(columns=list(COLUMNS))
    code = trace.slices["name"].cat.codes.to_numpy()[row].astype(np.int64)
    length = np.diff(selects)
    same = _same_rounds(code, group, selects, length)
    goes_on = same & np.append(False, same[:-1] & (length[1:] == length[:-1]))
    first = np.flatnonzero(same & ~goes_on)
    last = np.flatnonzero(same & ~np.append(goes_on[1:], False)) + 1
    loops = [selects[low : high + 1] for low, high in zip(first, last, strict=True)]
    return pd.DataFrame([_loop(trace, row, loop) for loop in loops], columns=list(COLUMNS))


def siblings(trace: Trace) -> tuple[npt.NDArray[np.intp], Ints]:
    """The ops by what is around them, in order of time, and the number of that.

    Cell lines and modules are looked through: each round of a loop in a cell has lines of its own.
    """
    slices = trace.slices
    ops = are_ops(trace) & (slices["count"].to_numpy() > 0)
    above = links.nearest_ancestor(
        slices["parent"].to_numpy(), ops | in_category(trace, "user_annotation")
    )
    row = np.flatnonzero(ops)
    group = above[row].astype(np.int64) * len(trace.tracks) + slices["track"].to_numpy()[row]
    order = np.lexsort((slices["ts"].to_numpy()[row], group))
    return row[order], group[order]


def _same_rounds(
    code: Ints, group: Ints, selects: npt.NDArray[np.intp], length: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """Per select but the last: whether the ops of its round come once more, right behind it."""
    ends = np.searchsorted(group, group[selects[:-1]], side="right")
    same = selects[1:] + length <= ends
    for offset in range(1, int(length[same].max(initial=1))):
        active = np.flatnonzero(same & (offset < length))
        same[active] = code[selects[active] + offset] == code[selects[active + 1] + offset]
    return np.asarray(same, bool)


def _loop(
    trace: Trace, row: npt.NDArray[np.intp], selects: npt.NDArray[np.intp]
) -> dict[str, object]:
    slices = trace.slices
    length = int(selects[1] - selects[0])
    inside = row[selects[0] : selects[-1] + length]
    ts = slices["ts"].to_numpy()[inside]
    end = int((ts + slices["dur"].to_numpy()[inside]).max())
    names = slices["name"].to_numpy(object)[inside[:length]]
    return {
        "ops": ", ".join(str(name) for name in names),
        "rounds": len(selects),
        "start_ns": int(ts[0]),
        "dur_ns": end - int(ts[0]),
        "rows": tuple(int(one) for one in row[selects]),
    }
