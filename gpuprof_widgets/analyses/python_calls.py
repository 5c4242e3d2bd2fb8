"""cProfile's table: what each Python function cost."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.lacking import CALLS, not_recorded, says_if_empty
from gpuprof_widgets.analyses.thread_waits import python_lanes
from gpuprof_widgets.analyses.whole_run import NO_TIMES, of_the_whole_run
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED

COLUMNS = (
    "file",
    "line",
    "name",
    "calls",
    "primitive_calls",
    "self_ns",
    "self_per_call_ns",
    "total_ns",
    "total_per_call_ns",
)


def _why_none(record: Record) -> str:
    if len(python_lanes(record)):
        if record.metadata.get(SAMPLED):
            return "samples count no calls: `python_time` has the functions and their times"
        return "the record has no calls of cProfile: `python_time` counts those of its frames"
    return not_recorded(record, CALLS)


@says_if_empty(_why_none)
def python_calls(record: Record) -> pd.DataFrame:
    """One row per Python function, the largest self time first; empty without cProfile.

    Columns: ``file``, ``line``, ``name``, ``calls`` (all), ``primitive_calls`` (not recursive),
    ``self_ns`` (cProfile's tottime), ``self_per_call_ns`` (by ``calls``), ``total_ns`` (its
    cumtime), ``total_per_call_ns`` (by ``primitive_calls``, as pstats divides). A window does not
    cut it (``attrs["whole"]`` says why).
    """
    if record.calls is None:
        return pd.DataFrame(columns=list(COLUMNS))
    table = record.calls.functions
    table = table.assign(
        self_per_call_ns=table["self_ns"] / table["calls"].clip(lower=1),
        total_per_call_ns=table["total_ns"] / table["primitive_calls"].clip(lower=1),
    )[list(COLUMNS)]
    table = table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    return of_the_whole_run(table, NO_TIMES)


def python_edges(record: Record) -> pd.DataFrame:
    """One row per pair of caller and callee, the largest total first; empty without cProfile.

    Columns: ``caller``, ``callee`` (as ``file:line(name)``), ``calls``, ``primitive_calls``,
    ``self_ns``, ``total_ns``: the callee's time on behalf of that caller.
    """
    columns = ["caller", "callee", "calls", "primitive_calls", "self_ns", "total_ns"]
    if record.calls is None:
        return pd.DataFrame(columns=columns)
    label = function_labels(record.calls.functions)
    edges = record.calls.edges
    table = edges.assign(
        caller=[label[row] for row in edges["caller"]],
        callee=[label[row] for row in edges["callee"]],
    )[columns]
    table = table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    return of_the_whole_run(table, NO_TIMES)


def function_labels(functions: pd.DataFrame) -> list[str]:
    """``train.py:12(step)``; built-in functions (cProfile's file ``~``) by their name alone."""
    places = zip(functions["file"], functions["line"], functions["name"], strict=True)
    return [
        str(name)
        if file == "~"
        else f"{str(file).replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}({name})"
        for file, line, name in places
    ]
