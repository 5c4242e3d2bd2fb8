"""Loops that index a tensor row by row: few ops after ``aten::select``, again and again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace

Ints = npt.NDArray[np.int64]

SELECT = "aten::select"
FEW_OPS = 10
"""Beside the select, in a round that need not be like the one before it."""
COLUMNS = ("ops", "rounds", "alike", "start_ns", "dur_ns", "per_op_ns", "per_select", "rows")


def indexing_loops(record: Record) -> pd.DataFrame:
    """One row per loop of two rounds or more, in order of time.

    A round is ``aten::select`` and the ops beside it (not within it) up to the next one, under the
    same op or annotation. A loop is rounds one after the other that have the same ops (torch's
    ForLoopIndexingPattern), or ten others at most, whichever: an ``if`` decides what is done with
    a row, or there are two of them. The last round perhaps has more after it.

    Columns (times in ns): ``ops`` (of the first round, by comma), ``rounds``, ``alike`` (how many
    of them, one after the other, have the same ops), ``start_ns``, ``dur_ns``, ``per_op_ns`` (what
    an op of the loop takes, the mean), ``per_select`` (ops on average, the select among them),
    ``rows`` (the selects' slices, a tuple).
    """
    trace = record.trace
    row, group = siblings(trace)
    selects = np.flatnonzero(trace.index.named(frozenset({SELECT}))[row])
    if len(selects) < 2:  # no round comes twice
        return pd.DataFrame(columns=list(COLUMNS))
    code = trace.slices["name"].cat.codes.to_numpy()[row].astype(np.int64)
    length = np.diff(selects)
    same = _same_rounds(code, group, selects, length)
    short = (length <= FEW_OPS + 1) & (group[selects[1:]] == group[selects[:-1]])
    alike = _rounds_alike(same, length)
    return pd.DataFrame(
        [
            _loop(trace, row, selects[low : high + 1], int(alike[low:high].max()))
            for low, high in zip(*_stretches(same | short), strict=True)
        ],
        columns=list(COLUMNS),
    )


def siblings(trace: Trace) -> tuple[npt.NDArray[np.intp], Ints]:
    """The ops by what is around them, in order of time, and the number of that.

    Cell lines and modules are looked through: each round of a loop in a cell has lines of its own.
    """
    slices = trace.slices
    ops = trace.index.is_op & (slices["count"].to_numpy() > 0)
    above = links.nearest_ancestor(
        slices["parent"].to_numpy(), ops | trace.index.in_category("user_annotation")
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


def _rounds_alike(
    same: npt.NDArray[np.bool_], length: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Per round but the last: how many of the same ops there are in a row, it among them."""
    goes_on = same & np.append(False, same[:-1] & (length[1:] == length[:-1]))
    stretch = np.cumsum(~goes_on)
    return np.asarray(np.where(same, np.bincount(stretch)[stretch] + 1, 1), np.intp)


def _stretches(
    linked: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The first and the last select of each stretch of selects linked to the next one."""
    edges = np.diff(np.concatenate([[False], linked, [False]]).astype(np.int8))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def _loop(
    trace: Trace, row: npt.NDArray[np.intp], selects: npt.NDArray[np.intp], alike: int
) -> dict[str, object]:
    slices = trace.slices
    length = int(selects[1] - selects[0])
    # The last round ends as the one before it does: what follows may be no part of the loop.
    inside = row[selects[0] : selects[-1] + (length if alike == len(selects) else 1)]
    ts, dur = (slices[name].to_numpy()[inside] for name in ("ts", "dur"))
    names = slices["name"].to_numpy(object)[inside[:length]]
    return {
        "ops": ", ".join(str(name) for name in names),
        "rounds": len(selects),
        "alike": alike,
        "start_ns": int(ts[0]),
        "dur_ns": int((ts + dur).max() - ts[0]),
        "per_op_ns": int(dur.mean()),
        "per_select": len(inside) / len(selects),
        "rows": tuple(int(one) for one in row[selects]),
    }
