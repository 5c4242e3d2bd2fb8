"""How tables are printed: room, terminals and pipes, and names that are up to no good."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pandas as pd
import pytest
from rich.cells import cell_len

from gpuprof_widgets.commands.printing import (
    print_table,
    sort_columns,
    sorted_by,
    terminal_table,
)
from gpuprof_widgets.exceptions import OptionError

pytestmark = pytest.mark.slow


class Terminal(io.StringIO):
    """What rich takes for a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def table_of(*names: str) -> pd.DataFrame:
    numbers = range(1, len(names) + 1)
    return pd.DataFrame(
        {
            "name": names,
            "row": [10 * number for number in numbers],
            "calls": list(numbers),
            "total_ns": [1_234_567 * number for number in numbers],
            "share": [0.5 / number for number in numbers],
        }
    )


def piped(frame: pd.DataFrame, *, notes: Sequence[str] = (), keep: str = "") -> list[str]:
    """The lines of a table that is piped."""
    file = io.StringIO()
    print_table(terminal_table(frame, notes=notes, keep=keep), file=file)
    return file.getvalue().splitlines()


def test_piped_it_is_plain_aligned_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "void gemm<" + "float, " * 40 + ">"
    lines = piped(table_of(long, "aten::mm"), notes=["that is all"])
    assert lines[1].startswith(long)
    assert lines[2].split() == ["aten::mm", "20", "2", "2.47", "ms", "25", "%"]
    assert lines[3] == "that is all"
    ends = [line.index("ms") for line in lines[1:3]]
    assert ends[0] == ends[1]
    assert not any("\x1b" in line or "─" in line for line in lines)


@pytest.mark.parametrize("width", [24, 40, 60, 100])
def test_nothing_is_wider_than_the_columns_that_are_given(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = piped(table_of("void gemm<" + "float, " * 40 + ">end", "aten::mm"))
    rows = [line for line in lines if not line.startswith("not shown")]
    assert max(map(cell_len, rows)) <= width
    assert "…" in rows[1]
    assert rows[1].startswith("void")


def test_rows_of_the_trace_go_first_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "36")
    lines = piped(table_of("void gemm<" + "float, " * 40, "aten::mm"))
    assert lines[0].split() == ["name", "calls", "total", "share"]
    assert lines[-1] == "not shown for lack of room: row (--csv - has all)"


def test_what_is_empty_goes_first_and_how_often_and_how_long_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of("aten::mm", "aten::add").assign(calls=6, std_ns=[5, 9], empty=-1)
    monkeypatch.setenv("COLUMNS", "46")
    lines = piped(table)
    assert lines[0].split() == ["name", "row", "calls", "total", "share", "std"]
    assert lines[-1] == "not shown for lack of room: empty (--csv - has all)"
    monkeypatch.setenv("COLUMNS", "30")
    assert piped(table)[0].split() == ["name", "calls", "total"]


def test_the_column_that_sorts_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "22")
    assert piped(table_of("aten::addmm_x", "b"), keep="share")[0].split() == ["name", "share"]
    assert piped(table_of("aten::addmm_x", "b"), keep="calls")[0].split() == ["name", "calls"]


def test_the_time_of_a_gpu_goes_early_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of("aten::mm", "aten::add").assign(device_total_ns=0)
    monkeypatch.setenv("COLUMNS", "41")
    assert piped(table)[0].split() == ["name", "calls", "total", "share"]
    assert "device_total" in piped(table.assign(device_total_ns=[0, 5]))[0]


def test_of_a_tree_its_names_stay_and_what_their_indent_says_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "  " * 9 + "package/module.py(12): function"
    tree = table_of(name, name).assign(node=[0, 1], parent=[-1, 0], depth=[0, 1], device_ns=5)
    tree = tree.assign(category="python_function")
    tree = tree[["node", "parent", "depth", "name", "category", "calls", "total_ns", "device_ns"]]
    monkeypatch.setenv("COLUMNS", "80")
    lines = piped(tree)
    assert lines[0].split() == ["name", "category", "calls", "total", "device"]
    assert lines[1].split("  python_")[0].endswith("function")
    monkeypatch.setenv("COLUMNS", "66")
    assert piped(tree)[0].split() == ["name", "calls", "total", "device"]
    monkeypatch.setenv("COLUMNS", "140")
    assert piped(tree)[0].split()[0] == "node"


def test_units_stay_where_two_headings_were_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of("aten::mm", "b").assign(total_bytes=[1, 2])
    assert piped(table)[0].split()[2:] == ["calls", "total_ns", "share", "total_bytes"]
    monkeypatch.setenv("COLUMNS", "22")
    assert "total_ns" in piped(table, keep="total")[0].split()


def test_a_key_that_could_be_two_columns_is_asked_about() -> None:
    table = table_of("aten::mm", "b").assign(total_bytes=[1, 2])
    with pytest.raises(OptionError, match=r"'total' could be total_ns or total_bytes"):
        sorted_by(table, "-total")
    assert sorted_by(table, "total_bytes")["total_bytes"].tolist() == [2, 1]
    assert sort_columns(table.assign(total=0), "total") == ["total"]


def test_names_that_say_the_same_again_are_left_out() -> None:
    table = table_of("aten::mm", "aten::add").assign(type=["aten::mm", "aten::add"])
    assert piped(table)[0].split() == ["name", "row", "calls", "total", "share"]


def test_a_terminal_gets_colour_and_a_line_below_the_headings(terminal: Terminal) -> None:
    print_table(terminal_table(table_of("aten::mm", "aten::add")), file=terminal)
    shown = terminal.getvalue()
    assert "\x1b[1m" in shown
    assert "──" in shown
    assert max(cell_len(line) for line in strip_codes(shown).splitlines()) <= 60


def strip_codes(text: str) -> str:
    """What is left on the screen."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_no_color_is_plain_in_a_terminal_too(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(terminal_table(table_of("aten::mm", "b" * 200), notes=["a note"]), file=terminal)
    shown = terminal.getvalue()
    assert "\x1b" not in shown
    assert "─" not in shown
    assert max(map(cell_len, shown.splitlines())) <= 60


def test_a_stream_that_cannot_write_a_letter_gets_another() -> None:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding="ascii")
    print_table(terminal_table(table_of("aten::µ")), file=file)
    file.flush()
    assert b"aten::?" in buffer.getvalue()
