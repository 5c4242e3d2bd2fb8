"""The lines in the page's text and in the static tables: which of their numbers are not exact."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.encoding import encode
from gpuprof_widgets.views.report import static_html, static_text
from tests.test_encoding import Page
from tests.traces import cell_line, op, trace_of

pytestmark = pytest.mark.slow

MS = 1_000_000


def limited(*beyond: int, limit: int | None = 10_000) -> Record:
    """Three loops within each other, of whose lines some ran more often than is recorded."""
    source = {"label": "Cell [3]", "source": "", "beyond_limit": list(beyond)}
    known = {"cells": [source]} if limit is None else {"cells": [source], "limit": limit}
    return trace_of(
        cell_line(1, "for x in xs:", ts=0, dur=100 * MS),
        cell_line(2, "for y in x:", ts=10 * MS, dur=60 * MS),
        cell_line(3, "f(y)", ts=20 * MS, dur=20 * MS),
        op("aten::mm", ts=25 * MS, dur=5 * MS),
        cell_line(4, "g()", ts=100 * MS, dur=10 * MS),
        lines=known,
    )


def sent(record: Record) -> dict[str, Any]:
    table: dict[str, Any] = Page(encode(record)).header["lines"]
    return table


@pytest.mark.parametrize(
    ("beyond", "incomplete"),
    [
        ((), []),
        ((3,), [[1, 0, [2]], [2, 1, []]]),
        ((2, 3), [[0, 0, [1, 2]], [1, 1, [2]], [2, 1, []]]),
        ((99,), []),
    ],
)
def test_the_page_knows_which_lines_are_incomplete(
    beyond: tuple[int, ...], incomplete: list[Any]
) -> None:
    record = limited(*beyond)
    table = sent(record)
    assert (table["limit"], table["incomplete"]) == (10_000, incomplete)
    assert {line for line, *_ in incomplete} == set(lines(record).query("not complete").index)


def test_a_limit_that_is_not_known_is_sent_as_zero() -> None:
    assert sent(limited(3, limit=None))["limit"] == 0
    assert sent(trace_of(cell_line(1, "f()", ts=0, dur=9)))["limit"] == 0


def rows(record: Record) -> list[str]:
    """What the text says of the lines and below them."""
    text = static_text(record).split("\n\n")[1].splitlines()
    return [" ".join(line.split()) for line in text[2:]]


def test_the_static_tables_say_which_times_of_lines_are_bounds() -> None:
    assert rows(limited(3)) == [
        "1: for x in xs: 40.0 ms 36 % 100 ms",
        "2: for y in x: ≤ 40.0 ms 36 % 60.0 ms",
        "3: f(y) ≥ 20.0 ms 18 % ≥ 20.0 ms",
        "4: g() 10.0 ms 9.1 % 10.0 ms",
        "≥: of its first runs only, because it ran more often than is recorded.",
        "≤: with further runs of lines within it, which are not recorded one by one.",
    ]
    assert rows(limited(2, 3)) == [
        "1: for x in xs: ≤ 40.0 ms 36 % 100 ms",
        "2: for y in x: ≈ 40.0 ms 36 % ≥ 60.0 ms",
        "3: f(y) ≥ 20.0 ms 18 % ≥ 20.0 ms",
        "4: g() 10.0 ms 9.1 % 10.0 ms",
        "≥: of its first runs only, because it ran more often than is recorded.",
        "≤: with further runs of lines within it, which are not recorded one by one.",
        "≈: of its first runs only, with further runs of lines within it.",
    ]
    assert "≥ 20.0 ms</td>" in static_html(limited(3)).replace("\N{NO-BREAK SPACE}", " ")
    assert not set("≥≤≈") & set(static_text(limited()) + static_html(limited()))
