"""The lines of the cell, and of the user's own files by samples of Python's stacks.

`lines` is the table of the cell's lines: what each took, launched, waited for, allocated and freed.
`cell_lines` gives each slice its line, on which the table, `lines_at` and the limit of recorded
runs rest.

`sampled_lines` is the table of lines by samples. A line's time is a number of stretches, each from
the middle between two samples to the middle between two others: each is off by at most one interval
between samples, and calls that are shorter than that are found by chance, in proportion to their
time. So the standard error of a time is at most the interval times the square root of the number of
its stretches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.operators import allocations, op_rows
from gpuprof_widgets.analyses.owners import line_behind, line_of, line_sources
from gpuprof_widgets.analyses.reasons import LINES, SAMPLES, says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising, python_lanes, thread_waits
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import function_place
from gpuprof_widgets.trace.schema import NONE, SAMPLED_LINES, SAMPLING

Line = tuple[str, int]

NUMBERS = (
    *("calls", "wall_ns", "self_ns", "cpu_self_ns", "device_ns", "backward_cpu_ns"),
    *("backward_device_ns", "wait_ns", "allocated_bytes", "freed_bytes"),
)
COLUMNS = ("cell", "line", "code", *NUMBERS, "complete")


@remembered
@says_if_empty(LINES)
def lines(record: Record) -> pd.DataFrame:
    """One row per line of the recorded cells in which a statement begins, in their order.

    The threads of the backward pass count for the line that called it.

    Columns:

    - ``cell``: "Cell [3]", or the file of a decorated function.
    - ``line``, ``code``: the line as the editor counts (the ``%%`` line is 1), and its text.
    - ``calls``: how often it was begun (``a(); b()`` is begun once, a loop's head once before all
      its rounds).
    - ``wall_ns``: time in which any of its statements was open, without the time in which ``await``
      or ``yield`` suspended its function.
    - ``self_ns``: the same without the lines that ran within it, so that a loop's head has only
      what its body has not. On each thread these add up to the time spent in lines.
    - ``cpu_self_ns``: of that, the time of ops and runtime calls.
    - ``device_ns``: GPU time that it launched itself.
    - ``backward_cpu_ns``, ``backward_device_ns``: time of the backward ops whose forward op ran in
      the line, and of what they launched. This time is also in the line that called ``backward()``,
      and in lines that ran within the backward ops: those of hooks, and of functions that have a
      backward of their own.
    - ``wait_ns``: waited for the GPU.
    - ``allocated_bytes``, ``freed_bytes``: recorded with memory. The line added their difference to
      what is held; a ``del x`` frees what other lines allocated.
    - ``complete``: False for a line that ran more often than is recorded (10,000 times), and for
      the line around it, whose time includes what ran beyond the limit; False for all lines where
      a torch.profiler of the user's had the ops, all of them or from some moment on.

    Source: measured by the recorder.
    """
    trace = record.trace
    known = cell_lines(trace)
    index = pd.MultiIndex.from_frame(known.lines[["cell", "line"]])
    numbers = pd.DataFrame(_counted(trace, known), index=index)
    table = line_keys(known, record).set_index(["cell", "line"])
    table = table.join(numbers.reindex(table.index, fill_value=0))
    beyond = lines_beyond_limit(known, record)
    complete = ~table.index.isin([*set(beyond).union(*beyond.values())])
    complete &= not record.metadata.get("own_torch_profiler")
    return table.assign(complete=complete).reset_index()[list(COLUMNS)]


@dataclass(frozen=True)
class CellLines:
    """The slices that are cell lines.

    ``row``: their rows; ``resumed``: which are later parts of an execution; ``lines``: ``cell``,
    ``line`` and ``code`` of each line; ``of_slice``: per slice of the trace its position in
    ``lines``, -1 for what is no cell line.
    """

    row: Rows
    of_slice: Ints
    resumed: Mask
    lines: pd.DataFrame


@remembered
def cell_lines(trace: Trace) -> CellLines:
    """Return the cell lines of a trace, without those that lack a cell or a line number."""
    row = np.flatnonzero(trace.index.in_category("cell_line"))
    places = pd.DataFrame(
        {key: trace.args[key].reindex(row) for key in ("cell", "line") if key in trace.args},
        index=row,
        columns=["cell", "line"],
    ).dropna()
    row = places.index.to_numpy()
    number = places.groupby(["cell", "line"], sort=False).ngroup().to_numpy()
    of_slice = np.full(len(trace), NONE, np.int64)
    of_slice[row] = number
    resumed = np.zeros(len(trace), bool)
    if "resumed" in trace.args:
        resumed[trace.args["resumed"].index.to_numpy()] = trace.args["resumed"].to_numpy(bool)
    first = np.unique(number, return_index=True)[1]
    table = pd.DataFrame(
        {
            "cell": places["cell"].iloc[first].astype(str).to_numpy(object),
            "line": places["line"].iloc[first].to_numpy(np.int64),
            "code": [name.partition(": ")[2] for name in trace.index.names_of(row[first])],
        }
    )
    return CellLines(row, of_slice, resumed[row], table)


def lines_at(record: Record, lane: int, times: Ints) -> Ints:
    """Return per time (ns) the row of `lines` of that thread's innermost line; -1 for none."""
    trace, known = record.trace, cell_lines(record.trace)
    lanes = trace.tracks["lane"].to_numpy()[trace.index.track]
    here = known.row[lanes[known.row] == lane]
    if not len(here):
        return np.full(len(times), NONE, np.int64)
    line = take(known.of_slice, trace.index.innermost_open(here, times))
    rows = _keys(lines(record)).get_indexer(_keys(known.lines))
    return take(rows, line).astype(np.int64)


def line_that_holds(record: Record, ns: int) -> int:
    """Return the row of `lines` that must hold most of this time without ops; -1 if none must.

    cProfile has no timestamps. But the other lines hold at most their self time outside of ops, so
    that the remaining time is in the line with most of such time.
    """
    table = lines(record)
    outside_ops = (table["self_ns"] - table["cpu_self_ns"]).clip(lower=0).to_numpy(np.int64)
    if not outside_ops.any() or not ns:
        return NONE
    most = int(outside_ops.argmax())
    others = int(outside_ops.sum() - outside_ops[most])
    return most if ns - others >= ns / 2 else NONE


def lines_counted_for(record: Record, line: int) -> list[int]:
    """Return the lines whose time beyond the limit counts for that line (rows of `lines`)."""
    keys = _keys(lines(record))
    beyond = lines_beyond_limit(cell_lines(record.trace), record)
    head = keys[line]
    inner = {key for key, around in beyond.items() if head in around}
    return [row for row, key in enumerate(keys) if key in inner]


def op_times(record: Record, line: Line) -> pd.Series:
    """Return the self times (ns) of the ops and runtime calls right in a line, by name.

    They add up to its ``cpu_self_ns``.
    """
    trace = record.trace
    ops = _ops_and_calls(trace)
    ops = ops[are_in_line(trace, line, ops)]
    spent = _without_lines(trace, cell_lines(trace), ops)
    return pd.Series(spent).groupby(trace.index.names_of(ops)).sum()


def outermost_op_times(record: Record, line: Line) -> pd.Series:
    """Return the times (ns) of the ops right in a line that no other op called, by name.

    Without those of the backward pass, which autograd calls.
    """
    trace = record.trace
    ops = trace.index.is_op & trace.index.on_tracks("cpu") & (trace.index.column("forward") < 0)
    row = np.flatnonzero(ops & (take(trace.index.op_around, trace.index.parent) < 0))
    row = row[are_in_line(trace, line, row)]
    return pd.Series(trace.index.dur[row]).groupby(trace.index.names_of(row)).sum()


def are_in_line(trace: Trace, line: Line, rows: Rows) -> Mask:
    """Return which of these slices ran in that line, and in no line within it."""
    known = cell_lines(trace)
    number = take(known.of_slice, line_of(trace)[rows])
    return take(np.asarray(_keys(known.lines) == line), number, missing=False)


def _keys(table: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(table[["cell", "line"]])


def lines_beyond_limit(known: CellLines, record: Record) -> dict[Line, set[Line]]:
    """Return the lines that ran more often than is recorded, each with the lines around it.

    The time of a line beyond its limit counts for the innermost line around it that is within its
    own limit.
    """
    beyond = {
        (source.name, line): set[Line]()
        for source in line_sources(record)
        for line in source.beyond_limit
    }
    if not beyond:
        return beyond
    keys: list[Line] = _keys(known.lines).tolist()
    line = known.of_slice[known.row]
    is_beyond = np.array([key in beyond for key in keys], bool)[line]
    parent, _ = links.nest(*_times(record.trace, known.row))
    inner = np.flatnonzero(is_beyond)
    around = links.nearest_ancestor(parent, ~is_beyond)[inner]
    inner, around = inner[around >= 0], around[around >= 0]
    for inside, outside in set(zip(line[inner].tolist(), line[around].tolist(), strict=True)):
        beyond[keys[inside]].add(keys[outside])
    return beyond


def inner_lines(known: CellLines, trace: Trace) -> dict[Line, set[Line]]:
    """Return the lines that ran directly within each line, where any did."""
    keys: list[Line] = _keys(known.lines).tolist()
    line = known.of_slice[known.row]
    parent, _ = links.nest(*_times(trace, known.row))
    inner = np.flatnonzero(parent >= 0)
    within: dict[Line, set[Line]] = {}
    for inside, around in set(zip(line[inner].tolist(), line[parent[inner]].tolist(), strict=True)):
        within.setdefault(keys[around], set()).add(keys[inside])
    return within


def lines_within(
    within: Mapping[Line, set[Line]], outer: Line, among: Collection[Line]
) -> set[Line]:
    """Return the line and those ``among`` others that ran directly within it or one of these.

    ``within``: the `inner_lines` of the trace.
    """
    reached, new = set[Line](), {outer}
    while new:
        reached |= new
        inside = (inner for line in new for inner in within.get(line, ()))
        new = {line for line in inside if line in among} - reached
    return reached


def line_keys(known: CellLines, record: Record) -> pd.DataFrame:
    """Return ``cell``, ``line``, ``code`` of all lines, also those that did not run, in order."""
    statements = [
        (source.name, line, source.code(line))
        for source in line_sources(record)
        for line in source.statements
    ]
    written = pd.DataFrame(statements, columns=["cell", "line", "code"])
    table = pd.concat([written, known.lines], ignore_index=True).drop_duplicates(["cell", "line"])
    order = np.lexsort((table["line"].to_numpy(np.int64), pd.factorize(table["cell"])[0]))
    return table.iloc[order].reset_index(drop=True)


def _counted(trace: Trace, known: CellLines) -> dict[str, Ints]:
    """Return `NUMBERS` per line of ``known.lines``."""
    if not len(known.row):
        return dict.fromkeys(NUMBERS, np.empty(0, np.int64))
    index, size = trace.index, len(known.lines)
    line = known.of_slice[known.row]
    line_of_slice = take(known.of_slice, line_of(trace))
    line_of_forward = take(known.of_slice, line_behind(trace))

    def summed(lines: Ints, values: Ints) -> Ints:
        return group_sums(lines, values, size + 1)[:-1]  # the last sum takes what is in no line

    def open_ns(lines: Ints, rows: Rows) -> Ints:
        return intervals.length_by(lines, index.ts[rows], index.end[rows], size)

    ops = _ops_and_calls(trace)
    gpu, gpu_ns = index.gpu, index.dur[index.gpu]
    waits = np.flatnonzero(is_synchronising(trace) & (line_of_slice >= 0))
    memory = allocations(trace)
    calls = np.where(known.resumed, 0, index.column("count")[known.row])
    return {
        "calls": summed(line, calls),
        "wall_ns": open_ns(line, known.row),
        "self_ns": summed(line, slice_self_times(trace, known.row)),
        "cpu_self_ns": summed(line_of_slice[ops], _without_lines(trace, known, ops)),
        "device_ns": summed(line_of_slice[gpu], gpu_ns),
        "backward_cpu_ns": summed(line_of_forward[ops], slice_self_times(trace, ops)),
        "backward_device_ns": summed(line_of_forward[gpu], gpu_ns),
        "wait_ns": open_ns(line_of_slice[waits], waits),
        "allocated_bytes": summed(line_of_slice[memory.row], np.maximum(memory.size, 0)),
        "freed_bytes": summed(line_of_slice[memory.row], np.maximum(-memory.size, 0)),
    }


def _ops_and_calls(trace: Trace) -> Rows:
    """Return the ops and runtime calls of the op table, without annotations."""
    ops = op_rows(trace).row
    return np.sort(ops[~trace.index.in_category("user_annotation")[ops]])


def _without_lines(trace: Trace, known: CellLines, ops: Rows) -> Ints:
    """Return the self times of ops without the lines within them, as those of decorated hooks."""
    both = np.sort(np.concatenate([known.row, ops]))
    return np.asarray(slice_self_times(trace, both)[known.of_slice[both] < 0], np.int64)


def slice_self_times(trace: Trace, row: Rows) -> Ints:
    """Return the time (ns) of each of these slices without others of them that ran within it."""
    ts, end, track = _times(trace, row)
    parent, _ = links.nest(ts, end, track)
    return links.self_times(ts, end, parent)


def _times(trace: Trace, row: Rows) -> tuple[Ints, Ints, Codes]:
    return trace.index.ts[row], trace.index.end[row], trace.index.track[row]


TIMES = ("self_ns", "self_waiting_ns", "total_ns", "total_waiting_ns")
SAMPLED_COLUMNS = (*("file", "line", "code", "function"), *TIMES, "self_error_ns", "total_error_ns")
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
        lines = pd.DataFrame(columns=list(SAMPLED_COLUMNS))
        return Stretches(lines, pd.DataFrame(columns=list(PIECES), dtype=np.int64))
    places = [function_place(name) for name in record.trace.index.names_of(found["row"].to_numpy())]
    found = found.assign(file=[place[0] for place in places], function=[p[2] for p in places])
    number = found.groupby(["file", "line"], sort=False).ngroup().to_numpy(np.int64)
    lines = found.iloc[np.unique(number, return_index=True)[1]]
    size = len(lines)
    ts, end, track = (found[key].to_numpy() for key in ("ts", "end", "track"))
    parent, _ = links.nest(ts, end, track)
    waited = thread_waits(record).table
    waited = waited[waited["lane"].isin(python_lanes(record)) | waited["backward"]]
    waits = intervals.union(waited["start_ns"], waited["end_ns"])
    code: dict[str, dict[str, Any]] = (record.metadata.get(SAMPLING) or {}).get("code") or {}
    texts = [
        str(code.get(str(file), {}).get(str(line), ""))
        for file, line in zip(lines["file"], lines["line"], strict=True)
    ]
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
    table = lines.assign(code=texts, **numbers)[list(SAMPLED_COLUMNS)]
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
    lane = trace.tracks["lane"].to_numpy()[index.track]
    counts = index.on_tracks("python") & np.isin(lane, python_lanes(record))
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
    order = np.lexsort((index.column("depth")[row], -end, ts, columns["track"]))
    table = pd.DataFrame(columns).iloc[order]
    return table[table["end"] > table["ts"]].reset_index(drop=True)


def _pieces(ts: Ints, end: Ints, track: Ints) -> pd.DataFrame:
    """Return ``at``, ``start_ns``, ``end_ns``: when each was the innermost of its track."""
    parts = []
    for rows in links.rows_by(track).values():
        edges = intervals.distinct(ts[rows], end[rows])
        at = links.innermost_open(ts[rows], end[rows], edges[:-1])
        spans = {"at": take(rows, at), "start_ns": edges[:-1], "end_ns": edges[1:]}
        parts.append(pd.DataFrame(spans))
    columns = ["at", "start_ns", "end_ns"]
    pieces = pd.concat(parts) if parts else pd.DataFrame(columns=columns, dtype=np.int64)
    return pieces[pieces["at"] >= 0].reset_index(drop=True)
