"""A finding is one function and one row of FINDINGS: all else is made from these."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from gpuprof_widgets import Profile, exceptions
from gpuprof_widgets.analyses.findings import FINDINGS, Finding
from gpuprof_widgets.analyses.findings.thresholds import Threshold, limits_for, thresholds_of
from gpuprof_widgets.analyses.ranks.findings import FINDINGS as OF_RANKS
from gpuprof_widgets.trace.model import Record
from tests.command_lines import gpuprof
from tests.traces import kernel, op, trace_of

RULES = [*FINDINGS.values(), *OF_RANKS.values()]


def many_slices(record: Record, *, many_slices_least: int = 10) -> list[Finding]:
    """Fires for traces that are large.

    ``many_slices_least``: Slices from which on a trace is large,
        whatever they are.
    """
    count = len(record.trace)
    return [Finding(f"The trace has {count} slices.")] if count >= many_slices_least else []


def profile(slices: int = 3) -> Profile:
    rows = [op(f"op{n}", ts=n * 10, dur=9) for n in range(slices - 1)]
    record = trace_of(*rows, kernel("gemm", ts=0, dur=9, launched_by=0))
    return Profile(record.trace, record.calls, record.metadata)


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(FINDINGS, "many_slices", many_slices)
    return "many_slices"


def of_rule(found: list[Finding], rule: str) -> list[str]:
    return [finding.text for finding in found if finding.rule == rule]


def test_a_row_added_is_asked_with_the_others(rule: str) -> None:
    found = profile(12).findings()
    assert of_rule(found, rule) == ["The trace has 12 slices."]
    assert {finding.rule for finding in found} > {rule}
    assert of_rule(profile(9).findings(), rule) == []


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


def test_a_threshold_of_several_rules_has_one_default_and_one_meaning() -> None:
    defaults: dict[str, set[float]] = defaultdict(set)
    meanings: dict[str, list[str]] = defaultdict(list)
    for each in RULES:
        for name, threshold in thresholds_of(each).items():
            defaults[name].add(threshold.default)
            meanings[name] += [threshold.meaning] if threshold.meaning else []
    assert [name for name, values in defaults.items() if len(values) > 1] == []
    assert [name for name, values in meanings.items() if len(values) != 1] == []


def test_the_meaning_is_that_of_the_rule_which_has_it() -> None:
    def first(record: Record, *, share: float = 0.5) -> list[Finding]: ...

    def second(record: Record, *, share: float = 0.5, count: int = 3) -> list[Finding]:
        """Fires.

        ``share``: Of the run, of all
            of it.
        ``count``: Calls.
        """

    assert thresholds_of(first, second, first) == {
        "share": Threshold(0.5, "Of the run, of all of it."),
        "count": Threshold(3, "Calls."),
    }
    assert limits_for(first, {"share": 1, "count": 2}) == {"share": 1}
