"""Traces with an event per line and no list around them, as loggers write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse

TOLD = "the file has an event per line: they were read as a list"


def line(ts: int, name: str = "a}\n{b") -> str:
    return json.dumps({"ph": "X", "name": name, "ts": ts, "dur": 1, "pid": 1, "tid": 1})


def read(text: str) -> Record:
    return parse(text.encode(), Path("trace.jsonl"))


@pytest.mark.parametrize("between", ["\n", "\r\n", "\n\n", " \n  "])
@pytest.mark.parametrize("end", ["", "\n"])
def test_events_of_a_line_each_are_one_trace(between: str, end: str) -> None:
    record = read(between.join(map(line, range(3))) + end)
    assert record.trace.slices["ts"].tolist() == [0, 1000, 2000]
    assert set(record.trace.slices["name"]) == {"a}\n{b"}
    assert record.metadata["notes"] == [TOLD]


def test_very_many_lines_are_one_trace() -> None:
    assert len(read("\n".join(map(line, range(500)))).trace) == 500


def test_a_last_line_that_is_cut_off_is_told() -> None:
    record = read("\n".join(map(line, range(3)))[:-9])
    assert len(record.trace) == 2
    assert record.metadata["notes"][0] == TOLD
    assert "it was cut off while it was written" in record.metadata["notes"][1]


def test_lines_of_something_else_are_one_error() -> None:
    with pytest.raises(TraceError, match=r"^log.jsonl: JSON, but not a trace: .*found: level"):
        parse(b'{"level": "info"}\n' * 500, Path("log.jsonl"))


def test_two_events_without_a_line_between_them_are_read() -> None:
    record = read(line(0) + line(1))
    assert len(record.trace) == 2
    assert not [note for note in record.metadata["notes"] if "cut off" in note]
