"""JSON that is much larger in memory than in its file: left out, counted, the rest is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse

VAST = "1 of 2 events have args of more lists and objects than any profiler writes: these were not"


def event(name: str, **args: Any) -> str:
    return json.dumps({"ph": "X", "name": name, "ts": 1, "dur": 1, "tid": 1, "args": args})


def read(*items: str) -> Record:
    return parse(f"[{', '.join(items)}]".encode(), Path("trace.json"))


@pytest.mark.parametrize("part", [[], {}, [[]]])
def test_an_event_is_read_without_args_of_too_many_parts(part: Any) -> None:
    record = read(event("large", x=[part] * 90_000), event("small", x=[part]))
    assert sorted(record.trace.slices["name"]) == ["large", "small"]
    assert record.trace.args["x"].tolist() == [[part]]
    assert record.metadata["notes"][0].startswith(VAST)


def test_args_of_many_numbers_or_much_text_are_read() -> None:
    record = read(event("numbers", x=list(range(50_000))), event("text", y="[{" * 50_000))
    assert record.trace.args["x"].iloc[0] == list(range(50_000))
    assert record.trace.args["y"].iloc[0] == "[{" * 50_000
    assert record.metadata["notes"] == []


def test_many_events_of_few_parts_each_are_read() -> None:
    record = read(*(event("op", x=[[], [], [], []]) for _ in range(9_000)))
    assert len(record.trace.args["x"]) == 9_000
    assert record.metadata["notes"] == []


def test_values_that_are_no_events_are_counted_wherever_they_stand() -> None:
    bare = ("1", "-2.5e3", '"a, \\" b"', "null", "true")
    record = read(*bare, event("op"), "7", "[8, 9]")
    assert record.trace.slices["name"].tolist() == ["op"]
    assert record.metadata["notes"] == ["7 of 8 events are not well-formed and were left out"]


def test_a_list_of_nothing_but_values_is_no_trace() -> None:
    with pytest.raises(TraceError, match="5 of 5 events are not well-formed"):
        read("1", "2", '"a,b"', "[1, [2]]", "null")


@pytest.mark.parametrize("end", ["", "\n", " \r\n"])
def test_the_end_of_the_line_behind_values_is_no_end_of_the_file(end: str) -> None:
    with pytest.raises(TraceError, match="2 of 2 events are not well-formed"):
        parse(f'[1, "a"]{end}'.encode(), Path("trace.json"))
