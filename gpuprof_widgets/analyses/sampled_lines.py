"""The lines of the user's own files, by samples of Python's stacks; and how far samples may be off.

A line's time is a number of stretches, each from the middle between two samples to the middle
between two others: each is off by at most one interval between samples, and calls that are shorter
than that are found by chance, in proportion to their time. So the standard error of a time is at
most the interval times the square root of the number of its stretches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.reasons import SAMPLES, says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import python_lanes, thread_waits
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import function_place
from gpuprof_widgets.trace.schema import NONE, SAMPLED_LINES, SAMPLING

TIMES = ("self_ns", "self_waiting_ns", "total_ns", "total_waiting_ns")
COLUMNS = (*("file", "line", "code", "function"), *TIMES, "self_error_ns", "total_error_ns")
PIECES = ("group", "start_ns", "end_ns", "row")
LONGEST_INTERVAL_NS = 1_000_000_000
STANDARD_ERRORS = 1.96
"""So many to each side hold 95 % of a normal distribution."""


@says_if_empty(SAMPLES)
@remembered
def sampled_lines(record: Record) -> pd.DataFrame:
    """One row per line of the user's code that samples of Python found, most self time first.

    All times are estimates from samples. Only the thread of the run counts.

    Formula: error = 1.96 × interval between samples × √(number of stretches of the line). A stretch
    lasts from the middle between two samples to the middle between two others, so each is off by at
    most one interval.

    Columns:

    - ``file``: "Cell [3]", or the path behind the folder of ``sys.path``.
    - ``line``, ``code``, ``function``: number and text of the line, and its function.
    - ``self_ns``: in the line, with the ops, built-in functions and functions of libraries that it
      called.
    - ``total_ns``: also in the user's functions that it called, recursion counted once.
    - ``self_waiting_ns``, ``total_waiting_ns``: of that, waited for the GPU: the overlap with the
      waits, whose times are exact.
    - ``self_error_ns``, ``total_error_ns``: in 95 % of runs the true time is no further away; 0:
      unknown.

    Source: the error is the standard error of sampling, 1.96 times for 95 %.
    """
    found = stretches(record)
    return found.lines.sort_values(
        ["self_ns", "total_ns"], ascending=False, kind="stable", ignore_index=True
    )


@dataclass(frozen=True)
class Stretches:
    """``lines``: the rows of `sampled_lines`, unsorted; ``pieces``: when each was innermost.

    ``pieces`` has ``group`` (row of ``lines``), ``start_ns``, ``end_ns``, ``row`` (the frame).
    """

    lines: pd.DataFrame
    pieces: pd.DataFrame


@remembered
def stretches(record: Record) -> Stretches:
    """Return the lines that samples found, and when."""
    found = _found(record)
    if not len(found):
        lines = pd.DataFrame(columns=list(COLUMNS))
        return Stretches(lines, pd.DataFrame(columns=list(PIECES), dtype=np.int64))
    places = [function_place(name) for name in record.trace.index.names_of(found["row"].to_numpy())]
    found = found.assign(file=[place[0] for place in places], function=[p[2] for p in places])
    number = found.groupby(["file", "line"], sort=False).ngroup().to_numpy(np.int64)
    lines = found.iloc[np.unique(number, return_index=True)[1]]
    size = len(lines)
    ts, end, track = (found[key].to_numpy() for key in ("ts", "end", "track"))
    parent, _ = links.nest(ts, end, track)
    waits = _waits(record)
    pieces = _pieces(ts, end, track)
    of_piece = number[pieces["at"]]
    spans = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    outermost = ~links.below_its_like(parent, np.asarray(number, np.int64))
    of_outer, outer = number[outermost], (ts[outermost], end[outermost])
    numbers = {
        "self_ns": group_sums(of_piece, spans[1] - spans[0], size),
        "self_waiting_ns": group_sums(of_piece, intervals.overlap(spans, waits), size),
        "total_ns": group_sums(of_outer, outer[1] - outer[0], size),
        "total_waiting_ns": group_sums(of_outer, intervals.overlap(outer, waits), size),
        "self_error_ns": sampling_error(np.bincount(of_piece, minlength=size), record),
        "total_error_ns": sampling_error(np.bincount(of_outer, minlength=size), record),
    }
    table = lines.assign(code=_code(record, lines), **numbers)[list(COLUMNS)]
    row = found["row"].to_numpy()[pieces["at"]]
    pieces = pieces.assign(group=of_piece, row=row)[list(PIECES)]
    return Stretches(table.reset_index(drop=True), pieces.reset_index(drop=True))


def sampling_error(runs: npt.ArrayLike, record: Record) -> Ints:
    """Return how far the time of so many runs of samples may be off, in ns, in 95 % of cases.

    0 where that is not known: where the record has no samples of ours, or some were not taken at
    signals, so that code between ops is found too rarely.
    """
    sampling = record.metadata.get(SAMPLING) or {}
    interval = max(int(sampling.get(key) or 0) for key in ("interval_ns", "median_ns"))
    if not sampling.get("by_signal") or not 0 < interval < LONGEST_INTERVAL_NS:
        interval = 0
    error = STANDARD_ERRORS * interval * np.sqrt(np.asarray(runs))
    return np.asarray(np.rint(error), np.int64)


def _found(record: Record) -> pd.DataFrame:
    """Return the stretches in which frames stood in a line, sorted for nesting.

    Columns: ``row`` (of the frame), ``track``, ``ts``, ``end``, ``line``.
    """
    trace = record.trace
    index = trace.index
    known = trace.args.get(SAMPLED_LINES, pd.Series(dtype=object))
    counts = index.on_tracks("python") & _on_lanes(trace, python_lanes(record))
    known = known[counts[known.index.to_numpy(np.int64)]]
    if not len(known):
        return pd.DataFrame(columns=["row", "track", "ts", "end", "line"], dtype=np.int64)
    number = np.array([len(pairs) for pairs in known])
    row = np.repeat(known.index.to_numpy(), number)
    pairs = np.array([pair for pairs in known for pair in pairs], np.int64)
    length = index.uncut[1][row] - index.uncut[0][row]
    ts = index.uncut[0][row] + np.minimum(pairs[:, 0], length)
    end = np.append(ts[1:], 0)
    last = np.cumsum(number) - 1
    end[last] = index.uncut[1][known.index.to_numpy()]
    ts, end = np.maximum(ts, index.ts[row]), np.minimum(end, index.end[row])
    columns = {"row": row, "track": index.track[row], "ts": ts, "end": end, "line": pairs[:, 1]}
    depth = trace.slices["depth"].to_numpy()[row]
    order = np.lexsort((depth, -end, ts, columns["track"]))
    table = pd.DataFrame(columns).iloc[order]
    return table[table["end"] > table["ts"]].reset_index(drop=True)


def _on_lanes(trace: Trace, lanes: Ints) -> Mask:
    lane = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    return np.isin(lane, lanes)


def _pieces(ts: Ints, end: Ints, track: Ints) -> pd.DataFrame:
    """Return ``at``, ``start_ns``, ``end_ns``: when each was the innermost of its track."""
    parts = []
    for rows in links.rows_by(track).values():
        edges = intervals.distinct(ts[rows], end[rows])
        at = links.innermost_open(ts[rows], end[rows], edges[:-1])
        here = np.append(rows, NONE)[at]
        parts.append(pd.DataFrame({"at": here, "start_ns": edges[:-1], "end_ns": edges[1:]}))
    columns = ["at", "start_ns", "end_ns"]
    pieces = pd.concat(parts) if parts else pd.DataFrame(columns=columns, dtype=np.int64)
    return pieces[pieces["at"] >= 0].reset_index(drop=True)


def _waits(record: Record) -> intervals.Intervals:
    """Return when the run's threads with Python waited for the GPU."""
    table = thread_waits(record).table
    table = table[table["lane"].isin(python_lanes(record)) | table["backward"]]
    return intervals.union(table["start_ns"], table["end_ns"])


def _code(record: Record, lines: pd.DataFrame) -> list[str]:
    code: dict[str, dict[str, Any]] = (record.metadata.get(SAMPLING) or {}).get("code") or {}
    places = zip(lines["file"], lines["line"], strict=True)
    return [str(code.get(str(file), {}).get(str(line), "")) for file, line in places]
