"""The tables of the page of many ranks: what stands in their cells, and what is behind it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape

import pytest

from gpuprof_widgets.analyses.ranks.reduced import joined, reduced
from gpuprof_widgets.many_ranks.profiles import RankProfiles
from gpuprof_widgets.trace.model import Calls
from gpuprof_widgets.views.ranks_page import page_tables
from tests.job import MS, collective, compared, computing, in_lockstep, rank_record, run_of
from tests.test_ranks_functions import calls_alone
from tests.traces import calls_of, kernel

pytestmark = pytest.mark.slow

Cells = list[list[tuple[str, str]]]


def tables_of(run: RankProfiles) -> dict[str, Cells]:
    """The tables by their titles: of each cell the text, and the strength or bar behind it."""
    html = run._repr_mimebundle_()["text/html"].replace("\u00a0", " ")
    found = re.findall(r"<div><strong>([^<]*)</strong></div><table[^>]*>(.*?)</table>", html)
    return {title: [_cells(row) for row in rows.split("</tr>")[:-1]] for title, rows in found}


def _cells(row: str) -> list[tuple[str, str]]:
    return [
        (unescape(re.sub("<[^>]*>", "", text)), "".join(re.findall(r"background:(.*?);?$", style)))
        for style, text in re.findall(r'<td[^>]*style="([^"]*)">(.*?)</td>', row)
    ]


def texts(table: Cells) -> list[list[str]]:
    return [[text for text, _ in row] for row in table]


def heat(strength: str) -> str:
    return f"rgba(213,94,0,{strength})"


def test_the_time_of_each_rank_has_a_bar_of_its_parts() -> None:
    run = run_of(
        rank_record(0, computing(0, 4 * MS), collective(4 * MS, 10 * MS)),
        rank_record(1, computing(0, 8 * MS), collective(8 * MS, 10 * MS)),
    )
    head, first, second = tables_of(run)["Time of each rank"]
    parts = ["Computing", "Waiting for ranks", "Moving data", "Idle"]
    assert [text for text, _ in head] == ["Rank", "Time", "Parts", *parts, "Came last", "Delay"]
    times = ["10.0 ms", "", "4.00 ms", "4.00 ms", "2.00 ms", "0 ns"]
    assert [text for text, _ in first] == ["0", *times, "0", "0 ns"]
    edges = re.findall(r"([\d.]+)% ([\d.]+)%", first[2][1])
    assert [float(edge) for _, edge in edges] == [40, 80, 100, 100, 100]
    assert second[-2:] == [("1", ""), ("4.00 ms", heat("0.50"))]
    assert first[-1][1] == ""


def test_the_page_gets_the_same_tables_as_texts_and_numbers() -> None:
    run = run_of(*in_lockstep({0: [0, 2000], 1: [800, 2000], 2: [0, 2400]}, moving=100))
    of_html, of_page = tables_of(run), page_tables(run._tables())
    assert json.loads(json.dumps(of_page)) == of_page
    assert [table["title"] for table in of_page] == list(of_html)
    for table, cells in zip(of_page, of_html.values(), strict=True):
        head = [label for label, _ in table["columns"]]
        assert [head[1:], *(row[1:] for row in table["rows"])] == [row[1:] for row in texts(cells)]
    waits = of_page[1]
    assert waits["fills"][1] == [2, [[[213, 94, 0, 0.25, 0, 1]], [[213, 94, 0, 0.25, 0, 1]], []]]


def test_the_legend_says_what_the_colours_of_the_bars_are() -> None:
    run = run_of(
        rank_record(0, computing(0, 4 * MS), collective(4 * MS, 10 * MS)),
        rank_record(1, computing(0, 8 * MS), collective(8 * MS, 10 * MS)),
    )
    first, *others = page_tables(run._tables())
    words = ["Computing", "Waiting for ranks", "Moving data", "Idle"]
    assert [text for text, _ in first["legend"]] == words
    assert not any(table["legend"] for table in others)
    of_rank_0 = dict(first["fills"])[2][0]
    assert [stretch[4:] for stretch in of_rank_0] == [
        [0, 0.4], [0.4, 0.8], [0.8, 1], [1, 1], [1, 1]
    ]  # fmt: skip
    assert [of_rank_0[at][:4] for at in (0, 1, 2, 4)] == [colour for _, colour in first["legend"]]


def test_who_waits_for_whom_is_the_redder_the_longer() -> None:
    run = run_of(*in_lockstep({0: [0, 2000], 1: [800, 2000], 2: [0, 2400]}, moving=100))
    assert tables_of(run)["Who waits for whom"] == [
        [("Rank waits", ""), ("for 1", ""), ("for 2", "")],
        [("0", ""), ("800 ns", heat("0.50")), ("400 ns", heat("0.25"))],
        [("1", ""), ("–", ""), ("400 ns", heat("0.25"))],
        [("2", ""), ("800 ns", heat("0.50")), ("–", "")],
    ]


def test_ranks_that_cost_next_to_nothing_are_left_out() -> None:
    run = run_of(*in_lockstep({0: [0, 2001], 1: [800, 2000]}, moving=100))
    table = tables_of(run)["Who waits for whom (ranks that cost less than 1 % left out)"]
    assert texts(table) == [["Rank waits", "for 1"], ["0", "800 ns"], ["1", "–"]]


def test_of_many_ranks_the_longest_waits_are_listed() -> None:
    run = run_of(*in_lockstep({n: [900 if n == 19 else 10 * n] for n in range(20)}))
    first = texts(tables_of(run)["Who waits for whom: the 12 longest waits"])[:2]
    assert first == [["Rank", "Waits for", "Time", "Share of waiting"],
                     ["0", "19", "900 ns", "5.8 %"]]  # fmt: skip


def test_of_more_ranks_than_fit_those_awaited_most_are_shown() -> None:
    run = run_of(*in_lockstep({n: [9000 if n == 69 else n] for n in range(70)}))
    title = "Time of each rank (the 64 of 70 that others waited for most)"
    assert [row[0] for row in texts(tables_of(run)[title])[-2:]] == ["62", "69"]
    assert title in run._repr_mimebundle_()["text/plain"]


def test_what_a_collective_does_not_tell_is_a_dash() -> None:
    rows = (kernel("ncclDevKernel_AllReduce_Sum", ts=at, dur=100 - at) for at in (0, 50))
    run = run_of(*(rank_record(n, row) for n, row in enumerate(rows)))
    (row,) = texts(tables_of(run)["Collectives, on all ranks"])[1:]
    assert row == ["all_reduce", "–", "–", "1", "50 ns", "50 ns", "50 ns", "–"]


def test_without_steps_all_is_one_also_of_ranks_of_several_files() -> None:
    early, late = (
        [reduced(record, source=str(number)) for number, record in enumerate(in_lockstep(starts))]
        for starts in ({0: [0], 1: [500]}, {0: [8 * MS], 1: [9 * MS]})
    )
    run = compared([joined(list(parts)) for parts in zip(early, late, strict=True)])
    assert run.steps()["step"].tolist() == [-1, -1, -1, -1]
    (row,) = texts(tables_of(run)["Time in each step, without waiting for other ranks"])[1:]
    assert row == ["all", "100 µs", "100 µs"]


def test_functions_that_read_alike_are_a_row_each() -> None:
    def of_rank(*own: int) -> Calls:
        made = calls_of(*((None, f"f{n}", 1, ns) for n, ns in enumerate(own)))
        files = [f"{n}/train.py" for n in range(len(own))]
        return replace(made, functions=made.functions.assign(file=files, line=1, name="f"))

    run = run_of(calls_alone(0, of_rank(100, 20)), calls_alone(1, of_rank(500, 30)))
    ((_, *rows),) = tables_of(run).values()
    assert rows == [
        [("all functions", ""), ("410 ns", ""), ("120 ns", ""), ("530 ns", heat("0.50"))],
        [("train.py:1(f)", ""), ("400 ns", ""), ("100 ns", ""), ("500 ns", heat("0.50"))],
        [("train.py:1(f)", ""), ("10 ns", ""), ("20 ns", ""), ("30 ns", heat("0.01"))],
    ]
