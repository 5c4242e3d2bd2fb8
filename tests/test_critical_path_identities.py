"""What holds for the critical path and the what-if of any record, real or made at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.critical_path import BY, critical_path
from gpuprof_widgets.analyses.path_graph import KINDS
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.what_if import what_if, what_ifs
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.records import records
from tests.test_overlapping_kernels import replays

pytestmark = pytest.mark.slow

MOMENTS = st.integers(0, 60)


def assert_tiles(record: Record, t0: int, t1: int) -> None:
    """The path of a range covers each ns of it exactly once, in every way of adding it up."""
    path = critical_path(record, region=(t0, t1))
    if why_empty(path):
        return
    bounds = np.append(path["start_ns"].to_numpy(), path["end_ns"].to_numpy()[-1:])
    assert (np.diff(bounds) > 0).all()
    assert (path["end_ns"] - path["start_ns"]).tolist() == path["dur_ns"].tolist()
    assert path["dur_ns"].sum() == t1 - t0
    if t1 > t0:
        assert (bounds[0], bounds[-1]) == (t0, t1)
    assert set(path["kind"]) <= set(KINDS)
    for by in BY if (t0, t1) == (record.trace.start_ns, record.trace.end_ns) else ():
        split = critical_path(record, by=by)
        assert split["dur_ns"].sum() == t1 - t0
        parts = split[["cpu_ns", "gpu_ns", "delay_ns"]].sum(axis=1)
        assert parts.tolist() == split["dur_ns"].tolist()


def names_of(record: Record) -> list[str]:
    """Ops and kernels for which a what-if can be asked."""
    slices = record.trace.slices
    wanted = slices["category"].isin(["cpu_op", "kernel"]) & (slices["count"] > 0)
    return [str(name) for name in slices["name"][wanted].unique()]


@given(records(), MOMENTS, MOMENTS)
def test_the_path_tiles_any_range_of_any_record(record: Record, one: int, other: int) -> None:
    trace = record.trace
    assert_tiles(record, trace.start_ns, trace.end_ns)
    t0, t1 = sorted(min(max(t, trace.start_ns), trace.end_ns) for t in (one, other))
    assert_tiles(record, t0, t1)
    part = window(record, t0, t1)
    assert_tiles(part, part.trace.start_ns, part.trace.end_ns)


@given(records(), st.floats(0, 1), st.floats(1, 3))
def test_what_if_is_exact_at_one_and_monotone(record: Record, less: float, more: float) -> None:
    for name in names_of(record)[:2]:
        spans = [
            int(what_if(record, name, scale=scale)["new_span_ns"].iloc[0])
            for scale in (0.0, less, 1.0, more)
        ]
        assert spans[2] == record.trace.span_ns
        assert spans == sorted(spans)


@given(st.one_of(records(), replays()))
def test_what_if_saves_no_more_than_was_on_the_path(record: Record) -> None:
    """The rest of the path stays, and nothing on it may begin before what is left of it."""
    for name in names_of(record)[:3]:
        row = what_if(record, name).iloc[0]
        assert 0 <= row["saved_ns"] <= row["path_ns"] <= row["time_ns"]


def test_the_path_tiles_every_real_trace(shared_record: Record) -> None:
    trace = shared_record.trace
    middle = (trace.start_ns + trace.end_ns) // 2
    for t0, t1 in ((trace.start_ns, trace.end_ns), (trace.start_ns, middle)):
        assert_tiles(shared_record, t0, t1)


def test_what_if_on_every_real_trace(shared_record: Record) -> None:
    names = names_of(shared_record)
    busiest = shared_record.trace.slices.groupby("name", observed=True)["dur"].sum()
    name = str(busiest.loc[names].idxmax())
    spans = [
        int(what_if(shared_record, name, scale=scale)["new_span_ns"].iloc[0])
        for scale in (0.0, 0.5, 1.0, 1.5)
    ]
    assert spans[2] == shared_record.trace.span_ns
    assert spans == sorted(spans)
    table = what_ifs(shared_record)
    if len(table):
        assert (table["saved_ns"] <= table["path_ns"]).all()
        assert (table["path_ns"] <= table["time_ns"]).all()
        assert (table["saved_ns"] >= 0).all()
