"""Several timelines on one scale: where each stands, what the page gets, and the picture."""

from __future__ import annotations

import base64
import gzip
import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import shifted, window
from gpuprof_widgets.views import side_by_side
from gpuprof_widgets.views.report import REPORT_TYPE
from gpuprof_widgets.views.side_by_side import (
    MOST_PICTURED,
    Heading,
    Row,
    page_group,
    placed,
    side_by_side_page,
    timelines_picture,
)
from tests.traces import kernel, memory, op, runtime, trace_of

pytestmark = pytest.mark.slow


def run_of(length: int, *, start: int = 0) -> Record:
    return trace_of(
        op("aten::mm", ts=start, dur=length),
        memory(512, ts=start + 1),
        runtime("cudaLaunchKernel", ts=start + 1, dur=2),
        kernel("gemm", ts=start + 4, dur=length - 5, launched_by=2),
    )


def header_of(store: dict[str, Any]) -> dict[str, Any]:
    data = gzip.decompress(base64.b64decode(store["payload"]))
    size = int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4 : 4 + size])
    return header


def test_each_trace_begins_at_zero_unless_an_offset_says_where() -> None:
    late = window(run_of(100), 40, 90)
    alone = placed([Row(late, "a"), Row(run_of(60), "b")])
    assert [(row.record.trace.start_ns, row.record.trace.end_ns) for row in alone] == [
        (0, 50),
        (0, 60),
    ]
    by_clock = placed([Row(late, "a", offset_ns=-1_000), Row(run_of(60), "b", offset_ns=-970)])
    assert [(row.record.trace.start_ns, row.offset_ns) for row in by_clock] == [(10, -30), (0, 0)]


def test_a_shifted_record_is_the_same_at_other_times() -> None:
    record = window(run_of(100), 40, 90)
    moved = shifted(record, 1_000)
    kept = [name for name in record.trace.slices.columns if name != "ts"]
    pd.testing.assert_frame_equal(moved.trace.slices[kept], record.trace.slices[kept])
    assert (moved.trace.slices["ts"] - record.trace.slices["ts"]).eq(1_000).all()
    assert (moved.trace.counters["ts"] - record.trace.counters["ts"]).eq(1_000).all()
    for after, before in zip(moved.trace.index.uncut, record.trace.index.uncut, strict=True):
        np.testing.assert_array_equal(after - before, 1_000)
    epoch = moved.trace.epoch_ns + moved.trace.start_ns
    assert epoch == record.trace.epoch_ns + record.trace.start_ns
    assert shifted(record, 0) is record


def test_all_stores_share_one_range_that_holds_every_trace() -> None:
    rows = [Row(run_of(100), "long"), Row(run_of(60, start=7), "short")]
    group = page_group(rows)
    assert group["end"] == 100
    assert [header_of(store)["end_ns"] for store in group["stores"]] == [100, 60]


def test_all_together_take_no_more_room_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    encode = side_by_side.encode

    def noted(record: Record, *, budget_bytes: int, **how: Any) -> Any:
        given.append(budget_bytes)
        return encode(record, budget_bytes=budget_bytes, **how)

    monkeypatch.setattr(side_by_side, "encode", noted)
    page_group([Row(run_of(100), str(number)) for number in range(8)])
    assert given == [side_by_side.BUDGET_BYTES // 8] * 8


def test_each_timeline_has_its_title() -> None:
    rows = [Row(run_of(100), f"rank {number}") for number in range(3)]
    page = side_by_side_page(rows, Heading("job"))
    assert page["titles"] == [store["label"] for store in page["stores"]]
    assert page["titles"] == ["rank 0", "rank 1", "rank 2"]
    assert page["label"] == "job"


def test_outputs_are_those_of_a_cell_and_the_page_needs_no_network() -> None:
    rows = [Row(run_of(100), "a"), Row(run_of(60), "b")]
    html = '<div class="gpuprof-static">slower</div>'
    bundle = {"text/html": html, "text/plain": "slower"}
    heading = Heading("a and b", notes=["clocks differ by 3 ns"])
    static, picture, live = side_by_side.outputs(rows, heading, static=bundle, embed_runtime=False)
    assert html in static["text/html"]
    assert static["text/plain"] == "slower"
    assert "Trust this notebook" in static["text/html"]
    assert base64.b64decode(picture["image/png"])[:8] == b"\x89PNG\r\n\x1a\n"
    assert set(live) == {REPORT_TYPE, "application/javascript", "text/plain"}
    page = side_by_side.standalone_html(rows, heading, html=html)
    assert page.count("<script") == 1
    assert "slower" in page
    assert "Trust this notebook" not in page


def test_the_picture_has_a_band_per_timeline_up_to_a_limit() -> None:
    def height(count: int) -> int:
        rows = placed([Row(run_of(100), str(number)) for number in range(count)])
        return int(Image.open(io.BytesIO(timelines_picture(rows, "ranks").png)).size[1])

    assert height(2) < height(3)
    assert height(MOST_PICTURED) == height(MOST_PICTURED + 5)


def test_an_empty_trace_stands_beside_others() -> None:
    rows = [Row(trace_of(), "nothing"), Row(run_of(100), "something")]
    assert len(side_by_side_page(rows, Heading(""))["stores"]) == 2
    assert timelines_picture(placed(rows), "").png
