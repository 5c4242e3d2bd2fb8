"""A comparison as text, as HTML without script, as a picture and as a page."""

from __future__ import annotations

import pytest

from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.comparison import delta_tables
from gpuprof_widgets.views.report import REPORT_TYPE
from tests.displays import displayed
from tests.traces import annotation, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

MARKUP = "</script><b>"


def run_of(dur: int, label: str) -> Record:
    rows = []
    for step in range(4):
        start = step * 1_000
        rows += [
            annotation(f"ProfilerStep#{step}", ts=start, dur=600 + dur),
            op("aten::mm", ts=start + 10, dur=dur),
            runtime("cudaLaunchKernel", ts=start + 12, dur=3),
            kernel(MARKUP, ts=start + 20, dur=dur // 2, launched_by=4 * step + 2),
        ]
    return trace_of(*rows, label=label)


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(run_of(300, "before"), run_of(100, "after"))


def test_text_has_findings_and_tables_in_eighty_columns(comparison: Comparison) -> None:
    text = comparison._repr_mimebundle_()["text/plain"]
    assert text.startswith("* B's step takes 22 % less time: 900 ns → 700 ns")
    assert "Ops by CPU self time per step: " in text
    assert "−200 ns" in text
    assert max(map(len, text.splitlines())) < 80


def test_html_needs_no_script_and_escapes_names(comparison: Comparison) -> None:
    html = comparison._repr_mimebundle_()["text/html"]
    assert html.startswith('<div class="gpuprof-static">')
    assert "&lt;/script&gt;&lt;b&gt;" in html
    assert "<script" not in html
    assert "</script" not in html


def test_the_page_gets_columns_of_the_rows_that_moved_most(comparison: Comparison) -> None:
    alone = Comparison(run_of(300, "a"), trace_of(op("aten::add", ts=0, dur=9)))
    (ops, *_) = (table for table in delta_tables(alone._runs) if table["noun"] == "Op")
    keys = [key for key, *_ in ops["columns"]]
    assert keys == [
        "name",
        "delta_ns",
        "a_ns",
        "b_ns",
        "ratio",
        "calls_a",
        "calls_b",
        "calls_delta",
        "change",
    ]
    assert [unit for _, _, unit, *_ in ops["columns"]][1:5] == ["change", "ns", "ns", "ratio"]
    values = dict(zip(keys, ops["values"], strict=True))
    place = values["name"].index("aten::add")
    row = [values[key][place] for key in ("delta_ns", "a_ns", "b_ns", "ratio", "calls_delta")]
    assert row == [9, 0, 9, None, 1]
    assert values["change"][place] == "in B only"
    assert ops["changed"][place]
    assert (ops["category"][place], ops["names"][place]) == ("cpu_op", [[], ["aten::add"]])
    assert (ops["sort"], ops["length"], ops["total"]) == ("delta_ns", len(values["name"]), 4)

    stepped = {table["noun"]: table for table in delta_tables(comparison._runs)}
    assert ["spread_ns", "Spread", "ns", "", ""] in stepped["Op"]["columns"]
    assert "calls_a" not in [key for key, *_ in stepped["Class"]["columns"]]


def test_what_is_noise_is_in_no_static_table(comparison: Comparison) -> None:
    alike = Comparison(comparison.a, comparison.a)._repr_mimebundle_()["text/plain"]
    assert alike == "* No difference: a step takes 900 ns in both."


def test_a_notebook_gets_three_outputs(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = displayed(monkeypatch)
    comparison._ipython_display_()
    assert [set(bundle) for bundle in shown] == [
        {"text/html", "text/plain"},
        {"image/png", "text/plain"},
        {REPORT_TYPE, "application/javascript", "text/plain"},
    ]


def test_the_page_is_one_file_with_both_runs(comparison: Comparison) -> None:
    page = comparison.report()
    assert page.count("<script") == 1
    assert "22 % less time" in page
