"""The lines of the cell: what each took, launched, waited for and allocated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses import operators as rows
from gpuprof_widgets.analyses.owners import line_behind, line_of, line_sources
from gpuprof_widgets.analyses.python_calls import function_labels, is_user_code
from gpuprof_widgets.analyses.reasons import LINES, says_if_empty, unless_recorded
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising, python_lanes, run_lane
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.pstats import functions_of_frames
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Line = tuple[str, int]

NUMBERS = (
    "calls",
    "wall_ns",
    "self_ns",
    "cpu_self_ns",
    "device_ns",
    "backward_cpu_ns",
    "backward_device_ns",
    "wait_ns",
    "allocated_bytes",
)
COLUMNS = ("cell", "line", "code", *NUMBERS, "complete")


@remembered
@says_if_empty(unless_recorded(LINES))
def lines(record: Record) -> pd.DataFrame:
    """One row per line of the recorded cells in which a statement begins, in their order.

    Columns (times in ns):

    - ``cell`` ("Cell [3]", or the file of a decorated function), ``line`` (as the editor counts,
      the ``%%`` line is 1), ``code``;
    - ``calls``: how often it was begun (``a(); b()`` is begun once, a loop's head once before all
      its rounds); ``wall_ns``: time in which any of its statements was open, without that in which
      ``await`` or ``yield`` suspended its function;
    - ``self_ns``: the same without the lines that ran within it, so that a loop's head has only
      what its body has not: on each thread these add up to the time spent in lines;
    - ``cpu_self_ns``: of that, the time of ops and runtime calls; ``device_ns``: GPU time that it
      launched itself; ``wait_ns``: waited for the GPU; ``allocated_bytes`` (releases not
      subtracted; recorded with memory);
    - ``backward_cpu_ns``, ``backward_device_ns``: time of the backward ops whose forward op ran in
      it, and of what they launched: once more the time of the line that called ``backward()``, and
      of lines that ran within them, of hooks and of functions that have a backward of their own;
    - ``complete``: False for a line that ran more often than is recorded, and for the line around
      it, for which what runs beyond the limit counts.

    The threads of the backward pass count for the line that called it.
    """
    trace = record.trace
    known = cell_lines(trace)
    index = pd.MultiIndex.from_frame(known.lines[["cell", "line"]])
    numbers = pd.DataFrame(_counted(trace, known), index=index)
    table = line_keys(known, record).set_index(["cell", "line"])
    table = table.join(numbers.reindex(table.index, fill_value=0))
    beyond = lines_beyond_limit(known, record)
    complete = ~table.index.isin(
        [*beyond, *(each for around in beyond.values() for each in around)]
    )
    return table.assign(complete=complete).reset_index()[list(COLUMNS)]


@dataclass(frozen=True)
class CellLines:
    """The slices that are cell lines: their rows, and which of the ``lines`` each belongs to.

    ``of_slice`` says the same of every slice of the trace, and is -1 for what is no cell line.
    ``resumed`` are the later pieces of an execution. ``lines``: ``cell``, ``line``, ``code``.
    """

    row: npt.NDArray[np.intp]
    of_slice: Ints
    resumed: npt.NDArray[np.bool_]
    lines: pd.DataFrame


@remembered
def cell_lines(trace: Trace) -> CellLines:
    """The cell lines of a trace; what lacks a cell or a line number is none."""
    row = np.flatnonzero(trace.index.in_category("cell_line"))
    given = pd.DataFrame(
        {key: trace.args[key].reindex(row) for key in ("cell", "line") if key in trace.args},
        index=row,
        columns=["cell", "line"],
    ).dropna()
    row = given.index.to_numpy()
    number = given.groupby(["cell", "line"], sort=False).ngroup().to_numpy()
    of_slice = np.full(len(trace), NONE, np.int64)
    of_slice[row] = number
    resumed = np.zeros(len(trace), bool)
    if "resumed" in trace.args:
        resumed[trace.args["resumed"].index.to_numpy()] = trace.args["resumed"].to_numpy(bool)
    first = np.unique(number, return_index=True)[1]
    table = pd.DataFrame(
        {
            "cell": given["cell"].iloc[first].astype(str).to_numpy(object),
            "line": given["line"].iloc[first].to_numpy(np.int64),
            "code": [name.partition(": ")[2] for name in trace.index.names_of(row[first])],
        }
    )
    return CellLines(row, of_slice, resumed[row], table)


def lines_at(record: Record, lane: int, times: Ints) -> Ints:
    """Per time (ns) the row of `lines` of the innermost line open on that thread; -1 for none."""
    trace, known = record.trace, cell_lines(record.trace)
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    here = known.row[lanes[known.row] == lane]
    if not len(here):
        return np.full(len(times), NONE, np.int64)
    found = np.append(known.of_slice, NONE)[trace.index.innermost_open(here, times)]
    rows = _keys(lines(record)).get_indexer(_keys(known.lines))
    return np.asarray(np.append(rows, NONE)[found], np.int64)


def line_that_holds(record: Record, ns: int) -> int:
    """The row of `lines` in which most of so much time without ops must be; -1 if none must.

    cProfile has no times: but what the other lines took beside their ops is all that could be in
    these, and the rest is in the one.
    """
    table = lines(record)
    beside = (table["self_ns"] - table["cpu_self_ns"]).clip(lower=0).to_numpy(np.int64)
    if not beside.any() or not ns:
        return NONE
    most = int(beside.argmax())
    others = int(beside.sum() - beside[most])
    return most if ns - others >= ns / 2 else NONE


def _keys(table: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(table[["cell", "line"]])


def lines_beyond_limit(known: CellLines, record: Record) -> dict[Line, set[Line]]:
    """The lines that ran more often than is recorded: by cell and line, the lines around each.

    Those are where its time counts beyond the limit: the innermost ones that are within theirs.
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
    for one, other in set(zip(line[inner].tolist(), line[around].tolist(), strict=True)):
        beyond[keys[one]].add(keys[other])
    return beyond


def lines_within(known: CellLines, trace: Trace, outer: Line, among: set[Line]) -> set[Line]:
    """The line and those ``among`` others that ran right within it, or within one of these."""
    keys = list(zip(known.lines["cell"], known.lines["line"], strict=True))
    line = known.of_slice[known.row]
    parent, _ = links.nest(*_times(trace, known.row))
    inner = np.flatnonzero(parent >= 0)
    pairs = set(zip(line[inner].tolist(), line[parent[inner]].tolist(), strict=True))
    found, new = set[Line](), {outer}
    while new:
        found |= new
        new = {keys[one] for one, other in pairs if keys[other] in new} & among - found
    return found


def line_keys(known: CellLines, record: Record) -> pd.DataFrame:
    """``cell``, ``line`` and ``code`` of all lines, ran or not: cells as they come, by number."""
    table = pd.concat([_statements(record), known.lines], ignore_index=True)
    table = table.drop_duplicates(["cell", "line"])
    order = np.lexsort((table["line"].to_numpy(np.int64), pd.factorize(table["cell"])[0]))
    return table.iloc[order].reset_index(drop=True)


def _statements(record: Record) -> pd.DataFrame:
    """The lines in which statements begin, whether they ran or not."""
    found = [
        (source.name, line, source.code(line))
        for source in line_sources(record)
        for line in source.statements
    ]
    return pd.DataFrame(found, columns=["cell", "line", "code"])


def _counted(trace: Trace, known: CellLines) -> dict[str, Ints]:
    """Per line of ``known.lines`` its numbers."""
    if not len(known.row):
        return dict.fromkeys(NUMBERS, np.empty(0, np.int64))
    slices, size = trace.slices, len(known.lines)
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    line = known.of_slice[known.row]
    where = np.append(known.of_slice, NONE)[line_of(trace)]
    behind = np.append(known.of_slice, NONE)[line_behind(trace)]

    def summed(at: Ints, values: Ints) -> Ints:
        sums = np.zeros(size + 1, np.int64)  # the last one takes what is in no line
        np.add.at(sums, at, values)
        return sums[:-1]

    cpu, own, alone = _self_times(trace, known)
    gpu, gpu_time = trace.index.gpu, dur[trace.index.gpu]
    waits = np.flatnonzero(is_synchronising(trace) & (where >= 0))
    memory = rows.allocations(trace)
    begun = np.where(known.resumed, 0, slices["count"].to_numpy()[known.row])
    return {
        "calls": summed(line, begun),
        "wall_ns": intervals.length_by(line, ts[known.row], (ts + dur)[known.row], size),
        "self_ns": summed(line, line_self_times(trace, known.row)),
        "cpu_self_ns": summed(where[cpu], own),
        "device_ns": summed(where[gpu], gpu_time),
        "backward_cpu_ns": summed(behind[cpu], alone),
        "backward_device_ns": summed(behind[gpu], gpu_time),
        "wait_ns": intervals.length_by(where[waits], ts[waits], (ts + dur)[waits], size),
        "allocated_bytes": summed(where[memory.row], np.maximum(memory.size, 0)),
    }


def line_self_times(trace: Trace, row: npt.NDArray[np.intp]) -> Ints:
    """Time (ns) of each cell line without the lines that ran within it."""
    return _own(trace, row)


def _self_times(trace: Trace, known: CellLines) -> tuple[npt.NDArray[np.intp], Ints, Ints]:
    """Ops and runtime calls, and the time of each in which it was the innermost of them.

    A line that runs within an op (a decorated hook, say) is not the op's time in the first of the
    two; in the second there are no lines.
    """
    ops = rows.op_rows(trace).row
    ops = np.sort(ops[~trace.index.in_category("user_annotation")[ops]])
    both = np.sort(np.concatenate([known.row, ops]))
    return ops, _own(trace, both)[known.of_slice[both] < 0], _own(trace, ops)


def _own(trace: Trace, row: npt.NDArray[np.intp]) -> Ints:
    """Time of each slice without those of them that ran within it."""
    ts, end, track = _times(trace, row)
    parent, _ = links.nest(ts, end, track)
    return links.self_times(ts, end, parent)


def _times(trace: Trace, row: npt.NDArray[np.intp]) -> tuple[Ints, Ints, npt.NDArray[np.int32]]:
    slices = trace.slices
    ts = slices["ts"].to_numpy()[row]
    return ts, ts + slices["dur"].to_numpy()[row], slices["track"].to_numpy()[row]


REGIONS = ("module", "module_backward")
MOST = 0.5
"""Of the line's own time."""
CALLED = re.compile(r"(\w+)\s*\(")


@dataclass(frozen=True)
class Holder:
    """A function (``trainer.py:40(step)``) or a module, and its time in the line (ns).

    ``is_backward``: that is its backward pass alone.
    """

    name: str
    ns: int
    is_module: bool = False
    is_backward: bool = False


def holder(record: Record, line: int) -> Holder | None:
    """The deepest one that has most of the own time of a line, a row of `lines`; None without any.

    Of recorded frames and modules the times are known. What cProfile counted has none: of it counts
    what must have run in this line, as it can be in no other.
    """
    own = int(lines(record)["self_ns"].iloc[line])
    known = [*_modules(record, line), *_frames(record, line), *_calls(record, line)]
    most = [one for one in known if one.ns >= MOST * own]
    return min(most, key=lambda one: one.ns, default=None)


def _modules(record: Record, line: int) -> Iterator[Holder]:
    """Modules but for those that the line itself calls by their names: forward and backward."""
    trace, known = record.trace, cell_lines(record.trace)
    table = lines(record)
    cell, number, code = table[["cell", "line", "code"]].iloc[line]
    of = known.lines[(known.lines["cell"] == cell) & (known.lines["line"] == number)].index
    row = np.flatnonzero(trace.index.in_category(*REGIONS))
    row = row[np.isin(np.append(known.of_slice, NONE)[line_of(trace)[row]], of)]
    key, names = pd.factorize(trace.slices["name"].astype(str).to_numpy(object)[row])
    forward = np.bincount(key, trace.index.in_category("module")[row], len(names))
    spent = _open(record, row, key, len(names))
    for name, ns, runs in zip(names, spent, forward, strict=True):
        if not re.search(rf"(?<![\w.]){re.escape(str(name))}\s*\(", code):
            yield Holder(str(name), int(ns), is_module=True, is_backward=not runs)


def _frames(record: Record, line: int) -> Iterator[Holder]:
    if not len(python_lanes(record)):
        return
    trace, lane = record.trace, run_lane(record)
    functions, function = functions_of_frames(trace)
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    users = np.append(_may_be_named(record, line, functions), False)[function]
    row = np.flatnonzero(users & (lanes == lane))
    row = row[lines_at(record, lane, trace.slices["ts"].to_numpy()[row]) == line]
    spent = _open(record, row, function[row], len(functions))
    labels = function_labels(functions)
    for at in np.flatnonzero(spent):
        yield Holder(labels[at], int(spent[at]))


def _may_be_named(record: Record, line: int, functions: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The user's functions, but for those of the line's own cell: of these the lines tell."""
    own_cell = functions["file"] == lines(record)["cell"].iloc[line]
    return np.asarray(is_user_code(functions) & ~own_cell.to_numpy(bool), bool)


def _open(record: Record, row: npt.NDArray[np.intp], key: Ints, size: int) -> Ints:
    """Per key how long any of its slices was open (ns)."""
    ts, dur = (record.trace.slices[column].to_numpy()[row] for column in ("ts", "dur"))
    return np.asarray(intervals.length_by(key, ts, ts + dur, size), np.int64)


def _calls(record: Record, line: int) -> Iterator[Holder]:
    """Down the callees of cProfile from what the line calls, while these must hold most of it."""
    calls = record.calls
    if calls is None or len(python_lanes(record)):
        return
    per_step, own = calls_per_traced_step(record), int(lines(record)["self_ns"].iloc[line])
    users, labels = _may_be_named(record, line, calls.functions), function_labels(calls.functions)
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    spent = calls.edges["total_ns"].to_numpy(np.float64)
    total = calls.functions["total_ns"].to_numpy(np.float64)
    least = _in_the_line(record, calls, line)
    seen = np.zeros(len(total), bool)
    while least.max(initial=0) >= MOST * own * per_step:
        edge = int(least.argmax())
        function, ns = callee[edge], min(least[edge], own * per_step)
        seen[function] = True
        if users[function]:
            yield Holder(labels[function], round(ns / per_step))
        elsewhere = max(total[function] - ns, 0)
        further = (caller == function) & ~seen[callee]
        least = np.where(further, np.minimum(spent - elsewhere, ns), 0)


def _in_the_line(record: Record, calls: Calls, line: int) -> npt.NDArray[np.float64]:
    """Per edge out of the cell's code how much of its time (ns) must have been in the line.

    All of it where only this line names the function; else what the other lines have no room for.
    Never what ran in lines within this one.
    """
    table, functions = lines(record), calls.functions
    cell, wall, own = (table[key].iloc[line] for key in ("cell", "wall_ns", "self_ns"))
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    of_cell = (functions["file"] == cell).to_numpy(bool)
    spent = calls.edges["total_ns"].to_numpy(np.float64)
    named = [set(CALLED.findall(code)) for code in table["code"]]
    others = set().union(*named[:line], *named[line + 1 :])
    only_here = functions["name"].isin(named[line] - others).to_numpy(bool)
    elsewhere = float(table["self_ns"].sum() - own) * calls_per_traced_step(record)
    room = spent - np.where(only_here[callee], 0, elsewhere) - float(wall - own)
    return np.where(of_cell[caller] & ~of_cell[callee], room, 0)
