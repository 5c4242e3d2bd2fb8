"""Bad traces: what can be repaired is read and counted, everything else is refused in words."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.readers import load, parse
from tests.bad_traces import BAD_TRACES, event, trace

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


@pytest.mark.parametrize("name", READ)
def test_what_was_read_can_be_saved_and_is_the_same_when_opened(name: str, tmp_path: Path) -> None:
    record = parse(READ[name].content, FILE)
    Profile(record.trace, record.calls, record.metadata).save(tmp_path / "saved.zip")
    again = load(tmp_path / "saved.zip").trace
    for table in ("slices", "tracks", "counters", "flows"):
        pd.testing.assert_frame_equal(getattr(again, table), getattr(record.trace, table))


def test_words_of_python_mean_what_they_mean_there() -> None:
    text = trace(event("a"), event("b", ts=20, args="HERE")).replace(
        b'"HERE"', b'{"yes": True, "no": False, "nothing": None, "true_div": trueish}'
    )
    args = parse(text, FILE).trace.args
    given = {key: args[key].iloc[-1] for key in ("yes", "no", "true_div")}
    assert given == {"yes": True, "no": False, "true_div": "trueish"}
    assert "nothing" not in args or pd.isna(args["nothing"].iloc[-1])


def test_many_broken_events_are_mended_one_by_one() -> None:
    events = [event(f"HERE{n}", ts=20 * n) for n in range(3000)]
    record = parse(trace(*events).replace(b"HERE", b'a "name" of '), FILE)
    assert record.trace.slices["name"].tolist() == [f'a "name" of {n}' for n in range(3000)]
    assert record.metadata["notes"] == [
        "the text is not JSON at byte 78 (expected ',' or '}'): its events were read one by one",
        "3,000 of 3,000 events are not well-formed and were mended",
    ]
