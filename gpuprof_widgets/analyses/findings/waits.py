"""Findings on waiting: for the GPU, in Python functions, for timers and other processes, in await.

Waits for the DataLoader and for files are in `input`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses import blocking as kinds
from gpuprof_widgets.analyses import operators as rows
from gpuprof_widgets.analyses.blocking import blocked
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share, group_sums
from gpuprof_widgets.analyses.findings.finding import (
    LATENCY_NS,
    WORTH_NS,
    Finding,
    code,
    function_name,
    place_in,
    run_ns,
    share_of,
    shorter,
    slice_range,
    statement,
)
from gpuprof_widgets.analyses.findings.memory import EMPTYING_REMEDY, empties_cache
from gpuprof_widgets.analyses.findings.python_time import (
    NEARLY,
    PYTHON_SHARE,
    line_in_words,
    python_ns,
    share_in_words,
)
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.owners import forward_of, line_of, line_sources, region_around
from gpuprof_widgets.analyses.python_calls import function_labels, is_cell
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.reasons import is_beyond_the_range
from gpuprof_widgets.analyses.waits import FREEING, wait_costs, waits
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import EVALUATE
from gpuprof_widgets.trace.schema import SAMPLED, WINDOW

MOST = 3
"""Findings at most: further ops are rarely worth reading about."""
MIN_BUSY_SHARE = 0.95
"""Share of the waiting from which on the GPU was busy in all of it but the call's overhead."""

REMEDIES = {
    "aten::item": "Read results less often: add up on the GPU and call .item() once per epoch.",
    "aten::_local_scalar_dense": "Read results less often: .item(), float() and printing wait for "
    "the GPU.",
    "aten::nonzero": "The shape of its result depends on data, so the CPU has to wait for it. Use "
    "torch.where or a mask of fixed shape.",
    "aten::index": "The CPU has to wait until the elements of a boolean mask are counted. Use "
    "torch.where or masked_fill, which keep a fixed shape.",
}
READING = ("aten::item", "aten::_local_scalar_dense")
LAUNCHED_BEFORE = "waits for GPU work that was launched before: see the lines with much GPU time."
COPY_REMEDIES = {
    "DtoH": "Keep results on the GPU, or read them less often or later (non_blocking=True needs "
    "pinned memory and a synchronisation before reading).",
    "HtoD (Pageable": "Copy from pinned memory (pin_memory=True of the DataLoader, or "
    ".pin_memory()) with non_blocking=True.",
    "HtoD (Pinned": "The memory is pinned already: non_blocking=True suffices.",
}
"""What to do about a wait for a copy, by its direction and the kind of memory in its name."""
FREEING_REMEDY = (
    "Memory ran short, so the allocator freed cached blocks first. Use less memory, or set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)
NOT_IN_THE_TRACE = (
    "The trace shows no GPU work during the wait, so the call waited for something else: another "
    "process on this GPU, another GPU or rank, or work from before the recording."
)
AT_THE_END = (
    "This call waits for the final results: no GPU work came after it. Only less GPU work before "
    "it makes the wait shorter."
)
MAX_GPU_SHARE_OF_FALSE_WAIT = 0.1
"""Share of the waiting below which the GPU was not what the call waited for."""
OTHERWISE = "The CPU launches nothing while it waits: move the call out of the loop if you can."
ONCE = "The CPU launches nothing while it waits: remove the call, or move it later, if you can."

SYNCHRONISING_SHARE = 0.02


def synchronising(
    record: Record, *, synchronising_share: float = SYNCHRONISING_SHARE
) -> list[Finding]:
    """Report at most three ops whose waits took 2 % of the run or more, by their cost.

    `backward` reports the waits of backward ops.

    Cost: the GPU's idle time that the waits cause: by how much the run would be shorter without
    them, at most. Waiting for a GPU that is busy, and has more work queued, costs nothing.
    """
    table = waits(record)
    table = table[table["kind"] == "synchronise"]
    table = table.assign(cost_ns=wait_costs(record.trace, table))
    of_backward = forward_of(record.trace)[table["row"]] >= 0
    # A wait outside of any op, at the end of the recording, is the profiler's.
    index, run = record.trace.index, run_ns(record)
    ended = index.end[index.is_op & (index.column("count") > 0)]
    at_end = (table["op"] < 0) & (table["start_ns"] >= ended.max(initial=0)) & (len(ended) > 0)
    groups = table[~of_backward & ~at_end].groupby(["op_name", "name"], sort=False)
    findings = [
        _finding(record, group)
        for _, group in groups
        if share_of(group["dur_ns"].sum(), run) >= synchronising_share
    ]
    return sorted(findings, key=lambda finding: -finding.cost_ns)[:MOST]


def _finding(record: Record, group: pd.DataFrame) -> Finding:
    longest = group.iloc[0]
    waited, share = int(group["dur_ns"].sum()), share_of(group["dur_ns"].sum(), run_ns(record))
    cost = int(group["cost_ns"].sum())
    calls = format_count(len(group), "call")
    who = code(longest["op_name"]) if longest["op_name"] else "The CPU"
    text = (
        f"{who} waited {format_ns(waited)} for the GPU ({format_share(share)} of the time), "
        f"in {calls} of {code(longest['name'])}{_mostly_for(record.trace, group)}"
        f"{_mostly_at(record, group)}."
    )
    is_busy = group["gpu_busy_ns"].sum() >= MIN_BUSY_SHARE * waited
    if not cost:
        busy = "was busy all that time and " if is_busy else ""
        text += f" The GPU {busy}had more work queued: the waiting cost nothing."
    else:
        text += " The GPU was busy all that time." if is_busy else ""
        text += f" Without these waits, {shorter(cost, record)}." if cost < waited else ""
    where = f"in {code(longest['name'])}" if cost else "at no cost"
    title = f"{who} waits for {'a busy' if is_busy else 'the'} GPU {where}"
    remedy, place = _remedy(record, group), place_in(group, longest)
    cost_share = share_of(cost, run_ns(record))
    return Finding(text, cost, cost_share, remedy=remedy, title=title, **place)


def _remedy(record: Record, group: pd.DataFrame) -> str:
    """Return the remedy for the op, else for the copies that took most of the waiting."""
    index, waited = record.trace.index, int(group["dur_ns"].sum())
    is_false = group["gpu_busy_ns"].sum() < MAX_GPU_SHARE_OF_FALSE_WAIT * waited
    if waited >= LATENCY_NS * len(group) and is_false:
        return NOT_IN_THE_TRACE
    if FREEING.fullmatch(group["name"].iloc[0]):
        return EMPTYING_REMEDY if empties_cache(record, group["op"]) else FREEING_REMEDY
    began = index.ts[index.gpu].max(initial=0)
    ends = int((group["start_ns"] + group["dur_ns"]).min())
    in_no_op = bool((group["op"] < 0).all())  # an op's result is read in every step, the last too
    op = group["op_name"].iloc[0]
    is_last = op in READING and len(group) == 1 and WINDOW not in record.metadata
    if (in_no_op or is_last) and began < ends:
        return AT_THE_END
    if op in REMEDIES:
        return REMEDIES[op]
    copy = str(group.groupby("copy_name")["dur_ns"].sum().idxmax())
    fitting = (remedy for kind, remedy in COPY_REMEDIES.items() if kind in copy)
    return next(fitting, OTHERWISE if len(group) > 1 else ONCE)


def remedy_of_line(record: Record, rows: Rows) -> str:
    """Return what makes a line wait for the GPU, and what to do about it.

    ``rows``: the executions of the line. What makes it wait is the call with most of its waiting,
    as in `synchronising`. Such a call waits for its own copy, or for work that was launched before;
    an op makes the line wait itself if the shape of its result depends on data.
    """
    table = waits(record)
    within = np.isin(line_of(record.trace)[table["row"]], rows)
    table = table[(table["kind"] == "synchronise") & within]
    if not len(table):
        return f"It {LAUNCHED_BEFORE}"
    groups = [group for _, group in table.groupby(["op_name", "name"], sort=False)]
    group = max(groups, key=lambda group: int(group["dur_ns"].sum()))
    op, remedy = group["op_name"].iloc[0], _remedy(record, group)
    who = code(op.removeprefix(EVALUATE) or group["name"].iloc[0])
    if remedy in (OTHERWISE, ONCE, AT_THE_END):
        return f"{who} {LAUNCHED_BEFORE}"
    if remedy in COPY_REMEDIES.values():
        return f"{who} waits until its copy is done. {remedy}"
    if remedy in [REMEDIES[name] for name in READING]:
        return f"{who} {LAUNCHED_BEFORE} {remedy}"
    return f"{who} makes it wait. {remedy}"


def _mostly_for(trace: Trace, group: pd.DataFrame) -> str:
    """Name the GPU work that ran longest during the waits, on the streams they waited for."""
    known = group[group["gpu"] >= 0]
    if not len(known):
        return ""
    index, gpu = trace.index, trace.index.gpu
    stream = trace.tracks["lane"].to_numpy()[index.track]
    gpu = gpu[np.isin(stream[gpu], stream[known["gpu"]])]
    waited = intervals.union(known["start_ns"], known["start_ns"] + known["dur_ns"])
    name = index.name[gpu]
    time = intervals.overlap((index.ts[gpu], index.end[gpu]), waited)
    busy = group_sums(name, time, len(index.names))[name]
    longest = min(index.names[code] for code in intervals.distinct(name[busy == busy.max()]))
    return f", mostly for {code(longest)}"


def _mostly_at(record: Record, group: pd.DataFrame) -> str:
    """Name the module and the cell line with most of the waiting, where they are known."""
    trace = record.trace
    module = region_around(trace, "module")[group["row"]]
    line = region_around(trace, "cell_line")[group["row"]]
    lines = trace.args.get("line")
    places = pd.DataFrame(
        {
            "module": trace.index.names_of(module),
            "line": -1 if lines is None else lines.reindex(line).fillna(-1).to_numpy(np.int64),
            "dur_ns": group["dur_ns"].to_numpy(),
        }
    )
    most = places.groupby(["module", "line"], as_index=False)["dur_ns"].sum()
    top = most.iloc[int(most["dur_ns"].to_numpy().argmax())]
    place = [f"in {code(top['module'])}"] if top["module"] else []
    place += [f"on line {top['line']}"] if top["line"] >= 0 else []
    return f", {'mostly ' * (len(most) > 1)}{' '.join(place)}" if place else ""


FUNCTIONS = 2
"""Functions that a rule reports at most."""

PYTHON_WAITING_REMEDY = (
    "A faster function would gain nothing. Shorten the GPU's work before it, or read its result "
    "later."
)


def python_waiting(
    record: Record, *, python_waiting_share: float = 0.5, python_share: float = PYTHON_SHARE
) -> list[Finding]:
    """Report at most two functions with 10 % of the Python time that mostly waited.

    Cost: the time in which they waited for the GPU.
    """
    table = python_time(record)
    if not len(table) or is_beyond_the_range(record, table):
        return []
    whole = python_ns(record)
    high = table["self_ns"] >= max(python_share * whole, WORTH_NS)
    mostly = table["self_waiting_ns"] >= python_waiting_share * table["self_ns"]
    functions = table[high & mostly].sort_values("self_waiting_ns", ascending=False, kind="stable")
    return [
        _python_waiting_finding(record, row) for row in functions.head(FUNCTIONS).to_dict("records")
    ]


def _python_waiting_finding(record: Record, row: dict[Any, Any]) -> Finding:
    label = function_labels(pd.DataFrame([row]))[0]
    waited, self_ns = int(row["self_waiting_ns"]), int(row["self_ns"])
    share, words = share_in_words(record, waited)
    _, of_all = share_in_words(record, self_ns)
    estimated = "" if row["exact"] else "an estimated "
    name = code(function_name(label))
    text = (
        f"{name} took {format_ns(self_ns)} ({of_all}). It waited for the GPU for "
        f"{estimated}{format_ns(waited)} of that ({words})"
    )
    place: dict[str, Any] = {}
    if work := row["waited_for"]:
        cell, _, line = row["launched_at"].rpartition(":")
        this_cell = f"Cell [{record.metadata.get('execution_count')}]"
        at = f" at line {line}" if cell == this_cell else f" at {row['launched_at']}"
        by = f" by {code(row['launched_by'])}" if row["launched_by"] else ""
        launched = f", launched{by}{at if line else ''}" if by or line else ""
        text += f", mostly for {code(work)}{launched}"
        table = waits(record)
        table = table[(table["gpu_name"] == work) | (table["copy_name"] == work)].head(1)
        place = {**place_in(table, table.iloc[0])} if len(table) else {}
    title, remedy = f"{name} mostly waits for the GPU", PYTHON_WAITING_REMEDY
    return Finding(f"{text}.", waited, share, remedy=remedy, title=title, **place)


WAITED_FOR = {
    kinds.TIMER: "a timer",
    kinds.NETWORK: "the network",
    kinds.PROCESS: "another process",
    kinds.THREAD: "another thread",
    kinds.INPUT: "input from the user",
    kinds.PIPE: "a pipe or a socket",
}
BLOCKING_CALLS_REMEDIES = {
    kinds.TIMER: "Wait for the event itself instead of a fixed time, or do other work meanwhile.",
    kinds.NETWORK: "Request more at once, keep the connection open, or request ahead in another "
    "thread.",
    kinds.PROCESS: "Do other work while it runs and wait for it at the end, start it once and "
    "keep it, or split its work among more processes.",
    kinds.THREAD: "Look at what that thread does meanwhile: run its code in the cell itself to see "
    "its ops and its Python.",
    kinds.INPUT: "Ask before the timed part.",
    kinds.PIPE: "Look at what is at its other end, or do other work meanwhile.",
}


def blocking_calls(record: Record, *, blocking_share: float = 0.1) -> list[Finding]:
    """Report at most two user functions that waited for 10 % of the run and 1 ms or more.

    Only on the run's own thread; other rules report waits for the GPU, for a DataLoader, in
    ``await`` and for files.

    Cost: the time of the waits.
    """
    table = blocked_calls(record)
    table = table[table["kind"].isin(list(WAITED_FOR))]
    findings = []
    for row in longest_waits(record, table, blocking_share):
        purpose, remedy = f"for {WAITED_FOR[row['kind']]}", BLOCKING_CALLS_REMEDIES[row["kind"]]
        findings.append(wait_finding(record, row, "waited", purpose, f"waits {purpose}", remedy))
    return findings


def blocked_calls(record: Record) -> pd.DataFrame:
    """Return the table of `blocked`; empty for a range, as cProfile counts the whole run."""
    table = blocked(record).table
    return table.iloc[:0] if is_beyond_the_range(record, python_time(record)) else table


def longest_waits(record: Record, table: pd.DataFrame, share: float) -> list[dict[Any, Any]]:
    """Return the longest rows, of 1 ms and that share of the run or more."""
    least = max(share * _whole(record)[0], WORTH_NS)
    return table[table["ns"] >= least].head(FUNCTIONS).to_dict("records")


def _whole(record: Record) -> tuple[int, str]:
    """Return the time that shares refer to: the run's, or Python's where the trace is shorter."""
    run, longest = run_ns(record), int(blocked(record).table["ns"].to_numpy().max(initial=0))
    if longest <= run * (1 + NEARLY):
        return run, "of the time"
    return python_ns(record), "of the Python time"


def wait_finding(
    record: Record, row: dict[Any, Any], verb: str, purpose: str, does: str, remedy: str
) -> Finding:
    """Return the finding on a user function: for how long, in which calls, on which line."""
    ns, called, function = int(row["ns"]), code(function_name(row["called"])), str(row["owner"])
    whole, words = _whole(record)
    share = min(share_of(ns, whole), 1.0)
    calls = "" if record.metadata.get(SAMPLED) else f"{format_count(row['calls'], 'call')} of "
    is_body = is_cell(function) and function.endswith("(<module>)")
    owner = ("The cell" if is_body else code(function)) if function else "The run"
    text = (
        f"{owner} {verb} {format_ns(ns)} ({format_share(share)} {words}) {purpose}: {calls}{called}"
    )
    if row["line"] >= 0:
        by = "on" if is_cell(function) else "called from"
        text += f", {by} {line_in_words(record, int(row['line']))}"
    found = Finding(f"{text}.", ns, share, remedy=remedy, title=f"{owner} {does}: {called}")
    if (at := int(row["row"])) < 0:
        return replace(found, function=function)
    start, end = slice_range(record.trace, at)  # the longest wait, where frames were recorded
    return replace(found, start_ns=start, end_ns=end, rows=(at,))


SUSPENDED_REMEDY = (
    "Shorten what it awaits, or await it together with other work (asyncio.gather, "
    "asyncio.create_task)."
)

NEARLY_ALL = 0.95
"""Share of the suspended time from which on one line has all of it."""

_AWAIT = re.compile(r"\bawait\b|\basync\s+(?:for|with)\b")


def suspended(record: Record, *, suspended_share: float = 0.1) -> list[Finding]:
    """Fires if ``await`` suspended the code for a tenth of the run: no line, no op ran.

    Cost: the time in which it was suspended.
    """
    awaiting = set()
    for source in line_sources(record):
        last = source.first + len(source.text)
        for line, following in zip(source.statements, [*source.statements[1:], last], strict=False):
            lines = source.text[max(line - source.first, 0) : following - source.first]
            if _AWAIT.search("\n".join(lines)):
                awaiting.add((source.name, line))
    if not awaiting:
        return []
    table = _suspensions(record, awaiting)
    cost = int(table["dur_ns"].sum())
    share = share_of(cost, run_ns(record))
    if cost < WORTH_NS or share < suspended_share:
        return []
    by_line = table.groupby(["cell", "line", "code"], as_index=False)["dur_ns"].sum()
    top = by_line.iloc[int(by_line["dur_ns"].argmax())].to_dict()
    most = int(top["dur_ns"])
    part = "" if most >= NEARLY_ALL * cost else f"{format_ns(most)} of it "
    of = f" of {top['cell']}" if len(record.metadata["lines"]["cells"]) > 1 else ""
    text = (
        f"The code was suspended in `await` for {format_ns(cost)} ({format_share(share)} of the "
        f"time), {part}in line {top['line']}{of}{statement(str(top['code']))}. "
        "No line and no op ran meanwhile."
    )
    longest = table.iloc[int(table["dur_ns"].argmax())].to_dict()
    start, end = longest["end_ns"] - longest["dur_ns"], longest["end_ns"]
    rows, title = tuple(table["row"]), f"Line {top['line']} is suspended in `await`"
    return [Finding(text, cost, share, start, end, rows, SUSPENDED_REMEDY, title=title)]


def _suspensions(record: Record, awaiting: set[tuple[str, int]]) -> pd.DataFrame:
    """Return one row per suspension: no line and no op ran until a line with `await` went on.

    Columns: ``row`` (the slice with which that line goes on), its ``cell``, ``line`` and ``code``,
    ``end_ns``, ``dur_ns``.
    """
    trace = record.trace
    known, index = cell_lines(trace), trace.index
    keys = zip(known.lines["cell"], known.lines["line"], strict=True)
    awaits = np.array([key in awaiting for key in keys], bool)[known.of_slice[known.row]]
    row = np.sort(known.row[known.resumed & awaits])
    ops = rows.op_rows(trace).row
    ops = ops[~trace.index.in_category("user_annotation")[ops]]
    ran = np.concatenate([known.row, ops])
    ts, open_ = index.ts, intervals.union(index.ts[ran], index.end[ran])
    start, end = intervals.gaps(open_, trace.start_ns, trace.end_ns)
    # Lines go on from the outside in: the innermost one waited, of those before anything begins.
    begun = np.sort(ts[np.concatenate([known.row[~known.resumed], ops])])
    next_begun = np.append(begun, trace.end_ns)[np.searchsorted(begun, end)]
    limit = np.minimum(next_begun, np.append(start[1:], trace.end_ns))
    last = np.searchsorted(ts[row], limit) - 1
    gap = np.flatnonzero(last >= np.searchsorted(ts[row], end))
    row = row[last[gap]]
    table: pd.DataFrame = known.lines.iloc[known.of_slice[row]].reset_index(drop=True)
    return table.assign(row=row, end_ns=end[gap], dur_ns=end[gap] - start[gap])
