"""Findings on Python: the function with most self time, and the garbage collector.

cProfile does not see operators (``a @ b``) as calls: it counts their ops as self time of the
function around them. That time is subtracted here, as are waits for the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.blocking import blocked, is_blocking, total_kinds
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share, group_sums
from gpuprof_widgets.analyses.findings.dispatch import dispatch_remedy
from gpuprof_widgets.analyses.findings.finding import (
    WORTH_NS,
    Finding,
    code,
    function_name,
    run_ns,
    share_of,
    statement,
    table_range,
)
from gpuprof_widgets.analyses.findings.slow_functions import advice_on, known_names
from gpuprof_widgets.analyses.gpu_work import open_ns
from gpuprof_widgets.analyses.lines import line_that_holds, lines, lines_counted_for, stretches
from gpuprof_widgets.analyses.python_calls import function_labels, is_cell, is_user_code
from gpuprof_widgets.analyses.python_time import python_time as python_time_table
from gpuprof_widgets.analyses.reasons import is_beyond_the_range
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.waits import is_synchronising, python_lanes, run_lane
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Mask, Rows
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.pstats import BUILT_IN, FUNCTION_KEY, calls_from_slices, frame_name
from gpuprof_widgets.trace.schema import NONE, SAMPLED, WINDOW

NEARLY = 0.02
"""Share by which Python's time may exceed the run's: their clocks differ a little."""

PYTORCH = re.compile(
    r"(?:^|[/\\])torch[/\\]|torch\.|of 'torch|run_backward|TensorBase|_VariableFunctions"
)
"""Functions whose time is that of the ops below them, which the op table shows."""

BUILTIN = re.compile(r"^<(?:built-in )?(?:method|function) '?(\w+)'?")

STARTS = re.compile(r"^<built-in (?:method|function) (?:\w+\.)*(?:fork|forkpty|fork_exec)>")

KEEP = "It starts a process: start it once and keep it (a DataLoader: `persistent_workers=True`)."

SHORT_NS = 10_000
"""Duration of a call below which the number of calls is the problem."""
SHORT_CALLS = (
    "On average a call takes only {each}. Call it less often, or process many elements per call "
    "(ops on whole tensors, NumPy)."
)
OTHERWISE = (
    "Look in it for loops over elements, which ops on whole tensors can replace. Look also for "
    "work that is the same every time, and do it once beforehand."
)
IN_LINE = (
    "Look at that line: it may wait for something. Or it goes through elements one by one, which "
    "ops on whole tensors can replace."
)
LESS_OF_IT = (
    "Give it less to do, or call it less often. Where its result is always the same, call it once "
    "beforehand."
)
IN_C = f"It is not written in Python. {LESS_OF_IT}"
IN_A_LIBRARY = f"It belongs to a library. {LESS_OF_IT}"

OPERATORS = (
    " The real time may be shorter, because cProfile counts the ops of operators such as `x[i]` as "
    "the function's own."
)
"""It sees calls, and operators are none; built-in functions use few."""

CELL_BODY = "The Python of the cell"
"""What a finding calls cProfile's function `<module>` of the cell's first line."""

COUNTING = re.compile(r"for \w+ in range\([^()]*(?:len\([^()]*\)[^()]*)?\):")
"""The head of a loop that itself takes no time to speak of."""

STARTING = re.compile(r"enumerate\(DataLoader\)#\w+\.__init__")
"""The region in which workers start, part of the input pipeline in the breakdown."""
LOADER_START = re.compile(r"torch[/\\]utils[/\\]data[/\\]dataloader\.py __init__$")
PROCESS_START = re.compile(r"multiprocessing[/\\]process\.py start$")

FRAME = re.compile(r"^(?:.*[/\\])?(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$", re.DOTALL)
"""A Python frame as torch writes it: ``train.py(12): step``."""

PYTHON_SHARE = 0.1


def python_time(record: Record, *, python_share: float = PYTHON_SHARE) -> list[Finding]:
    """Fires for the function outside of PyTorch with most self time, from 10 % and 1 ms on.

    PyTorch's ops, functions that wait, access files or start DataLoader workers, and threads that
    only wait do not count. Recorded frames tell which function the ops are in; without frames a
    function gets at most the Python time outside of all ops, and a range of time has no finding.

    Cost: the function's own time in Python.
    """
    table = python_time_table(record)
    if not len(table) or is_beyond_the_range(record, table):
        return []
    total = python_ns(record)
    ops, framed = _ops_of_thread(record), _ops_by_function(record)
    in_ops = round(open_ns(record.trace, ops) * calls_per_traced_step(record))
    places = table[["file", "line", "name"]].assign(line=table["line"].clip(lower=1))
    labels = pd.Series(function_labels(places), index=table.index)
    exact = labels.isin(list(framed))
    self_ns = (table["self_ns"] - labels.map(framed)).where(exact, table["self_python_ns"])
    self_ns = self_ns.clip(0, max(total - in_ops, 0))
    table = table.assign(self_ns=self_ns.astype(np.int64), exact=exact)
    table = table[table["self_ns"] >= WORTH_NS]
    table = table[~(_is_pytorch(record, table) | is_blocking(table))]
    place = pd.MultiIndex.from_frame(table[FUNCTION_KEY])
    table = table[~(place.isin(_starting_workers(record)) | place.isin(_in_file_io(record)))]
    if not len(table):
        return []
    top = table.sort_values("self_ns", ascending=False, kind="stable").iloc[0]
    cost = int(top["self_ns"])
    share, words = share_in_words(record, cost)
    if share < python_share:
        return []
    most = "at most " if in_ops and not top["exact"] else ""
    apart = ", PyTorch ops not counted" if in_ops and top["exact"] else ""
    operators = OPERATORS if most and top["file"] != BUILT_IN else ""
    frame = top.to_frame().T
    function, remedy, subject = function_labels(frame)[0], _remedy(record, top), CELL_BODY
    if not _is_body(top):
        is_users = is_user_code(frame)[0]
        name = function_name(function) if is_users else known_names(frame)[0]
        subject = f"The {'built-in' if top['file'] == BUILT_IN else 'Python'} function {code(name)}"
    calls = "" if record.metadata.get(SAMPLED) else f" in {format_count(int(top['calls']), 'call')}"
    text = (
        f"{subject} itself took {most}{words}{apart} "
        f"({format_ns(cost)}{calls}{_called_by(record, top)})"
        f"{_mostly_in_line(record, top)}.{operators}"
    )
    title = f"{subject} itself takes long"
    in_cell = is_cell(str(top["file"])) and not _is_body(top)
    line = (str(top["file"]), int(top["line"])) if in_cell else None
    return [Finding(text, cost, share, remedy=remedy, title=title, function=function, line=line)]


def python_ns(record: Record) -> int:
    """Return the time of all Python functions in ns, without threads that only wait."""
    whole = int(python_time_table(record)["self_ns"].sum())
    return max(whole - blocked(record).idle_ns, 0)


def share_in_words(record: Record, ns: int) -> tuple[float, str]:
    """Return the share of the run, and the same in words.

    The share is of Python's time where that is longer than the run: then it was counted on several
    threads, in steps that were not traced, or without a trace.
    """
    run, python = run_ns(record), python_ns(record)
    if python <= run * (1 + NEARLY):
        share = min(share_of(ns, run), 1.0)
        return share, f"{format_share(share)} of the time"
    share = share_of(ns, python)
    return share, f"{format_share(share)} of the Python time"


def _remedy(record: Record, top: pd.Series) -> str:
    """Return the remedy, by what the function does and how long a call is with its callees."""
    if STARTS.search(str(top["name"])):
        return KEEP
    if small := dispatch_remedy(record, top, int(top["self_ns"])):
        return small
    if advice := advice_on(top):
        return advice
    if _mostly_in_line(record, top):
        return IN_LINE
    each = int(top["total_ns"]) / max(int(top["calls"]), 1)
    if each < SHORT_NS and not record.metadata.get(SAMPLED):
        return SHORT_CALLS.format(each=format_ns(each))
    if top["file"] == BUILT_IN:
        return IN_C
    return OTHERWISE if is_user_code(top.to_frame().T)[0] else IN_A_LIBRARY


def _mostly_in_line(record: Record, top: pd.Series) -> str:
    """Name the line with most of the function's own time, without ops; "" without samples.

    Not its first line, which stands for the call: signals are handled as a function begins.
    """
    index, pieces = record.trace.index, stretches(record).pieces
    name = frame_name(str(top["name"]), str(top["file"]), int(top["line"]))
    pieces = pieces[index.names_of(pieces["row"].to_numpy(np.int64)) == name]
    own: intervals.Intervals = np.empty(0, np.int64), np.empty(0, np.int64)
    for track in np.unique(index.track[pieces["row"].to_numpy(np.int64)]):
        parts = index.segments(int(track))
        is_own = index.names_of(parts.row) == name
        times = parts.start[is_own], parts.end[is_own]
        own = intervals.union(*(np.append(a, b) for a, b in zip(own, times, strict=True)))
    ops = _ops_of_thread(record)
    own = intervals.difference(own, intervals.union(index.ts[ops], index.end[ops]))
    spans = pieces["start_ns"].to_numpy(np.int64), pieces["end_ns"].to_numpy(np.int64)
    lines = stretches(record).lines
    by_line = group_sums(pieces["group"].to_numpy(), intervals.overlap(spans, own), len(lines))
    if not len(by_line) or 2 * by_line.max() <= by_line.sum():
        return ""
    line = lines.iloc[int(by_line.argmax())]
    if line["line"] == top["line"]:
        return ""
    return f", mostly in line {line['line']}{statement(line['code'])}"


def _is_body(function: pd.Series) -> bool:
    """Whether that is the cell itself, cProfile's function `<module>` of its first line."""
    return is_cell(str(function["file"])) and function["name"] == "<module>"


def _called_by(record: Record, top: pd.Series) -> str:
    """Name the user's function or line that called a library or built-in function most."""
    calls = record.calls
    if _is_body(top):
        return _on_line(record, int(top["self_ns"]))
    if calls is None or is_user_code(top.to_frame().T)[0]:
        return ""
    functions, edges = calls.functions, calls.edges
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    is_users = is_user_code(functions)
    below = np.array((functions[FUNCTION_KEY] == top[FUNCTION_KEY]).all(axis=1), bool)
    spent = np.where(below[callee], edges["self_ns"], edges["total_ns"])
    while (calling := np.flatnonzero(below[callee] & ~below[caller])).size:
        most = int(np.bincount(caller[calling], spent[calling]).argmax())
        if is_users[most]:
            if _is_body(functions.iloc[most]):
                return _on_line(record, int(top["self_ns"]))
            return f", mostly from {code(function_labels(functions.iloc[[most]])[0])}"
        below[most] = True
    return ""


def _on_line(record: Record, ns: int) -> str:
    """Return ``, mostly from line 4 `data.sort()```, if the line is known."""
    line = line_that_holds(record, ns)
    return "" if line < 0 else f", mostly from {line_in_words(record, line)}"


def line_in_words(record: Record, line: int) -> str:
    """Return ``line 4 `data.sort()``` for a row of `lines`.

    The head of a loop has the time of lines in it beyond their limit: these are named, and the head
    with them unless it only counts.
    """
    table = lines(record)
    inner = lines_counted_for(record, line)
    named = inner if inner and COUNTING.fullmatch(table["code"].iloc[line]) else [line, *inner]
    if len(named) > 1:
        *first, last = table["line"].iloc[sorted(named)]
        return f"lines {', '.join(map(str, first))} and {last}"
    at = table.iloc[named[0]]
    return f"line {at['line']}{statement(str(at['code']))}"


def _starting_workers(record: Record) -> pd.MultiIndex:
    """Return the functions that ran only to start workers: `dataloader` reports these.

    By cProfile's counts, all their calls came from the iterator that starts processes.
    """
    calls = record.calls
    if calls is None or not record.trace.index.matching(STARTING).any():
        return NO_FUNCTIONS
    functions, place = calls.functions, _place(calls.functions)
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    starting = np.zeros(len(functions), bool)
    starting[caller[place.str.contains(PROCESS_START).to_numpy(bool)[callee]]] = True
    starting &= place.str.contains(LOADER_START).to_numpy(bool)
    return _only_below(calls, starting)


def _in_file_io(record: Record) -> pd.MultiIndex:
    """Return the functions that ran only in functions that `file_io` reports."""
    calls = record.calls
    if calls is None and len(python_lanes(record)):
        calls = calls_from_slices(record.trace, str(record.metadata.get("label")))
    if calls is None:
        return NO_FUNCTIONS
    return _only_below(calls, total_kinds(calls.functions) != NONE)


NO_FUNCTIONS = pd.MultiIndex.from_frame(pd.DataFrame(columns=FUNCTION_KEY))


def _only_below(calls: Calls, top: Mask) -> pd.MultiIndex:
    """Return these functions, and those that were called only from them or from one another."""
    if not top.any():
        return NO_FUNCTIONS
    functions = calls.functions
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    counted = np.zeros(len(functions), np.int64)
    np.add.at(counted, callee, calls.edges["calls"].to_numpy())
    elsewhere = ~top & (functions["calls"].to_numpy() > counted)
    while (more := callee[elsewhere[caller] & ~elsewhere[callee] & ~top[callee]]).size:
        elsewhere[more] = True
    return pd.MultiIndex.from_frame(functions.loc[~elsewhere, FUNCTION_KEY])


def _ops_of_thread(record: Record) -> Rows:
    """Return the ops and waits of the thread whose Python calls were counted."""
    trace = record.trace
    lane = trace.tracks["lane"].to_numpy()[trace.index.track]
    there = trace.index.on_tracks("cpu") & (lane == run_lane(record))
    return np.flatnonzero((trace.index.is_op | is_synchronising(trace)) & there)


def _ops_by_function(record: Record) -> dict[str, int]:
    """Return the time of ops directly in each recorded function of that thread, in ns, by label."""
    index, ops = record.trace.index, _ops_of_thread(record)
    if not len(ops):
        return {}
    lane = record.trace.tracks["lane"].to_numpy()[index.track]
    frames = np.flatnonzero(index.on_tracks("python") & (lane == lane[ops[0]]))
    if not len(frames):
        return {}
    spent = {_frame_label(name): 0 for name in set(index.names_of(frames))}
    start, end = intervals.union(index.ts[ops], index.end[ops])
    around = index.innermost_open(frames, start)
    for frame, name, length in zip(around, index.names_of(around), end - start, strict=True):
        if frame >= 0:
            spent[_frame_label(name)] += int(length)
    return spent


def _frame_label(name: str) -> str:
    """Return a frame's name as `function_labels` has it; module code begins on line 1."""
    match = FRAME.match(name)
    return f"{match['file']}:{max(int(match['line']), 1)}({match['name']})" if match else name


def _place(table: pd.DataFrame) -> pd.Series:
    return table["file"].astype(str) + " " + table["name"].astype(str)


def _is_pytorch(record: Record, table: pd.DataFrame) -> Mask:
    """Select PyTorch's functions; built-in ones also by the name of an op in the trace."""
    ops = set(record.trace.index.names)
    builtin = table["name"].astype(str).str.extract(BUILTIN, expand=False).fillna("")
    is_op = np.array([f"aten::{name}" in ops for name in builtin], bool)
    by_name = _place(table).str.contains(PYTORCH).to_numpy(bool) | is_op
    by_pytorch = pd.MultiIndex.from_frame(table[FUNCTION_KEY]).isin(_called_by_pytorch(record))
    return np.asarray(by_name | by_pytorch, bool)


def _called_by_pytorch(record: Record) -> pd.MultiIndex:
    """Return built-in functions that spent most of their time called from PyTorch's Python."""
    calls = record.calls
    if calls is None:
        return NO_FUNCTIONS
    functions, edges = calls.functions, calls.edges
    pytorch = _place(functions).str.contains(PYTORCH).to_numpy(bool)
    callee, spent = edges["callee"].to_numpy(), edges["self_ns"].to_numpy()
    by_pytorch = np.bincount(callee, spent * pytorch[edges["caller"]], len(functions))
    mostly = 2 * by_pytorch > functions["self_ns"].to_numpy()
    built_in = (functions["file"] == BUILT_IN).to_numpy(bool)
    return pd.MultiIndex.from_frame(functions.loc[mostly & built_in, FUNCTION_KEY])


COLLECT = re.compile(r"^<built-in (?:method gc\.collect|function collect)>$")
"""`gc.collect`, as cProfile and as torch's frames call it."""

AUTOMATIC = (
    "It scans all objects again and again as new objects are made. Call `gc.freeze()` when data "
    "and model are loaded. Or call `gc.disable()` before the loop, and `gc.collect()` now and "
    "then. Keep fewer Python objects: use tensors and NumPy arrays instead of lists and dicts."
)
CALLED = (
    "Take `gc.collect()` out of the loop. Objects are freed when nothing refers to them: a "
    "collection frees only cycles. To free GPU memory, `del` the objects that hold the tensors."
)


def garbage_collection(record: Record, *, gc_share: float = 0.05) -> list[Finding]:
    """Fires if garbage collection took 5 % of the run and 1 ms; not for a range of time.

    It says if the code called ``gc.collect`` for most of that. Long collections during imports and
    compilations, which happen once, do not count. A single collection that is not full is chance:
    objects made before the run caused it as well.

    Cost: the time of the collections.
    """
    noted: Mapping[str, Any] | None = record.metadata.get("gc")
    if not noted or WINDOW in record.metadata:
        return []
    spent, run = sum(noted["time_ns"]) - sum(noted["once"]["time_ns"]), run_ns(record)
    share = min(share_of(spent, run), 1.0)
    if share < gc_share or spent < WORTH_NS:
        return []
    count = sum(noted["collections"]) - sum(noted["once"]["collections"])
    full = noted["collections"][-1] - noted["once"]["collections"][-1]
    if count == 1 and not full:
        return []
    took = f"{format_ns(spent)} of {format_ns(run)} ({format_share(share)})"
    text = f"Python's garbage collector took {took} in {format_count(count, 'collection')}"
    if full:
        text += f", {full:,} of them full"
    explicit, explicit_ns = _explicit_collections(record)
    remedy = CALLED if 2 * explicit_ns > spent else AUTOMATIC
    if remedy == CALLED:
        text += f". The code called `gc.collect()` {format_count(explicit, 'time')}"
    place = next((entry for entry in noted["places"] if not entry["during"]), None)
    if place is not None and 2 * int(place["time_ns"]) > spent:
        file = str(place["file"]).replace("\\", "/").rsplit("/", 1)[-1]
        text += f", mostly in {code(place['function'])} ({file}, line {place['line']})"
    subject = "Calls of `gc.collect()` take" if remedy == CALLED else "Garbage collection takes"
    longest = max(noted["longest"], key=lambda entry: entry["dur_ns"], default=None)
    start, end = (None, None) if longest is None else table_range(longest)
    title = f"{subject} time"
    return [Finding(f"{text}.", spent, share, start, end, remedy=remedy, title=title)]


def _explicit_collections(record: Record) -> tuple[int, int]:
    """Return how often the code called `gc.collect`, and the time in ns, per traced step."""
    if record.calls is None:
        return 0, 0
    functions = record.calls.functions
    is_collect = functions["name"].astype(str).str.contains(COLLECT)
    collects = functions[(functions["file"] == BUILT_IN) & is_collect]
    steps = calls_per_traced_step(record)
    calls, spent = int(collects["calls"].sum()), int(collects["total_ns"].sum())
    return round(calls / steps), round(spent / steps)


def exclude_collections(
    record: Record, findings: list[Finding], *, python_share: float = PYTHON_SHARE
) -> list[Finding]:
    """Return the findings; one on a Python function loses the collections that took most of it.

    They started there because it made objects, and `garbage_collection` reports them.
    """
    if not any(finding.rule == "garbage_collection" for finding in findings):
        return findings
    reduced = [
        _without_collections(record, finding, python_share)
        if finding.rule == "python_time"
        else finding
        for finding in findings
    ]
    return [finding for finding in reduced if finding is not None]


def _without_collections(record: Record, finding: Finding, least_share: float) -> Finding | None:
    """Return the finding unchanged, or of the time left, or None where too little is left."""
    places = record.metadata["gc"]["places"]
    columns = ("file", "function_line", "function")
    table = pd.DataFrame(
        [[entry[key] for key in columns] for entry in places], columns=FUNCTION_KEY
    )
    within = sum(
        int(place["time_ns"])
        for place, label in zip(places, function_labels(table), strict=True)
        if f"{code(function_name(label))} itself" in finding.text
        or (place["function"] == "<module>" and finding.text.startswith(f"{CELL_BODY} itself"))
    )
    if 2 * within <= finding.cost_ns:
        return finding
    left = max(finding.cost_ns - within, 0)
    share = finding.share * share_of(left, finding.cost_ns)
    if left < WORTH_NS or share < least_share:
        return None
    text = f"{finding.text} Garbage collection took {format_ns(within)} of that time."
    return replace(finding, text=text, cost_ns=left, share=share)
