"""The peak by category in the output that needs no script."""

from __future__ import annotations

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.report import static_html, static_text
from tests.traces import block, op, trace_of

MIB = 2**20


def peak_of(bytes: int) -> Record:
    return trace_of(
        op("aten::empty", ts=0, dur=9),
        block(bytes, at=1, ts=3, device=0, allocated=4 * bytes, reserved=8 * bytes),
    )


def test_the_peak_is_a_table_by_category() -> None:
    text = static_text(peak_of(MIB))
    assert "Peak memory of GPU 0: 4.00 MiB at 3 ns, 8.00 MiB reserved" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["before", "the", "record", "3.00", "MiB", "75", "%", "–"] in rows
    assert ["other", "1.00", "MiB", "25", "%", "1"] in rows
    assert "Peak memory of GPU 0: 4.00\u00a0MiB" in static_html(peak_of(MIB))


def test_little_memory_is_no_table() -> None:
    assert "Peak memory" not in static_text(peak_of(1000))


def test_without_a_recording_of_memory_there_is_no_table() -> None:
    assert "Peak memory" not in static_text(trace_of(op("aten::empty", ts=0, dur=9)))
