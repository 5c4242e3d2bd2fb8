"""The critical path for the page: what the timeline outlines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.op_rows import gpu_rows
from gpuprof_widgets.analyses.path_graph import KINDS
from gpuprof_widgets.trace.model import Record

MOST = 4_000
"""Pieces that the page gets: more than a screen has pixels; about 20 KB of its text."""


def page_path(record: Record, rows: int) -> dict[str, Any] | None:
    """The header's ``path``; None where there is no GPU work, and so no choice of ways.

    ``rows``: how many the page has; where these are not all slices, but merged to keep it small, it
    gets fewer pieces as well. Lists of one number per piece, in order of time: ``start`` (ns after
    the start of the piece before it), ``dur`` (ns), ``row`` (slice, -1 for none, and where the
    page's rows are not the slices), ``kind`` (position in ``kinds``). ``left_out``: pieces that
    became one with others, because they were the shortest: such a piece has row and kind of the
    longest of them.
    """
    path = critical_path(record)
    if not len(path) or not len(gpu_rows(record.trace)):
        return None
    rows_kept = rows == len(record.trace)
    pieces = _fewer(path, MOST if rows_kept else min(MOST, rows // 4))
    start = pieces["start_ns"].to_numpy()
    row = pieces["row"].to_numpy() if rows_kept else np.full(len(pieces), -1)
    return {
        "start": np.diff(start, prepend=0).tolist(),
        "dur": pieces["dur_ns"].tolist(),
        "row": row.tolist(),
        "kind": [KINDS.index(kind) for kind in pieces["kind"]],
        "kinds": list(KINDS),
        "left_out": len(path) - len(pieces),
    }


def _fewer(path: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many pieces: the longest stay, what lies between two of them becomes one."""
    if len(path) <= most:
        return path
    dur = path["dur_ns"].to_numpy()
    stays = np.zeros(len(path), bool)
    stays[np.argsort(-dur, kind="stable")[: max(most // 2 - 1, 0)]] = True
    group = np.cumsum(stays | np.append(True, stays[:-1]))
    by_length = path.assign(group=group).sort_values("dur_ns", ascending=False, kind="stable")
    longest = by_length.drop_duplicates("group").sort_values("group")
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    start, end = path["start_ns"].to_numpy()[first], path["end_ns"].to_numpy()
    end = end[np.append(first[1:], len(path)) - 1]
    return longest.assign(start_ns=start, end_ns=end, dur_ns=end - start)
