"""`profile.explore()` as Python sees it; the page's side is in browser/."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpuprof_widgets import Profile, load
from gpuprof_widgets.analyses.findings import Finding
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.explorer import CALL_UP, Explorer
from gpuprof_widgets.views.encoding import encode

RECORDED = Path(__file__).parent / "data" / "recorded"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load(RECORDED / "activation_checkpointing_simulated_gpu.gpuprof")


@pytest.fixture
def explorer(profile: Profile) -> Explorer:
    return profile.explore()


def test_the_range_is_the_whole_trace_at_first(profile: Profile, explorer: Explorer) -> None:
    assert explorer.range == explorer.visible == (profile.trace.start_ns, profile.trace.end_ns)
    assert explorer.window is profile
    assert explorer.selection.empty


def test_analyses_answer_for_the_range(profile: Profile, explorer: Explorer) -> None:
    start, end = profile.trace.start_ns, profile.trace.end_ns
    middle = ((3 * start + end) // 4, (start + 3 * end) // 4)
    explorer.range = middle
    cut = profile.window(*middle)
    pd.testing.assert_frame_equal(explorer.operators(), cut.operators())
    pd.testing.assert_frame_equal(explorer.kernels(by="name"), cut.kernels(by="name"))
    assert [each.text for each in explorer.findings()] == [each.text for each in cut.findings()]
    assert explorer.window is explorer.window
    assert not explorer.operators().equals(profile.operators())


@pytest.mark.parametrize(
    ("given", "kept"),
    [((-5, 10), (0, 10)), ((30, 20), (20, 30)), ((7, 7), (7, 8)), ((0, 1 << 60), None)],
)
def test_a_range_stays_in_the_trace(
    explorer: Explorer, given: tuple[int, int], kept: tuple[int, int] | None
) -> None:
    explorer.range = given
    assert explorer.range == (kept or (0, explorer.profile.trace.end_ns))


def test_a_selection_is_set_by_rows_by_a_table_and_by_a_query(explorer: Explorer) -> None:
    explorer.selection = [5, 3]
    assert list(explorer.selection.index) == [3, 5]
    explorer.selection = "category == 'kernel'"
    table = explorer.selection
    slices = explorer.profile.trace.slices
    assert list(table.index) == list(slices.index[slices["category"] == "kernel"])
    explorer.selection = table[table["start_ns"] > table["start_ns"].median()]
    assert 0 < len(explorer.selection) < len(table)
    explorer.selection = None
    assert explorer.selection.empty


def test_a_selection_has_names_owners_and_times(explorer: Explorer) -> None:
    explorer.selection = "category == 'kernel'"
    table, profile = explorer.selection, explorer.profile
    slices = profile.trace.slices
    assert (table["kernel"] == table["name"]).all()
    assert (table["start_ns"] == slices["ts"][table.index]).all()
    assert (table["duration_ns"] == slices["dur"][table.index]).all()
    for row, op in table["op"].items():
        chain = profile.owners(row)
        assert op == chain[chain["role"].isin(["op", "forward"])]["name"].iloc[-1]
        lines = list(chain[chain["role"] == "line"]["name"])
        if (chain["role"] == "forward").any():
            assert table["line"][row] in lines  # one of them called `backward`
        else:
            assert table["line"][row] == lines[-1]


def test_ops_have_no_kernel(explorer: Explorer) -> None:
    explorer.selection = "category == 'cpu_op'"
    assert (explorer.selection["kernel"] == "").all()


@pytest.mark.parametrize("rows", [[-1], [10**9]])
def test_rows_that_no_slice_has_are_an_error(explorer: Explorer, rows: list[int]) -> None:
    explorer.selection = [1]
    with pytest.raises(OptionError, match=rf"no slice {rows[0]}: its slices are 0 to "):
        explorer.selection = rows
    assert list(explorer.selection.index) == [1]


@pytest.mark.parametrize("query", ["nonsense ==", "colour == 3"])
def test_a_wrong_query_names_the_columns(explorer: Explorer, query: str) -> None:
    with pytest.raises(OptionError, match=r"cannot be answered.*The columns are name, "):
        explorer.selection = query


def test_show_brushes_and_selects_what_a_finding_is_about(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(explorer, "send", sent.append)
    explorer.show(Finding("`aten::mm` is slow", start_ns=1_000, end_ns=5_000, rows=(4, 2)))
    assert explorer.range == (1_000, 5_000)
    assert explorer.visible == (0, 6_000)
    assert list(explorer.selection.index) == [2, 4]
    assert sent == [CALL_UP]


def test_on_change_is_called_after_each_change_until_it_is_removed(explorer: Explorer) -> None:
    seen: list[tuple[tuple[int, int], int]] = []

    def note(changed: Explorer) -> None:
        seen.append((changed.range, len(changed.selection)))

    explorer.on_change(note)
    explorer.range = (10, 20)
    explorer.selection = [1, 2]
    explorer.range = (10, 20)
    assert seen == [((10, 20), 0), ((10, 20), 2)]
    explorer.on_change(note, remove=True)
    explorer.range = (30, 40)
    assert len(seen) == 2


def test_the_range_links_with_a_slider(explorer: Explorer) -> None:
    import ipywidgets

    slider = ipywidgets.IntRangeSlider(min=0, max=explorer.profile.trace.end_ns)
    ipywidgets.link((explorer, "range"), (slider, "value"))
    slider.value = (100, 200)
    assert explorer.range == (100, 200)
    explorer.range = (300, 400)
    assert slider.value == (300, 400)


def test_the_page_is_told_rows_as_the_engine_reads_them(explorer: Explorer) -> None:
    explorer.selection = [7, 300]
    assert np.frombuffer(explorer.get_state()["_rows"], "<i4").tolist() == [7, 300]


def test_rows_from_the_page_are_selected(explorer: Explorer) -> None:
    explorer.set_state({"_rows": memoryview(np.array([7, 300], "<i4").tobytes())})
    assert list(explorer.selection.index) == [7, 300]


def test_a_report_is_sent_once_asked_as_bytes(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[object, list[bytes]]] = []
    monkeypatch.setattr(explorer, "send", lambda *message: sent.append(message))
    explorer._handle_custom_msg({"asks": "report"}, [])
    [(content, [script])] = sent
    assert content == {"report": explorer._uid}
    assert f'"uid": "{explorer._uid}"'.encode() in script
    assert len(json.dumps(explorer.get_state(), default=str)) < 20_000  # no data in the state


def test_what_it_is_called(explorer: Explorer) -> None:
    explorer.range = (1_000, 2_000_000)
    assert repr(explorer).endswith("range 1,000 to 2,000,000 ns>")
    assert "operators" in dir(explorer)
    with pytest.raises(AttributeError, match="'Explorer' object has no attribute 'nonsense'"):
        explorer.nonsense  # noqa: B018


def test_a_page_says_whether_its_rows_are_the_slices(profile: Profile) -> None:
    assert encode(profile).rows_kept
    assert not encode(profile, budget_bytes=20_000).rows_kept
