"""The table of Python functions on the page, and which pages have it instead of an op table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views import page_panels
from gpuprof_widgets.views.page import VIEWS, has_view
from gpuprof_widgets.views.page_panels import Arrays
from gpuprof_widgets.views.panels.regions import MOST_PIECES, annotations_panel, python_time_panel
from gpuprof_widgets.views.report import static_text
from tests.traces import annotation, calls_of, cell_line, op, python, trace_of

pytestmark = pytest.mark.slow


def frames() -> Record:
    """`step` runs twice and calls `load`, which calls itself; another thread only waits."""
    return trace_of(
        python("train.py(3): step", ts=0, dur=100),
        python("data.py(7): load", ts=10, dur=40),
        python("data.py(7): load", ts=20, dur=10),
        python("<built-in method time.sleep>", ts=60, dur=30),
        python("train.py(3): step", ts=120, dur=50),
        python("data.py(7): load", ts=130, dur=5),
        python("threading.py(9): wait", ts=0, dur=170, thread=2),
    )


@pytest.mark.parametrize(("start", "end"), [(0, 170), (15, 70), (25, 131), (100, 120), (64, 65)])
def test_self_times_of_any_range_follow_from_the_pieces(start: int, end: int) -> None:
    """The page adds the pieces up; Python computes the window's table anew."""
    panel = python_time_panel(frames())
    assert panel is not None
    assert panel.events is not None
    events = panel.events
    inside = np.minimum(events["end_ns"], end) - np.maximum(events["start_ns"], start)
    page = inside.clip(lower=0).groupby(events["group"]).sum()
    here = python_time(replace(frames(), trace=window(frames().trace, start, end)))
    told = dict(zip(panel.rows["name"], page.reindex(panel.rows.index, fill_value=0), strict=True))
    assert {name: ns for name, ns in told.items() if ns} == {
        name: ns for name, ns in zip(here["name"], here["self_ns"], strict=True) if ns
    }


def test_the_rows_that_a_page_gets_have_the_longest_by_either_time() -> None:
    called = [("main", f"f{i}", 1, 1_000 + i) for i in range(page_panels.MOST_ROWS)]
    panel = python_time_panel(trace_of(calls=calls_of((None, "main", 1, 1), *called)))
    assert panel is not None
    kept = panel.rows.head(page_panels.MOST_ROWS)
    assert len(kept) < len(panel.rows)
    assert "main" in kept["name"].tolist()
    assert kept["self_ns"].max() == 1_000 + page_panels.MOST_ROWS - 1


def test_cprofiles_functions_have_no_events() -> None:
    calls = calls_of((None, "main", 1, 10), ("main", "load", 4, 300))
    panel = python_time_panel(trace_of(calls=calls))
    assert panel is not None
    assert panel.events is None
    assert panel.rows["self_ns"].tolist() == [300, 10]
    assert panel.rows["share"].tolist() == [300 / 310, 10 / 310]
    assert [column.key for column in panel.columns][:2] == ["label", "calls"]


def test_of_very_many_pieces_a_page_without_the_slices_has_the_longest_and_times_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_panels, "all_panels", lambda: {"python_time": python_time_panel})
    frames = [python("a.py(1): f", ts=2 * n, dur=1) for n in range(MOST_PIECES)]
    record = trace_of(*frames, python("a.py(9): g", ts=20_000, dur=7))
    arrays = Arrays()
    shown = page_panels.panels(record)
    (page,) = page_panels.page_panels(shown, record, arrays, 1, label=None)
    assert page["cut"]
    assert arrays.layout[page["events"]["dur"]]["length"] == MOST_PIECES
    assert {aggregate for *_, aggregate, _ in page["columns"]} == {""}
    assert "The 1 shortest events are left out" in page["note"]


def test_frames_are_those_of_the_threads_that_count() -> None:
    panel = python_time_panel(frames())
    assert panel is not None
    assert panel.frames is not None
    names = frames().trace.slices["name"].astype(str)
    functions = panel.rows["name"].to_numpy(object)
    assert [functions[row] for row in panel.frames] == [name.split(": ")[-1] for name in names]


def test_samples_have_no_calls_and_say_so() -> None:
    record = frames()
    panel = python_time_panel(replace(record, metadata={**record.metadata, SAMPLED: True}))
    assert panel is not None
    assert "calls" not in [column.key for column in panel.columns]
    assert "estimates" in " ".join(panel.notes)


def test_a_run_without_python_has_no_such_panel() -> None:
    assert python_time_panel(trace_of(op("aten::mm", ts=0, dur=9))) is None


def views(record: Record) -> list[str]:
    return [view for view in VIEWS if has_view(record, view)]


def test_functions_stand_where_there_are_no_ops() -> None:
    calls = calls_of((None, "main", 1, 10))
    assert views(frames()) == ["timeline", "flame_graph", "analyses"]
    assert views(trace_of(calls=calls)) == ["flame_graph", "analyses"]
    line = cell_line(1, "total = sum(range(9))", ts=0, dur=9)
    assert "op_table" not in views(trace_of(line, calls=calls))
    assert "op_table" in views(trace_of(line))  # it says that there are no ops
    assert "op_table" in views(trace_of(op("aten::mm", ts=0, dur=9), calls=calls))


def test_the_static_table_is_of_functions_there_too() -> None:
    words = static_text(frames())
    assert "Python functions by self time: 4 of 4" in words
    assert "data.py:7(load)" in words


def test_annotations_without_gpu_work_stand_by_their_cpu_time() -> None:
    record = trace_of(annotation("short", ts=0, dur=5), annotation("long", ts=9, dur=50))
    panel = annotations_panel(record)
    assert panel is not None
    assert panel.rows["name"].tolist() == ["long", "short"]
    assert not [column.label for column in panel.columns if "GPU" in column.label]
    assert "GPU" not in " ".join(panel.notes)
