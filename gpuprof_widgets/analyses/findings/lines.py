"""Findings on the cell's costliest line, and on others with a function that is slow by nature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.blocking import blocked
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import (
    WORTH_NS,
    Finding,
    Place,
    code,
    function_name,
    listed,
    place_of,
    run_ns,
    share_of,
    statement,
)
from gpuprof_widgets.analyses.findings.model import advice_on_step
from gpuprof_widgets.analyses.findings.slow_functions import advice_in_line, known_names
from gpuprof_widgets.analyses.findings.waits import remedy_of_line
from gpuprof_widgets.analyses.line_holders import Callee, Holder, holders, main_callee
from gpuprof_widgets.analyses.lines import (
    Line,
    cell_lines,
    inner_lines,
    lines,
    lines_beyond_limit,
    lines_within,
    op_times,
    outermost_op_times,
)
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.model import Record

WAITING = 0.5
"""Share of a line's time from which on it mostly waits, for work of another line."""
HALF = 0.5
"""Share of a line's time from which on an op alone says where it went."""
NAMED, NAMED_SHARE = 3, 0.1
"""How many ops of a line are named at most, and the least share of its time of each."""
GPU_WORK_SHARE = 0.1
"""Share of a line's time below which its GPU work is not worth mentioning."""


def costliest_line(record: Record, *, line_share: float = 0.2) -> list[Finding]:
    """Fires for the line with most self time, if that is a fifth of the run or more.

    A line that only calls is named as the caller of what holds most of its time: the deepest user
    function or module, and if that is a function, the one of a library that has most of its time. A
    function that has a quarter of the line's time is named beside the line. Not for the only line
    that ran, not for a line that waits for the DataLoader, for files or anything but the GPU, which
    other rules report, and not for the head of a block whose time is in the lines within it. For
    lines that ran more often than the recorder's limit it says what they took at least, or which
    line has the rest of their time. Up to three ops are named if ops took half of the line's time.

    Cost: the line's self time, or that of the function or module that is named.
    """
    table = lines(record)
    ran = table[table["wall_ns"] > 0]
    if len(ran) < 2:
        return []
    most = int(ran["self_ns"].argmax())
    top = ran.iloc[most].to_dict()
    share = share_of(top["self_ns"], run_ns(record))
    if share < line_share or top["self_ns"] < WORTH_NS or _loads(record, top):
        return []
    if _blocks(record, int(ran.index[most]), int(top["self_ns"])):
        return []
    if record.metadata.get("own_torch_profiler"):
        return []  # what later lines took is not in the record
    if not top["complete"]:
        return _beyond_limit(record, ran, top)
    return [_finding(record, ran, most)]


def other_lines(record: Record, *, other_line_share: float = 0.1) -> list[Finding]:
    """Fires for further lines with a function that has a tenth of the run and is slow by nature.

    Functions that are slow by nature are for instance ``list.count`` or ``copy.deepcopy``: the
    remedy says what to call instead. A function that makes the same tensors in each call counts
    too.

    Cost: the time of the function in the line.
    """
    table = lines(record)
    ran = table[table["wall_ns"] > 0]
    found = []
    for number, self_ns in enumerate(ran["self_ns"].to_numpy()):
        is_small = share_of(self_ns, run_ns(record)) < other_line_share or self_ns < WORTH_NS
        if is_small or number == int(ran["self_ns"].argmax()):
            continue
        top = ran.iloc[number].to_dict()
        if not top["complete"] or _mostly_waits(top) or _loads(record, top):
            continue
        if _blocks(record, int(ran.index[number]), int(self_ns)):
            continue
        holder, _ = holders(record, int(ran.index[number]))
        if holder is None or holder.function is None:
            continue
        finding = _finding(record, ran, number)
        if finding.remedy and finding.share >= other_line_share and finding.cost_ns >= WORTH_NS:
            share = "much" if holder.known else format_share(finding.share)
            title = f"{code(holder.name)} in line {top['line']} takes {share} of the time"
            found.append(replace(finding, title=title))
    return found


def _finding(record: Record, ran: pd.DataFrame, number: int) -> Finding:
    """Return what the line took, and what holds most or much of that.

    ``number``: among the lines that ``ran``.
    """
    top, share = ran.iloc[number].to_dict(), share_of(ran["self_ns"].iloc[number], run_ns(record))
    holder, beside = holders(record, int(ran.index[number]))
    function = holder if holder and holder.function else beside
    callee = main_callee(record, function) if function else None
    place = f"ine {top['line']}{_where(ran['cell'].nunique(), top)}{statement(top['code'])}"
    cost = int(top["self_ns"])
    if holder is None or holder.is_backward:
        took = f"L{place} took {format_share(share)} of the time ({format_ns(cost)}{_runs(top)})"
        text = f"{took}{_of_it(record, top, holder, beside, callee)}"
        title = _title(ran, top)
        if beside:
            title = f"Line {top['line']} takes the most time, much in {code(beside.name)}"
    else:
        subject = f"{'' if holder.function else 'Module '}{code(holder.name)}"
        also = _of_that(holder, beside, callee, cost)
        cost, share = holder.ns, share_of(holder.ns, run_ns(record))
        took = f"{subject} took {holder.known}{format_share(share)} of the time ({format_ns(cost)})"
        text = f"{took}, called by l{place}{_runs(top)}{also}"
        text += f".{_ops(record, top, ' The line spent {} of its time in', end='.')}"
        text += _device_of_line(top)
        title = f"{subject}, called by line {top['line']}, takes the most time"
    advice = advice_in_line(record, function, callee[0] if callee else None) if function else ""
    advice = advice or advice_on_step(record, _rows(record, top))
    remedy = remedy_of_line(record, _rows(record, top)) if _mostly_waits(top) else advice
    name = function.name if function else ""
    line = (str(top["cell"]), int(top["line"]))
    found = Finding(text, cost, share, remedy=remedy, **_place(record, top))
    return replace(found, title=title, function=name, line=line)


def _of_it(
    record: Record,
    top: dict[Any, Any],
    holder: Holder | None,
    beside: Holder | None,
    callee: Callee | None,
) -> str:
    """Say what much of the line's time was: a function, a backward pass, one run, ops or waits."""
    if beside:
        mostly = f" (mostly {code(known_names(callee[0])[0])})" if callee else ""
        share = f"{beside.known}{format_share(beside.ns / top['self_ns'])}"
        part = f"{share} of it ({format_ns(beside.ns)})"
        where = f", {part} in {code(beside.name)}{mostly}"
        ops = _ops(record, top, " Its ops spent {} of its time in", end=".")
        return f"{where}.{ops}{_device_of_line(top)}"
    if holder:
        return f", mostly in the backward pass of {code(holder.name)}{_device(top)}"
    return f"{_in_one_run(record, top) or _ops(record, top, ', {} of it in')}{_device(top)}"


def _of_that(holder: Holder, beside: Holder | None, callee: Callee | None, line_ns: int) -> str:
    """Say which function has much of a module's line, or most of a function's time."""
    if beside:
        share = format_share(beside.ns / line_ns)
        return f". {code(beside.name)} took {beside.known}{share} of the line's time"
    if callee:
        share = f"{callee[2]}{format_share(callee[1] / holder.ns)}"
        return f". {code(known_names(callee[0])[0])} took {share} of that time"
    return ""


def without_functions_in_line(record: Record, findings: list[Finding]) -> list[Finding]:
    """Return the findings; one on a function goes whose time is mostly that told of in a line.

    The finding on the line takes its remedy over, if it has none.
    """
    repeated = next((one for one in findings if one.rule == "python_time"), None)
    if repeated is None:
        return findings
    told = [one for one in findings if one.rule in ("lines", "other_lines") and one.line]
    told_ns = [_told_ns(record, line, repeated.function) for line in told]
    if 2 * sum(told_ns) < max(repeated.cost_ns, 1):
        return findings
    line = told[int(np.argmax(told_ns))]
    name, remedy = code(function_name(repeated.function)), repeated.remedy
    whole = replace(line, remedy=line.remedy or f"{name}: {remedy[:1].lower()}{remedy[1:]}")
    return [whole if each is line else each for each in findings if each is not repeated]


def _told_ns(record: Record, line: Finding, label: str) -> int:
    """Return how long (ns) a function was in a finding's line; 0 where the finding does not say.

    ``label``: the function, as in the table of functions.
    """
    table = lines(record)
    cell, number = line.line or ("", 0)
    is_it = ((table["cell"] == cell) & (table["line"] == number)).to_numpy(bool)
    if not is_it.any():
        return 0
    holder, beside = holders(record, int(is_it.argmax()))
    function = holder if holder and holder.function else beside
    if function is None or line.function != function.name:
        return 0
    if label == function.name:
        return function.ns
    callee = main_callee(record, function)
    if callee is None or code(known_names(callee[0])[0]) not in line.text:
        return 0
    return callee[1] if function_labels(callee[0])[0] == label else 0


def _title(ran: pd.DataFrame, top: dict[Any, Any]) -> str:
    source, where = statement(top["code"]), _where(ran["cell"].nunique(), top)
    return f"Line {top['line']}{where} takes the most time{':' if source else ''}{source}"


def _loads(record: Record, top: dict[Any, Any]) -> bool:
    """Whether most of the line's time is waiting for the DataLoader."""
    table = waits(record)
    table = table[table["kind"] == "dataloader"]
    around = line_of(record.trace)[table["row"]]
    loading = table["dur_ns"].to_numpy()[np.isin(around, _rows(record, top))]
    return bool(loading.sum() >= WAITING * top["self_ns"])


def _blocks(record: Record, line: int, self_ns: int) -> bool:
    """Whether a single wait takes most of the line's time."""
    table = blocked(record).table
    return bool((table["ns"][table["line"] == line] >= WAITING * self_ns).any())


def _beyond_limit(record: Record, ran: pd.DataFrame, top: dict[Any, Any]) -> list[Finding]:
    """Report a line beyond the recorder's limit of runs, or the head of a loop around such lines.

    For the line itself it says what it took at least; for the head of a loop, which lines' time it
    includes.
    """
    line = (top["cell"], top["line"])
    beyond = lines_beyond_limit(cell_lines(record.trace), record)
    if line in beyond:
        return [_at_least(record, ran, top, beyond)]
    within = sorted(inner for inner, around in beyond.items() if line in around)
    their, limit = "their" if within[1:] else "its", _limit(record)
    runs = format_count(limit, "run") if limit else "runs"
    self_ns = int(top["self_ns"])
    share = share_of(self_ns, run_ns(record))
    text = (
        f"Line {top['line']}{_where(ran['cell'].nunique(), top)}{statement(top['code'])} took "
        f"{format_share(share)} of the time ({format_ns(self_ns)}), including that of "
        f"l{_named(within)[1:]} after {their} first {runs}."
    )
    return [Finding(text, self_ns, share, title=_title(ran, top), **_place(record, top))]


def _at_least(
    record: Record, ran: pd.DataFrame, top: dict[Any, Any], beyond: dict[Line, set[Line]]
) -> Finding:
    """Report what a line beyond the limit took at least, with such lines within it."""
    line = (top["cell"], top["line"])
    within = inner_lines(cell_lines(record.trace), record.trace)
    group = sorted(lines_within(within, line, beyond))
    keys = pd.MultiIndex.from_frame(ran[["cell", "line"]])
    self_ns = int(ran["self_ns"][keys.isin(group)].sum())
    share, alone = min(share_of(self_ns, run_ns(record)), 1.0), len(group) == 1
    source, limit = statement(top["code"]) if alone else "", _limit(record)
    often = f"more than {limit:,} times" if limit else "more often than is recorded"
    text = (
        f"{_named(group)}{_where(ran['cell'].nunique(), top)}{source} took at least "
        f"{format_share(share)} of the time ({format_ns(self_ns)}). "
        f"{'It' if alone else 'They'} ran {often}."
    )
    head = min(beyond[line], default=None)
    if head is not None:
        (head_ns,) = ran["self_ns"][keys == head].astype(int)
        text += (
            f" Beyond that, {'its' if alone else 'their'} time counts for line {head[1]} "
            f"({format_share(share_of(head_ns, run_ns(record)))} of the time, "
            f"{format_ns(head_ns)})."
        )
    title = f"Line {top['line']} and lines within it take the most time"
    title = _title(ran, top) if alone else title
    return Finding(text, self_ns, share, title=title, **_place(record, top))


def _named(numbered: list[Line]) -> str:
    """Return ``Line 3``, or ``Lines 3, 4 and 5``."""
    return f"Line{'s' if numbered[1:] else ''} {listed([str(line) for _, line in numbered])}"


def _limit(record: Record) -> int:
    """Return how many runs of a line are recorded, 0 where the file does not say."""
    return int(record.metadata["lines"].get("limit", 0))


def _where(cells: int, top: dict[Any, Any]) -> str:
    return f" of {top['cell']}" if cells > 1 else ""


def _runs(top: dict[Any, Any]) -> str:
    calls = int(top["calls"])
    return f" in {format_count(calls, 'run')}" if calls > 1 else ""


def _in_one_run(record: Record, top: dict[Any, Any]) -> str:
    """Say that one of three or more runs took half of the time, and whether it was the first."""
    rows = _rows(record, top)
    spent = record.trace.index.dur[rows]
    longest = int(spent.argmax())
    if top["calls"] < 3 or 2 * spent[longest] < top["self_ns"] or spent[longest] > top["self_ns"]:
        return ""
    which = "the first" if longest == 0 else "one of them"
    return f", {format_ns(int(spent[longest]))} of it in {which}"


def _ops(record: Record, top: dict[Any, Any], words: str, end: str = "") -> str:
    """Name the line's largest ops by self time, where ops and no waiting take most of its time.

    Where none of them has half of it, but an op that calls others does, that one is named; not one
    in which lines ran, whose time is their own.

    ``words``: what comes before the first, with room for its share; ``end``: what comes after the
    last. Ops of several threads at once have no share of the line's time.
    """
    self_ns = int(top["self_ns"])
    if _mostly_waits(top) or not self_ns / 2 <= top["cpu_self_ns"] <= self_ns:
        return ""
    line = (top["cell"], top["line"])
    took = op_times(record, line).nlargest(NAMED)
    if took.max() < HALF * self_ns:  # an op of ops, as `aten::scaled_dot_product_attention`
        outermost = outermost_op_times(record, line).nlargest(1)
        took = outermost if HALF * self_ns <= outermost.max() <= self_ns else took
    took = took[took >= NAMED_SHARE * self_ns]
    named = [
        f"{(' {} in' if number else words).format(format_share(ns / self_ns))} {code(str(name))}"
        for number, (name, ns) in enumerate(took.items())
    ]
    return ",".join(named) + (end if named else "")


def _device(top: dict[Any, Any]) -> str:
    """Say how long the line waited for the GPU, or how long its GPU work took."""
    device, self_ns = int(top["device_ns"]), int(top["self_ns"])
    if _mostly_waits(top):
        return f", {format_ns(int(top['wait_ns']))} of it waiting for the GPU."
    much = device >= GPU_WORK_SHARE * self_ns
    return f". Its GPU work took {format_ns(device)}." if much else "."


def _device_of_line(top: dict[Any, Any]) -> str:
    """Say the same where the sentence is about a function or module that the line called."""
    device, self_ns = int(top["device_ns"]), int(top["self_ns"])
    if _mostly_waits(top):
        return f" The line waited {format_ns(int(top['wait_ns']))} for the GPU."
    if device < GPU_WORK_SHARE * self_ns:
        return ""
    return f" The GPU work of the line took {format_ns(device)}."


def _mostly_waits(top: dict[Any, Any]) -> bool:
    return bool(top["wait_ns"] >= WAITING * top["self_ns"])


def _place(record: Record, top: dict[Any, Any]) -> Place:
    """Return all executions of the line, and the range of the longest."""
    rows = _rows(record, top)
    return {**place_of(record.trace, rows), "rows": tuple(rows.tolist())}


def _rows(record: Record, top: dict[Any, Any]) -> Rows:
    """Return the slices that are executions of the line."""
    cell = cell_lines(record.trace)
    of_line = cell.lines["cell"].eq(top["cell"]) & cell.lines["line"].eq(top["line"])
    return cell.row[of_line.to_numpy(bool)[cell.of_slice[cell.row]]]
