"""Notes on a profile, and the place at which its reports open."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuprof_widgets
from gpuprof_widgets import Profile
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.remarks import FOCUS, REMARKS, focus, remarks
from gpuprof_widgets.trace.window import shifted
from gpuprof_widgets.views.report import static_html, static_text
from tests.traces import annotation, kernel, op, trace_of

MS = 1_000_000


def profile() -> Profile:
    record = trace_of(
        annotation("step", ts=0, dur=10 * MS),
        op("aten::mm", ts=1 * MS, dur=4 * MS),
        op("aten::add", ts=6 * MS, dur=2 * MS),
        kernel("gemm", ts=2 * MS, dur=3 * MS, launched_by=1),
    )
    return Profile(record.trace, record.calls, record.metadata)


def test_notes_stand_in_the_order_of_time_and_the_profile_stays_as_it_was() -> None:
    first = profile()
    noted = first.note("the copy waits", (6 * MS, 8 * MS)).note("  one\n word ", at=1 * MS)
    assert remarks(first) == []
    assert remarks(noted) == [
        {"text": "one word", "start_ns": 1 * MS, "end_ns": 1 * MS},
        {"text": "the copy waits", "start_ns": 6 * MS, "end_ns": 8 * MS},
    ]
    assert isinstance(noted, Profile)


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("", 1, "a note has a text"),
        (None, 1, "a note has a text"),
        ("x", 11 * MS, "not within the trace, which is from 0 to 10,000,000"),
        ("x", (5, 4), "not within the trace"),
        ("x", -1, "not within the trace"),
        ("x", 1.5, "neither a moment nor a range"),
        ("x", (1, 2, 3), "neither a moment nor a range"),
        ("x", "12", "neither a moment nor a range"),
        ("x", True, "neither a moment nor a range"),
    ],
)
def test_a_note_that_is_none_is_an_error(text: str, at: object, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        profile().note(text, at)  # type: ignore[arg-type]


def test_the_tables_without_scripts_list_notes_and_the_place() -> None:
    noted = profile().note("look at `aten::mm` <b>", (1 * MS, 5 * MS)).note("here", 6 * MS)
    shown = noted.focus((1 * MS, 5 * MS), "name == 'gemm'")
    lines = static_text(shown).splitlines()[:3]
    assert lines == [
        "Note from 1.000 ms to 5.000 ms: look at `aten::mm` <b>",
        "Note at 6.000 ms: here",
        "The report opens from 1.000 ms to 5.000 ms with 1 event selected",
    ]
    html = static_html(shown)
    assert (
        "Note from 1.000\u00a0ms to 5.000\u00a0ms: look at <code>aten::mm</code> &lt;b&gt;" in html
    )
    assert "Note from" not in static_text(profile())
    assert "Note at" not in static_text(profile())


def test_a_focus_takes_what_an_explorer_takes_as_its_selection() -> None:
    first = profile()
    by_query = focus(first.focus(selection="op == 'aten::mm'"))
    assert by_query is not None
    assert by_query["about"] == "op == 'aten::mm'"
    names = [first.trace.slices["name"].iloc[row] for row in by_query["rows"]]
    assert names == ["aten::mm", "gemm"]
    by_table = focus(first.focus(selection=first.trace.slices.iloc[by_query["rows"]]))
    assert by_table is not None
    assert by_table["rows"] == by_query["rows"]
    assert focus(first.focus((0, 5)).focus()) is None


def test_a_focus_on_nothing_that_is_there_is_an_error() -> None:
    with pytest.raises(OptionError, match="no slice 9: its slices are 0 to 3"):
        profile().focus(selection=[9])
    for odd in ([2**70], ["aten::mm"], [1.7], 5):
        with pytest.raises(OptionError, match="is no selection"):
            profile().focus(selection=odd)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no slice of the trace matches"):
        profile().focus(selection="op == 'zzz'")
    with pytest.raises(OptionError, match="cannot be answered"):
        profile().focus(selection="nonsense ==")
    with pytest.raises(OptionError, match="not within the trace"):
        profile().focus((0, 11 * MS))
    with pytest.raises(OptionError, match="a range must end after its start"):
        profile().focus((5, 5))


def test_a_finding_is_a_selection_with_its_range() -> None:
    first = profile()
    finding = next(one for one in first.findings() if one.rows)
    place = focus(first.focus(selection=finding))
    assert place is not None
    assert place["rows"] == sorted(finding.rows)
    assert place["about"] == finding.text
    if finding.start_ns is not None:
        assert place["range_ns"] == [finding.start_ns, finding.end_ns]
    narrow = focus(first.focus((1, 7), finding))
    assert narrow is not None
    assert narrow["range_ns"] == [1, 7]


def test_files_keep_both_and_redacted_copies_none(tmp_path: Path) -> None:
    shown = profile().note("of Alice", 5).focus((1, 7), [1])
    shown.save(tmp_path / "run.gpuprof")
    again = gpuprof_widgets.load(tmp_path / "run.gpuprof")
    assert remarks(again) == remarks(shown)
    assert (
        focus(again)
        == focus(shown)
        == {
            "range_ns": [1, 7],
            "rows": [1],
            "about": "selected in Python",
        }
    )
    redacted = shown.redacted()
    assert REMARKS not in redacted.metadata
    assert FOCUS not in redacted.metadata


def test_a_window_keeps_its_notes_and_no_place() -> None:
    shown = profile().note("early", 1 * MS).note("late", 9 * MS).focus((1, 7), [1])
    part = shown.window(0, 5 * MS)
    assert [remark["text"] for remark in part.metadata[REMARKS]] == ["early"]
    assert REMARKS not in shown.window(2 * MS, 5 * MS).metadata
    assert focus(part) is None


def test_notes_move_with_the_times_of_the_trace() -> None:
    shown = profile().note("early", 1 * MS).note("a while", (2 * MS, 3 * MS)).focus((1, 7), [1])
    later = shifted(shown, 3)
    assert remarks(later) == [
        {"text": "early", "start_ns": 1 * MS + 3, "end_ns": 1 * MS + 3},
        {"text": "a while", "start_ns": 2 * MS + 3, "end_ns": 3 * MS + 3},
    ]
    assert focus(later) is None
    assert remarks(shifted(later, -3)) == remarks(shown)


def test_what_a_file_calls_notes_may_be_anything(tmp_path: Path) -> None:
    strange = Profile(profile().trace, None, {REMARKS: [{"text": 3}], FOCUS: {"rows": "all"}})
    strange.save(tmp_path / "run.gpuprof")
    again = gpuprof_widgets.load(tmp_path / "run.gpuprof")
    assert remarks(again) == []
    assert focus(again) is None
    assert len(again.metadata["notes"]) == 2


@pytest.mark.parametrize("range_ns", [None, [20 * MS, 30 * MS], [5, 1]])
def test_what_the_trace_does_not_have_is_no_place(
    tmp_path: Path, range_ns: list[int] | None
) -> None:
    place = {"range_ns": range_ns, "rows": [0] if range_ns else [99], "about": ""}
    Profile(profile().trace, None, {FOCUS: place}).save(tmp_path / "run.gpuprof")
    assert focus(gpuprof_widgets.load(tmp_path / "run.gpuprof")) is None


def test_an_explorer_opens_at_the_place() -> None:
    explorer = profile().focus((2 * MS, 6 * MS), "op == 'aten::mm'").explore()
    assert explorer.range == (2 * MS, 6 * MS)
    assert explorer.visible == (1 * MS, 7 * MS)
    assert list(explorer.selection["name"]) == ["aten::mm", "gemm"]
    assert profile().explore().selection.empty
