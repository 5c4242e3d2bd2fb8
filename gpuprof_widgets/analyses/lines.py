"""The lines of the cell: what each took, launched, waited for, allocated and freed.

`lines` is the table; `cell_lines` gives each slice its line, on which the table, `lines_at` and the
limit of recorded runs rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.operators import allocations, op_rows
from gpuprof_widgets.analyses.owners import line_behind, line_of, line_sources
from gpuprof_widgets.analyses.reasons import LINES, says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

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
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    here = known.row[lanes[known.row] == lane]
    if not len(here):
        return np.full(len(times), NONE, np.int64)
    line = np.append(known.of_slice, NONE)[trace.index.innermost_open(here, times)]
    rows = _keys(lines(record)).get_indexer(_keys(known.lines))
    return np.asarray(np.append(rows, NONE)[line], np.int64)


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
    trace, known = record.trace, cell_lines(record.trace)
    names_it = _keys(known.lines) == line
    ops = op_rows(trace).row
    ops = np.sort(ops[~trace.index.in_category("user_annotation")[ops]])
    ops = ops[np.append(names_it, False)[np.append(known.of_slice, NONE)[line_of(trace)[ops]]]]
    both = np.sort(np.concatenate([known.row, ops]))
    own_ns = slice_self_times(trace, both)[known.of_slice[both] < 0]
    return pd.Series(own_ns).groupby(trace.index.names_of(ops)).sum()


def outermost_op_times(record: Record, line: Line) -> pd.Series:
    """Return the times (ns) of the ops right in a line that no other op called, by name.

    Without those of the backward pass, which autograd calls.
    """
    trace, known = record.trace, cell_lines(record.trace)
    ops = trace.index.is_op & trace.index.on_tracks("cpu") & (trace.index.column("forward") < 0)
    inside = np.append(trace.index.op_around, NONE)[trace.index.parent] >= 0
    row = np.flatnonzero(ops & ~inside)
    names_it = np.append(_keys(known.lines) == line, False)
    row = row[names_it[np.append(known.of_slice, NONE)[line_of(trace)[row]]]]
    return pd.Series(trace.index.dur[row]).groupby(trace.index.names_of(row)).sum()


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
    keys = list(zip(known.lines["cell"], known.lines["line"], strict=True))
    line = known.of_slice[known.row]
    is_beyond = np.array([*(key in beyond for key in keys), False])[line]
    parent, _ = links.nest(*_times(record.trace, known.row))
    inner = np.flatnonzero(is_beyond)
    around = links.nearest_ancestor(parent, ~is_beyond)[inner]
    inner, around = inner[around >= 0], around[around >= 0]
    for inside, outside in set(zip(line[inner].tolist(), line[around].tolist(), strict=True)):
        beyond[keys[inside]].add(keys[outside])
    return beyond


def inner_lines(known: CellLines, trace: Trace) -> dict[Line, set[Line]]:
    """Return the lines that ran directly within each line, where any did."""
    keys = list(zip(known.lines["cell"], known.lines["line"], strict=True))
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
    table = pd.concat([_statements(record), known.lines], ignore_index=True)
    table = table.drop_duplicates(["cell", "line"])
    order = np.lexsort((table["line"].to_numpy(np.int64), pd.factorize(table["cell"])[0]))
    return table.iloc[order].reset_index(drop=True)


def _statements(record: Record) -> pd.DataFrame:
    """Return the lines in which statements begin, whether they ran or not."""
    rows = [
        (source.name, line, source.code(line))
        for source in line_sources(record)
        for line in source.statements
    ]
    return pd.DataFrame(rows, columns=["cell", "line", "code"])


def _counted(trace: Trace, known: CellLines) -> dict[str, Ints]:
    """Return `NUMBERS` per line of ``known.lines``."""
    if not len(known.row):
        return dict.fromkeys(NUMBERS, np.empty(0, np.int64))
    slices, size = trace.slices, len(known.lines)
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    line = known.of_slice[known.row]
    line_of_slice = np.append(known.of_slice, NONE)[line_of(trace)]
    line_of_forward = np.append(known.of_slice, NONE)[line_behind(trace)]

    def summed(lines: Ints, values: Ints) -> Ints:
        return group_sums(lines, values, size + 1)[:-1]  # the last sum takes what is in no line

    ops, op_ns, op_and_line_ns = _self_times(trace, known)
    gpu, gpu_ns = trace.index.gpu, dur[trace.index.gpu]
    waits = np.flatnonzero(is_synchronising(trace) & (line_of_slice >= 0))
    memory = allocations(trace)
    calls = np.where(known.resumed, 0, slices["count"].to_numpy()[known.row])
    return {
        "calls": summed(line, calls),
        "wall_ns": intervals.length_by(line, ts[known.row], (ts + dur)[known.row], size),
        "self_ns": summed(line, slice_self_times(trace, known.row)),
        "cpu_self_ns": summed(line_of_slice[ops], op_ns),
        "device_ns": summed(line_of_slice[gpu], gpu_ns),
        "backward_cpu_ns": summed(line_of_forward[ops], op_and_line_ns),
        "backward_device_ns": summed(line_of_forward[gpu], gpu_ns),
        "wait_ns": intervals.length_by(line_of_slice[waits], ts[waits], (ts + dur)[waits], size),
        "allocated_bytes": summed(line_of_slice[memory.row], np.maximum(memory.size, 0)),
        "freed_bytes": summed(line_of_slice[memory.row], np.maximum(-memory.size, 0)),
    }


def _self_times(trace: Trace, known: CellLines) -> tuple[Rows, Ints, Ints]:
    """Return ops and runtime calls, and their self times without and with lines within them.

    A line may run within an op (in a decorated hook, say).
    """
    ops = op_rows(trace).row
    ops = np.sort(ops[~trace.index.in_category("user_annotation")[ops]])
    ops_and_lines = np.sort(np.concatenate([known.row, ops]))
    without_lines = slice_self_times(trace, ops_and_lines)[known.of_slice[ops_and_lines] < 0]
    return ops, without_lines, slice_self_times(trace, ops)


def slice_self_times(trace: Trace, row: Rows) -> Ints:
    """Return the time (ns) of each of these slices without others of them that ran within it."""
    ts, end, track = _times(trace, row)
    parent, _ = links.nest(ts, end, track)
    return links.self_times(ts, end, parent)


def _times(trace: Trace, row: Rows) -> tuple[Ints, Ints, Codes]:
    return trace.index.ts[row], trace.index.end[row], trace.index.track[row]
