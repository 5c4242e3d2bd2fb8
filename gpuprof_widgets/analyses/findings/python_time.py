"""A Python function, rather than PyTorch, took the time.

Operators (``a @ b``) are no calls for cProfile: the ops below them are in the self time of the
function that has them, and are taken out here. So is what it waited for the GPU.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses import intervals
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.limits import Limits
from gpuprof_widgets.analyses.findings.wording import code, function_name, share_of
from gpuprof_widgets.analyses.innermost import open_at
from gpuprof_widgets.analyses.iterations import calls_per_traced_step
from gpuprof_widgets.analyses.op_rows import are_ops, matching, on_tracks
from gpuprof_widgets.analyses.open_times import open_ns
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import python_time as python_time_table
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.thread_waits import run_lane
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.analyses.whole_run import is_beyond_the_range
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.python_frames import BUILT_IN
from gpuprof_widgets.trace.schema import SAMPLED

WORTH_READING_NS = 1_000_000  # below it nobody waits, whatever the share

PYTORCH = re.compile(
    r"(?:^|[/\\])torch[/\\]|torch\.|of 'torch|run_backward|TensorBase|_VariableFunctions"
)
"""Functions whose time is that of the ops below them: the op table says it better."""

WAITING = re.compile(
    r"threading\.py (?:wait|join|acquire|_wait_for_tstate_lock)$"
    r"|queue\.py get$|selectors\.py select$"
    r"|'acquire' of '_thread\.|'(?:poll|control)' of 'select\.|built-in method select\.select>"
)
"""Functions that only wait for another thread or process: they take no time of Python's."""

BUILTIN = re.compile(r"^<(?:built-in )?(?:method|function) '?(\w+)'?")

ON_THE_NET = re.compile(r"'(?:recv|recv_into|recvfrom|accept|connect)' of '_socket\.")

NETWORK = "That is waiting for the network: ask once for more, or earlier, from another thread."

WAITS = re.compile(
    r"^<(?:built-in )?(?:method|function) '?(?:\w+\.)*"
    r"(?:(?:sleep|wait|wait3|wait4|waitid|waitpid|acquire|select|poll|control)['> ]"
    r"|(?<=posix\.)read>|(?<=function )read>)"
)
"""Built-in functions that do nothing themselves, as cProfile and as torch write them."""

IT_WAITS = (
    "It only waits: for a timer, a thread, another process or a pipe. Shorten what it waits for, "
    "or do other work meanwhile."
)

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

FUNCTION = ["file", "line", "name"]

STARTING = re.compile(r"enumerate\(DataLoader\)#\w+\.__init__")
"""The region of starting workers, input pipeline in the breakdown."""
LOADER_START = re.compile(r"torch[/\\]utils[/\\]data[/\\]dataloader\.py __init__$")
PROCESS_START = re.compile(r"multiprocessing[/\\]process\.py start$")

FRAME = re.compile(r"^(?:.*[/\\])?(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$", re.DOTALL)
"""A Python frame as torch writes it: ``train.py(12): step``."""


def python_time(record: Record, limits: Limits) -> list[Finding]:
    """Fires for the function outside of PyTorch with most self time, from 10 % and 1 ms on.

    PyTorch's ops, waits for the GPU and what starts DataLoader workers do not count. Which function
    the ops lie in is known from recorded frames; without these the function gets at most the Python
    time outside of all ops, and of a range of time nothing is said.
    """
    table = python_time_table(record)
    if not len(table) or is_beyond_the_range(record, table):
        return []
    total = int(table["self_ns"].sum())
    ops, framed = _ops_of_thread(record), _ops_by_function(record)
    in_ops = round(open_ns(record.trace, ops) * calls_per_traced_step(record))
    known = table[["file", "line", "name"]].assign(line=table["line"].clip(lower=1))
    labels = pd.Series(function_labels(known), index=table.index)
    exact = labels.isin(list(framed))
    own = (table["self_ns"] - labels.map(framed)).where(exact, table["self_python_ns"])
    own = own.clip(0, max(total - in_ops, 0))
    table = table.assign(self_ns=own.astype(np.int64), exact=exact)
    table = table[~(_is_pytorch(record, table) | _place(table).str.contains(WAITING))]
    table = table[~pd.MultiIndex.from_frame(table[FUNCTION]).isin(_starting_workers(record))]
    if not len(table):
        return []
    top = table.sort_values("self_ns", ascending=False, kind="stable").head(1)
    cost = int(top["self_ns"].iloc[0])
    share = share_of(cost, total)
    if share < limits.python_share or cost < WORTH_READING_NS:
        return []
    most = "at most " if in_ops and not top["exact"].iloc[0] else ""
    apart = ", PyTorch ops not counted" if in_ops else ""
    text = (
        f"The Python function {code(function_name(function_labels(top)[0]))} itself took {most}"
        f"{format_share(share)} of the Python time{apart} "
        f"({format_ns(cost)}{_in_calls(record, int(top['calls'].iloc[0]))}"
        f"{_called_by(record, top.iloc[0])})."
    )
    return [Finding("python_time", text, cost, share, remedy=_remedy(record, top.iloc[0]))]


def _remedy(record: Record, top: pd.Series) -> str:
    """By what the function does, and by how long a call is with all that it calls."""
    told = {ON_THE_NET: NETWORK, WAITS: IT_WAITS, STARTS: KEEP}
    for kind, remedy in told.items():
        if kind.search(str(top["name"])):
            return remedy
    each = int(top["total_ns"]) / max(int(top["calls"]), 1)
    if each < SHORT_NS and not record.metadata.get(SAMPLED):
        return SHORT_CALLS.format(each=format_ns(each))
    return IN_C if top["file"] == BUILT_IN else OTHERWISE


def _in_calls(record: Record, calls: int) -> str:
    """In how many; samples do not count them."""
    return "" if record.metadata.get(SAMPLED) else f" in {format_count(calls, 'call')}"


def _called_by(record: Record, top: pd.Series) -> str:
    """Of a built-in function who called it for most of its time, as cProfile counted that."""
    if record.calls is None or top["file"] != BUILT_IN:
        return ""
    functions, edges = record.calls.functions, record.calls.edges
    same = (functions["file"] == BUILT_IN) & (functions["name"] == top["name"])
    calls = edges[edges["callee"].isin(functions.index[same])]
    if not len(calls):
        return ""
    caller = calls.groupby("caller")["self_ns"].sum().idxmax()
    return f", mostly from {code(function_labels(functions.loc[[caller]])[0])}"


def _starting_workers(record: Record) -> pd.MultiIndex:
    """The functions that ran only in regions of starting workers: `dataloader` tells of these.

    All their calls came, as cProfile counted them, from the iterator that starts processes.
    """
    calls = record.calls
    if calls is None or not matching(record.trace, STARTING).any():
        return pd.MultiIndex.from_frame(pd.DataFrame(columns=FUNCTION))
    functions, place = calls.functions, _place(calls.functions)
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    starting = np.zeros(len(functions), bool)
    starting[caller[place.str.contains(PROCESS_START).to_numpy(bool)[callee]]] = True
    starting &= place.str.contains(LOADER_START).to_numpy(bool)
    counted = np.zeros(len(functions), np.int64)
    np.add.at(counted, callee, calls.edges["calls"].to_numpy())
    elsewhere = ~starting & (functions["calls"].to_numpy() > counted)
    while (more := callee[elsewhere[caller] & ~elsewhere[callee] & ~starting[callee]]).size:
        elsewhere[more] = True
    return pd.MultiIndex.from_frame(functions.loc[~elsewhere, FUNCTION])


def _ops_of_thread(record: Record) -> npt.NDArray[np.intp]:
    """Ops and waits of the thread whose Python calls were counted."""
    trace = record.trace
    lane = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    there = on_tracks(trace, "cpu") & (lane == run_lane(record))
    return np.flatnonzero((are_ops(trace) | is_synchronising(trace)) & there)


def _ops_by_function(record: Record) -> dict[str, int]:
    """Per recorded function of that thread, labelled as in the table: ops (ns) directly in it."""
    trace, ops = record.trace, _ops_of_thread(record)
    if not len(ops):
        return {}
    lane = trace.tracks["lane"].to_numpy()
    track = trace.slices["track"].to_numpy()
    frames = np.flatnonzero(on_tracks(trace, "python") & (lane[track] == lane[track[ops[0]]]))
    if not len(frames):
        return {}
    names = trace.slices["name"].to_numpy(object)
    spent = {_frame_label(name): 0 for name in set(names[frames])}
    ts, dur = trace.slices["ts"].to_numpy(), trace.slices["dur"].to_numpy()
    start, end = intervals.union(ts[ops], ts[ops] + dur[ops])
    for frame, length in zip(open_at(trace, frames, start), end - start, strict=True):
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
    known: npt.NDArray[np.bool_] = place.str.contains(PYTORCH).to_numpy(bool) | is_op
    return known
