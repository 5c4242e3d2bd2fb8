"""Finding on the cell's costliest line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.blocking import blocked
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import (
    WORTH_NS,
    Finding,
    Place,
    code,
    function_name,
    longest_slice,
    run_ns,
    share_of,
    slice_range,
    statement,
)
from gpuprof_widgets.analyses.findings.slow_functions import advice_on
from gpuprof_widgets.analyses.line_holders import Holder, holder, main_callee
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
from gpuprof_widgets.analyses.python_calls import calls_modules, function_labels
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace.model import Record

WAITING = 0.5
"""Share of a line's time from which on it mostly waits, for work of another line."""
WAITED_FOR = "What it waits for was launched before: see the lines with much GPU time."
HALF = 0.5
"""Share of a line's time from which on an op alone says where it went."""
NAMED, NAMED_SHARE = 3, 0.1
"""How many ops of a line are named at most, and the least share of its time of each."""
GPU_WORK_SHARE = 0.1
"""Share of a line's time below which its GPU work is not worth mentioning."""
MAKES_TENSORS = re.compile(
    r"^<built-in method torch\.(arange|eye|full|linspace|logspace|ones|zeros)>"
)
"""Functions that make the same tensor whenever their arguments are the same."""
AGAIN = 3
"""Calls from which on making tensors anew is worth mentioning."""
MADE_ANEW = (
    "{function} makes tensors anew with {made_with} in each call: where they are always the same, "
    "make them once (in `__init__`, with `register_buffer`)."
)


def costliest_line(record: Record, *, line_share: float = 0.2) -> list[Finding]:
    """Fires for the line with most self time, where that is a fifth of the run or more.

    A line that only calls is named as the caller of what holds most of its time: the deepest user
    function or module. A function that has a quarter of its time is named beside the line. Not for
    the only line that ran, not for a line that waits for the DataLoader, for files or anything but
    the GPU, which other rules report, and not for the head of a block whose time is in the lines
    within it. For lines that ran more often than the recorder's limit it says what they took at
    least, or which line has the rest of their time. Up to three ops are named where ops took half
    of the line's time.

    ``line_share``: The costliest line's own time.
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
    if not top["complete"]:
        return _beyond_limit(record, ran, top)
    place = f"ine {top['line']}{_where(ran['cell'].nunique(), top)}{statement(top['code'])}"
    cost = int(top["self_ns"])
    held_by = holder(record, int(ran.index[most]))
    title = _title(ran, top)
    if held_by is None or held_by.is_backward or not held_by.has_most:
        took = f"took {format_share(share)} of the time ({format_ns(cost)}{_runs(top)})"
        where = _held(record, held_by, cost) or _in_one_run(record, top)
        if held_by and not held_by.has_most:
            where += _ops(record, top, "; by ops, {} in")
        where = where or _ops(record, top, ", {} of it in")
        text = f"L{place} {took}{where}{_device(top)}."
        if held_by and not held_by.has_most:
            title = f"Line {top['line']} takes the most time, much in {code(held_by.name)}"
    else:
        cost, share = held_by.ns, share_of(held_by.ns, run_ns(record))
        subject = f"{'Module ' if held_by.is_module else ''}{code(held_by.name)}"
        took = f"took {format_share(share)} of the time ({format_ns(cost)})"
        text = f"{subject} {took}, called by l{place}{_runs(top)}{_callee(record, held_by)}"
        text += f"{_ops(record, top, '; the line spent {} in')}{_device_of_line(top)}."
        title = f"{subject}, called by line {top['line']}, takes the most time"
    remedy = WAITED_FOR if _mostly_waits(top) else _advice(record, held_by)
    function = "" if held_by is None or held_by.is_module else held_by.name
    evidence = _place(record, top)
    return [Finding(text, cost, share, remedy=remedy, title=title, function=function, **evidence)]


def _held(record: Record, holder: Holder | None, self_ns: int) -> str:
    """Say in what much of the line's time was, or most of it in a backward pass."""
    if holder is None:
        return ""
    if holder.is_backward:
        return f", mostly in the backward pass of {code(holder.name)}"
    found = main_callee(record, holder)
    mostly = f" (mostly {_name(found[0])})" if found else ""
    return f", {format_share(holder.ns / self_ns)} of it in {code(holder.name)}{mostly}"


def _callee(record: Record, holder: Holder) -> str:
    """Say which function the holder called for most of its time."""
    found = main_callee(record, holder)
    return f"; {_name(found[0])} has {format_share(found[1])} of that" if found else ""


def _name(function: pd.DataFrame) -> str:
    return code(function_name(function_labels(function)[0]))


def _advice(record: Record, holder: Holder | None) -> str:
    """Return what to do about the function that holds the line's time, or about its callee."""
    if holder is None or holder.is_module:
        return ""
    found = main_callee(record, holder)
    return (advice_on(found[0])[0] if found else "") or _made_anew(record, holder)


def _made_anew(record: Record, holder: Holder) -> str:
    """Return what to do where a function below others is called again and again and makes tensors.

    It calls functions that make the same tensor of the same arguments, and no modules, as a step
    of a training would.
    """
    calls = record.calls
    if calls is None:
        return ""
    functions = calls.functions
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    is_it = np.array([label == holder.name for label in function_labels(functions)], bool)
    names = functions["name"].astype(str)
    is_below = not (names.iloc[caller[is_it[callee]]] == "<module>").any()
    is_step = calls_modules(functions)[callee[is_it[caller]]].any()
    if functions["calls"].to_numpy()[is_it].sum() < AGAIN or is_step or not is_below:
        return ""
    made = names.str.extract(MAKES_TENSORS, expand=False).iloc[callee[is_it[caller]]].dropna()
    if made.empty:
        return ""
    made_with = " and ".join(code(f"torch.{name}") for name in sorted(set(made))[:2])
    return MADE_ANEW.format(function=code(holder.name), made_with=made_with)


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
    their = "their" if within[1:] else "its"
    self_ns = int(top["self_ns"])
    share = share_of(self_ns, run_ns(record))
    text = (
        f"Line {top['line']}{_where(ran['cell'].nunique(), top)}{statement(top['code'])} took "
        f"{format_share(share)} of the time ({format_ns(self_ns)}), including that of "
        f"l{_named(within)[1:]} after {their} first {_runs_kept(record)}."
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
    share = min(share_of(self_ns, run_ns(record)), 1.0)
    source = statement(top["code"]) if len(group) == 1 else ""
    head = min(beyond[line], default=None)
    rest = ""
    if head is not None:
        of_head = ran[keys == head].iloc[0].to_dict()
        rest = f", and {_counts_for(record, of_head, len(group))}"
    text = (
        f"{_named(group)}{_where(ran['cell'].nunique(), top)}{source} took at least "
        f"{format_share(share)} of the time ({format_ns(self_ns)}): "
        f"{'they' if group[1:] else 'it'} ran {_more_often(record)}{rest}."
    )
    alone = len(group) == 1
    title = (
        _title(ran, top) if alone else f"Line {top['line']} and lines within it take the most time"
    )
    return Finding(text, self_ns, share, title=title, **_place(record, top))


def _named(numbered: list[Line]) -> str:
    """Return ``Line 3``, or ``Lines 3, 4 and 5``."""
    numbers = [str(line) for _, line in numbered]
    return (
        f"Lines {', '.join(numbers[:-1])} and {numbers[-1]}"
        if numbers[1:]
        else f"Line {numbers[0]}"
    )


def _counts_for(record: Record, head: dict[Any, Any], lines_beyond: int) -> str:
    self_ns = int(head["self_ns"])
    return (
        f"beyond that {'their' if lines_beyond > 1 else 'its'} time counts for line {head['line']} "
        f"({format_share(share_of(self_ns, run_ns(record)))} of the time, {format_ns(self_ns)})"
    )


def _runs_kept(record: Record) -> str:
    """Return ``10,000 runs``, ``runs`` where the file does not say how many."""
    return format_count(limit, "run") if (limit := _limit(record)) else "runs"


def _more_often(record: Record) -> str:
    """Return ``more than 10,000 times``, in other words where the file does not say how many."""
    return (
        f"more than {limit:,} times" if (limit := _limit(record)) else "more often than is recorded"
    )


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
    spent = record.trace.slices["dur"].to_numpy()[rows]
    longest = int(spent.argmax())
    if top["calls"] < 3 or 2 * spent[longest] < top["self_ns"] or spent[longest] > top["self_ns"]:
        return ""
    which = "the first" if longest == 0 else "one of them"
    return f", {format_ns(int(spent[longest]))} of it in {which}"


def _ops(record: Record, top: dict[Any, Any], words: str) -> str:
    """Name the line's largest ops by self time, where ops and no waiting take most of its time.

    Where none of them has half of it, but an op that calls others does, that one is named.

    ``words``: what comes before the first, with room for its share. Ops of several threads at once
    have no share of the line's time.
    """
    self_ns = int(top["self_ns"])
    if _mostly_waits(top) or not self_ns / 2 <= top["cpu_self_ns"] <= self_ns:
        return ""
    line = (top["cell"], top["line"])
    took = op_times(record, line).nlargest(NAMED)
    if took.max() < HALF * self_ns:  # an op of ops, as `aten::scaled_dot_product_attention`
        outermost = outermost_op_times(record, line).nlargest(1)
        took = outermost if outermost.max() >= HALF * self_ns else took
    took = took[took >= NAMED_SHARE * self_ns]
    named = [
        f"{(' {} in' if number else words).format(format_share(ns / self_ns))} {code(str(name))}"
        for number, (name, ns) in enumerate(took.items())
    ]
    return ",".join(named)


def _device(top: dict[Any, Any]) -> str:
    """Say how long the line waited for the GPU, or how long its GPU work took."""
    device, self_ns = int(top["device_ns"]), int(top["self_ns"])
    if _mostly_waits(top):
        return f", {format_ns(int(top['wait_ns']))} of it waiting for the GPU"
    return f"; its GPU work took {format_ns(device)}" if device >= GPU_WORK_SHARE * self_ns else ""


def _device_of_line(top: dict[Any, Any]) -> str:
    """Say the same where the sentence is about a function or module that the line called."""
    device, self_ns = int(top["device_ns"]), int(top["self_ns"])
    if _mostly_waits(top):
        return f"; the line waited {format_ns(int(top['wait_ns']))} for the GPU"
    if device < GPU_WORK_SHARE * self_ns:
        return ""
    return f"; the GPU work of the line took {format_ns(device)}"


def _mostly_waits(top: dict[Any, Any]) -> bool:
    return bool(top["wait_ns"] >= WAITING * top["self_ns"])


def _place(record: Record, top: dict[Any, Any]) -> Place:
    """Return all executions of the line, and the range of the longest."""
    rows = _rows(record, top)
    start, end = slice_range(record.trace, longest_slice(record.trace, rows))
    return Place(start_ns=start, end_ns=end, rows=tuple(rows.tolist()))


def _rows(record: Record, top: dict[Any, Any]) -> npt.NDArray[np.intp]:
    """Return the slices that are executions of the line."""
    cell = cell_lines(record.trace)
    of_line = cell.lines["cell"].eq(top["cell"]) & cell.lines["line"].eq(top["line"])
    return cell.row[of_line.to_numpy(bool)[cell.of_slice[cell.row]]]
