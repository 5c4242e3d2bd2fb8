"""A finding is one function and one row of FINDINGS: all else is made from these; its title."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets import Profile, exceptions, registry
from gpuprof_widgets.analyses import findings as package
from gpuprof_widgets.analyses.findings import FINDINGS, Finding, findings
from gpuprof_widgets.analyses.findings.finding import EVIDENCE, code, spread
from gpuprof_widgets.analyses.findings.thresholds import limits_for, thresholds_of
from gpuprof_widgets.analyses.ranks.findings import FINDINGS as OF_RANKS
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.registry import Registry
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.redact import redacted
from gpuprof_widgets.views.page import SHOWN_ROWS
from scripts.make_findings import MEANINGS
from tests.command_lines import gpuprof
from tests.finding_titles import title_problems, with_checked_titles
from tests.traces import cell_line, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

RULES = [*FINDINGS.values(), *OF_RANKS.values()]


def many_slices(record: Record, *, many_slices_least: int = 10) -> list[Finding]:
    count = len(record.trace)
    return [Finding(f"The trace has {count} slices.")] if count >= many_slices_least else []


def failing(record: Record, *, least: float = 1.0) -> list[Finding]:
    raise ZeroDivisionError(f"no {least}")


def talking(record: Record) -> Any:
    return ["It is slow."]


def without_default(record: Record, *, least: float) -> list[Finding]:
    return []


NO_FUNCTION = "no function"


def profile(slices: int = 3) -> Profile:
    rows = [op(f"op{n}", ts=n * 10, dur=9) for n in range(slices - 1)]
    record = trace_of(*rows, kernel("gemm", ts=0, dur=9, launched_by=0))
    return Profile(record.trace, record.calls, record.metadata)


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(FINDINGS, "many_slices", many_slices)
    return "many_slices"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Registry[Any]]:
    """Adds a function of this module to a table of ours, as an entry point of a package does."""

    def add(name: str) -> Registry[Any]:
        point = EntryPoint(name, f"{__name__}:{name}", "gpuprof_widgets.findings")
        monkeypatch.setattr(registry, "entry_points", lambda group: [point])
        table = Registry("gpuprof_widgets.findings", dict(FINDINGS), package.of_package)
        monkeypatch.setattr(package, "FINDINGS", table)
        return table

    return add


def of_rule(found: list[Finding], rule: str) -> list[str]:
    return [finding.text for finding in found if finding.rule == rule]


def test_its_threshold_can_be_another_one(rule: str) -> None:
    assert of_rule(profile(3).findings(many_slices_least=3), rule) == ["The trace has 3 slices."]
    with pytest.raises(exceptions.OptionError, match="did you mean many_slices_least"):
        profile().findings(many_slice_least=3)
    with pytest.raises(exceptions.OptionError, match=r"there are device_idle.*, many_slices_least"):
        profile().findings(x=3)


def test_its_threshold_can_be_typed(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(tmp_path / "run.gpuprof")
    profile().save(trace)
    limit = ("findings", trace, "--all", "--limit")
    assert "The trace has 3 slices." in gpuprof(capsys, *limit, "many_slices_least=3").out
    assert "slices." not in gpuprof(capsys, *limit, "many_slices_least=4").out
    assert "with a number" in gpuprof(capsys, *limit, "many_slices_least=3.5").err


def test_another_package_adds_a_finding(added: Callable[[str], Registry[Any]]) -> None:
    table = added("many_slices")
    assert list(table) == [*FINDINGS, "many_slices"]
    assert of_rule(profile(12).findings(), "many_slices") == ["The trace has 12 slices."]
    assert of_rule(profile(12).findings(many_slices_least=13), "many_slices") == []
    assert thresholds_of(table["many_slices"]) == thresholds_of(many_slices)


@pytest.mark.parametrize(
    ("name", "why"),
    [("failing", "ZeroDivisionError: no 1.0"), ("talking", "TypeError: it returned something")],
)
def test_a_rule_of_another_package_that_fails_silences_no_other(
    name: str, why: str, added: Callable[[str], Registry[Any]]
) -> None:
    without = profile().findings()
    assert without
    added(name)
    with pytest.warns(UserWarning, match=f"the finding {name} of {__name__} .*{why}") as warned:
        assert profile().findings() == without
    assert len(warned) == 1


@pytest.mark.parametrize("name", ["NO_FUNCTION", "without_default"])
def test_what_is_no_rule_is_left_out_of_the_table(
    name: str, added: Callable[[str], Registry[Any]]
) -> None:
    table = added(name)
    with pytest.warns(UserWarning, match=f"the entry point {name} of .* was left out: TypeError"):
        assert list(table) == list(FINDINGS)


def test_a_threshold_has_one_default_in_all_rules_and_a_meaning() -> None:
    known = thresholds_of(*RULES)
    assert set(known) == set(MEANINGS)
    for rule in RULES:
        own = thresholds_of(rule)
        assert own == {name: known[name] for name in own}
        assert limits_for(rule, known) == own


def test_evidence_of_many_slices_is_spread_over_all_of_them() -> None:
    assert spread([3, 5, 9]) == (3, 5, 9)
    assert spread([]) == ()
    many = spread(range(45_600))
    assert len(many) == EVIDENCE
    assert (many[0], many[-1]) == (0, 45_599)
    assert max(b - a for a, b in pairwise(many)) <= 46
    assert EVIDENCE <= SHOWN_ROWS  # the page shows all of it


TEN = "one two three four five six seven eight nine"


def titled(title: str, start: int = 0) -> Finding:
    return Finding("It is slow.", title=title, start_ns=start, end_ns=start + 1)


@pytest.mark.parametrize(
    ("title", "problem"),
    [
        ("", "no title"),
        (f"`x y` {TEN} ten", "11 words"),
        ("`mm is slow", "does not end"),
        ("`` is slow", "is empty"),
        ("the GPU waits", "no beginning"),
        ("The GPU waits.", "an end that is none"),
    ],
)
def test_titles_that_it_cannot_show(title: str, problem: str) -> None:
    (found,) = title_problems([titled(title)])
    assert problem in found


def test_a_rule_with_a_bad_title_fails_in_every_test() -> None:
    def rule(record: Record, *, least: float = 1.0) -> list[Finding]:
        return [Finding(f"{least}")]

    with pytest.raises(AssertionError, match="no title"):
        with_checked_titles(rule)(trace_of(), least=2.0)


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
    *_, by_number = Comparison(redacted(a), redacted(b)).findings()
    assert by_number.title == "The line `2 of Cell [3]` changed most in wall self time"


def test_the_line_of_a_finding_is_that_which_its_remedy_names() -> None:
    record = waiting_cell()
    (waiting,) = [each for each in findings(record) if each.rule == "synchronising"]
    cell = record.trace.args["cell"].iloc[0]
    assert waiting.title == "`aten::item` waits for the GPU in `cudaStreamSynchronize`"
    assert waiting.line == (cell, 2)
    assert waiting.remedy.endswith("Look at line 2: `x = loss.item()`.")
    assert Finding("It is slow.").line is None
