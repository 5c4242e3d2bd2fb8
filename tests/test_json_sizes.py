"""JSON that is much larger in memory than in its file, and lists that are no events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse


def event(name: str, **args: Any) -> str:
    return json.dumps({"ph": "X", "name": name, "ts": 1, "dur": 1, "tid": 1, "args": args})


def read(*items: str) -> Record:
    return parse(f"[{', '.join(items)}]".encode(), Path("trace.json"))


@pytest.mark.parametrize("part", [[], {}, [[]]])
def test_a_file_of_nothing_but_lists_and_objects_is_one_error(part: Any) -> None:
    with pytest.raises(TraceError, match=r"^trace.json: its .* bytes are .* lists and objects"):
        read(event("large", x=[part] * 200_000), event("small", x=[part]))


def test_args_of_many_numbers_or_much_text_are_read() -> None:
    record = read(event("numbers", x=list(range(50_000))), event("text", y="[{" * 50_000))
    assert record.trace.args["x"].iloc[0] == list(range(50_000))
    assert record.trace.args["y"].iloc[0] == "[{" * 50_000
    assert record.metadata["notes"] == []


def test_many_events_of_few_parts_each_are_read() -> None:
    record = read(*(event("op", x=[[], [], [], []]) for _ in range(9_000)))
    assert len(record.trace.args["x"]) == 9_000
    assert record.metadata["notes"] == []


def test_values_that_are_no_events_are_counted() -> None:
    record = read(event("op"), "1", '"a, \\" b"', "null", "[8, 9]")
    assert record.trace.slices["name"].tolist() == ["op"]
    assert record.metadata["notes"] == ["4 of 5 events are not well-formed and were left out"]


@pytest.mark.parametrize("first", ["1", '"a,b"', "[1, [2]]", "null"])
def test_a_list_that_begins_with_another_value_is_no_trace(first: str) -> None:
    with pytest.raises(TraceError, match=r"its events are not a list of objects \(they begin with"):
        read(first, event("op"))
