"""Tables as CSV, JSON and Parquet: what is read back is what was written, and no cell runs."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof_widgets.analyses import Analysis, plain_analyses
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.writers.tables import csv_bytes, json_bytes, parquet_bytes, without_marks
from tests.traces import kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

FORMULAS = [
    *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "=cmd|' /C calc'!A0"),
    *("'", "''=1", "'=1", "=", "-", '=HYPERLINK("http://x.example","a")'),
    *(" =1", "\u00a0+1", "\u200b=1", "\ufeff-1", "\u202e@1", "\x00=1", " \u2060 =1", "\u3164=1"),
    *("\u0301=1", "﹦1", "﹣1", "\x0b=1", "\u2028=1", "\ufffc=1", "\u2800-1", "\u00b7@x"),
]
TEXTS = st.one_of(st.sampled_from(FORMULAS), st.text(max_size=8))
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=True, allow_infinity=False)


@st.composite
def tables(draw: st.DrawFn) -> pd.DataFrame:
    """Text, whole numbers, numbers and truths; every kind in a column of its own."""
    size = draw(st.integers(0, 4))

    def values(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=size, max_size=size))

    return pd.DataFrame(
        {
            "name": pd.Series(values(TEXTS), dtype=object),
            draw(TEXTS.filter(lambda text: text not in ("name", "n", "share", "is"))): pd.Series(
                values(TEXTS), dtype=object
            ),
            "n": np.array(values(INTEGERS), dtype=np.int64),
            "share": np.array(values(FLOATS), dtype=np.float64),
            "is": np.array(values(st.booleans()), dtype=bool),
        }
    )


def may_run(text: str) -> bool:
    """Whether a program that leaves out blanks and what cannot be printed sees a formula."""
    seen = "".join(sign for sign in text if sign.isprintable() and not sign.isspace())
    return seen.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠"))


def cells_of(data: bytes) -> list[list[str]]:
    """The cells as text, as a spreadsheet gets them."""
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


@given(tables())
@settings(max_examples=60)
def test_what_a_csv_says_is_what_the_table_says(table: pd.DataFrame) -> None:
    header, *rows = cells_of(csv_bytes(table))
    back = without_marks(pd.DataFrame(rows, columns=header, dtype=object))
    assert list(back.columns) == list(table.columns)
    for name in table.columns[:2]:
        assert back[name].tolist() == table[name].tolist()
    assert [int(text) for text in back["n"]] == table["n"].tolist()
    floats = [float(text or "nan") for text in back["share"]]
    np.testing.assert_array_equal(floats, table["share"])
    assert [text == "True" for text in back["is"]] == table["is"].tolist()


@given(tables())
@settings(max_examples=60)
def test_no_text_of_a_csv_is_a_formula(table: pd.DataFrame) -> None:
    header, *rows = cells_of(csv_bytes(table))
    texts = [*header, *(cell for row in rows for cell in row[:2])]
    assert [text for text in texts if may_run(text)] == []


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_gets_a_mark_whatever_stands_before_its_sign(text: str) -> None:
    assert cells_of(csv_bytes(pd.DataFrame({text: ["a"]})))[0] == ["'" + text]


@pytest.mark.parametrize(
    "text", ["a=1", " a", "(=1)", "1-2", "_@x", "", " ", "\u200b", "aten::mm", "é=1", "\ufffca-1"]
)
def test_other_text_is_written_as_it_is(text: str) -> None:
    assert cells_of(csv_bytes(pd.DataFrame({text: ["a"]})))[0] == [text]


def test_pandas_reads_a_csv_back_equal() -> None:
    """As docs/formats.md says it; pandas before 3 ends a text at a zero byte."""
    names = [*(text for text in FORMULAS if "\x00" not in text), "", "NA", "null"]
    shares = [None if number % 2 else -0.1 for number in range(len(names))]
    table = pd.DataFrame({"name": names, "n": range(len(names)), "share": shares})
    read = pd.read_csv(io.BytesIO(csv_bytes(table)), keep_default_na=False, na_values={"share": ""})
    pd.testing.assert_frame_equal(without_marks(read), table)


def test_what_is_no_text_is_written_as_one_and_is_no_formula() -> None:
    table = pd.DataFrame({"shapes": [[[2, 3]], ["=1"], None, "-x"]})
    assert [cell for (cell,) in cells_of(csv_bytes(table))[1:]] == [
        *("[[2, 3]]", "['=1']", "", "'-x"),
    ]


@given(tables())
@settings(max_examples=30)
def test_json_and_parquet_hold_the_text_as_it_is(table: pd.DataFrame) -> None:
    assert json_bytes(table) == b"[]\n" or _same(table, json.loads(json_bytes(table)))
    back = pd.read_parquet(io.BytesIO(parquet_bytes(table)))
    assert _same(table, back.to_dict("records"))


def _same(table: pd.DataFrame, rows: list[dict[str, Any]]) -> bool:
    back = pd.DataFrame(rows, columns=table.columns).astype(table.dtypes.to_dict())
    pd.testing.assert_frame_equal(back, table, check_exact=True)
    return True


def test_values_of_several_types_are_json_text_in_parquet() -> None:
    mixed = [[1, "a"], None, {"b": 2}, "text", 2**70]
    table = pd.DataFrame({"n": [1] * 5, "mixed": pd.Series(mixed, dtype=object)})
    back = pd.read_parquet(io.BytesIO(parquet_bytes(table)))
    assert back["n"].tolist() == [1] * 5
    texts = [None if pd.isna(text) else text for text in back["mixed"]]
    assert texts == ['[1, "a"]', None, '{"b": 2}', "text", str(2**70)]


def test_half_a_surrogate_pair_is_written_out() -> None:
    table = pd.DataFrame({"name": pd.Series(["a\ud800", "b"], dtype=object)})
    assert cells_of(csv_bytes(table))[1] == ["a\\ud800"]
    back = pd.read_parquet(io.BytesIO(parquet_bytes(table)))
    assert back["name"].tolist() == ["a\\ud800", "b"]


def test_json_has_null_for_what_it_has_no_number_for() -> None:
    table = pd.DataFrame({"intensity": [1.5, float("inf"), float("-inf"), float("nan")]})
    assert [row["intensity"] for row in json.loads(json_bytes(table))] == [1.5, None, None, None]


def test_lists_of_numbers_stay_lists_in_parquet() -> None:
    table = pd.DataFrame({"grid": [[1, 2, 3], [4, 5, 6]]})
    back = pd.read_parquet(io.BytesIO(parquet_bytes(table)))
    assert [list(values) for values in back["grid"]] == table["grid"].tolist()


@pytest.fixture(scope="module")
def record() -> Record:
    """Something for most analyses, with shapes that are lists."""
    return trace_of(
        op("=aten::mm", ts=0, dur=50, shapes=[[2, 3], [3, 4]], **{"Input type": ["float"] * 2}),
        runtime("cudaLaunchKernel", ts=10, dur=10),
        kernel("gemm", ts=30, dur=40, launched_by=1, grid=[2, 1, 1], block=[128, 1, 1]),
    )


@pytest.mark.parametrize("one", plain_analyses(), ids=lambda one: one.name)
def test_every_analysis_is_written_in_every_format(one: Analysis, record: Record) -> None:
    table = one.function(record)
    rows = json.loads(json_bytes(table))
    header, *lines = cells_of(csv_bytes(table))
    parquet = pd.read_parquet(io.BytesIO(parquet_bytes(table)))
    assert len(rows) == len(lines) == len(parquet) == len(table)
    assert header == list(parquet.columns) == list(map(str, table.columns))
    numbers = [name for name in table.columns if pd.api.types.is_numeric_dtype(table[name])]
    pd.testing.assert_frame_equal(parquet[numbers], table[numbers], check_exact=True)
