"""Files of known kinds that are not read: the error says what they are, and what opens them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyinstrument.renderers import JSONRenderer, SpeedscopeRenderer
from pyinstrument.session import Session

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.readers import load, parse
from gpuprof_widgets.trace.readers.unread import is_collapsed
from tests.trace_files import kineto, zip_of

UNREAD = {
    "run.nsys-rep": (
        b"\x01\x02 a report",
        r"Nsight Systems, which is not read\. Instead: "
        r"nsys export --type sqlite --output run\.sqlite run\.nsys-rep; then open run\.sqlite",
    ),
    "my run.qdrep": (
        b"\x01",
        r"nsys export --type sqlite --output 'my run\.sqlite' 'my run.qdrep'",
    ),
    "run.ncu-rep": (b"\x01", r"Nsight Compute.*ncu --import run\.ncu-rep"),
    "run.pftrace": (
        b"\x0a\x05\x08\x01\x10\x02\x50\x0a\x03\x08\x01\x10",
        r"a Perfetto trace.*traceconv json run\.pftrace run\.json; then open run\.json",
    ),
    "host.xplane.pb": (b"\x0a\x02\x08\x01", r"XPlane.*trace_viewer"),
    "page.html": (b"<!DOCTYPE html><title>x</title>", r"an HTML page.*open it in a browser"),
    "train.py": (b"import torch\n", r"a Python script.*gpuprof run train\.py"),
    "run.json.lz4": (b"\x04\x22\x4d\x18abc", r"packed by .*lz4.*unpack it"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_known_file_that_is_not_read_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, told = UNREAD[name]
    Path(name).write_bytes(content)
    with pytest.raises(TraceError, match=told):
        load(name)


@pytest.mark.parametrize(
    "content", [b"\x0a", b"\x0a\x00", b"\x0a\xff\xff\xff\xff\xff\xff", b"\nhello there"]
)
def test_not_everything_that_starts_as_a_protobuf_is_one(content: bytes) -> None:
    with pytest.raises(TraceError, match="not a kind of file that can be read"):
        parse(content, Path("x"))


# Samples of other profilers

SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
V8_FRAME = {"functionName": "f", "scriptId": "1", "url": "a.js", "lineNumber": 3}
SESSION = Session(
    frame_records=[(["main\0/home/me/train.py\x001", "len\0<built-in>\x000"], 0.5)],
    start_time=1.7e9,
    duration=0.5,
    min_interval=0.001,
    max_interval=0.001,
    sample_count=1,
    start_call_stack=["main\0/home/me/train.py\x001"],
    target_description="Program: train.py",
    cpu_time=0.5,
    sys_path=[],
    sys_prefixes=[],
)
SAMPLES: dict[str, tuple[Any, str]] = {
    "run.speedscope.json": (
        SpeedscopeRenderer().render(SESSION).encode(),
        r"speedscope .*open it at https://www\.speedscope\.app",
    ),
    "run.pyisession": (
        SESSION.to_json(),
        r"a session of pyinstrument .*pyinstrument --load shows it",
    ),
    "run.json": (
        JSONRenderer().render(SESSION).encode(),
        r"a call tree of pyinstrument .*pyinstrument -o run\.html",
    ),
    "CPU.cpuprofile": (
        {"nodes": [{"id": 1, "callFrame": V8_FRAME}], "startTime": 1, "samples": [1]},
        r"a CPU profile of V8 .*Chrome's DevTools",
    ),
    "run.collapsed": (
        b"main;step;mm 30\nmain;load (a.py:3) 12\nmain 5\n",
        r"collapsed stacks .*flamegraph\.pl draws it",
    ),
    "perf.txt": (b"[unknown];main 5\n{lambda()#1};main 7\n", r"collapsed stacks .*flamegraph\.pl"),
    "austin.txt": (
        b"# austin: 3.7.0\n# mode: full\n\nP1;T2;a.py:f:3;b.py:g:4 70,0,-4096\n",
        r"collapsed stacks .*flamegraph\.pl",
    ),
    "run.mojo": (
        b"MOJ\x03\x01mode\0wall\0",
        r"an Austin profile in its binary format.*mojo2austin",
    ),
}


def bytes_of(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


PACKED: dict[str, Callable[[str, bytes], bytes]] = {
    "": lambda name, data: data,
    ".gz": lambda name, data: gzip.compress(data),
    ".zip": lambda name, data: zip_of({name: data}),
}


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_others_come_with_what_opens_them(
    name: str, ending: str, tmp_path: Path
) -> None:
    content, words = SAMPLES[name]
    path = tmp_path / f"{name}{ending}"
    path.write_bytes(PACKED[ending](name, bytes_of(content)))
    with pytest.raises(TraceError, match=rf"{path.name}.*: .*{words}"):
        load(path)


def test_a_trace_that_names_speedscope_is_a_trace(tmp_path: Path) -> None:
    data = kineto(SPEEDSCOPE_SCHEMA, '"nodes": "callFrame"', **{"$schema": SPEEDSCOPE_SCHEMA})
    assert len(parse(data, Path("x")).trace) == 2
    assert len(parse(gzip.compress(data), Path("x")).trace) == 2


BOX = {"ph": "X", "name": "task", "pid": 7, "tid": 9, "ts": 1000, "dur": 500}
CHUNK = {"ph": "P", "name": "ProfileChunk", "id": "0x1", "pid": 7, "tid": 9, "ts": 1}


def test_samples_beside_slices_are_left_out_with_a_note() -> None:
    listed = [{"cpu": 0, "tid": 9, "ts": ts, "name": "cycles", "sf": 1} for ts in (1, 2)]
    content = {"traceEvents": [BOX, CHUNK], "stackFrames": {"1": {"name": "f"}}, "samples": listed}
    record = parse(bytes_of(content), Path("x"))
    assert record.trace.slices["name"].tolist() == ["task"]
    assert record.metadata["notes"] == ["3 events with samples of stacks are not read"]
    assert "samples" not in record.metadata


def test_samples_alone_are_an_error() -> None:
    with pytest.raises(TraceError, match=r"x: a trace without a single .*Chrome's DevTools"):
        parse(bytes_of([CHUNK]), Path("x"))


def test_samples_of_the_user_are_metadata() -> None:
    record = parse(bytes_of({"traceEvents": [BOX], "samples": [1, 2]}), Path("x"))
    assert record.metadata["samples"] == [1, 2]


NO_STACKS = {
    "a table": b"name;calls;time\nmm;3;12\nadd;4;7\n",
    "a table of words and numbers": b"a; b; 3\nc; d; 4\n",
    "a log with a semicolon": b"epoch 1\nepoch 2\nepoch 3; lr 4\nepoch 5\n",
    "C": b"for (i = 0; i < 3; i++)\n  x = 1;\nreturn 0;\n",
    "JSON that is cut": b'{"a": "x;y", "ts": 12',
    "nothing but blanks": b" \n\n",
    "a long line": b"a;" * 100_000 + b"b 1\n",
}


@pytest.mark.parametrize("name", NO_STACKS)
def test_other_text_is_not_taken_for_stacks(name: str) -> None:
    assert not is_collapsed(NO_STACKS[name])
