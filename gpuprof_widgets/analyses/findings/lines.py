"""Which line of the cell took the time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.blocking import blocked
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of, statement
from gpuprof_widgets.analyses.line_holders import holder
from gpuprof_widgets.analyses.line_owners import line_of
from gpuprof_widgets.analyses.lines import Line, cell_lines, lines, lines_beyond_limit, lines_within
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace.model import Record

WORTH_NS = 1_000_000  # nobody waits for less
WAITING = 0.5  # of the line's time: what it waits for is another line's work
WAITED_FOR = "What it waits for was launched before: see the lines with much GPU time."
OWN_WORK = 0.1  # of the line's time: GPU work below it says nothing of the line


def costliest_line(record: Record, *, line_share: float = 0.2) -> list[Finding]:
    """Fires for the line with most time of its own, where that is a fifth of the run or more.

    A line that only calls is named as the caller of what holds most of its time: the deepest
    function of the user's, or module. Not for the only line that ran, not for one that waits for
    the DataLoader, for files or anything but the GPU, which has a finding of its own, and not for a
    head whose time is in the lines within it. Of lines that ran more often than is recorded it says
    what they took at least, or where the rest of it counts.

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
    if _stands_still(record, int(ran.index[most]), int(top["self_ns"])):
        return []
    if not top["complete"]:
        return _beyond_limit(record, ran, top)
    place = f"ine {top['line']}{_where(ran['cell'].nunique(), top)} {statement(top['code'])}"
    cost = int(top["self_ns"])
    deepest = holder(record, int(ran.index[most]))
    if deepest is None or deepest.is_backward:
        took = f"took {format_share(share)} of the time ({format_ns(cost)}{_runs(top)})"
        mostly = f", mostly in the backward pass of {code(deepest.name)}" if deepest else ""
        text = f"L{place} {took}{mostly or _in_one_run(record, top)}{_device(top)}."
    else:
        cost, share = deepest.ns, share_of(deepest.ns, run_ns(record))
        what = f"{'Module ' if deepest.is_module else ''}{code(deepest.name)}"
        took = f"took {format_share(share)} of the time ({format_ns(cost)})"
        text = f"{what} {took}, called by l{place}{_runs(top)}{_device_of_line(top)}."
    remedy = WAITED_FOR if _mostly_waits(top) else ""
    return [Finding(text, cost, share, remedy=remedy, **_place(record, top))]


def _loads(record: Record, top: dict[Any, Any]) -> bool:
    """Whether most of the line's time is waiting for the DataLoader."""
    table = waits(record)
    table = table[table["kind"] == "dataloader"]
    around = line_of(record.trace)[table["row"]]
    loading = table["dur_ns"].to_numpy()[np.isin(around, _rows(record, top))]
    return bool(loading.sum() >= WAITING * top["self_ns"])


def _stands_still(record: Record, line: int, own_ns: int) -> bool:
    """Whether one wait of a function takes most of the line's time."""
    table = blocked(record).table
    return bool((table["ns"][table["line"] == line] >= WAITING * own_ns).any())


def _beyond_limit(record: Record, ran: pd.DataFrame, top: dict[Any, Any]) -> list[Finding]:
    """Says what can be said where lines ran more often than is recorded.

    What such a line took at least, or else of which lines the head of a loop has the time; nothing
    where no line is around them.
    """
    line = (top["cell"], top["line"])
    beyond = lines_beyond_limit(cell_lines(record.trace), record)
    if line in beyond:
        return [_at_least(record, ran, top, beyond)]
    within = sorted(inner for inner, around in beyond.items() if line in around)
    own = int(top["self_ns"])
    share = share_of(own, run_ns(record))
    text = (
        f"Line {top['line']}{_where(ran['cell'].nunique(), top)} {statement(top['code'])} took "
        f"{format_share(share)} of the time ({format_ns(own)}), that of l{_named(within)[1:]} "
        f"after {'their' if within[1:] else 'its'} first {_limit(record):,} runs included."
    )
    return [Finding(text, own, share, **_place(record, top))]


def _at_least(
    record: Record, ran: pd.DataFrame, top: dict[Any, Any], beyond: dict[Line, set[Line]]
) -> Finding:
    """What a line took that ran too often, with those within it that did: theirs is in its time."""
    line = (top["cell"], top["line"])
    group = sorted(lines_within(cell_lines(record.trace), record.trace, line, set(beyond)))
    keys = pd.MultiIndex.from_frame(ran[["cell", "line"]])
    own = int(ran["self_ns"][keys.isin(group)].sum())
    share = min(share_of(own, run_ns(record)), 1.0)
    source = f" {statement(top['code'])}" if len(group) == 1 else ""
    head = min(beyond[line], default=None)
    rest = ""
    if head is not None:
        of_head = ran[keys == head].iloc[0].to_dict()
        rest = f", and {_counts_for(record, of_head, len(group))}"
    text = (
        f"{_named(group)}{_where(ran['cell'].nunique(), top)}{source} took at least "
        f"{format_share(share)} of the time ({format_ns(own)}): {'they' if group[1:] else 'it'} "
        f"ran more than {_limit(record):,} times{rest}."
    )
    return Finding(text, own, share, **_place(record, top))


def _named(found: list[Line]) -> str:
    """``Line 3``, ``Lines 3, 4 and 5``."""
    numbers = [str(line) for _, line in found]
    return (
        f"Lines {', '.join(numbers[:-1])} and {numbers[-1]}"
        if numbers[1:]
        else f"Line {numbers[0]}"
    )


def _counts_for(record: Record, head: dict[Any, Any], lines_beyond: int) -> str:
    own = int(head["self_ns"])
    return (
        f"beyond that {'their' if lines_beyond > 1 else 'its'} time counts for line {head['line']} "
        f"({format_share(share_of(own, run_ns(record)))} of the time, {format_ns(own)})"
    )


def _limit(record: Record) -> int:
    return int(record.metadata["lines"]["limit"])


def _where(cells: int, top: dict[Any, Any]) -> str:
    return f" of {top['cell']}" if cells > 1 else ""


def _runs(top: dict[Any, Any]) -> str:
    calls = int(top["calls"])
    return f" in {format_count(calls, 'run')}" if calls > 1 else ""


def _in_one_run(record: Record, top: dict[Any, Any]) -> str:
    """That half of the time or more is in one of three runs or more, and whether in the first."""
    rows = _rows(record, top)
    spent = record.trace.slices["dur"].to_numpy()[rows]
    longest = int(spent.argmax())
    if top["calls"] < 3 or 2 * spent[longest] < top["self_ns"] or spent[longest] > top["self_ns"]:
        return ""
    which = "the first" if longest == 0 else "one of them"
    return f", {format_ns(int(spent[longest]))} of it in {which}"


def _device(top: dict[Any, Any]) -> str:
    """What the GPU did for the line, and whether the line stood still meanwhile."""
    device, own = int(top["device_ns"]), int(top["self_ns"])
    if _mostly_waits(top):
        return f", {format_ns(int(top['wait_ns']))} of it waiting for the GPU"
    return f"; its GPU work took {format_ns(device)}" if device >= OWN_WORK * own else ""


def _device_of_line(top: dict[Any, Any]) -> str:
    """The same where the sentence is on something that the line called."""
    device, own = int(top["device_ns"]), int(top["self_ns"])
    if _mostly_waits(top):
        return f"; the line waited {format_ns(int(top['wait_ns']))} for the GPU"
    return (
        f"; the GPU work of the line took {format_ns(device)}" if device >= OWN_WORK * own else ""
    )


def _mostly_waits(top: dict[Any, Any]) -> bool:
    return bool(top["wait_ns"] >= WAITING * top["self_ns"])


def _place(record: Record, top: dict[Any, Any]) -> dict[str, Any]:
    """All executions of the line; the range is that of the longest."""
    rows = _rows(record, top)
    ts, dur = (record.trace.slices[column].to_numpy()[rows] for column in ("ts", "dur"))
    longest = int(dur.argmax())
    start = int(ts[longest])
    return {"start_ns": start, "end_ns": start + int(dur[longest]), "rows": tuple(rows.tolist())}


def _rows(record: Record, top: dict[Any, Any]) -> npt.NDArray[np.intp]:
    """The slices that are executions of the line."""
    known = cell_lines(record.trace)
    of_line = known.lines["cell"].eq(top["cell"]) & known.lines["line"].eq(top["line"])
    return known.row[of_line.to_numpy(bool)[known.of_slice[known.row]]]
