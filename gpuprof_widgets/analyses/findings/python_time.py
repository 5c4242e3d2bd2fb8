"""A Python function, rather than PyTorch, took the time.

Operators (``a @ b``) are no calls for cProfile: the ops below them are in the self time of the
function that has them, and are taken out here. So is what it waited for the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.blocking import blocked, is_blocking, total_kinds
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.dispatch import dispatch_remedy
from gpuprof_widgets.analyses.findings.finding import (
    OF_THE_CELL,
    Finding,
    code,
    function_name,
    run_ns,
    share_of,
    statement,
)
from gpuprof_widgets.analyses.gpu_work import open_ns
from gpuprof_widgets.analyses.lines import line_that_holds, lines
from gpuprof_widgets.analyses.python_calls import function_labels, is_cell, is_user_code
from gpuprof_widgets.analyses.python_time import python_time as python_time_table
from gpuprof_widgets.analyses.reasons import is_beyond_the_range
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.waits import is_synchronising, python_lanes, run_lane
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.pstats import BUILT_IN, calls_from_slices, function_kind
from gpuprof_widgets.trace.schema import LANGUAGE, NONE, SAMPLED, WINDOW

WORTH_READING_NS = 1_000_000  # below it nobody waits, whatever the share

NEARLY = 0.02  # longer than the run: the clocks of Python and of the trace differ a little

PYTORCH = re.compile(
    r"(?:^|[/\\])torch[/\\]|torch\.|of 'torch|run_backward|TensorBase|_VariableFunctions"
)
"""Functions whose time is that of the ops below them: the op table says it better."""

BUILTIN = re.compile(r"^<(?:built-in )?(?:method|function) '?(\w+)'?")

STARTS = re.compile(r"^<built-in (?:method|function) (?:\w+\.)*(?:fork|forkpty|fork_exec)>")

KEEP = "It starts a process: start it once and keep it (a DataLoader: `persistent_workers=True`)."

SHORT_NS = 10_000
"""Of one call: below it, that there are so many is what takes the time."""
SHORT_CALLS = (
    "One call takes but {each}: call it less often, or have one call do many at once (ops on whole "
    "tensors, NumPy)."
)
OTHERWISE = (
    "Look in it for loops over elements, which ops on whole tensors do at once, and for what is "
    "the same every time and could be done beforehand."
)
IN_C = (
    "There is no Python in it: give it less to do, or call it less often; beforehand, where its "
    "result is the same every time."
)

OF_ANY = (
    "Give it less to do, or call it less often; beforehand, where its result is the same every "
    "time."
)

IN_A_LIBRARY = (
    "It is a library's: give it less to do, or call it less often; beforehand, where its result is "
    "the same every time."
)

FUNCTION = ["file", "line", "name"]

STARTING = re.compile(r"enumerate\(DataLoader\)#\w+\.__init__")
"""The region of starting workers, input pipeline in the breakdown."""
LOADER_START = re.compile(r"torch[/\\]utils[/\\]data[/\\]dataloader\.py __init__$")
PROCESS_START = re.compile(r"multiprocessing[/\\]process\.py start$")

FRAME = re.compile(r"^(?:.*[/\\])?(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$", re.DOTALL)
"""A Python frame as torch writes it: ``train.py(12): step``."""

PYTHON_SHARE = 0.1


def python_time(record: Record, *, python_share: float = PYTHON_SHARE) -> list[Finding]:
    """Fires for the function outside of PyTorch with most self time, from 10 % and 1 ms on.

    PyTorch's ops, what only waits or accesses files and what starts DataLoader workers do not
    count, nor do threads that only wait. Which function the ops lie in is known from recorded
    frames; without these the function gets at most the Python time outside of all ops, and of a
    range of time nothing is said.

    ``python_share``: A Python function; of Python's time without idle threads, where the run's is
        not known.
    """
    table = python_time_table(record)
    if not len(table) or is_beyond_the_range(record, table):
        return []
    total = python_ns(record)
    ops, framed = _ops_of_thread(record), _ops_by_function(record)
    in_ops = round(open_ns(record.trace, ops) * calls_per_traced_step(record))
    known = table[["file", "line", "name"]].assign(line=table["line"].clip(lower=1))
    labels = pd.Series(function_labels(known), index=table.index)
    exact = labels.isin(list(framed))
    own = (table["self_ns"] - labels.map(framed)).where(exact, table["self_python_ns"])
    own = own.clip(0, max(total - in_ops, 0))
    table = table.assign(self_ns=own.astype(np.int64), exact=exact)
    table = table[~(_is_pytorch(record, table) | is_blocking(table))]
    place = pd.MultiIndex.from_frame(table[FUNCTION])
    table = table[~(place.isin(_starting_workers(record)) | place.isin(_in_file_io(record)))]
    if not len(table):
        return []
    top = table.sort_values("self_ns", ascending=False, kind="stable").iloc[0]
    cost = int(top["self_ns"])
    share, words = share_in_words(record, cost)
    if share < python_share or cost < WORTH_READING_NS:
        return []
    most = "at most " if in_ops and not top["exact"] else ""
    apart = ", PyTorch ops not counted" if in_ops else ""
    text = (
        f"{_subject(record, top)} itself took {most}{words}{apart} "
        f"({format_ns(cost)}{_in_calls(record, int(top['calls']))}{_called_by(record, top)})."
    )
    return [Finding(text, cost, share, remedy=_remedy(record, top))]


def python_ns(record: Record) -> int:
    """The time of all Python functions, without threads that only wait."""
    whole = int(python_time_table(record)["self_ns"].sum())
    return max(whole - blocked(record).idle_ns, 0)


def share_in_words(record: Record, ns: int) -> tuple[float, str]:
    """The share of the run, as all findings have it, and the same in words.

    Of Python's time where that is longer than the run: it was counted on several threads, in steps
    that were not traced, or without any trace.
    """
    run, python = run_ns(record), python_ns(record)
    if python <= run * (1 + NEARLY):
        share = min(share_of(ns, run), 1.0)
        return share, f"{format_share(share)} of the time"
    share = share_of(ns, python)
    return share, f"{format_share(share)} of the Python time"


def _remedy(record: Record, top: pd.Series) -> str:
    """By what the function does, and by how long a call is with all that it calls."""
    if STARTS.search(str(top["name"])):
        return KEEP
    if small := dispatch_remedy(record, top, int(top["self_ns"])):
        return small
    each = int(top["total_ns"]) / max(int(top["calls"]), 1)
    if each < SHORT_NS and not record.metadata.get(SAMPLED):
        return SHORT_CALLS.format(each=format_ns(each))
    if record.metadata.get(LANGUAGE) is not None:
        return OF_ANY
    if top["file"] == BUILT_IN:
        return IN_C
    return OTHERWISE if is_user_code(top.to_frame().T)[0] else IN_A_LIBRARY


def _in_calls(record: Record, calls: int) -> str:
    """In how many; samples do not count them."""
    return "" if record.metadata.get(SAMPLED) else f" in {format_count(calls, 'call')}"


def _subject(record: Record, top: pd.Series) -> str:
    if _is_body(top):
        return OF_THE_CELL
    name = function_name(function_labels(top.to_frame().T)[0])
    return f"The {function_kind(record)} {code(name)}"


def _is_body(function: pd.Series) -> bool:
    """Whether that is the cell itself, which cProfile has as the function of its first line."""
    return is_cell(str(function["file"])) and function["name"] == "<module>"


def _called_by(record: Record, top: pd.Series) -> str:
    """Of what is not the user's own the function of his that called it for most of its time."""
    calls = record.calls
    if _is_body(top):
        return _on_line(record, int(top["self_ns"]))
    if calls is None or is_user_code(top.to_frame().T)[0]:
        return ""
    functions, edges = calls.functions, calls.edges
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    users = is_user_code(functions)
    below = np.array((functions[FUNCTION] == top[FUNCTION]).all(axis=1), bool)
    spent = np.where(below[callee], edges["self_ns"], edges["total_ns"])
    while (calling := np.flatnonzero(below[callee] & ~below[caller])).size:
        most = int(np.bincount(caller[calling], spent[calling]).argmax())
        if users[most]:
            if _is_body(functions.iloc[most]):
                return _on_line(record, int(top["self_ns"]))
            return f", mostly from {code(function_labels(functions.iloc[[most]])[0])}"
        below[most] = True
    return ""


def _on_line(record: Record, ns: int) -> str:
    """``, mostly from line 4 `data.sort()```, if that is known."""
    line = line_that_holds(record, ns)
    if line < 0:
        return ""
    at = lines(record).iloc[line]
    return f", mostly from line {at['line']} {statement(str(at['code']))}"


def _starting_workers(record: Record) -> pd.MultiIndex:
    """The functions that ran only in regions of starting workers: `dataloader` tells of these.

    All their calls came, as cProfile counted them, from the iterator that starts processes.
    """
    calls = record.calls
    if calls is None or not record.trace.index.matching(STARTING).any():
        return _only_below(None, np.zeros(0, bool))
    functions, place = calls.functions, _place(calls.functions)
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    starting = np.zeros(len(functions), bool)
    starting[caller[place.str.contains(PROCESS_START).to_numpy(bool)[callee]]] = True
    starting &= place.str.contains(LOADER_START).to_numpy(bool)
    return _only_below(calls, starting)


def _in_file_io(record: Record) -> pd.MultiIndex:
    """The functions that ran only in ones which read or write files: `file_io` tells of these."""
    calls = record.calls
    if calls is None and len(python_lanes(record)):
        calls = calls_from_slices(record.trace, str(record.metadata.get("label")))
    if calls is None:
        return _only_below(None, np.zeros(0, bool))
    return _only_below(calls, total_kinds(calls.functions) != NONE)


def _only_below(calls: Calls | None, top: npt.NDArray[np.bool_]) -> pd.MultiIndex:
    """These functions, and those all of whose calls came from them or from others of those."""
    if calls is None or not top.any():
        return pd.MultiIndex.from_frame(pd.DataFrame(columns=FUNCTION))
    functions = calls.functions
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    counted = np.zeros(len(functions), np.int64)
    np.add.at(counted, callee, calls.edges["calls"].to_numpy())
    elsewhere = ~top & (functions["calls"].to_numpy() > counted)
    while (more := callee[elsewhere[caller] & ~elsewhere[callee] & ~top[callee]]).size:
        elsewhere[more] = True
    return pd.MultiIndex.from_frame(functions.loc[~elsewhere, FUNCTION])


def _ops_of_thread(record: Record) -> npt.NDArray[np.intp]:
    """Ops and waits of the thread whose Python calls were counted."""
    trace = record.trace
    lane = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    there = trace.index.on_tracks("cpu") & (lane == run_lane(record))
    return np.flatnonzero((trace.index.is_op | is_synchronising(trace)) & there)


def _ops_by_function(record: Record) -> dict[str, int]:
    """Per recorded function of that thread, labelled as in the table: ops (ns) directly in it."""
    trace, ops = record.trace, _ops_of_thread(record)
    if not len(ops):
        return {}
    lane = trace.tracks["lane"].to_numpy()
    track = trace.slices["track"].to_numpy()
    frames = np.flatnonzero(trace.index.on_tracks("python") & (lane[track] == lane[track[ops[0]]]))
    if not len(frames):
        return {}
    names = trace.slices["name"].to_numpy(object)
    spent = {_frame_label(name): 0 for name in set(names[frames])}
    ts, dur = trace.slices["ts"].to_numpy(), trace.slices["dur"].to_numpy()
    start, end = intervals.union(ts[ops], ts[ops] + dur[ops])
    for frame, length in zip(trace.index.innermost_open(frames, start), end - start, strict=True):
        if frame >= 0:
            spent[_frame_label(names[frame])] += int(length)
    return spent


def _frame_label(name: str) -> str:
    """A frame's name as `function_labels` has it; code of no function begins on line 1."""
    found = FRAME.match(name)
    return f"{found['file']}:{max(int(found['line']), 1)}({found['name']})" if found else name


def _place(table: pd.DataFrame) -> pd.Series:
    return table["file"].astype(str) + " " + table["name"].astype(str)


def _is_pytorch(record: Record, table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """PyTorch's own functions; built-in ones also by the name of an op that the trace holds."""
    place = _place(table)
    ops = {str(name) for name in record.trace.slices["name"].cat.categories}
    builtin = table["name"].astype(str).str.extract(BUILTIN, expand=False).fillna("")
    is_op = np.array([f"aten::{name}" in ops for name in builtin], bool)
    own = place.str.contains(PYTORCH).to_numpy(bool) | is_op
    by_pytorch = pd.MultiIndex.from_frame(table[FUNCTION]).isin(_called_by_pytorch(record))
    known: npt.NDArray[np.bool_] = own | by_pytorch
    return known


def _called_by_pytorch(record: Record) -> pd.MultiIndex:
    """Built-in functions that took most of their time when PyTorch's own Python called them."""
    calls = record.calls
    if calls is None:
        return _only_below(None, np.zeros(0, bool))
    functions, edges = calls.functions, calls.edges
    pytorch = _place(functions).str.contains(PYTORCH).to_numpy(bool)
    callee, spent = edges["callee"].to_numpy(), edges["self_ns"].to_numpy()
    by_pytorch = np.bincount(callee, spent * pytorch[edges["caller"]], len(functions))
    mostly = 2 * by_pytorch > functions["self_ns"].to_numpy()
    built_in = (functions["file"] == BUILT_IN).to_numpy(bool)
    return pd.MultiIndex.from_frame(functions.loc[mostly & built_in, FUNCTION])


WORTH_NS = 1_000_000
"""Below it nobody waits, whatever the share."""

COLLECT = re.compile(r"^<built-in (?:method gc\.collect|function collect)>$")
"""`gc.collect`, as cProfile and as torch's frames call it."""

AUTOMATIC = (
    "It looks at all objects again and again as new ones are made: `gc.freeze()` once data and "
    "model are loaded, or `gc.disable()` before the loop and `gc.collect()` now and then; keep "
    "fewer Python objects (tensors and NumPy arrays in place of lists and dicts)."
)
CALLED = (
    "Leave it out of the loop: objects are freed when nothing refers to them, and a collection "
    "frees but cycles of them. For memory of the GPU `del` what holds the tensors."
)


def garbage_collection(record: Record, *, gc_share: float = 0.05) -> list[Finding]:
    """Fires where collections took 5 % of the run and 1 ms; not for a range of time.

    Where the code called `gc.collect` for most of that, it says that. Long ones during imports and
    compilations, which are done once, do not count. A single one that is not full is chance: it was
    due to what was made before the run as well.

    ``gc_share``: In Python's garbage collector.
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
    asked, asked_ns = _asked_for(record)
    if 2 * asked_ns > spent:
        text += f": the code called `gc.collect()` {format_count(asked, 'time')}"
    text += f"{_mostly_where(noted, spent)}."
    return [
        Finding(
            text,
            spent,
            share,
            *_longest(noted),
            remedy=CALLED if 2 * asked_ns > spent else AUTOMATIC,
        )
    ]


def _asked_for(record: Record) -> tuple[int, int]:
    """How often the code called `gc.collect` and for how long (ns); of a loop the traced part."""
    if record.calls is None:
        return 0, 0
    functions = record.calls.functions
    asked = functions[
        (functions["file"] == BUILT_IN) & functions["name"].astype(str).str.contains(COLLECT)
    ]
    steps = calls_per_traced_step(record)
    return round(int(asked["calls"].sum()) / steps), round(int(asked["total_ns"].sum()) / steps)


def _mostly_where(noted: Mapping[str, Any], spent: int) -> str:
    """The line in which collections started for most of the time; "" where there is no such."""
    place = next((one for one in noted["places"] if not one["during"]), None)
    if place is None:
        return ""
    if 2 * int(place["time_ns"]) <= spent:
        return ""
    file = str(place["file"]).replace("\\", "/").rsplit("/", 1)[-1]
    return f", mostly in {code(place['function'])} ({file}, line {place['line']})"


def _longest(noted: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """From when to when the longest collection was."""
    if not noted["longest"]:
        return None, None
    one = max(noted["longest"], key=lambda each: each["dur_ns"])
    return int(one["start_ns"]), int(one["start_ns"]) + int(one["dur_ns"])


def less_collections(
    record: Record, said: Iterable[Finding], *, python_share: float = PYTHON_SHARE
) -> list[Finding]:
    """The findings, that on a Python function without the collections in it, where it is most.

    They started there as it made objects, and `garbage_collection` tells of them.
    """
    kept = list(said)
    if not any(one.rule == "garbage_collection" for one in kept):
        return kept
    of_python = [one for one in kept if one.rule == "python_time"]
    less = {id(one): _less(record, one, python_share) for one in of_python}
    return [told for one in kept if (told := less.get(id(one), one)) is not None]


def _less(record: Record, finding: Finding, least_share: float) -> Finding | None:
    """The finding as it is, of what is left, or None where that is no more worth it."""
    places = record.metadata["gc"]["places"]
    columns = ("file", "function_line", "function")
    table = pd.DataFrame([[one[key] for key in columns] for one in places], columns=_FUNCTION)
    within = sum(
        int(place["time_ns"])
        for place, label in zip(places, function_labels(table), strict=True)
        if f"{code(function_name(label))} itself" in finding.text
        or (place["function"] == "<module>" and finding.text.startswith(f"{OF_THE_CELL} itself"))
    )
    if 2 * within <= finding.cost_ns:
        return finding
    left = max(finding.cost_ns - within, 0)
    share = finding.share * share_of(left, finding.cost_ns)
    if left < WORTH_NS or share < least_share:
        return None
    text = f"{finding.text[:-1]}, {format_ns(within)} of it collecting garbage."
    return replace(finding, text=text, cost_ns=left, share=share)


_FUNCTION = ["file", "line", "name"]
