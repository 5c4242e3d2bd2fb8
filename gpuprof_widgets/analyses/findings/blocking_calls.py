"""A function of the user's stands still for something other than the GPU: whose wait, for what."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gpuprof_widgets.analyses import blocking_names as kinds
from gpuprof_widgets.analyses.blocking import blocked
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.python_time import NEARLY, python_ns
from gpuprof_widgets.analyses.findings.wording import (
    code,
    function_name,
    run_ns,
    share_of,
    statement,
)
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.user_code import is_cell
from gpuprof_widgets.analyses.whole_run import is_beyond_the_range
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED

WORTH_READING_NS = 1_000_000  # below it nobody waits, whatever the share
MOST = 2  # findings

WAITED_FOR = {
    kinds.TIMER: "a timer",
    kinds.NETWORK: "the network",
    kinds.PROCESS: "another process",
    kinds.THREAD: "another thread",
    kinds.INPUT: "input from the user",
    kinds.PIPE: "a pipe or a socket",
}
REMEDIES = {
    kinds.TIMER: "Wait for the event itself instead of a fixed time, or do other work meanwhile.",
    kinds.NETWORK: "Ask once for more, keep the connection open, or ask ahead in another thread.",
    kinds.PROCESS: "Do other work while it runs and wait for it at the end, start it once and keep "
    "it, or share its work out among more processes.",
    kinds.THREAD: "Look at what that thread does meanwhile: run it in the cell itself to see its "
    "ops and its Python.",
    kinds.INPUT: "Ask before what is timed.",
    kinds.PIPE: "Look at what is at its other end, or do other work meanwhile.",
}


def blocking_calls(record: Record, *, blocking_share: float = 0.1) -> list[Finding]:
    """At most two: functions of the user's that waited for 10 % of the run and 1 ms or more.

    Waits of the run's own thread; those for the GPU, for a DataLoader, in ``await`` and for files
    have findings of their own.

    ``blocking_share``: In calls that wait for a timer, the network, another process or thread.
    """
    found = waits_of_the_run(record)
    found = found[found["kind"].isin(list(WAITED_FOR))]
    return [
        finding_of(
            record, row, "waited", f"for {WAITED_FOR[row['kind']]}",
            REMEDIES[row["kind"]],
        )
        for row in worth_telling(record, found, blocking_share)
    ]  # fmt: skip


def waits_of_the_run(record: Record) -> pd.DataFrame:
    """The table of `blocked`, empty of a range of time where cProfile counted them all."""
    found = blocked(record).table
    return found.iloc[:0] if is_beyond_the_range(record, python_time(record)) else found


def worth_telling(record: Record, found: pd.DataFrame, share: float) -> list[dict[Any, Any]]:
    """The longest, of 1 ms and that share of the run or more."""
    least = max(share * _whole(record)[0], WORTH_READING_NS)
    return found[found["ns"] >= least].head(MOST).to_dict("records")


def _whole(record: Record) -> tuple[int, str]:
    """What the shares are of: the run's time, or Python's where no trace is of that run."""
    run, longest = run_ns(record), int(blocked(record).table["ns"].to_numpy().max(initial=0))
    if longest <= run * (1 + NEARLY):
        return run, "of the time"
    return python_ns(record), "of the Python time"


def finding_of(record: Record, row: dict[Any, Any], verb: str, what: str, remedy: str) -> Finding:
    """Who did that, for how long, by calling what and on which line."""
    ns, called = int(row["ns"]), function_name(row["called"])
    whole, words = _whole(record)
    share = min(share_of(ns, whole), 1.0)
    calls = "" if record.metadata.get(SAMPLED) else f"{format_count(row['calls'], 'call')} of "
    text = (
        f"{_who(row)} {verb} {format_ns(ns)} ({format_share(share)} {words}) {what}: "
        f"{calls}{code(called)}{_on_line(record, row)}."
    )
    return Finding(text, ns, share, remedy=remedy, **_longest(record, row))


def _who(row: dict[Any, Any]) -> str:
    """The user's function; the cell where it was in none; the call itself where nobody is known."""
    owner = str(row["owner"])
    if not owner:
        return "The run"
    return "The cell" if _is_body(owner) else code(owner)


def _is_body(owner: str) -> bool:
    return is_cell(owner) and owner.endswith("(<module>)")


def _on_line(record: Record, row: dict[Any, Any]) -> str:
    if row["line"] < 0:
        return ""
    line = lines(record).iloc[int(row["line"])]
    by = "on" if is_cell(str(row["owner"])) else "called from"
    return f", {by} line {line['line']} {statement(str(line['code']))}"


def _longest(record: Record, row: dict[Any, Any]) -> dict[str, Any]:
    """The longest wait, as the arguments of a `Finding`, where frames were recorded."""
    at = int(row["row"])
    if at < 0:
        return {}
    start, dur = (int(record.trace.slices[column].iloc[at]) for column in ("ts", "dur"))
    return {"start_ns": start, "end_ns": start + dur, "rows": (at,)}
