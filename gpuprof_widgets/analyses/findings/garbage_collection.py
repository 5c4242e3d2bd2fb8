"""Python's garbage collector took a good part of the run.

cProfile and torch count that as time of whatever ran when it started; the recorder listens to the
collector itself (``gc`` in the metadata).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.python_time import PYTHON_SHARE
from gpuprof_widgets.analyses.findings.wording import (
    OF_THE_CELL,
    code,
    function_name,
    run_ns,
    share_of,
)
from gpuprof_widgets.analyses.iterations import calls_per_traced_step
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.python_frames import BUILT_IN
from gpuprof_widgets.trace.schema import WINDOW

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
