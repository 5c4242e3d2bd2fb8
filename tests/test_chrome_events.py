"""Chrome trace events of every kind, as their format describes them, read into slices and arrows.

Times in the files are µs, those of the tables ns from the first event.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.chrome_slices import _ThreadSlices
from gpuprof_widgets.trace.events import Events, text_codes
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse
from gpuprof_widgets.trace.tracks import MOST, lanes, sub_tracks
from tests.test_every_trace import all_answers


def read(*events: dict[str, Any], **beside: Any) -> Record:
    """The record of these events; each is on thread 1 of process 1 unless it says otherwise."""
    written = [{"pid": 1, "tid": 1, **event} for event in events]
    return parse(json.dumps({**beside, "traceEvents": written}).encode(), Path("trace.json"))


def slice_rows(record: Record) -> list[tuple[str, int, int, str]]:
    """Name, start and duration (µs) and the name of the parent of every slice, by their starts."""
    slices = record.trace.slices
    parents = [slices["name"][row] if row >= 0 else "" for row in slices["parent"]]
    rows = zip(slices["name"], slices["ts"] // 1000, slices["dur"] // 1000, parents, strict=True)
    return sorted(rows, key=lambda row: (row[1], -row[2]))


def arrows(record: Record) -> list[tuple[str, str, str]]:
    """From, to and kind of every arrow."""
    names, flows = record.trace.slices["name"], record.trace.flows
    columns = zip(flows["source"], flows["target"], flows["kind"], strict=True)
    return [(names[source], names[target], kind) for source, target, kind in columns]


def labels(record: Record) -> list[str]:
    return record.trace.tracks["label"].tolist()


def begin(name: str, ts: int, **fields: Any) -> dict[str, Any]:
    return {"ph": "B", "name": name, "ts": ts, **fields}


def end(ts: int, **fields: Any) -> dict[str, Any]:
    return {"ph": "E", "ts": ts, **fields}


def whole(name: str, ts: int, dur: int, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, **fields}


# Begin and end


def test_args_of_the_end_join_those_of_the_beginning() -> None:
    record = read(begin("a", 0, args={"x": 1, "y": 1}), end(5, args={"y": 2}))
    args = record.trace.args
    assert (args["x"].tolist(), args["y"].tolist()) == ([1], [2])


def test_an_end_that_says_a_name_ends_that_slice() -> None:
    record = read(begin("a", 0), begin("b", 2), end(4, name="a"), end(6, name="b"))
    assert [row[:3] for row in slice_rows(record)] == [("a", 0, 4), ("b", 2, 4)]


def test_what_never_ends_lasts_until_the_trace_does() -> None:
    record = read(begin("a", 0), whole("b", 2, 8))
    assert slice_rows(record) == [("a", 0, 10, ""), ("b", 2, 8, "a")]


Tree = list[Any]
TREES = st.recursive(st.just([]), lambda child: st.lists(child, max_size=4), max_leaves=20)


def numbered(tree: Tree, clock: list[int], events: list[dict[str, Any]]) -> None:
    """The tree as begin and end events of one thread, one µs apart; every node is a slice."""
    name = f"n{clock[0]}"
    events.append(begin(name, clock[0]))
    clock[0] += 1
    for child in tree:
        numbered(child, clock, events)
    events.append(end(clock[0]))
    clock[0] += 1


@given(TREES, st.randoms(use_true_random=False))
def test_a_tree_of_begin_and_end_in_any_order_is_that_of_whole_events(
    tree: Tree, shuffle: random.Random
) -> None:
    events: list[dict[str, Any]] = []
    numbered(tree, [0], events)
    stack, complete = [], []
    for one in events:
        if one["ph"] == "B":
            stack.append(one)
        else:
            first = stack.pop()
            complete.append(whole(first["name"], first["ts"], one["ts"] - first["ts"]))
    shuffle.shuffle(events)
    assert slice_rows(read(*events)) == slice_rows(read(*complete))


# On no thread


def test_async_slices_of_one_id_nest_on_a_lane_of_their_own() -> None:
    net = {"cat": "net"}
    record = read(
        {"ph": "b", "name": "request", "ts": 0, "id": 1, **net},
        {"ph": "b", "name": "connect", "ts": 1, "id": 1, **net},
        {"ph": "e", "name": "connect", "ts": 3, "id": 1, **net},
        {"ph": "n", "name": "header", "ts": 4, "id": 1, **net},
        {"ph": "e", "name": "request", "ts": 5, "id": 1, **net, "tid": 7},
    )
    assert slice_rows(record) == [
        ("request", 0, 5, ""),
        ("connect", 1, 2, "request"),
        ("header", 4, 0, "request"),
    ]
    assert labels(record) == ["1 · net · async"]


def test_async_slices_that_overlap_are_on_different_lanes() -> None:
    both = [
        [
            {"ph": "S", "name": f"r{n}", "ts": n, "id": n},
            {"ph": "F", "name": f"r{n}", "ts": n + 9, "id": n},
        ]
        for n in range(3)
    ]
    later = [
        {"ph": "S", "name": "r", "ts": 90, "id": 9},
        {"ph": "F", "name": "r", "ts": 99, "id": 9},
    ]
    record = read(*[event for pair in both for event in pair], *later)
    assert labels(record) == ["1 · other · async", "1 · other · async 2", "1 · other · async 3"]
    slices = record.trace.slices.set_index("name")
    assert slices["track"].to_dict() == {"r0": 0, "r1": 1, "r2": 2, "r": 0}


def test_ids_that_count_in_their_process_are_told_apart() -> None:
    record = read(
        {"ph": "b", "name": "a", "ts": 0, "id2": {"local": 1}},
        {"ph": "b", "name": "b", "ts": 1, "id2": {"local": 1}, "pid": 2},
        {"ph": "e", "ts": 3, "id2": {"local": 1}},
        {"ph": "e", "ts": 9, "id2": {"local": 1}, "pid": 2},
    )
    assert [row[:3] for row in slice_rows(record)] == [("a", 0, 3), ("b", 1, 8)]


def test_the_life_of_an_object_is_a_slice_and_its_snapshots_are_in_it() -> None:
    about = {"name": "Buffer", "id": "0x1000"}
    record = read(
        {"ph": "N", "ts": 1, **about},
        {"ph": "O", "ts": 4, **about, "args": {"snapshot": {"size": 3}}},
        {"ph": "D", "ts": 8, **about},
        whole("work", 0, 9),
    )
    assert slice_rows(record) == [
        ("work", 0, 9, ""),
        ("Buffer", 1, 7, ""),
        ("Buffer", 4, 0, "Buffer"),
    ]
    assert labels(record) == ["thread 1", "1 · Buffer · objects"]
    assert record.trace.args["snapshot"].tolist() == [{"size": 3}]


# Arrows


def flow(phase: str, ts: int, **fields: Any) -> dict[str, Any]:
    return {"ph": phase, "name": "n", "cat": "data", "id": 5, "ts": ts, **fields}


BOXES = (whole("a", 0, 5), whole("b", 10, 5), whole("inner", 11, 2), whole("c", 20, 5, tid=2))


def test_an_arrow_leads_from_its_start_over_its_steps_to_its_end() -> None:
    record = read(*BOXES, flow("s", 2), flow("t", 12), flow("f", 21, tid=2, bp="e"))
    assert arrows(record) == [("a", "inner", "data"), ("inner", "c", "data")]
    assert record.metadata["notes"] == []


def test_an_end_meets_the_next_slice_unless_it_says_that_it_is_in_one() -> None:
    assert arrows(read(*BOXES, flow("s", 2), flow("f", 10))) == [("a", "b", "data")]
    assert arrows(read(*BOXES, flow("s", 2), flow("f", 6))) == [("a", "b", "data")]
    assert arrows(read(*BOXES, flow("s", 2), flow("f", 14, bp="e"))) == [("a", "b", "data")]


def test_arrows_of_other_names_categories_or_times_are_others() -> None:
    record = read(
        *BOXES,
        *(flow("s", 2), flow("f", 12, bp="e"), flow("s", 14), flow("f", 22, tid=2, bp="e")),
        *(flow("s", 3, cat="control"), flow("f", 23, tid=2, bp="e", cat="control")),
    )
    assert sorted(arrows(record)) == [
        ("a", "c", "control"),
        ("a", "inner", "data"),
        ("b", "c", "data"),
    ]


def test_slices_may_say_their_arrows_themselves() -> None:
    record = read(
        whole("a", 0, 5, bind_id="0x5", flow_out=True, cat="v"),
        whole("b", 10, 5, bind_id="0x5", flow_in=True, flow_out=True, cat="v"),
        whole("c", 20, 5, bind_id="0x5", flow_in=True, cat="v"),
    )
    assert arrows(record) == [("a", "b", "v"), ("b", "c", "v")]


# Tracks


def meta(name: str, value: Any, key: str = "name", **ids: Any) -> dict[str, Any]:
    return {"ph": "M", "name": name, "args": {key: value}, **ids}


def test_processes_and_threads_have_names_labels_and_an_order() -> None:
    record = read(
        whole("a", 0, 1),
        whole("b", 0, 1, tid=2),
        whole("c", 0, 1, pid=2),
        whole("aten::add", 0, 1, pid=3, cat="cpu_op"),
        meta("process_name", "main"),
        meta("process_labels", "page", "labels"),
        meta("process_sort_index", 5, "sort_index"),
        meta("thread_name", "io"),
        meta("thread_sort_index", 9, "sort_index"),
        meta("process_name", "renderer", pid=2),
        meta("process_sort_index", -1, "sort_index", pid=2),
    )
    others = ["renderer · thread 1", "main (page) · thread 2", "main (page) · io"]
    assert labels(record) == ["thread 1", *others]


def test_slices_that_cross_go_to_sub_tracks() -> None:
    record = read(whole("a", 0, 10), whole("in", 1, 2), whole("b", 5, 10), whole("c", 12, 9))
    slices, tracks = record.trace.slices, record.trace.tracks
    on = {
        name: tracks["label"][track]
        for name, track in zip(slices["name"], slices["track"], strict=True)
    }
    first, second = "thread 1", "thread 1 (2)"
    assert on == {"a": first, "in": first, "b": second, "c": first}
    assert slice_rows(record)[1] == ("in", 1, 2, "a")


TIMES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2)), max_size=40)


@given(TIMES)
def test_no_slices_of_a_sub_track_cross(times: list[tuple[int, int, int]]) -> None:
    ts, dur, track = (np.array([row[n] for row in times], dtype=np.int64) for n in range(3))
    number = sub_tracks(ts, dur, track)
    assert set(number.tolist()) <= set(range(MOST))
    boxes = list(
        zip(track.tolist(), number.tolist(), ts.tolist(), (ts + dur).tolist(), strict=True)
    )
    for one in boxes:
        for other in boxes:
            if one[:2] == other[:2]:
                assert not one[2] < other[2] < one[3] < other[3]


@given(TIMES)
def test_lanes_hold_one_at_a_time_and_are_as_few_as_can_be(
    times: list[tuple[int, int, int]],
) -> None:
    start, dur, group = (np.array([row[n] for row in times], dtype=np.int64) for n in range(3))
    end = start + dur + 1
    number = lanes(start, end, group)
    for at in range(62):
        open_now = (start <= at) & (at < end)
        taken = list(zip(group[open_now].tolist(), number[open_now].tolist(), strict=True))
        assert len(taken) == len(set(taken))
    for one in set(group.tolist()):
        rows = group == one
        most = max(int(((start[rows] <= at) & (at < end[rows])).sum()) for at in start[rows])
        assert number[rows].max() == most - 1


# The file


@pytest.mark.parametrize("ending", ["]", "", ",", ",\n", "\n]\n"])
def test_a_list_may_be_left_open(ending: str) -> None:
    text = "[" + ",\n".join(json.dumps({"pid": 1, "tid": 1, **box}) for box in BOXES) + ending
    record = parse(text.encode(), Path("trace.json"))
    assert [row[0] for row in slice_rows(record)] == ["a", "b", "inner", "c"]
    assert record.metadata["notes"] == []


def test_global_instants_are_events_and_kineto_s_markers_are_not() -> None:
    record = read(
        whole("a", 0, 9),
        {"ph": "i", "s": "g", "name": "here", "ts": 3, "cat": "mark"},
        {"ph": "R", "name": "there", "ts": 4},
        {"ph": "i", "s": "g", "name": "Record Window End", "ts": 9, "pid": "", "tid": ""},
    )
    assert [row[0] for row in slice_rows(record)] == ["a", "here", "there"]
    assert [span["name"] for span in record.metadata["profiler_spans"]] == ["Record Window End"]


def test_every_analysis_and_the_page_take_a_foreign_trace() -> None:
    record = read(*BOXES, flow("s", 2), flow("f", 21, tid=2, bp="e"), begin("open", 3, tid=4))
    assert all_answers(record) == {}
    page = Profile(record.trace, record.calls, record.metadata).report()
    assert page.startswith("<!doctype html>")


PLACES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=12)


def nested(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those (start, end) that cross none before them."""
    kept: list[tuple[int, int]] = []
    for start, dur in places:
        end = start + dur
        if not any(a < start < b < end or start < a < end < b for a, b in kept):
            kept.append((start, end))
    return kept


@given(PLACES)
def test_an_arrow_meets_the_innermost_slice_that_is_open(places: list[tuple[int, int]]) -> None:
    slices = nested(places)
    text = text_codes(["1"] * len(slices))
    starts = np.array([start for start, _ in slices], dtype=np.int64)
    ends = np.array([end for _, end in slices], dtype=np.int64)
    on = _ThreadSlices(Events(starts, ends - starts, text, text, text, text))
    moments = np.arange(-1, 32, dtype=np.int64)
    lane = on.lane(["1"] * len(moments), ["1"] * len(moments))
    for at, met in zip(moments.tolist(), on.open_at(lane, moments).tolist(), strict=True):
        is_open = [row for row, (start, end) in enumerate(slices) if start <= at <= end]
        assert (met >= 0) == bool(is_open)
        if is_open:
            assert met in is_open
            assert starts[met] == max(starts[row] for row in is_open)


def test_arrows_beside_instants_alone_meet_nothing() -> None:
    common = {"pid": 1, "tid": 1, "name": "x", "cat": "c"}
    events = [{**common, "ph": "i", "ts": 1, "s": "t"}] + [
        {**common, "ph": ph, "id": 1, "ts": 2} for ph in "sf"
    ]
    record = parse(json.dumps(events).encode(), Path("trace.json"))
    assert len(record.trace) == 1
    assert len(record.trace.flows) == 0
    assert record.metadata["notes"] == ["2 of 2 ends of arrows have no other end, or meet no slice"]
