"""Chrome traces of programs that we know nothing of: their slices are named regions of threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import gpuprof_widgets
from gpuprof_widgets.trace.chrome_trace import parse_chrome_trace
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load

ROUNDS = 20
MAIN = {"pid": 1, "tid": 1}
Event = dict[str, Any]


def served() -> list[Event]:
    """A server: ROUNDS requests of 30 us, in each 3 us of parsing and 20 us of a query."""
    events: list[Event] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "srv"}}]
    for at in range(0, 40 * ROUNDS, 40):
        events += [
            {"ph": "B", "name": "request", "cat": "app", **MAIN, "ts": at},
            {"ph": "X", "name": "parse", "cat": "app", **MAIN, "ts": at + 1, "dur": 3},
            {"ph": "X", "name": "query", "cat": "db", **MAIN, "ts": at + 5, "dur": 20},
            {"ph": "E", **MAIN, "ts": at + 30},
        ]
    return [
        *events,
        {"ph": "i", "name": "mark", "s": "t", **MAIN, "ts": 50},
        {"ph": "i", "name": "said", "cat": "app", "s": "t", **MAIN, "ts": 60},
        {"ph": "b", "name": "job", "cat": "queue", "id": 1, **MAIN, "ts": 3},
        {"ph": "e", "name": "job", "cat": "queue", "id": 1, **MAIN, "ts": 90},
    ]


def profile_of(events: list[Event], folder: Path) -> gpuprof_widgets.Profile:
    path = folder / "srv.json"
    path.write_text(json.dumps(events))
    return gpuprof_widgets.load(path)


def record_of(events: list[Event]) -> Record:
    return parse_chrome_trace(json.dumps(events).encode(), Path("srv.json"))


def test_the_op_table_counts_the_regions(tmp_path: Path) -> None:
    table = profile_of(served(), tmp_path).operators(sort="cpu_self").set_index("name")
    assert table["calls"].to_dict() == {"query": ROUNDS, "request": ROUNDS, "parse": ROUNDS}
    assert table["cpu_self_ns"].to_dict() == {
        "query": 20_000 * ROUNDS,
        "request": 7_000 * ROUNDS,
        "parse": 3_000 * ROUNDS,
    }


def test_instants_stay_on_their_thread_and_are_no_regions() -> None:
    trace = record_of(served()).trace
    assert trace.tracks["label"].tolist() == ["srv · thread 1", "srv · queue · async"]
    assert trace.tracks["kind"].tolist() == ["cpu", "other"]
    instants = trace.slices[trace.slices["category"] == "cpu_instant_event"]
    assert set(instants["name"]) == {"mark", "said"}


def test_a_region_without_duration_is_a_region() -> None:
    events = [*served(), {"ph": "X", "name": "tick", "cat": "app", **MAIN, "ts": 36, "dur": 0}]
    slices = record_of(events).trace.slices
    assert slices.loc[slices["name"] == "tick", "category"].tolist() == ["user_annotation"]


def test_time_in_regions_is_not_called_python(tmp_path: Path) -> None:
    profile = profile_of(served(), tmp_path)
    shares = profile.breakdown().set_index("class")["time_ns"]
    assert shares[shares > 0].to_dict() == {"CPU ops": 30_000 * ROUNDS, "other": 10_000 * 19}
    path = profile.critical_path(by="kind").set_index("kind")["dur_ns"]
    assert path.to_dict() == {"cpu op": 30_000 * ROUNDS, "unknown": 10_000 * 19}


def test_of_a_thread_with_nothing_but_instants_it_is_not_known_what_ran(tmp_path: Path) -> None:
    mark = {"ph": "i", "name": "mark", "s": "t", **MAIN}
    profile = profile_of([{**mark, "ts": 1}, {**mark, "ts": 9}], tmp_path)
    shares = profile.breakdown().set_index("class")["time_ns"]
    assert shares[shares > 0].to_dict() == {"other": 8_000}


def test_the_finding_names_the_costliest_region(tmp_path: Path) -> None:
    said = " ".join(f"{one.text} {one.remedy}" for one in profile_of(served(), tmp_path).findings())
    assert "`query` took 400 µs in 20 calls (51 % of the time, 67 % of all named regions)" in said
    assert "torch" not in said.lower()


def test_a_file_of_torch_keeps_what_others_wrote_apart() -> None:
    op = {"ph": "X", "name": "aten::add", "cat": "cpu_op", **MAIN, "ts": 900, "dur": 5}
    slices = record_of([*served(), op]).trace.slices
    assert set(slices.loc[slices["name"] == "query", "category"]) == {"db"}


def test_processes_that_are_devices_are_no_threads() -> None:
    device = {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "/device:GPU:0"}}
    fusion = {"ph": "X", "name": "fusion", "pid": 2, "tid": 1, "ts": 5, "dur": 5}
    trace = record_of([*served(), device, fusion]).trace
    kinds = trace.tracks["kind"].iloc[trace.slices["track"]].to_numpy(object)
    assert set(kinds[(trace.slices["name"] == "fusion").to_numpy()]) == {"other"}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    profile_of(served(), tmp_path).export(tmp_path / "out.json")
    return tmp_path / "out.json"


def test_an_export_has_the_categories_and_names_of_the_file(written: Path) -> None:
    events = json.loads(written.read_text())["traceEvents"]
    regions = {(one["name"], one["cat"]) for one in events if one["ph"] == "X"}
    assert regions == {("request", "app"), ("parse", "app"), ("query", "db"), ("job", "queue")}
    names = {one["name"]: one["args"]["name"] for one in events if one["ph"] == "M"
             and one["name"].endswith("_name") and one["tid"] != "queue · async"}  # fmt: skip
    assert names == {"process_name": "srv", "thread_name": "thread 1"}


def test_an_export_reads_back_equal(written: Path) -> None:
    first, again = load(written.with_name("srv.json")).trace, load(written).trace
    for table in ("slices", "tracks", "flows"):
        assert_frame_equal(getattr(first, table), getattr(again, table))
    for key, values in first.args.items():
        pd.testing.assert_series_equal(values, again.args[key])


def test_an_export_with_other_categories_is_refused(written: Path) -> None:
    document = json.loads(written.read_text())
    document["gpuprof_widgets"]["categories"]["names"] = ["user_annotation"]
    written.write_text(json.dumps(document))
    with pytest.raises(gpuprof_widgets.TraceError, match="changed"):
        gpuprof_widgets.load(written)
