"""What the index of a trace knows of names, ops and args; the groups of rows that go by them."""

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_rows
from tests.traces import kernel, op, trace_of

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


def test_names_of_rows_are_texts_and_none_is_an_empty_one() -> None:
    step, gemm = rows_of("ProfilerStep#1", "gemm")
    assert named(gemm, -1, step) == ["gemm", "", "ProfilerStep#1"]
    assert INDEX.texts_of(np.array([gemm, -1])).tolist() == ["gemm", ""]


def test_slices_are_found_by_names_and_patterns() -> None:
    mm, add, linear = rows_of("aten::mm", "aten::add", "aten::linear")
    assert np.flatnonzero(INDEX.named(frozenset({"aten::mm", "no such"}))).tolist() == [mm]
    assert set(np.flatnonzero(INDEX.matching(re.compile("aten::.*")))) == {mm, add, linear}


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
