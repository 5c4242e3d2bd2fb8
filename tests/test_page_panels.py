"""The panels in the page's text: values, events and curves as the panels have them, bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import page_panels as module
from gpuprof_widgets.views.encoding import encode
from gpuprof_widgets.views.page import has_view
from gpuprof_widgets.views.page_panels import Arrays, page_panels, panels
from gpuprof_widgets.views.page_rows import page_rows
from gpuprof_widgets.views.table import Column, Curve, Panel
from tests.panel_examples import EXAMPLES, column_values, kernels_panel
from tests.test_encoding import Page
from tests.traces import kernel, op, runtime, trace_of


def two_kernels() -> Record:
    """A gemm that runs twice, the second time beside a relu."""
    return trace_of(
        op("aten::mm", ts=0, dur=30),
        runtime("cudaLaunchKernel", ts=5, dur=3),
        kernel("gemm", ts=10, dur=20, launched_by=1),
        kernel("relu", ts=45, dur=20, stream=8),
        kernel("gemm", ts=40, dur=10),
    )


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "all_panels", lambda: EXAMPLES)


def told(
    record: Record, panel: Panel, monkeypatch: pytest.MonkeyPatch, *, rows_kept: bool = True
) -> tuple[dict[str, Any], list[list[float]]]:
    """One panel in the header, and the arrays that it names."""
    monkeypatch.setattr(module, "all_panels", lambda: {"it": lambda _: panel})
    arrays = Arrays()
    label = page_rows(record.trace).label if rows_kept else None
    (page,) = page_panels(panels(record), record, arrays, 1, label=label)
    return page, unpacked(arrays)


def unpacked(arrays: Arrays) -> list[list[float]]:
    """The arrays by plain loops."""
    values, offset, data = [], 0, arrays.data
    for info in arrays.layout:
        length, width = info["length"], info["width"]
        part, offset = data[offset : offset + length * width], offset + length * width
        if info["encoding"] == "float":
            values.append(np.frombuffer(part, "<f8").tolist())
            continue
        stored = [int.from_bytes(part[row::length], "little") for row in range(length)]
        folded = [n // 2 if n % 2 == 0 else -(n + 1) // 2 for n in stored]
        by_encoding = {"plain": stored, "signed": folded, "steps": np.cumsum(folded).tolist()}
        values.append(by_encoding[info["encoding"]])
    return values


@pytest.mark.usefixtures("examples")
def test_the_payload_holds_every_panel_that_has_something_to_show() -> None:
    page = Page(encode(two_kernels()))
    assert [panel["title"] for panel in page.header["panels"]] == ["Kernels", "Gaps", "Queue"]
    assert has_view(two_kernels(), "analyses")


def test_a_panel_with_nothing_to_show_has_no_tab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "all_panels", lambda: {"nothing": lambda _: None})
    assert panels(two_kernels()) == {}
    assert not has_view(two_kernels(), "analyses")


def test_events_that_are_slices_take_their_times_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    record = two_kernels()
    page, arrays = told(record, kernels_panel(record), monkeypatch)
    events = page["events"]
    names = record.trace.slices["name"].to_numpy(object)
    assert set(events) == {"count", "row", "of"}
    assert not page["cut"]
    assert arrays[events["count"]] == [2, 1]
    assert [names[int(row)] for row in arrays[events["row"]]] == ["gemm", "gemm", "relu"]


def test_where_rows_are_merged_events_have_times_and_no_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = two_kernels()
    page, arrays = told(record, kernels_panel(record), monkeypatch, rows_kept=False)
    events = page["events"]
    assert "row" not in events
    assert arrays[events["group"]] == [0, 0, 1]
    assert arrays[events["start"]] == [10, 40 - 30, 45 - 50]
    assert arrays[events["dur"]] == [20, 10, 20]


def test_what_columns_aggregate_comes_with_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    events = pd.DataFrame({"group": [1, 0, 0], "start_ns": [5, 9, 1], "end_ns": [6, 11, 2]})
    events = events.assign(row=-1, track=[2, -1, 0], bytes=[-7, 8, 9], rate=[0.5, 0.25, 2.0])
    columns = (
        Column("name", "Name", "text"),
        Column("bytes", "Bytes", "bytes", "sum", "bytes"),
        Column("rate", "Rate", "number", "mean", "rate"),
    )
    rows = pd.DataFrame({"name": ["a", "b"], "bytes": [17, -7], "rate": [1.125, 0.5]})
    page, arrays = told(two_kernels(), Panel("P", columns, rows, events), monkeypatch)
    told_events = page["events"]
    assert arrays[told_events["group"]] == [0, 1, 0]
    assert arrays[told_events["start"]] == [1, 5 - 2, 9 - 6]
    assert arrays[told_events["track"]] == [1, 3, 0]
    assert arrays[told_events["of"]["bytes"]] == [9, -7, 8]
    assert arrays[told_events["of"]["rate"]] == [2.0, 0.5, 0.25]


def test_of_equally_long_events_the_first_are_among_the_longest() -> None:
    dur = np.array([5, 2, 7, 5, 5, 9])
    assert [module._longest(dur, most).tolist() for most in (1, 3, 4)] == [
        [5],
        [0, 2, 5],
        [0, 2, 3, 5],
    ]


def test_of_too_many_events_the_longest_stay_and_no_number_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = two_kernels()
    panel = kernels_panel(record)
    assert panel is not None
    page, arrays = told(record, replace(panel, most_events=2), monkeypatch)
    assert page["cut"]
    assert arrays[page["events"]["count"]] == [1, 1]
    assert {aggregate for _, _, _, aggregate, _ in page["columns"]} == {""}
    assert page["note"].startswith("Every kernel and copy. The 1 shortest events are left out")


def test_of_too_many_rows_the_first_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 1)
    record = two_kernels()
    page, arrays = told(record, kernels_panel(record), monkeypatch)
    assert page["length"] == 1
    assert arrays[page["events"]["count"]] == [2]
    assert page["note"].endswith("1 more row is not listed here.")


def test_a_long_curve_keeps_its_extremes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHANGES", 20)
    monkeypatch.setattr(module, "SLOTS", 4)
    value = np.sin(np.arange(200.0))
    value[[57, 140]] = 9, -9
    record = trace_of(op("a", ts=0, dur=2000))
    changes = pd.DataFrame({"ts_ns": 10 * np.arange(200), "value": value})
    panel = Panel("P", (), pd.DataFrame(), curves=(Curve("c", "number", changes),))
    page, arrays = told(record, panel, monkeypatch)
    (curve,) = page["curves"]
    ts, shown = arrays[curve["ts"]], arrays[curve["value"]]
    assert not curve["exact"]
    assert len(ts) <= 3 * 4 + 1
    assert (max(shown), min(shown)) == (9, -9)
    assert (ts[0], shown[-1]) == (0, value[-1])
    assert all(value[int(at) // 10] == each for at, each in zip(ts, shown, strict=True))


def test_a_short_curve_is_there_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = pd.DataFrame({"ts_ns": [7, 3], "value": [1.5, -2.0]})
    panel = Panel("P", (), pd.DataFrame(), curves=(Curve("c", "bytes", changes),))
    page, arrays = told(two_kernels(), panel, monkeypatch)
    (curve,) = page["curves"]
    assert (arrays[curve["ts"]], arrays[curve["value"]]) == ([3, 7], [-2.0, 1.5])
    assert curve["exact"]


def assert_sound(panel: Panel, record: Record) -> None:
    """What the page takes for granted of every panel."""
    keys = {column.key for column in panel.columns}
    assert keys <= set(panel.rows.columns)
    named = [panel.sort] if panel.sort else []
    if panel.bars is not None:
        named += [key for key in (panel.bars.group, panel.bars.part, panel.bars.value) if key]
    named += [] if panel.points is None else [panel.points.x, panel.points.y]
    assert set(named) <= keys
    if panel.events is None:
        return
    events = panel.events
    assert events["group"].between(0, len(panel.rows) - 1).all()
    assert events["row"].between(-1, len(record.trace) - 1).all()
    assert (events["end_ns"] >= events["start_ns"]).all()
    wanted = {c.of for c in panel.columns if c.of and c.aggregate not in ("", "share", "ratio")}
    assert wanted <= set(events.columns)


def test_panels_of_real_traces_are_sound(shared_record: Record) -> None:
    for panel in panels(shared_record).values():
        assert_sound(panel, shared_record)


def test_over_the_whole_run_the_events_give_the_numbers_of_the_table(
    shared_record: Record,
) -> None:
    trace = shared_record.trace
    if len(trace) > 25_000:
        pytest.skip("plain loops take too long for it")
    for name, panel in panels(shared_record).items():
        if panel.events is None or len(panel.events) > panel.most_events:
            continue
        found = column_values(panel, trace.start_ns, trace.end_ns, trace.end_ns)
        for key, values in found.items():
            table = panel.rows[key].astype(float).fillna(0.0).to_numpy()
            events = np.array([value or 0.0 for value in values])
            assert np.allclose(events, table, rtol=1e-6, atol=1e-9), (name, key)
