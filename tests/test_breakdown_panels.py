"""What the tabs on a GPU's time show: their numbers are those of the analyses."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.breakdown import breakdown, breakdown_segments
from gpuprof_widgets.analyses.gpu_work import device_busy
from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.analyses.streams import streams
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.gpu_time import (
    MOST_EVENTS,
    breakdown_panel,
    coarse,
    idle_panel,
    step_breakdown_panel,
    streams_panel,
)
from gpuprof_widgets.views.table import Panel
from tests.test_breakdown import everything
from tests.traces import annotation, copy, kernel, op, runtime, trace_of


def time_of_events(panel: Panel) -> list[int]:
    """Per row the time of its events."""
    assert panel.events is not None
    dur = panel.events["end_ns"] - panel.events["start_ns"]
    sums = dur.groupby(panel.events["group"]).sum()
    return [int(time) for time in sums.reindex(range(len(panel.rows)), fill_value=0)]


def test_the_breakdown_has_a_row_per_class_and_its_segments_as_events() -> None:
    panel = breakdown_panel(everything())
    assert panel is not None
    table = breakdown(everything())
    assert panel.rows["time_ns"].tolist() == table.loc[table["time_ns"] > 0, "time_ns"].tolist()
    assert time_of_events(panel) == panel.rows["time_ns"].tolist()
    assert set(panel.rows["where"]) == {"GPU 0"}
    assert " ".join(filter(None, panel.notes)) == "Every nanosecond is in exactly one class."


def test_without_a_gpu_it_is_the_cpus_breakdown() -> None:
    panel = breakdown_panel(trace_of(op("aten::mm", ts=0, dur=9)))
    assert panel is not None
    assert panel.title == "Breakdown (CPU)"
    assert panel.rows[["where", "class"]].to_numpy().tolist() == [["CPU", "CPU ops"]]
    assert breakdown_panel(trace_of()) is None


def test_steps_have_bars_of_their_own_where_there_are_several() -> None:
    one = [annotation("ProfilerStep#1", ts=0, dur=50), kernel("gemm", ts=0, dur=80)]
    assert step_breakdown_panel(trace_of(*one)) is None
    panel = step_breakdown_panel(trace_of(*one, annotation("ProfilerStep#2", ts=50, dur=40)))
    assert panel is not None
    assert panel.rows[["where", "class", "time_ns"]].to_numpy().tolist() == [
        ["GPU 0 · step 1", "compute", 50],
        ["GPU 0 · step 2", "compute", 30],
        ["GPU 0 · step 2", "other", 10],
    ]
    assert panel.events is not None
    assert panel.events[["start_ns", "end_ns"]].to_numpy().tolist() == [[0, 50], [50, 90], [50, 90]]


def test_equal_gaps_are_one_row() -> None:
    rows = [op("aten::mm", ts=0, dur=5), annotation("ProfilerStep#7", ts=10, dur=590)]
    for number in range(5):
        rows.append(runtime("cudaLaunchKernel", ts=100 * number + 80, dur=5))
        rows.append(kernel("gemm", ts=100 * number + 90, dur=20, launched_by=len(rows) - 1))
    record = trace_of(*rows)
    panel = idle_panel(record)
    assert panel is not None
    table = panel.rows.set_index("cause")
    assert table[["gaps", "time_ns", "longest_ns"]].to_dict("index") == {
        "host": {"gaps": 4, "time_ns": 320, "longest_ns": 80},
        "start": {"gaps": 1, "time_ns": 90, "longest_ns": 90},
        "end": {"gaps": 1, "time_ns": 90, "longest_ns": 90},
    }
    assert set(table["doing"]) == {"no op"}
    assert time_of_events(panel) == panel.rows["time_ns"].tolist()


def test_a_streams_row_has_its_kind_and_its_slices() -> None:
    record = trace_of(
        op("x", ts=0, dur=100),
        kernel("gemm", ts=0, dur=40),
        kernel("relu", ts=60, dur=10),
        copy(ts=30, dur=20, stream=9),
    )
    panel = streams_panel(record)
    assert panel is not None
    columns = ["where", "kind", "calls", "time_ns", "shared_ns"]
    assert panel.rows[columns].to_numpy().tolist() == [
        ["GPU 0 · stream 7", "compute", 2, 50, 10],
        ["GPU 0 · stream 9", "copy", 1, 20, 10],
    ]
    assert panel.events is not None
    names = record.trace.slices["name"].iloc[panel.events["row"]]
    assert sorted(names) == ["Memcpy HtoD (Pageable -> Device)", "gemm", "relu"]


def test_what_is_told_of_a_whole_stream_is_told_once() -> None:
    """A short copy on a busy stream is not as busy as that stream."""
    record = trace_of(kernel("gemm", ts=0, dur=60), copy(ts=60, dur=20), kernel("r", ts=80, dur=20))
    panel = streams_panel(record)
    assert panel is not None
    columns = ["kind", "time_ns", "busy_share", "shared_ns", "serialised_ns"]
    compute, moved = panel.rows[columns].to_numpy().tolist()
    assert compute == ["compute", 80, 1.0, 0.0, 20.0]
    assert moved[:2] == ["copy", 20]
    assert np.isnan(moved[2:]).all()


def test_nothing_to_show_is_no_tab() -> None:
    cpu = trace_of(op("aten::mm", ts=0, dur=9))
    assert idle_panel(cpu) is None
    assert streams_panel(cpu) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1), st.integers(4, 60))
def test_fewer_segments_have_the_same_times_in_every_stretch(
    parts: list[tuple[int, int]], most: int
) -> None:
    group, length = (np.array(values, np.int64) for values in zip(*parts, strict=True))
    end = np.cumsum(length)
    segments = pd.DataFrame({"group": group, "start_ns": end - length, "end_ns": end})
    fewer, width = coarse(segments, most)
    if not width:
        assert fewer is segments
        return
    assert len(fewer) <= max(most, 4 * 2)
    for begin in range(0, int(end[-1]), width):
        assert times_within(fewer, begin, begin + width) == times_within(
            segments, begin, begin + width
        )
    ordered = fewer.sort_values("start_ns")
    assert (ordered["start_ns"].to_numpy()[1:] == ordered["end_ns"].to_numpy()[:-1]).all()


def times_within(segments: pd.DataFrame, start: int, end: int) -> dict[int, int]:
    inside = segments["end_ns"].clip(upper=end) - segments["start_ns"].clip(lower=start)
    sums = inside.clip(lower=0).groupby(segments["group"]).sum()
    return {int(group): int(time) for group, time in sums.items() if time}


def test_real_traces_add_up_in_every_tab(shared_record: Record) -> None:
    panel = breakdown_panel(shared_record)
    if panel is None:
        assert not len(breakdown_segments(shared_record))
        return
    assert panel.events is not None
    assert len(panel.events) <= MOST_EVENTS
    assert time_of_events(panel) == panel.rows["time_ns"].tolist()
    if (gaps := idle_panel(shared_record)) is not None:
        assert time_of_events(gaps) == gaps.rows["time_ns"].tolist()
        assert gaps.rows["gaps"].sum() == len(idle(shared_record))
    if (kinds := streams_panel(shared_record)) is not None:
        assert kinds.rows["calls"].sum() == device_busy(shared_record)["slices"].sum()
        assert len(kinds.rows) >= len(streams(shared_record))
