"""Saved profiles: equal when loaded again, made of files that other tools open."""

from __future__ import annotations

import gzip
import json
import pstats
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snakeviz.stats import json_stats, table_rows

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from tests.records import NAMES, assert_same_record, records
from tests.traces import calls_of, kernel, memory, op, runtime, trace_of

pytestmark = pytest.mark.slow

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def a_record() -> Record:
    """A record with something of everything."""
    return trace_of(
        op("aten::mm", ts=0, dur=9, shapes=[[2, 3], [3, 4]], sequence=4),
        runtime("cudaLaunchKernel", ts=2, dur=3),
        memory(512, ts=3, allocated=512, reserved=1024, device=0),
        kernel("gemm<float>", ts=10, dur=5, launched_by=1),
        op("MmBackward0", ts=30, dur=5, sequence=4, forward_thread=1, thread=101),
        calls=calls_of((None, "main", 1, 100), ("main", "step", 3, 250)),
        label='cell "3" – µs',
        notes=["one", "two"],
        options={"shapes": True},
    )


@same_folder
@given(records())
def test_a_record_loads_back_equal(tmp_path: Path, record: Record) -> None:
    assert_same_record(load(save(record, tmp_path / "run.zip")), record)


@same_folder
@given(
    st.lists(st.tuples(NAMES, st.integers(1, 10**9), st.integers(0, 10**15)), max_size=5),
    st.dictionaries(NAMES, st.one_of(NAMES, st.integers(), st.lists(NAMES)), max_size=3),
)
def test_calls_and_metadata_load_back_equal(
    tmp_path: Path, functions: list[tuple[str, int, int]], metadata: dict[str, object]
) -> None:
    calls = calls_of(*[(None, name, times, own) for name, times, own in functions])
    record = Record(a_record().trace, calls, metadata)
    assert_same_record(load(save(record, tmp_path / "run.zip")), record)


def test_a_real_trace_loads_back_equal(shared_record: Record, tmp_path: Path) -> None:
    part = window(shared_record, shared_record.trace.end_ns // 3, shared_record.trace.end_ns // 2)
    for record in (shared_record, part):
        assert_same_record(load(save(record, tmp_path / "run.zip")), record)


def test_equal_records_make_equal_files(tmp_path: Path) -> None:
    first, second = (save(a_record(), tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_the_call_statistics_are_what_snakeviz_draws(tmp_path: Path) -> None:
    with zipfile.ZipFile(save(a_record(), tmp_path / "run.zip")) as saved:
        stats = pstats.Stats(saved.extract("cell.prof", tmp_path))
    drawn = json_stats(stats)
    assert drawn["cell.py:1(main)"]["children"] == {"cell.py:2(step)": [3, 3, 250e-9, 250e-9]}
    assert drawn["cell.py:2(step)"]["stats"] == [3, 3, 250e-9, 250e-9]
    assert {row[5] for row in table_rows(stats)} == {"cell.py:1(main)", "cell.py:2(step)"}


def test_the_trace_is_chrome_json_with_exact_times(tmp_path: Path) -> None:
    with zipfile.ZipFile(save(a_record(), tmp_path / "run.zip")) as saved:
        written = json.loads(gzip.decompress(saved.read("trace.json.gz")))
    events = written["traceEvents"]
    gemm = next(event for event in events if event["name"] == "gemm<float>")
    assert gemm == {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm<float>",
        "pid": 0,
        "tid": 7,
        "ts": 0.010,
        "dur": 0.005,
        "args": {"correlation": 2, "device": 0, "stream": 7},
    }
    assert {event["ph"] for event in events} == {"X", "i", "M", "C", "s", "f"}
    arrows = [e for e in events if e["ph"] in "sf" and e["cat"] == "ac2g"]
    assert [(e["ph"], e["pid"], e["tid"], e["ts"]) for e in arrows] == [
        ("s", 100, 100, 0.002),
        ("f", 0, 7, 0.010),
    ]


def test_as_any_other_readers_trace_it_gives_the_same_tables(tmp_path: Path) -> None:
    with zipfile.ZipFile(save(a_record(), tmp_path / "run.zip")) as saved:
        written = json.loads(gzip.decompress(saved.read("trace.json.gz")))
    del written["gpuprof_widgets"]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(written))
    found, expected = load(path).trace, a_record().trace
    pd.testing.assert_frame_equal(found.slices, expected.slices)
    pd.testing.assert_frame_equal(found.counters, expected.counters)
    pd.testing.assert_frame_equal(found.flows, expected.flows)
    assert found.tracks["kind"].tolist() == expected.tracks["kind"].tolist()


def test_nanoseconds_since_1970_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "cpu_op", "name": n, "pid": 1, "tid": 1, "ts": "?", "dur": "?"}
        for n in "ab"
    ]
    text = json.dumps(events)
    for number in ("1712195495545500.683", "0.001", "1712195495545501.001", "12345.678"):
        text = text.replace('"?"', number, 1)
    source.write_text(text)
    loaded = load(save(load(source), tmp_path / "run.zip")).trace
    assert loaded.epoch_ns == 1712195495545500683
    assert loaded.slices[["ts", "dur"]].to_numpy().tolist() == [[0, 1], [318, 12345678]]


def spoiled(tmp_path: Path, *, without: str = "", **replaced: bytes) -> Path:
    """A saved profile with a member missing or replaced."""
    source = save(a_record(), tmp_path / "good.zip")
    target = tmp_path / "bad.zip"
    with zipfile.ZipFile(source) as good, zipfile.ZipFile(target, "w") as bad:
        for name in good.namelist():
            if name != without:
                bad.writestr(name, replaced.get(name.split(".")[0], good.read(name)))
    return target


def test_a_zip_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"not a saved profile: trace\.json\.gz is missing"):
        load(spoiled(tmp_path, without="trace.json.gz"))


WRONG_METADATA = {
    b"{": "is not JSON at byte 1",
    b"\xff\xfe\xff": "is not JSON",
    b"[]": "holds a list, not an object",
    b'"x"': "holds a text, not an object",
    b"{}": 'is wrong: "format_version" is missing',
    b'{"format_version": 1}': 'is wrong: "metadata" is missing',
    b'{"format_version": "1", "metadata": {}}': '"format_version" is a text',
    b'{"format_version": -5, "metadata": {}}': '"format_version" is -5',
    b'{"format_version": 0, "metadata": {}}': '"format_version" is 0',
    b'{"format_version": null, "metadata": {}}': '"format_version" is null',
    b'{"format_version": true, "metadata": {}}': '"format_version" is true',
    b'{"format_version": 1e999, "metadata": {}}': '"format_version" is Infinity',
    b'{"format_version": 1, "metadata": [["a", 1]]}': '"metadata" is a list',
    b'{"format_version": 1, "metadata": 5}': '"metadata" is a whole number',
}


@pytest.mark.parametrize("written", WRONG_METADATA, ids=lambda written: repr(written[:40]))
def test_wrong_metadata_is_named_without_words_of_python(written: bytes, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        load(path := spoiled(tmp_path, metadata=written))
    text = str(caught.value)
    assert text.startswith(f"{path}: metadata.json in it ")
    assert WRONG_METADATA[written] in text
    assert "Copy or save it again" in text
    words = ("Error", "object has no", "subscript", "indices", "argument", "literal", "iterable")
    assert [word for word in words if word in text] == []


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    newer = json.dumps({"format_version": 99, "metadata": {}}).encode()
    with pytest.raises(TraceError, match="pip install --upgrade gpuprof-widgets"):
        load(spoiled(tmp_path, metadata=newer))


def test_a_saved_trace_that_lost_slices_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(save(a_record(), tmp_path / "run.zip")) as saved:
        written = json.loads(gzip.decompress(saved.read("trace.json.gz")))
    written["traceEvents"] = written["traceEvents"][:2]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(written))
    with pytest.raises(TraceError, match="2 of 5 slices are left"):
        load(path)
