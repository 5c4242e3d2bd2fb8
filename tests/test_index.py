"""The index of a trace against the plain reading of its tables."""

from __future__ import annotations

import pickle
import re
import weakref

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.columns import group_rows
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, TRACK_KINDS
from gpuprof_widgets.trace.window import window
from tests.records import records
from tests.traces import copy, kernel, op, runtime, trace_of

CATEGORIES = ("cpu_op", "cuda_runtime", "kernel", "python_function", "cell_line")


def a_trace() -> Trace:
    return trace_of(
        op("aten::mm", ts=0, dur=9),
        runtime("cudaLaunchKernel", ts=1, dur=3),
        kernel("gemm", ts=10, dur=5, stream=7, launched_by=1),
        copy("Memcpy HtoD", ts=12, dur=2, stream=20),
    ).trace


def text(trace: Trace, column: str) -> list[str]:
    return [str(each) for each in trace.slices[column]]


def ancestors(trace: Trace, row: int) -> list[int]:
    """From the slice's parent on up."""
    parent, found = trace.slices["parent"].tolist(), []
    while (row := parent[row]) >= 0:
        found.append(row)
    return found


@given(records(), st.sets(st.sampled_from(CATEGORIES)))
def test_masks_are_those_of_the_words(record: Record, wanted: set[str]) -> None:
    trace, index = record.trace, record.trace.index
    category, name = text(trace, "category"), text(trace, "name")
    assert index.in_category(*wanted).tolist() == [each in wanted for each in category]
    assert index.is_gpu.tolist() == [each in GPU_CATEGORIES for each in category]
    assert index.gpu.tolist() == np.flatnonzero(index.is_gpu).tolist()
    assert index.is_launch.tolist() == [each.endswith(("_runtime", "_driver")) for each in category]
    kinds = [str(trace.tracks["kind"][track]) for track in trace.slices["track"]]
    for kind in TRACK_KINDS:
        assert index.on_tracks(kind).tolist() == [each == kind for each in kinds]
    rows = np.arange(-1, len(trace))
    assert index.names_of(rows).tolist() == index.texts_of(rows).tolist() == ["", *name]
    first = frozenset([*name[:1], "no such"])
    assert index.named(first).tolist() == [each in first for each in name]
    long = re.compile(".{3,}", re.DOTALL)
    assert index.matching(long).tolist() == [bool(long.fullmatch(each)) for each in name]


@given(records(), st.sampled_from(CATEGORIES))
def test_an_ancestor_is_the_first_of_its_category_on_the_way_up(
    record: Record, category: str
) -> None:
    trace, categories = record.trace, text(record.trace, "category")

    def first(way: list[int]) -> int:
        return next((row for row in way if categories[row] == category), -1)

    rows = range(len(trace))
    assert trace.index.ancestor(category).tolist() == [first(ancestors(trace, r)) for r in rows]
    assert trace.index.within(category).tolist() == [first([r, *ancestors(trace, r)]) for r in rows]


@given(records(), st.booleans(), st.tuples(st.integers(0, 50), st.integers(0, 50)))
def test_segments_tile_the_trace_and_hold_the_last_slice_to_have_started(
    record: Record, is_window: bool, edges: tuple[int, int]
) -> None:
    trace = window(record.trace, *sorted(edges)) if is_window else record.trace
    ts, end = trace.index.ts, trace.index.end
    for track in range(len(trace.tracks)):
        rows = [row for row in range(len(trace)) if trace.slices["track"][row] == track]
        assert trace.index.rows_of_track(track).tolist() == rows
        parts = trace.index.segments(track)
        assert parts.start[1:].tolist() == parts.end[:-1].tolist()
        bounds = (parts.start[0], parts.end[-1]) if len(parts.row) else (trace.start_ns,) * 2
        assert bounds == (trace.start_ns, trace.end_ns)
        for start, row in zip(parts.start, parts.row, strict=True):
            is_open = [each for each in rows if ts[each] <= start < end[each]]
            assert row == max(is_open, default=-1)


def test_the_index_of_nothing_is_empty() -> None:
    index = trace_of().trace.index
    nobody = np.array([-1, -1])
    assert index.names_of(nobody).tolist() == index.texts_of(nobody).tolist() == ["", ""]
    assert not len(index.gpu)
    assert index.arg("Input Dims")[1] == []


def test_what_is_asked_again_is_the_same_array_and_nobody_can_write_to_it() -> None:
    index = a_trace().index
    assert index.in_category("cpu_op") is index.in_category("cpu_op")
    assert index.segments(0) is index.segments(0)
    for array in (index.in_category("cpu_op"), index.gpu, index.ts, index.launcher, index.uncut[0]):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_gpu_slices_have_a_device_a_stream_and_a_launcher() -> None:
    index = a_trace().index
    gpu = index.gpu
    assert sorted(index.stream[gpu].tolist()) == [7, 20]
    assert index.device[gpu].tolist() == [0, 0]
    launched = gpu[index.stream[gpu] == 7]
    assert [index.names[code] for code in index.name[index.launcher[launched]]] == [
        "cudaLaunchKernel"
    ]


def test_uncut_times_are_those_before_the_window() -> None:
    record = trace_of(op("a", ts=0, dur=10), op("b", ts=20, dur=10))
    part = window(record, 5, 25).trace.index
    assert (part.ts.tolist(), part.end.tolist()) == ([5, 20], [10, 25])
    assert [times.tolist() for times in part.uncut] == [[0, 20], [10, 30]]


def test_a_trace_is_freed_with_its_index_at_once() -> None:
    trace = a_trace()
    trace.index.segments(0)
    trace.index.ancestor("cpu_op")
    gone = weakref.ref(trace)
    del trace
    assert gone() is None


def test_a_trace_is_sent_to_another_process_without_its_index() -> None:
    trace = a_trace()
    alone = len(pickle.dumps(trace))
    assert trace.index.gpu.tolist()
    assert len(pickle.dumps(trace)) == alone
    again = pickle.loads(pickle.dumps(trace))
    assert again.index.gpu.tolist() == trace.index.gpu.tolist()


INDEX = trace_of(
    op("ProfilerStep#1", ts=0, dur=90),
    op("aten::linear", ts=1, dur=20, shapes=[[2, 3], [3, 4]]),
    op("aten::mm", ts=2, dur=10, shapes=[[2, 3], [3, 4]]),
    op("aten::add", ts=30, dur=5, shapes=[[2], [2]]),
    kernel("gemm", ts=40, dur=5),
).trace.index


def named(*rows: int) -> list[str]:
    return INDEX.names_of(np.array(rows)).tolist()


def rows_of(*names: str) -> list[int]:
    return [named(*range(len(INDEX))).index(name) for name in names]


def test_regions_are_no_ops_and_an_op_is_around_itself() -> None:
    step, linear, mm = rows_of("ProfilerStep#1", "aten::linear", "aten::mm")
    assert not INDEX.is_op[step]
    assert INDEX.op_around[[step, linear, mm]].tolist() == [-1, linear, mm]
    assert INDEX.outermost_op[[step, linear, mm]].tolist() == [-1, linear, linear]


def test_equal_args_have_one_place() -> None:
    place, values = INDEX.arg("Input Dims")
    linear, mm, add, gemm = rows_of("aten::linear", "aten::mm", "aten::add", "gemm")
    assert values == [[[2, 3], [3, 4]], [[2], [2]]]
    assert place[[linear, mm, add, gemm]].tolist() == [0, 0, 1, -1]
    assert INDEX.arg("no such")[1] == []


def test_rows_with_a_missing_key_are_a_group_of_their_own() -> None:
    key = pd.Series(pd.Categorical(["a", None, "a", None]))
    groups, first = group_rows({"number": np.array([1, 2, 1, 2]), "key": key})
    assert groups.tolist() == [0, 1, 0, 1]
    assert first.tolist() == [0, 1]
