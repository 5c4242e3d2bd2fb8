"""Changes of a finished trace: links, args and flows follow their slices to their new rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.edit import (
    LINKS,
    NewSlice,
    NewTrack,
    Region,
    kept_slices,
    with_regions,
    with_slices,
)
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import SLICE_COLUMNS
from tests.records import records
from tests.traces import annotation, gpu_annotation, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow


def small() -> Trace:
    """An op in an annotation, its kernel and its backward op."""
    return trace_of(
        annotation("step", ts=0, dur=100),
        op("aten::mm", ts=10, dur=20, sequence=4, shapes=[[2, 2]]),
        runtime("cudaLaunchKernel", ts=12, dur=3),
        kernel("gemm", ts=30, dur=15, launched_by=2),
        op("MmBackward0", ts=50, dur=20, sequence=4, forward_thread=1),
    ).trace


def row_of(trace: Trace, name: str) -> int:
    (row,) = trace.slices.index[trace.slices["name"] == name]
    return int(row)


def identities(trace: Trace) -> list[tuple[Any, ...]]:
    """What tells the slices apart, and whom each is linked with, by the same; in no order."""
    slices = trace.slices
    label = list(zip(slices["track"], slices["ts"], slices["dur"], slices["name"], strict=True))
    args = {
        row: {key: repr(values[row]) for key, values in trace.args.items() if row in values.index}
        for row in slices.index
    }
    linked = [
        tuple(None if slices[link][row] < 0 else label[slices[link][row]] for link in LINKS)
        for row in slices.index
    ]
    return [(label[row], linked[row], args[row]) for row in slices.index]


def unordered(found: list[tuple[Any, ...]]) -> list[str]:
    return sorted(map(repr, found))


class TestWithRegions:
    def test_marked_ops_become_regions_with_name_category_and_args(self) -> None:
        record = trace_of(op("gpuprof:1", ts=0, dur=50), op("aten::mm", ts=5, dur=9))
        region = Region("3: y = f(x)", "cell_line", {"line": 3})
        trace = with_regions(record.trace, {"gpuprof:1": region, "gpuprof:2": region})
        (row,) = trace.slices.index[trace.slices["category"] == "cell_line"]
        assert trace.slices["name"].loc[row] == "3: y = f(x)"
        assert trace.args["line"].to_dict() == {row: 3}
        assert trace.slices["name"].tolist() == ["3: y = f(x)", "aten::mm"]

    def test_their_echo_on_a_gpu_is_gone(self) -> None:
        record = trace_of(op("gpuprof:1", ts=0, dur=50), gpu_annotation("gpuprof:1", ts=5, dur=9))
        trace = with_regions(record.trace, {"gpuprof:1": Region("m", "module")})
        assert trace.slices["name"].tolist() == ["m"]

    def test_a_launch_in_a_region_alone_has_no_op(self) -> None:
        record = trace_of(
            op("gpuprof:1", ts=0, dur=50),
            runtime("cudaLaunchKernel", ts=5, dur=9),
            kernel("k", ts=20, dur=5, launched_by=1),
        )
        assert record.trace.slices["op"].iloc[row_of(record.trace, "k")] >= 0
        trace = with_regions(record.trace, {"gpuprof:1": Region("m", "module")})
        assert trace.slices["op"].iloc[row_of(trace, "k")] == -1


class TestWithSlices:
    def test_a_slice_is_outside_of_one_with_its_times(self) -> None:
        trace = small()
        new = NewSlice(10, 20, "first", "module", 0, {"class": "Linear"})
        made = with_slices(trace, [new])
        outer, inner = row_of(made, "first"), row_of(made, "aten::mm")
        assert made.slices["parent"].loc[inner] == outer
        assert made.args["class"].to_dict() == {outer: "Linear"}

    def test_new_tracks_come_after_those_there(self) -> None:
        trace = small()
        track = NewTrack("worker", "worker 0", "7", "7")
        new = NewSlice(5, 20, "fetch", "worker", len(trace.tracks))
        made = with_slices(trace, [new], [track])
        assert made.tracks["label"].tolist() == [*trace.tracks["label"], "worker 0"]
        assert made.slices["track"].loc[row_of(made, "fetch")] == len(trace.tracks)
        assert made.tracks["lane"].is_unique

    @given(records(), st.data())
    def test_nothing_is_lost_and_everything_stays_linked(
        self, record: Record, data: st.DataObject
    ) -> None:
        trace = record.trace
        added = data.draw(st.lists(new_slices(trace), min_size=1, max_size=4))
        made = with_slices(trace, added)
        old = [one for one in identities(made) if not str(one[0][3]).startswith("new ")]
        assert unordered(old) == unordered(identities(trace))
        new = [one for one in identities(made) if str(one[0][3]).startswith("new ")]
        assert sorted(one[0][3] for one in new) == sorted(one.name for one in added)
        assert_well_formed(made)

    @given(records(), st.data())
    def test_taking_them_out_again_gives_the_trace_back(
        self, record: Record, data: st.DataObject
    ) -> None:
        trace = record.trace
        added = data.draw(st.lists(new_slices(trace), min_size=1, max_size=4))
        made = with_slices(trace, added)
        own = made.slices["name"].str.startswith("new ").to_numpy(bool)
        back = kept_slices(made, ~own)
        assert unordered(identities(back)) == unordered(identities(trace))
        pd.testing.assert_series_equal(back.slices["parent"], trace.slices["parent"])


class TestKeptSlices:
    @given(records(), st.data())
    def test_what_is_kept_keeps_its_links_among_itself(
        self, record: Record, data: st.DataObject
    ) -> None:
        trace = record.trace
        size = len(trace)
        keep = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
        if not keep.any():
            return
        made = kept_slices(trace, keep)
        number = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1)
        for link in LINKS:
            expected = number[trace.slices[link].to_numpy()][keep]
            assert made.slices[link].tolist() == expected.tolist()
        pairs = [
            (number[flow.source], number[flow.target])
            for flow in trace.flows.itertuples()
            if keep[flow.source] and keep[flow.target]
        ]
        assert list(zip(made.flows["source"], made.flows["target"], strict=True)) == pairs
        assert_well_formed(made)


@st.composite
def new_slices(draw: st.DrawFn, trace: Trace) -> NewSlice:
    return NewSlice(
        draw(st.integers(0, 40)),
        draw(st.integers(0, 15)),
        f"new {draw(st.integers(0, 3))}",
        draw(st.sampled_from(["module", "module_backward", "worker"])),
        draw(st.integers(0, len(trace.tracks) - 1)),
        {"class": "Linear", "root": 3},
    )


def assert_well_formed(trace: Trace) -> None:
    """Sorted, nested anew, of the right types, with args in the order of their rows."""
    slices = trace.slices
    key = list(zip(slices["track"], slices["ts"], -slices["dur"], strict=True))
    assert key == sorted(key)
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    parent, depth = links.nest(ts, ts + slices["dur"].to_numpy(), track)
    assert slices["parent"].tolist() == parent.tolist()
    assert slices["depth"].tolist() == depth.tolist()
    for name, kind in SLICE_COLUMNS.items():
        assert slices[name].dtype == kind, name
    for values in trace.args.values():
        assert values.index.is_monotonic_increasing
        assert values.index.isin(slices.index).all()
