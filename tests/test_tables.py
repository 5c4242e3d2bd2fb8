"""A table as a value: what its cells read, and that all who write it write the same."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len
from rich.console import Console

from gpuprof_widgets.analyses.columns import Unit
from gpuprof_widgets.exceptions import printable
from gpuprof_widgets.views.table import (
    FORMATS,
    NONE,
    Column,
    Fill,
    Table,
    cell_text,
    cell_texts,
    table_of,
)
from gpuprof_widgets.views.table_renderers import (
    fitted,
    html_table,
    listed,
    markdown_lines,
    page_table,
    plain_table,
    rich_table,
    text_lines,
)

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "[bold red]markup[/] [link=file:///etc/passwd]x[/link] [/nothing]",
    "<script>alert(1)</script>",
    "two\nlines\rover\ttab",
    "bidi \u202e txt.exe",
    ":warning: emoji",
    "漢字の名前",
)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("total_ns", 1_234_567, "1.23 ms"),
        ("start_ns", 30_429_352_017, "30,429.352017 ms"),
        ("delta_ns", -2_000, "−2.00 µs"),
        ("delta_ns", 2_000, "+2.00 µs"),
        ("bytes", 1_536, "1.50 KiB"),
        ("memory_bytes", -2_048, "-2.00 KiB"),
        ("bandwidth_bytes_per_s", 2e9, "2.00 GB/s"),
        ("flops_per_s", 2.5e12, "2.50 TFLOP/s"),
        ("computation_flops", 2_710_000, "2.71 MFLOP"),
        ("busy_share", 0.0001, "< 0.1 %"),
        ("calls", 12_345, "12,345"),
        ("calls_a", 1_500_000.5, "1,500,000"),
        ("calls_a", 999.7, "1,000"),
        ("calls_a", 12.53, "12.5"),
        ("ratio", float("inf"), "inf"),
        ("memory_bytes", -1, "–"),
        ("cpu_memory_bytes", -1, "-1 B"),
        ("self_size_increase_bytes", -1, "-1 B"),
        ("address", 139_637_976_727_552, "0x7f0000000000"),
        ("address", -1, "–"),
        ("registers", -1, "–"),
        ("launch", -1, "–"),
        ("calls_delta", -1, "-1"),
        ("intensity", 0.18751, "0.188"),
        ("occupancy", 0.18751, "19 %"),
        ("occupancy", float("nan"), "–"),
        ("complete", True, "yes"),
        ("name", "aten::mm", "aten::mm"),
        ("tensor", None, "–"),
        ("grid", [1, 2, 3], "[1, 2, 3]"),
        ("share", "none", "none"),
    ],
)
def test_a_cell_has_its_unit(column: str, value: object, text: str) -> None:
    table = table_of(pd.DataFrame({column: [value]}))
    assert cell_texts(table, table.columns[0]) == [text]


@pytest.mark.parametrize("unit", get_args(Unit))
def test_every_unit_has_a_format(unit: Unit) -> None:
    assert unit in FORMATS
    for value in (0, 1, 1.5, 10**12, -3):
        assert cell_text(value, unit)
    for missing in (None, float("nan"), pd.NA, pd.NaT):
        assert cell_text(missing, unit) == NONE


def test_a_table_of_an_analysis_has_numbers_texts_and_nothing_else() -> None:
    frame = pd.DataFrame({"name": ["a", None], "row": [3, -1], "start_ns": [2**60 + 1, 5]})
    table = table_of(frame.assign(share=[0.5, np.nan], exact=[True, False]), "Title", label=str)
    assert [(c.key, c.label, c.unit) for c in table.columns] == [
        ("name", "name", "text"),
        ("row", "row", "count"),
        ("start_ns", "start_ns", "moment"),
        ("share", "share", "share"),
        ("exact", "exact", "text"),
    ]
    assert table.rows.to_numpy().tolist() == [
        ["a", 3, 2**60 + 1, 0.5, "yes"],
        [None, None, 5, None, "no"],
    ]


def example() -> Table:
    """A row of ordinary values and one without any, in every unit."""
    columns = tuple(Column(unit, unit.capitalize(), unit) for unit in get_args(Unit))
    values = {unit: ["aten::mm" if unit == "text" else 1234, None] for unit in get_args(Unit)}
    return Table("All units", columns, pd.DataFrame(values, dtype=object), notes=("A note",))


def cells_of_text(table: Table) -> list[list[str]]:
    return [re.split("  +", line.strip()) for line in text_lines(table)]


def cells_of_markdown(table: Table) -> list[list[str]]:
    lines = markdown_lines(table)
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in (lines[0], *lines[2:])]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in row] for row in rows]


def cells_of_terminal(table: Table) -> list[list[str]]:
    file = io.StringIO()
    Console(file=file, width=1000, markup=False, emoji=False).print(rich_table(table))
    lines = [line for line in file.getvalue().splitlines() if "─" not in line]
    return [line.split("  ") for line in (re.sub("  +", "  ", line.strip()) for line in lines)]


def cells_of_html(table: Table) -> list[list[str]]:
    rows: list[list[str]] = []

    class Cells(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            assert tag in ("div", "strong", "table", "tr", "td", "code", "span")
            if tag == "tr":
                rows.append([])
            elif tag == "td":
                rows[-1].append("")

        def handle_data(self, data: str) -> None:
            if rows:
                rows[-1][-1] += data.replace("\u00a0", " ")

    Cells().feed(html_table(table).split("</table>")[0])
    return rows


WRITERS: dict[str, Callable[[Table], list[list[str]]]] = {
    "text": cells_of_text,
    "fitted": lambda table: cells_of_text(fitted(table, 1000)),
    "terminal": cells_of_terminal,
    "markdown": cells_of_markdown,
    "html": cells_of_html,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_all_write_the_same_cells(writer: str) -> None:
    table = example()
    texts = [[column.label, *cell_texts(table, column)] for column in table.columns]
    assert WRITERS[writer](table) == [list(row) for row in zip(*texts, strict=True)]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_hostile_name_is_shown_by_all_as_it_reads(writer: str, name: str) -> None:
    columns = (Column("name", "Name"), Column("calls", "Calls", "count"))
    table = Table("T", columns, pd.DataFrame({"name": [name, "b"], "calls": [1, 2]}))
    assert WRITERS[writer](table)[1:] == [[printable(name), "1"], ["b", "2"]]


def test_markdown_has_no_marks_of_names() -> None:
    table = table_of(
        pd.DataFrame(
            {"name": ["a\\|b", "<b>", "`x`", "*[y](z)*", "$1$ &lt;", "aten::_foreach_add_ ~~"]}
        )
    )
    assert markdown_lines(table)[2:] == [
        r"| a\\\|b |",
        r"| \<b> |",
        r"| \`x\` |",
        r"| \*\[y](z)\* |",
        r"| \$1\$ \&lt; |",
        r"| aten::\_foreach_add\_ \~\~ |",
    ]


def test_wide_characters_keep_columns_aligned() -> None:
    table = table_of(pd.DataFrame({"name": ["漢字の名前", "b"], "calls": [1, 20]}))
    assert {cell_len(line) for line in text_lines(table)} == {len("漢字の名前") * 2 + 2 + 5}


def test_a_narrow_text_gives_up_what_is_expendable_in_its_order() -> None:
    frame = pd.DataFrame({"name": ["n" * 30], "calls": [1], "total_ns": [5], "share": [0.5]})
    columns = table_of(frame).columns
    table = Table("T", columns, frame, expendable=("share", "calls"), narrowest=20)

    def shown(width: int) -> list[str]:
        return [column.key for column in fitted(table, width).columns]

    assert shown(41) == ["name", "calls", "total_ns", "share"]
    assert shown(40) == ["name", "calls", "total_ns"]
    assert shown(34) == ["name", "calls", "total_ns"]
    assert shown(33) == ["name", "total_ns"]
    assert shown(10) == ["name", "total_ns"]
    assert max(map(len, text_lines(fitted(table, 33)))) == 33
    assert {len(line) for line in text_lines(fitted(table, 60), 60)} == {60}


def test_an_unknown_share_has_no_bar() -> None:
    columns = (Column("name", "Name"), Column("share", "Share", "share"))
    html = html_table(Table("T", columns, pd.DataFrame({"name": ["a"], "share": [np.nan]})))
    assert "gradient" not in html
    assert "nan" not in html


RED = (255, 0, 0, 0.5)
GREY = (9, 9, 9, 0.25)


@pytest.mark.parametrize(
    ("fill", "style"),
    [
        (((RED, 0, 1),), "background:rgba(255,0,0,0.50);"),
        (
            ((RED, 0, 0.25), (GREY, 0.25, 0.5)),
            "min-width:260px;background:linear-gradient(to right,rgba(255,0,0,0.5) 0.00% 25.00%,"
            "rgba(9,9,9,0.25) 25.00% 50.00%,transparent 50.00%);",
        ),
        (
            ((RED, 0, 0), (GREY, 0, 1)),
            "min-width:260px;background:linear-gradient(to right,rgba(255,0,0,0.5) 0.00% 0.00%,"
            "rgba(9,9,9,0.25) 0.00% 100.00%,transparent 100.00%);",
        ),
    ],
)
def test_a_fill_is_behind_the_text_and_may_be_dropped(fill: Fill, style: str) -> None:
    columns = (Column("name", "Name"), Column("n", "N", "count"))
    rows = pd.DataFrame({"name": ["a", "b"], "n": [1, 2]})
    plain = Table("T", columns, rows)
    table = replace(plain, fills={"n": [fill, ()]})
    assert f'{style}">1</td>' in html_table(table)
    assert html_table(table).replace(style, "") == html_table(plain)
    assert text_lines(table) == text_lines(plain)
    assert page_table(listed(table, 1)) == page_table(listed(plain, 1))
    stretches = [[*colour, start, end] for colour, start, end in fill]
    assert plain_table(table) == plain_table(plain) | {"fills": [[1, [stretches, []]]]}


def test_a_page_without_computing_gets_texts_and_bars_of_shares() -> None:
    columns = (
        Column("name", "Name"),
        Column("time_ns", "Time", "ns"),
        Column("share", "of\u202e all", "share"),
    )
    rows = pd.DataFrame(
        {
            "name": ["<b>a</b>", "b\u202e", "c"],
            "time_ns": [1_500, np.nan, 2_000_000],
            "share": [0.25, np.nan, 1.5],
        }
    )
    table = Table("T\x1b", columns, rows, notes=("Why.", ""))
    assert plain_table(table) == {
        "title": r"T\x1b",
        "notes": ["Why."],
        "columns": [["Name", True], ["Time", False], [r"of\u202e all", False]],
        "rows": [
            ["<b>a</b>", "1.50 µs", "25 %"],
            [r"b\u202e", NONE, NONE],
            ["c", "2.00 ms", "150 %"],
        ],
        "fills": [[2, [[[86, 180, 233, 0.35, 0, 0.25]], [], [[86, 180, 233, 0.35, 0, 1]]]]],
    }


def test_only_the_html_shows_code_as_such() -> None:
    columns = (Column("name", "Line"), Column("text", "Source"))
    plain = Table("T", columns, pd.DataFrame({"name": ["1"], "text": ["x = 1"]}))
    code = replace(plain, code=("text",))
    assert 'font-family:monospace;white-space:pre-wrap">x = 1</td>' in html_table(code)
    assert "pre-wrap" not in html_table(plain)
    assert plain_table(code) == plain_table(plain)


def test_the_page_has_the_first_rows_and_the_columns_that_tell_something() -> None:
    columns = (
        Column("name", "Name"),
        Column("line", "Line"),
        Column("n", "N", "count", "sum", "n"),
    )
    rows = pd.DataFrame({"name": ["a", "b", "c"], "line": ["", "", "x"], "n": [np.inf, 2.0, 3.0]})
    assert page_table(listed(Table("T", columns, rows, sort="n", notes=("Why.", "")), 2)) == {
        "title": "T",
        "note": "Why. 1 more row is not listed here.",
        "sort": "n",
        "columns": [["name", "Name", "text", "", ""], ["n", "N", "count", "sum", "n"]],
        "length": 2,
        "values": [["a", "b"], [None, 2]],
    }


def test_a_text_keeps_one_column_however_narrow_it_is() -> None:
    columns = (Column("depth", "depth", "count"), Column("name", "name"))
    rows = pd.DataFrame({"depth": [1], "name": ["aten::linear"]})
    narrow = fitted(Table("", columns, rows, expendable=("depth", "name")), 8)
    assert text_lines(narrow) == ["name", "aten:…ar"]


@pytest.mark.parametrize("name", ["漢" * 40, "a漢" * 30, "e\u0301" * 60, "k" * 60])
def test_names_of_any_characters_are_cut_to_the_width(name: str) -> None:
    columns = (Column("name", "Op"), Column("ns", "Time", "ns"))
    rows = pd.DataFrame({"name": [name, "aten::mm"], "ns": [1, 2]})
    for width in range(12, 60):
        lines = text_lines(fitted(Table("", columns, rows), width), width)
        assert {cell_len(line) for line in lines} == {width}


def test_numbers_keep_their_unit_in_columns_of_objects() -> None:
    values: dict[str, list[object]] = {
        "x_ns": [1, None, 2_500.5],
        "calls": [np.int64(12_345), -1, None],
        "share": [0.5, None, np.float32("nan")],
        "exact": [np.bool_(True), np.bool_(False), None],
    }
    table = table_of(pd.DataFrame(values, dtype=object))
    assert [column.unit for column in table.columns] == ["ns", "count", "share", "text"]
    assert [cell_texts(table, column) for column in table.columns] == [
        ["1 ns", "–", "2.50 µs"],
        ["12,345", "–", "–"],
        ["50 %", "–", "–"],
        ["yes", "no", "–"],
    ]


def test_the_page_writes_numbers_among_texts_as_a_text_does() -> None:
    table = table_of(pd.DataFrame({"group": pd.Categorical([12_345, 2])}))
    assert page_table(table)["values"] == [["12,345", "2"]]
    assert text_lines(table)[1:] == ["12,345", "2"]


def test_names_of_columns_are_texts_and_each_there_once() -> None:
    assert [column.key for column in table_of(pd.DataFrame([[1, 2]])).columns] == ["0", "1"]
    with pytest.raises(ValueError, match="several columns of one name: calls"):
        table_of(pd.DataFrame([[1, 2]], columns=["calls", "calls"]))


def test_a_table_without_columns_has_no_text() -> None:
    empty = Table("", (), pd.DataFrame())
    assert text_lines(empty) == []
