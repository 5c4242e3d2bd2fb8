"""Every analysis on every real trace: it answers, or says what the trace lacks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from gpuprof_widgets.analyses import ANALYSES, Analysis, plain_analyses
from gpuprof_widgets.analyses.operators import op_rows
from gpuprof_widgets.analyses.reasons import SNAPSHOT, why_empty
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.memory_history import SNAPSHOT_PROCESS
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.traces import Row, op, trace_of

QUOTIENTS = re.compile(r"(^|_)(average|mean|median|std|spread|p\d+)_|per_")
"""Columns of times and sizes that are quotients need not be whole numbers."""

ADDITIVE: dict[str, Callable[[Record], float]] = {
    "device_busy": lambda record: ANALYSES["device_busy"].function(record)["busy_ns"].sum(),
    "kernels": lambda record: ANALYSES["kernels"].function(record)["total_ns"].sum(),
    "operators on the GPU": lambda record: (
        ANALYSES["operators"].function(record)["device_self_ns"].sum()
    ),
    "overlaps": lambda record: _whole(record, "overlaps", "compute_ns"),
    "breakdown": lambda record: _whole(record, "breakdown", "time_ns"),
    "critical_path": lambda record: ANALYSES["critical_path"].function(record)["dur_ns"].sum(),
}
"""What the parts of a run must add up to, when windows tile it."""


def _whole(record: Record, name: str, column: str) -> int:
    """Of the whole run alone: its rows without a step."""
    table = ANALYSES[name].function(record)
    return int(table.loc[table["step"] == -1, column].sum()) if len(table) else 0


def answer(one: Analysis, record: Record) -> pd.DataFrame:
    """The table, its columns documented, times and sizes whole; an empty one says why it is."""
    table = one.function(record)
    words = set(re.findall(r"\w+", str(one.function.__doc__)))
    for column in map(str, table.columns):
        assert _is_documented(column, words), f"{column!r} is not documented"
        if len(table) and column.endswith(("_ns", "_bytes")) and not QUOTIENTS.search(column):
            whole = (np.dtype(np.int64), pd.Int64Dtype())  # the latter has <NA> where unknown
            assert table[column].dtype in whole, f"{column} is {table[column].dtype}"
    if not len(table) and len(record.trace):
        assert why_empty(table), "it is empty and does not say why"
    return table


def _is_documented(column: str, words: set[str]) -> bool:
    """By its name, or by its ending and its beginning, where a text gives these for several."""
    if column in words or column.removesuffix("_name") in words:
        return True
    cuts = [at for at, letter in enumerate(column) if letter == "_"]
    return any(
        column[: cut + 1] in words and {column[cut + 1 :], column[cut:]} & words for cut in cuts
    )


def all_answers(record: Record) -> dict[str, str]:
    """What is wrong with any analysis of this record: by its name, one line."""
    wrong = {}
    for one in plain_analyses():
        try:
            table = answer(one, record)
            trace = record.trace
            again = one.function(window(record, trace.start_ns, trace.end_ns))
            pd.testing.assert_frame_equal(table, again)
        except Exception as problem:
            wrong[one.name] = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
    return wrong


def test_every_analysis_answers_or_says_what_is_lacking(shared_record: Record) -> None:
    assert all_answers(shared_record) == {}


def test_a_record_of_nothing_is_answered() -> None:
    assert all_answers(trace_of()) == {}


@pytest.mark.parametrize("name", ADDITIVE)
def test_windows_that_tile_a_run_add_up(shared_record: Record, name: str) -> None:
    trace = shared_record.trace
    edges = np.linspace(trace.start_ns, trace.end_ns, 4).astype(np.int64).tolist()
    parts = [
        ADDITIVE[name](window(shared_record, start, end))
        for start, end in itertools.pairwise(edges)
    ]
    assert sum(parts) == ADDITIVE[name](shared_record)


def test_cpu_self_times_add_up_to_the_time_in_which_threads_were_busy(
    shared_record: Record,
) -> None:
    trace = shared_record.trace
    rows = op_rows(trace).row
    start = trace.slices["ts"].to_numpy()[rows]
    end = start + trace.slices["dur"].to_numpy()[rows]
    track = trace.slices["track"].to_numpy()[rows]
    busy = intervals.length_by(track, start, end, len(trace.tracks)).sum()
    assert ANALYSES["operators"].function(shared_record)["cpu_self_ns"].sum() == busy


def test_of_a_memory_snapshot_it_is_said_that_it_is_one() -> None:
    """Not that it has no GPU work: it cannot have any."""
    allocated = Row("[memory]", "cpu_instant_event", 0, 0, process=SNAPSHOT_PROCESS)
    profile = Profile(trace_of(allocated).trace, None, {})
    answered = {
        one.name: (one.function(profile), getattr(profile, one.name)) for one in plain_analyses()
    }
    empty = {name: pair for name, pair in answered.items() if not len(pair[0])}
    assert {"kernels", "breakdown", "steps"} < set(empty)
    for table, method in empty.values():
        assert why_empty(table) == why_empty(method()) == SNAPSHOT


def test_one_op_beside_it_makes_it_none() -> None:
    allocated = Row("[memory]", "cpu_instant_event", 0, 0, process=SNAPSHOT_PROCESS)
    record = trace_of(allocated, op("aten::sum", ts=9, dur=9))
    assert why_empty(ANALYSES["kernels"].function(record)).startswith("the trace has no GPU")
