"""Bad traces: what can be repaired is read and counted, everything else is refused in words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.readers import parse
from tests.bad_traces import BAD_TRACES, event, trace

pytestmark = pytest.mark.slow

READ = {name: bad for name, bad in BAD_TRACES.items() if not bad.error}
REFUSED = {name: bad for name, bad in BAD_TRACES.items() if bad.error}
FILE = Path("bad.json")


@pytest.mark.parametrize("name", READ)
def test_what_can_be_repaired_is_read_and_counted(name: str) -> None:
    bad = READ[name]
    record = parse(bad.content, FILE)
    slices = record.trace.slices.sort_values("ts", kind="stable")
    assert tuple(slices["name"]) == bad.slices
    notes = record.metadata["notes"]
    assert len(notes) == len(bad.notes), notes
    for note, pattern in zip(notes, bad.notes, strict=True):
        assert re.search(pattern, note), note
    durations = dict(zip(slices["name"], slices["dur"], strict=True))
    assert {one: durations[one] for one in bad.durations_ns} == bad.durations_ns


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_is_refused_in_one_message(name: str) -> None:
    bad = REFUSED[name]
    with pytest.raises(TraceError, match=re.compile(bad.error, re.DOTALL)) as caught:
        parse(bad.content, FILE)
    assert str(caught.value).startswith(f"{FILE}: ")
    assert len(str(caught.value)) < 1000


def test_the_header_is_read_whatever_stands_before_it() -> None:
    """A Kineto of 2024 began its files with a line end."""
    broken = trace(event("a"), event("HERE", ts=20), traceName="x").replace(b"HERE", b'b"c')
    record = parse(b"\n " + broken, Path("trace.json"))
    assert record.metadata["traceName"] == "x"
    assert record.trace.slices["name"].tolist() == ["a", 'b"c']
    assert record.metadata["notes"][1:] == ["1 of 2 events are not well-formed and were mended"]


def test_words_of_python_mean_what_they_mean_there() -> None:
    text = trace(event("a"), event("b", ts=20, args="HERE")).replace(
        b'"HERE"', b'{"yes": True, "no": False, "nothing": None, "true_div": trueish}'
    )
    args = parse(text, FILE).trace.args
    given = {key: args[key].iloc[-1] for key in ("yes", "no", "true_div")}
    assert given == {"yes": True, "no": False, "true_div": "trueish"}
    assert "nothing" not in args or pd.isna(args["nothing"].iloc[-1])


@pytest.mark.parametrize("part", [[], {}, [[]]])
def test_a_file_of_nothing_but_lists_and_objects_is_one_error(part: object) -> None:
    with pytest.raises(TraceError, match=r"^bad.json: its .* bytes are .* lists and objects"):
        parse(trace(event("large", args={"x": [part] * 200_000}), event("small")), FILE)


def test_args_of_many_numbers_or_much_text_are_read() -> None:
    given = {"x": list(range(50_000)), "y": "[{" * 50_000}
    record = parse(trace(event(args=given)), FILE)
    assert {key: record.trace.args[key].iloc[0] for key in given} == given
    assert record.metadata["notes"] == []


# An event per line and no list around them, as loggers write them

PER_LINE = "the file has an event per line: they were read as a list"


def lines(count: int) -> list[str]:
    return [json.dumps(event("a}\n{b", ts=ts)) for ts in range(count)]


@pytest.mark.parametrize("between", ["\n", "\r\n", "\n\n", " \n  "])
def test_events_of_a_line_each_are_one_trace(between: str) -> None:
    record = parse(between.join(lines(3)).encode(), FILE)
    assert record.trace.slices["ts"].tolist() == [0, 1000, 2000]
    assert set(record.trace.slices["name"]) == {"a}\n{b"}
    assert record.metadata["notes"] == [PER_LINE]


def test_a_last_line_that_is_cut_off_is_told() -> None:
    record = parse("\n".join(lines(3))[:-9].encode(), FILE)
    assert len(record.trace) == 2
    assert record.metadata["notes"][0] == PER_LINE
    assert "it was cut off while it was written" in record.metadata["notes"][1]


def test_lines_of_something_else_are_one_error() -> None:
    with pytest.raises(TraceError, match=r"^bad.json: JSON, but not a trace: .*found: level"):
        parse(b'{"level": "info"}\n' * 500, FILE)


def test_two_events_without_a_line_between_them_are_read() -> None:
    record = parse("".join(lines(2)).encode(), FILE)
    assert len(record.trace) == 2
    assert not [note for note in record.metadata["notes"] if "cut off" in note]
