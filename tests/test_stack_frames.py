"""Chrome's stack frames: each slice has the call stack that the file says, as Kineto writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.trace import gather as stack_frames
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse

FRAMES = {
    "5": {"name": "main", "category": "app"},
    "7": {"name": "step", "parent": 5},
    "0x9": {"name": "forward", "parent": "7"},
}
BOX = {"ph": "X", "name": "op", "ts": 1, "dur": 5, "pid": 1, "tid": 1}


def read(*events: dict[str, Any], frames: Any = FRAMES) -> Record:
    document = {"traceEvents": list(events), "stackFrames": frames}
    return parse(json.dumps(document).encode(), Path("trace.json"))


def stacks(record: Record) -> list[Any]:
    """Per slice its stack, None where it has none."""
    found = record.trace.args.get("Call stack", {})
    return [found.get(row) for row in record.trace.slices.index]


@pytest.mark.parametrize(
    ("frame", "stack"),
    [(5, "main"), ("7", "step;main"), ("0x9", "forward;step;main"), (404, None), ([7], None)],
)
def test_a_slice_has_the_stack_of_its_frame_innermost_first(frame: Any, stack: str | None) -> None:
    assert stacks(read({**BOX, "sf": frame})) == [stack]


def test_a_slice_may_list_its_frames_itself() -> None:
    record = read({**BOX, "stack": ["main", 3, "step"], "args": {"a": 1}}, {**BOX, "ts": 9})
    assert stacks(record) == ["step;main", None]
    assert record.trace.args["a"].tolist() == [1]


def test_slices_of_a_begin_and_an_end_and_instants_have_stacks_too() -> None:
    begin = {"ph": "B", "name": "b", "ts": 1, "pid": 1, "tid": 1, "sf": 7}
    record = read(
        begin, {**begin, "ph": "E", "ts": 9, "sf": 5}, {**begin, "ph": "i", "ts": 20, "sf": 5}
    )
    assert stacks(record) == ["step;main", "main"]


def test_frames_in_a_circle_end() -> None:
    circle = {"1": {"name": "a", "parent": 2}, "2": {"name": "b", "parent": 1}}
    (stack,) = stacks(read({**BOX, "sf": 1}, frames=circle))
    assert stack.startswith("a;b;a;b")
    assert len(stack) < 10_000


def test_text_beyond_all_measure_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_frames, "MOST_TEXT", 20)
    record = read(
        *({**BOX, "ts": 9 * ts, "sf": frame} for ts, frame in enumerate((5, 7, "0x9", 7)))
    )
    assert stacks(record) == ["main", "step;main", None, "step;main"]
    assert record.metadata["notes"] == [
        "1 stacks were not read, because those before them hold too much text"
    ]


@pytest.mark.parametrize("frames", [None, [], 3, {"5": "main"}, {"5": {"parent": []}}])
def test_odd_frames_are_none(frames: Any) -> None:
    assert stacks(read({**BOX, "sf": 5}, frames=frames)) == [None]
    assert "stackFrames" not in read({**BOX, "sf": 5}, frames=frames).metadata
