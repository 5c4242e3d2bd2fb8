"""Chrome traces that we write: equal when read back, and what Perfetto wants them to be."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuprof_widgets.exports import export
from gpuprof_widgets.profiles import Profile, load
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.export_cases import a_profile, as_ns, events_of
from tests.records import assert_same_record, assert_same_trace, records
from tests.traces import op, trace_of

pytestmark = pytest.mark.slow

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)


OTHERS = sorted((Path(__file__).parent / "data").glob("*.json.gz"))
"""Real files of MegEngine and TensorFlow."""


@pytest.fixture
def profile() -> Profile:
    return a_profile()


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
@same_folder
@given(record=records(), edges=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_a_record_reads_back_equal(
    ending: str, record: Record, edges: tuple[int, int], tmp_path: Path
) -> None:
    part = window(record, *sorted(edges))
    for one in (record, part):
        assert_same_record(load(export(one, tmp_path / f"run{ending}")), one)


def test_the_gpus_and_the_rank_stand_where_kineto_has_them(
    profile: Profile, tmp_path: Path
) -> None:
    told = json.loads(profile.export(tmp_path / "run.json").read_text())
    assert told["deviceProperties"] == [
        {
            "id": 0,
            "name": "NVIDIA H200",
            "totalGlobalMem": 1 << 37,
            "numSms": 132,
            "computeMajor": 9,
            "computeMinor": 0,
        }
    ]
    assert told["distributedInfo"] == {"rank": 3, "world_size": 8}
    del told["gpuprof_widgets"]
    (tmp_path / "other.json").write_text(json.dumps(told))
    other = load(tmp_path / "other.json")
    assert other.gpu_summary()["device_name"].tolist() == ["NVIDIA H200"]
    assert other.breakdown()["rank"].unique().tolist() == [3]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_a_trace_of_another_program_reads_back_equal(path: Path, tmp_path: Path) -> None:
    profile = load(path)
    for ending in (".json", ".gpuprof"):
        assert_same_record(load(profile.export(tmp_path / f"run{ending}")), profile)


def test_what_json_has_no_number_for_is_null_in_the_metadata(
    profile: Profile, tmp_path: Path
) -> None:
    odd = replace(profile, metadata={"share": float("nan"), "path": Path("a"), "label": "\ud800"})
    text = odd.export(tmp_path / "run.json").read_text()
    json.loads(text, parse_constant=pytest.fail)
    assert load(tmp_path / "run.json").metadata == {"share": None, "path": "a", "label": "?"}


def assert_rows_are_stacks(events: list[dict[str, Any]]) -> None:
    """What Perfetto asks for: it drops a slice that ends after the one in which it began."""
    rows: dict[tuple[Any, Any], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            start = as_ns(event["ts"])
            rows.setdefault((event["pid"], event["tid"]), []).append(
                (start, start + as_ns(event["dur"]))
            )
    for slices in rows.values():
        open_until: list[int] = []
        for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def assert_arrows_meet_slices(events: list[dict[str, Any]]) -> None:
    starts = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "Xi"}
    for event in events:
        if event["ph"] in "sf":
            assert (event["pid"], event["tid"], event["ts"]) in starts


@same_folder
@given(records())
def test_no_slice_crosses_another_of_its_row(tmp_path: Path, record: Record) -> None:
    events = events_of(export(record, tmp_path / "run.json"))
    assert_rows_are_stacks(events)
    assert_arrows_meet_slices(events)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named


def test_what_crosses_has_a_row_of_its_own_and_reads_back_on_its_thread(tmp_path: Path) -> None:
    record = trace_of(op("outer", ts=0, dur=10), op("late", ts=5, dur=10), op("in", ts=12, dur=1))
    path = export(record, tmp_path / "run.json")
    threads = {e["name"]: e["tid"] for e in events_of(path) if e["ph"] == "X"}
    assert threads == {"outer": 100, "late": "100 (2)", "in": 100}
    assert_same_trace(load(path).trace, record.trace)


@pytest.mark.parametrize("ending", [".json.gz", ".gpuprof"])
def test_a_big_trace_is_packed_as_it_is_written(ending: str, tmp_path: Path) -> None:
    peaks, sizes = [], []
    for slices in (15_000, 45_000):
        rows = [op("aten::mm", ts=10 * n, dur=5, shapes=[[n, 2]]) for n in range(slices)]
        record = trace_of(*rows)
        sizes.append(export(record, tmp_path / "run.json").stat().st_size)
        tracemalloc.start()
        export(record, tmp_path / f"run{ending}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < (sizes[1] - sizes[0]) / 3, "neither text nor slices at once"


def test_the_packed_file_tells_no_name_and_no_time(profile: Profile, tmp_path: Path) -> None:
    data = profile.export(tmp_path / "a name.json.gz").read_bytes()
    assert data[3:8] == b"\0\0\0\0\0"
    assert gzip.decompress(data)[:1] == b"{"
