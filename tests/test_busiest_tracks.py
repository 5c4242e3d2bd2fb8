"""Pages of traces with more tracks than anybody looks through: the busiest are shown, and told."""

from __future__ import annotations

import base64
import gzip
import json

import pytest

from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import page_panels
from gpuprof_widgets.views.encoding import encode
from gpuprof_widgets.views.page import report_page
from gpuprof_widgets.views.page_rows import MOST_TRACKS, with_busiest_tracks
from tests.fuzz_readers import check_record
from tests.traces import kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow


def of_threads(count: int) -> Record:
    """Thread 0 launches a kernel; every further one is busier than the one before."""
    return trace_of(
        op("aten::mm", ts=0, dur=5, thread=0),
        runtime("cudaLaunchKernel", ts=1, dur=2, thread=0),
        kernel("gemm", ts=4, dur=1, launched_by=1),
        *(op("work", ts=0, dur=10 + thread, thread=thread) for thread in range(1, count)),
    )


def header_of(text: str) -> dict[str, object]:
    data = gzip.decompress(base64.b64decode(text))
    return dict(json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")]))


def test_a_record_of_few_tracks_is_shown_as_it_is() -> None:
    record = of_threads(5)
    assert with_busiest_tracks(record) is record
    assert header_of(encode(record).text)["notes"] == []


def test_gpus_and_the_busiest_threads_are_left() -> None:
    record = of_threads(9)
    shown = with_busiest_tracks(record, most=4)
    check_record(shown)
    assert shown.trace.tracks["thread"].tolist()[:3] == ["6", "7", "8"]
    assert shown.trace.tracks["kind"].tolist() == ["cpu", "cpu", "cpu", "gpu"]
    assert sorted(shown.trace.slices["name"]) == ["gemm", "work", "work", "work"]
    assert shown.trace.slices["launch"].tolist() == [-1] * 4
    assert len(record.trace.tracks) == 10, "the record itself stays as it is"


def test_links_between_tracks_that_are_left_stay() -> None:
    busy = trace_of(
        op("aten::mm", ts=0, dur=500, thread=0),
        runtime("cudaLaunchKernel", ts=1, dur=2, thread=0),
        kernel("gemm", ts=4, dur=1, launched_by=1),
        *(op("work", ts=0, dur=10, thread=thread) for thread in range(1, 9)),
    )
    slices = with_busiest_tracks(busy, most=2).trace.slices
    launched = slices.query("name == 'gemm'")["launch"].to_numpy()
    assert slices["name"].iloc[launched].tolist() == ["cudaLaunchKernel"]


@pytest.fixture(scope="module")
def many() -> Record:
    return of_threads(MOST_TRACKS + 200)


def test_the_page_says_how_many_of_its_tracks_it_has(many: Record) -> None:
    payload = encode(many)
    header = header_of(payload.text)
    assert isinstance(header["tracks"], list)
    assert len(header["tracks"]) == MOST_TRACKS
    assert header["notes"] == [
        "This page has 1,000 of 1,201 tracks: those of GPUs and the busiest. Its views and tables "
        "count only these. The findings, the commands and the analyses in Python count all tracks."
    ]
    assert not payload.rows_kept, "findings number the rows of the whole record"
    assert all(
        finding["rows"] == [] for finding in report_page(many, sort="cpu_self")["store"]["findings"]
    )


def test_a_report_asks_for_each_of_its_tables_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Record] = []
    monkeypatch.setattr(page_panels, "all_panels", lambda: {"it": asked.append})
    report_page(of_threads(MOST_TRACKS + 1), sort="cpu_self")
    assert [len(record.trace.tracks) for record in asked] == [MOST_TRACKS]


def test_analyses_count_all_tracks(many: Record) -> None:
    table = Profile(many.trace, None, {}).operators()
    assert table.set_index("name")["calls"]["work"] == MOST_TRACKS + 199
