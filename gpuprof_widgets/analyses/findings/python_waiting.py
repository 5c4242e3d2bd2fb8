"""A Python function that a Python profiler blames, although it mostly waits for the GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.python_time import PYTHON_SHARE, python_ns, share_in_words
from gpuprof_widgets.analyses.findings.wording import code, function_name
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.quantity import format_ns
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.analyses.whole_run import is_beyond_the_range
from gpuprof_widgets.trace.model import Record

WORTH_READING_NS = 1_000_000  # below it nobody waits, whatever the share
MOST = 2  # findings

REMEDY = (
    "Making this function faster gains nothing: shorten the GPU's work before it, or read its "
    "result later."
)


def python_waiting(
    record: Record, *, python_waiting_share: float = 0.5, python_share: float = PYTHON_SHARE
) -> list[Finding]:
    """At most two: functions with 10 % of the Python time, most of which they waited.

    ``python_waiting_share``: Of a function's own time: from here on it mostly waits for the GPU.

    The other threshold is that of `python_time`.
    """
    table = python_time(record)
    if not len(table) or is_beyond_the_range(record, table):
        return []
    whole = python_ns(record)
    high = table["self_ns"] >= max(python_share * whole, WORTH_READING_NS)
    mostly = table["self_waiting_ns"] >= python_waiting_share * table["self_ns"]
    found = table[high & mostly].sort_values("self_waiting_ns", ascending=False, kind="stable")
    return [_finding(record, row) for row in found.head(MOST).to_dict("records")]


def _finding(record: Record, row: dict[Any, Any]) -> Finding:
    label = function_labels(pd.DataFrame([row]))[0]
    waited, own = int(row["self_waiting_ns"]), int(row["self_ns"])
    share, words = share_in_words(record, waited)
    _, of_all = share_in_words(record, own)
    estimated = "" if row["exact"] else "an estimated "
    text = (
        f"{code(function_name(label))} took {format_ns(own)} "
        f"({of_all}): {estimated}{format_ns(waited)} of it ({words}) was waiting for the GPU"
        f"{_mostly_for(record, row)}."
    )
    return Finding(text, waited, share, remedy=REMEDY, **_longest(record, row["waited_for"]))


def _mostly_for(record: Record, row: dict[Any, Any]) -> str:
    if not row["waited_for"]:
        return ""
    by = f", launched by {code(row['launched_by'])}" if row["launched_by"] else ""
    at = _place(record, row["launched_at"])
    launched = by or (", launched" if at else "")
    return f", mostly for {code(row['waited_for'])}{launched}{at}"


def _place(record: Record, launched_at: str) -> str:
    """A line of the profiled cell by its number, of others with their name."""
    cell, _, line = launched_at.rpartition(":")
    if not line:
        return ""
    own = f"Cell [{record.metadata.get('execution_count')}]"
    return f" at line {line}" if cell == own else f" at {launched_at}"


def _longest(record: Record, waited_for: str) -> dict[str, Any]:
    """The longest wait for work of this name, as the arguments of a `Finding`."""
    table = waits(record)
    table = table[(table["gpu_name"] == waited_for) | (table["copy_name"] == waited_for)]
    if not waited_for or not len(table):
        return {}
    start, dur, row = (int(table[key].iloc[0]) for key in ("start_ns", "dur_ns", "row"))
    return {"start_ns": start, "end_ns": start + dur, "rows": (row,)}
