"""Several traces in a folder or archive: spans of one worker are one record, others an error."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import gpuprof_widgets
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.readers import load, parse
from gpuprof_widgets.trace.readers.spans import worker_in_name
from tests.test_every_trace import all_answers
from tests.trace_files import kineto, tar_of, zip_of

S_US = 1_000_000
BASE = 1_700_000_000_000_000_000


def span(
    number: int, name: str = "aten::mm", *, pid: int = 100, rank: int = 0, host: str = "n1"
) -> bytes:
    """A span that begins ``number`` seconds after the first."""
    return kineto(
        name,
        f"ProfilerStep#{number}",
        start_us=number * S_US,
        pid=pid,
        baseTimeNanoseconds=BASE,
        host_name=host,
        distributedInfo={"rank": rank, "world_size": 2},
    )


THREE = {f"n1_100.{1_000 + number}.pt.trace.json": span(number) for number in (0, 1, 5)}


def folder_of(tmp_path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
def test_spans_of_one_worker_are_put_one_after_another(kind: str, tmp_path: Path) -> None:
    files = dict(reversed(THREE.items()))  # their times say the order
    if kind == "folder":
        path = folder_of(
            tmp_path, {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
        )
    else:
        path = tmp_path / "run"
        path.write_bytes(zip_of(files) if kind == "zip" else gzip.compress(tar_of(files)))
    record = load(path)
    slices = record.trace.slices
    steps = slices[slices["name"] != "aten::mm"].sort_values("ts")
    assert steps["name"].tolist() == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#5"]
    length = 12_500
    assert steps["ts"].tolist() == [10_000, length + 10_000, 2 * length + 10_000]
    assert record.trace.span_ns == 3 * length
    assert len(record.trace.tracks) == 1
    assert [(one["epoch_ns"], one["start_ns"]) for one in record.metadata["spans"]] == [
        (BASE, 0),
        (BASE + 10**9, length),
        (BASE + 5 * 10**9, 2 * length),
    ]
    assert record.metadata["source"] == str(path)
    assert record.metadata["notes"][-1].startswith("3 spans of one worker (")
    assert record.metadata["notes"][-1].endswith("; the 5.000 s between them are not shown")


def test_spans_without_names_are_of_one_worker_by_their_process(tmp_path: Path) -> None:
    path = folder_of(tmp_path, {"first.json": span(0), "second.json": span(1)})
    assert len(load(path).trace) == 4


def test_every_analysis_answers_on_joined_spans() -> None:
    record = parse(zip_of(THREE), Path("run.zip"))
    profile = gpuprof_widgets.Profile(record.trace, record.calls, record.metadata)
    assert profile.operators()["calls"].max() == 3
    assert "aten::mm" in profile.report()
    assert all_answers(record) == {}


NO_RANK = span(0).replace(b"distributedInfo", b"other")
DIFFERENT = {
    "workers by name": (
        {"n1_100.1.pt.trace.json": span(0), "n1_200.1.pt.trace.json.gz": span(1)},
        "by their names they are of 2 workers",
    ),
    "ranks": ({"a.json": span(0), "b.json": span(1, rank=1)}, "rank 1 and rank 0"),
    "a rank in one": ({"a.json": NO_RANK, "b.json": span(1, rank=1)}, "rank 1 and no rank"),
    "hosts": ({"a.json": span(0), "b.json": span(1, host="n2")}, "host n2 and host n1"),
    "processes": ({"a.json": span(0), "b.json": span(1, pid=7)}, "no process is in both"),
    "one time": ({"a.json": span(0), "b.json": span(0)}, "they were taken at the same time"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_traces_of_several_workers_are_an_error(what: str, tmp_path: Path) -> None:
    files, why = DIFFERENT[what]
    names = ", ".join(sorted(files))
    folder = folder_of(tmp_path, files)
    with pytest.raises(TraceError) as caught:
        load(folder)
    error = str(caught.value)
    assert why in error
    assert f"gpuprof_widgets.ranks('{folder}')" in error
    assert names in error
    with pytest.raises(TraceError, match=r"Unpack it and open one of its files, .*ranks\(FOLDER\)"):
        parse(zip_of(files), Path("run.zip"))


def test_a_folder_of_broken_traces_says_what_is_wrong_with_each(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a.json": span(0)[:99], "b.json": b'{"lr": 0.1}'})
    with pytest.raises(
        TraceError, match=r"none of its 2 files can be read\. 1\. .*cut off.* 2\. .*not a trace"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("name", "worker"),
    [
        ("node1_4242.1700000000000.pt.trace.json", "node1_4242"),
        ("log/node1_4242.1700000000000.pt.trace.json.gz", "node1_4242"),
        ("a.b.c_1.17.pt.trace.json", "a.b.c_1"),
        ("trace.json", None),
        ("rank0.pt.trace.json", None),
    ],
)
def test_the_worker_stands_before_the_span(name: str, worker: str | None) -> None:
    assert worker_in_name(name) == worker
