"""Titles of findings: each can stand in a row of the page and says there what costs."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.findings import FINDINGS, Finding, findings
from gpuprof_widgets.analyses.findings.finding import code
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.redact import redacted
from tests.finding_titles import title_problems, with_checked_titles
from tests.test_findings import CASES
from tests.traces import cell_line, kernel, op, runtime, trace_of

TEN = "one two three four five six seven eight nine"


def titled(title: str, start: int = 0) -> Finding:
    return Finding("It is slow.", title=title, start_ns=start, end_ns=start + 1)


@pytest.mark.parametrize(
    "title",
    ["GPU 0 waits", f"Count {TEN}", "`a name of many words`", f"`x y`, {TEN[4:]} and"],
)
def test_titles_that_a_row_can_show(title: str) -> None:
    assert title_problems([titled(title)]) == []


@pytest.mark.parametrize(
    ("title", "problem"),
    [
        ("", "no title"),
        (f"Count {TEN} ten", "11 words"),
        (f"`x` {TEN} ten", "11 words"),
        ("`mm is slow", "does not end"),
        ("`` is slow", "is empty"),
        ("the GPU waits", "no beginning"),
        ("The GPU waits.", "an end that is none"),
    ],
)
def test_titles_that_it_cannot_show(title: str, problem: str) -> None:
    (found,) = title_problems([titled(title)])
    assert problem in found


def test_one_title_may_stand_twice_for_two_places() -> None:
    assert title_problems([titled("It waits", 0), titled("It waits", 5)]) == []
    assert title_problems([titled("It waits"), titled("It waits")]) == ["'It waits' stands twice"]


def test_a_rule_with_a_bad_title_fails_in_every_test() -> None:
    def rule(record: Record, *, least: float = 1.0) -> list[Finding]:
        return [Finding(f"{least}")]

    with pytest.raises(AssertionError, match="no title"):
        with_checked_titles(rule)(trace_of(), least=2.0)


@pytest.mark.parametrize("rule", FINDINGS)
def test_every_rule_gives_its_findings_a_title(rule: str) -> None:
    fires, _ = CASES[rule]
    assert title_problems(FINDINGS[rule](fires)) == []
    assert [problem for each in findings(fires) for problem in title_problems([each])] == []


def test_findings_of_real_traces_have_titles(shared_record: Record) -> None:
    found = findings(shared_record)
    assert found
    assert [problem for each in found for problem in title_problems([each])] == []


def waiting_cell() -> Record:
    """A line that waits for the GPU, and time after its last work."""
    return trace_of(
        cell_line(2, "x = loss.item()", ts=0, dur=900),
        op("aten::item", ts=1, dur=800),
        runtime("cudaStreamSynchronize", ts=2, dur=700),
        kernel("gemm", ts=0, dur=650),
        op("end", ts=990, dur=10),
    )


@pytest.mark.parametrize("name", ["", " ", "a`b", "``", "void ::", "void ``::<int>(int)"])
def test_a_hostile_name_stands_whole_in_its_title(name: str) -> None:
    titled_by_it = Finding("It is slow.", title=f"{code(name)} causes the most GPU work")
    assert title_problems([titled_by_it]) == []


def test_an_empty_name_is_said_to_be_none() -> None:
    assert code("") == code(" ") == "`(no name)`"


def test_a_title_says_what_costs() -> None:
    titles = {each.rule: each.title for each in findings(waiting_cell())}
    assert titles["synchronising"] == "`aten::item` waits for the GPU in `cudaStreamSynchronize`"
    assert titles["device_idle"] == "GPU 0 is idle, mostly after its last work"


def test_a_comparison_names_what_changed_and_redacted_lines_by_number() -> None:
    a, b = (
        trace_of(cell_line(2, "f(x)", ts=0, dur=dur), op("aten::mm", ts=0, dur=dur))
        for dur in (100, 300)
    )
    assert [each.title for each in Comparison(a, b).findings()] == [
        "B's run takes 3.0 times as long",
        "The time in `CPU ops` changed most",
        "The op `aten::mm` changed most in CPU self time",
        "The line `f(x)` changed most in wall self time",
    ]
    found = Comparison(redacted(a), redacted(b)).findings()
    assert [each.title for each in found][1:] == [
        "Lines are matched by their number",
        "The time in `CPU ops` changed most",
        "The op `aten::mm` changed most in CPU self time",
        "The line `2 of Cell [3]` changed most in wall self time",
    ]


def test_the_line_of_a_finding_is_that_which_its_remedy_names() -> None:
    record = waiting_cell()
    (waiting,) = [each for each in findings(record) if each.rule == "synchronising"]
    cell = record.trace.args["cell"].iloc[0]
    assert waiting.line == (cell, 2)
    assert waiting.remedy.endswith("Look at line 2: `x = loss.item()`.")
    assert Finding("It is slow.").line is None
