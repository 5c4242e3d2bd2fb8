"""What sampling profilers of V8 and of Chrome's traces left: stacks over time, lane by lane."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.analyses.reasons import LACKS
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.pstats import frames_of
from gpuprof_widgets.trace.readers import load, parse
from gpuprof_widgets.trace.redact import redacted
from gpuprof_widgets.views.page import report_page
from gpuprof_widgets.views.panels.regions import python_time_panel

FILE = Path("trace")
US = 1000


def node(number: int, name: str, *children: int, url: str = "a.js", line: int = 0) -> Any:
    frame = {"functionName": name, "scriptId": "1", "url": url, "lineNumber": line}
    return {"id": number, "callFrame": frame, "hitCount": 0, "children": list(children)}


NODES = [
    node(1, "(root)", 2, 3, 4, 7, url="", line=-1),
    node(2, "(program)", url="", line=-1),
    node(3, "(idle)", url="", line=-1),
    node(4, "", 5, line=0),
    node(5, "step", 6, line=11),
    node(6, "mm", line=20),
    node(7, "(garbage collector)", url="", line=-1),
]


def cpu_profile(samples: list[int], deltas: list[float], /, **changes: Any) -> Record:
    content = {"nodes": NODES, "startTime": 1000, "endTime": 1000 + sum(deltas) + 10}
    content |= {"samples": samples, "timeDeltas": deltas}
    return parse(json.dumps(content | changes).encode(), FILE)


def calls(record: Record, category: str = "python_function") -> list[list[Any]]:
    """Name, start (ns on the file's clock) and duration of the calls, outer ones first."""
    slices = record.trace.slices
    table = slices[slices["category"] == category].sort_values(["track", "ts", "depth"])
    ts = table["ts"] + record.trace.epoch_ns
    return [list(row) for row in zip(table["name"], ts, table["dur"], strict=True)]


def test_a_sample_lasts_until_the_next_one() -> None:
    record = cpu_profile([4, 6, 6, 5, 3, 2, 4], [5, 10, 20, 30, 40, 50, 60])
    assert calls(record) == [
        ["a.js(1): (anonymous)", 1005 * US, 100 * US],
        ["a.js(12): step", 1015 * US, 90 * US],
        ["a.js(21): mm", 1015 * US, 50 * US],
        ["(program)", 1155 * US, 60 * US],
        ["a.js(1): (anonymous)", 1215 * US, 10 * US],
    ]
    assert record.metadata["recorded_by"] == "V8"
    assert record.metadata["sampled"] is True


def test_garbage_is_collected_on_top_of_the_function_that_ran() -> None:
    record = cpu_profile([7, 6, 7, 6], [5, 10, 20, 30])
    assert calls(record) == [
        ["(garbage collector)", 1005 * US, 10 * US],
        ["a.js(1): (anonymous)", 1015 * US, 60 * US],
        ["a.js(12): step", 1015 * US, 60 * US],
        ["a.js(21): mm", 1015 * US, 60 * US],
        ["(garbage collector)", 1035 * US, 30 * US],
    ]


def test_samples_that_v8_wrote_late_are_put_in_order() -> None:
    record = cpu_profile([4, 2, 4], [10, 20, -5], endTime=1050)
    assert [row[:3] for row in calls(record)] == [
        ["a.js(1): (anonymous)", 1010 * US, 20 * US],
        ["(program)", 1030 * US, 20 * US],
    ]
    early = cpu_profile([4, 2], [-5, 10])
    assert "1 samples were taken before the start" in early.metadata["notes"][-1]


def test_without_an_end_the_last_sample_lasts_as_long_as_most() -> None:
    record = cpu_profile([4, 2, 4], [10, 20, 20], endTime=None)
    assert calls(record)[-1] == ["a.js(1): (anonymous)", 1050 * US, 20 * US]


def test_decimals_of_microseconds_are_nanoseconds() -> None:
    record = cpu_profile([4, 2], [0.25, 1.5], endTime=1003.001)
    assert calls(record) == [
        ["a.js(1): (anonymous)", 1_000_250, 1500],
        ["(program)", 1_001_750, 1251],
    ]


BAD_PROFILES: dict[str, tuple[dict[str, Any], str]] = {
    "no timeDeltas": ({"timeDeltas": None}, "2 samples and 0 timeDeltas"),
    "no samples": ({"samples": [], "timeDeltas": []}, "without a sample of any function .it has 0"),
    "idle": ({"samples": [3, 1]}, "without a sample of any function .it has 2"),
    "unknown node": ({"samples": [4, 99]}, r"samples\[1\] names the node 99, which is missing"),
    "unknown child": ({"nodes": [node(4, "f", 9)]}, r"nodes\[0\] names the node 9"),
    "a circle": (
        {"nodes": [node(4, "f", 5), node(5, "g", 4)]},
        "the node [45] is among its own callers",
    ),
    "its own parent": ({"nodes": [node(4, "f", 4)]}, "the node 4 is among its own callers"),
    "two callers": (
        {"nodes": [node(4, "f", 6), node(5, "g", 6), node(6, "h")]},
        "the node 6 has two callers, 4 and 5",
    ),
    "twice": ({"nodes": [node(4, "f"), node(4, "g")]}, "two of its nodes have the id 4"),
    "a time beyond all": ({"timeDeltas": [1, 1e300]}, "its times are too large"),
    "a time that has no ns": ({"timeDeltas": [1, 1e307]}, "its times are too large"),
    "text as time": ({"startTime": "now"}, r"Expected `int \| float`, got `str`"),
    "no call frame": ({"nodes": [{"id": 4}, node(5, "f")]}, "missing required field `callFrame`"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", BAD_PROFILES)
def test_bad_profiles_are_one_clear_error(name: str) -> None:
    changes, words = BAD_PROFILES[name]
    with pytest.raises(TraceError, match=rf"trace: a CPU profile of V8.*{words}"):
        cpu_profile([4, 4], [1, 1], **changes)


def test_a_profile_that_is_cut_off_says_so() -> None:
    data = json.dumps({"nodes": NODES, "startTime": 1}).encode()
    with pytest.raises(TraceError, match="a CPU profile of V8 that is not whole"):
        parse(data[:-5], FILE)


def test_100_000_functions_deep_are_read() -> None:
    depth = 100_000
    chain = [node(n, "f", n + 1) for n in range(1, depth)] + [node(depth, "f")]
    record = cpu_profile([depth, depth - 1], [1, 1], nodes=chain)
    assert record.trace.slices["depth"].max() == depth - 1


def test_leaps_up_and_down_a_deep_tree_are_refused() -> None:
    depth = 10_000
    chain = [node(n, "f", n + 1) for n in range(1, depth)] + [node(depth, "f")]
    chain.append(node(depth + 1, "g"))
    with pytest.raises(TraceError, match="jump up and down a tree 10,000 functions deep"):
        cpu_profile([depth, depth + 1] * 1000, [1] * 2000, nodes=chain)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(-3, 9)), min_size=1, max_size=30))
def test_the_own_time_of_a_function_is_that_of_its_samples(
    samples: list[tuple[int, int]],
) -> None:
    """Added up sample by sample, in another way than the reader does."""
    moments, now = [], 1000
    for number, (_, delta) in enumerate(samples):
        now += delta
        moments.append((now, number))
    moments.sort()
    names = {1: "", 2: "(program)", 3: "", 4: "(anonymous)", 5: "step", 6: "mm"}
    end = moments[-1][0] + 10
    expected: dict[str, int] = defaultdict(int)
    for (at, number), (until, _) in zip(moments, [*moments[1:], (end, 0)], strict=True):
        expected[names.get(samples[number][0], "(garbage collector)")] += (until - at) * US
    expected = {name: own for name, own in expected.items() if name and own}
    changes = {"endTime": end}
    if not expected:
        with pytest.raises(TraceError, match="without a sample"):
            cpu_profile([each for each, _ in samples], [by for _, by in samples], **changes)
        return
    record = cpu_profile([each for each, _ in samples], [by for _, by in samples], **changes)
    table = Profile(record.trace, None, record.metadata).python_time()
    found = {name: own for name, own in zip(table["name"], table["self_ns"], strict=True) if own}
    assert found == expected


# Recordings of DevTools and Node

META = {"ph": "M", "name": "thread_name", "pid": 7, "tid": 9, "args": {"name": "main"}}
BOX = {"ph": "X", "name": "task", "cat": "toplevel", "pid": 7, "tid": 9, "ts": 1000, "dur": 500}


def began(profile: str = "0x1", tid: int = 9, **data: Any) -> dict[str, Any]:
    event = {"ph": "P", "name": "Profile", "id": profile, "pid": 7, "tid": tid, "ts": 1000}
    return {**event, "args": {"data": {"startTime": 1000, **data}}}


def chunk(
    nodes: list[Any], samples: list[int], deltas: list[float], profile: str = "0x1", **more: Any
) -> dict[str, Any]:
    above = {child: each["id"] for each in NODES for child in each["children"]}
    listed = [
        {key: value for key, value in each.items() if key in ("id", "callFrame")}
        | ({"parent": above[each["id"]]} if each["id"] in above else {})
        for each in nodes
    ]
    data = {"cpuProfile": {"nodes": listed, "samples": samples}, "timeDeltas": deltas}
    event = {"ph": "P", "name": "ProfileChunk", "id": profile, "pid": 7, "tid": 1, "ts": 1001}
    return {**event, "args": {"data": data}, **more}


def trace(*events: Any, **beside: Any) -> Record:
    return parse(json.dumps({"traceEvents": list(events), **beside}).encode(), FILE)


def ends(at: float, ts: float = 1003) -> dict[str, Any]:
    event = {"ph": "P", "name": "ProfileChunk", "id": "0x1", "pid": 7, "tid": 9, "ts": ts}
    return {**event, "args": {"data": {"endTime": at}}}


def test_chunks_are_the_stacks_of_the_thread_that_the_profile_names() -> None:
    record = trace(
        *(META, BOX, began()),
        chunk(NODES[4:], [5, 6], [20, 30], ts=1002),
        chunk(NODES[:4], [4, 2], [5, 10], ts=1001),
        ends(1100),
    )
    assert calls(record) == [
        ["a.js(1): (anonymous)", 1005 * US, 10 * US],
        ["(program)", 1015 * US, 20 * US],
        ["a.js(1): (anonymous)", 1035 * US, 65 * US],
        ["a.js(12): step", 1035 * US, 65 * US],
        ["a.js(21): mm", 1065 * US, 35 * US],
    ]
    assert calls(record, "user_annotation") == [["task", 1000 * US, 500 * US]]
    tracks = record.trace.tracks
    assert tracks["kind"].tolist() == ["cpu", "python"]
    assert tracks["lane"].tolist() == [0, 0]
    assert record.metadata["sampled"] is True
    assert "1 lane of stacks from samples" in record.metadata["notes"][0]
    assert tracks["label"].tolist() == ["main", "main · JavaScript"]


def test_two_profiles_of_a_thread_stand_one_below_the_other() -> None:
    record = trace(
        *(META, began(), began("0x2")),
        *(chunk(NODES, [4, 2], [5, 10], name) for name in ("0x1", "0x2")),
    )
    labels = [label.split(" · ")[0] for label in record.trace.tracks["label"]]
    assert labels == ["main", "main (samples 2)"]


def test_what_is_broken_in_a_recording_is_told_and_the_rest_stands() -> None:
    no_deltas = chunk(NODES, [4, 4], [1], ts=1002)
    record = trace(BOX, began(), chunk(NODES, [4, 99, 2], [5, 10, 10]), no_deltas)
    assert calls(record) == [
        ["a.js(1): (anonymous)", 1005 * US, 10 * US],
        ["(program)", 1025 * US, 10 * US],
    ]
    assert any("1 of 3 samples of the CPU profile 0x1" in note for note in record.metadata["notes"])
    assert any("up to a broken chunk: 2 samples and 1" in n for n in notes_of(record))
    lost = trace(BOX, chunk(NODES, [4], [5]))
    assert any("left out: its 'Profile' event" in note for note in notes_of(lost))
    circle = [{**each, "children": []} for each in NODES]
    around = trace(BOX, began(), chunk([*circle, *circle], [4], [5]))
    assert any("left out: two of its nodes have the id 1" in note for note in notes_of(around))
    for each in (lost, around):
        assert calls(each, "user_annotation") == [["task", 1000 * US, 500 * US]]


def notes_of(record: Record) -> list[str]:
    return list(record.metadata["notes"])


@pytest.mark.parametrize("data", [None, {}, {"startTime": "x"}, [], 3])
def test_a_profile_without_a_start_is_left_out(data: Any) -> None:
    odd = {**began(), "args": {"data": data}}
    record = trace(BOX, odd, chunk(NODES, [4], [5]))
    assert any("the CPU profile 0x1 of process 7 was left out" in n for n in notes_of(record))


NODE = shutil.which("node")
PROGRAM = """
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) }
class Work { step(n) { return fib(n) } }
const work = new Work(); for (let i = 0; i < 1000; i++) work.step(22 + i % 3);
"""


@pytest.mark.skipif(NODE is None, reason="without node")
def test_node_s_profile_and_its_recording_of_the_same_run_say_the_same(tmp_path: Path) -> None:
    """Two writers in V8, and two readers of ours: every call has the same name and times.

    V8 samples every millisecond, from a thread that a busy machine may keep waiting: so the
    program computes for some hundreds of milliseconds.
    """
    (tmp_path / "a.js").write_text(PROGRAM)
    told = ["--cpu-prof", "--trace-event-categories", "disabled-by-default-v8.cpu_profiler"]
    subprocess.run([str(NODE), *told, "a.js"], cwd=tmp_path, check=True, timeout=120)
    (written,) = tmp_path.glob("*.cpuprofile")
    (recorded,) = tmp_path.glob("node_trace*.log")
    own, whole = load(written), load(recorded)
    plain = [[name.replace("file://", ""), *times] for name, *times in calls(own)]
    assert any("Work.step" in name or ": step" in name for name, *_ in plain)
    assert any(name.endswith("a.js(2): fib") for name, *_ in plain)
    tracks = whole.trace.slices["track"][whole.trace.slices["category"] == "python_function"]
    lanes = []
    for track in tracks.unique():
        rows = whole.trace.slices[whole.trace.slices["track"] == track].sort_values(["ts", "depth"])
        ts = rows["ts"] + whole.trace.epoch_ns
        names = [name.replace("file://", "") for name in rows["name"]]
        lanes.append([list(row) for row in zip(names, ts, rows["dur"], strict=True)])
    assert plain in lanes


# Samples with stack frames

FRAMES = {
    "1": {"name": "main", "category": "app"},
    "2": {"name": "step", "parent": 1},
    "3": {"name": "mm", "parent": "2"},
    "8": {"name": "a", "parent": "9"},
    "9": {"name": "b", "parent": "8"},
    "7": {"name": "c", "parent": "404"},
}


def sample(ts: float, frame: Any, tid: int = 9, **more: Any) -> dict[str, Any]:
    return {"cpu": 0, "tid": tid, "ts": ts, "name": "cycles", "sf": frame, "weight": 1, **more}


def test_global_samples_are_the_stacks_of_their_threads() -> None:
    record = trace(
        BOX,
        stackFrames=FRAMES,
        samples=[sample(1010, 3), sample(1000, 2), sample(1020, 3), sample(2000, 1)],
    )
    assert calls(record) == [
        ["main", 1000 * US, 40 * US],
        ["step", 1000 * US, 40 * US],
        ["mm", 1010 * US, 30 * US],
        ["main", 2000 * US, 10 * US],
    ]
    assert record.trace.tracks["process"].tolist() == ["7", "7"]
    assert any("at most twice as long as is typical" in note for note in notes_of(record))
    assert "samples" not in record.metadata


def test_sample_events_are_too_with_frames_or_their_own_stack() -> None:
    events = [
        {"ph": "P", "name": "cpu", "pid": 7, "tid": 9, "ts": 1.5 + at, **stack}
        for at, stack in enumerate(({"sf": 2}, {"stack": ["main", "step", "mm"]}, {"sf": 1}))
    ]
    assert calls(trace(*events, stackFrames=FRAMES)) == [
        ["main", 1500, 3 * US],
        ["step", 1500, 2 * US],
        ["mm", 2500, 1 * US],
    ]


def test_times_of_today_stay_exact() -> None:
    """Digits that a float does not hold."""
    text = json.dumps({"traceEvents": [], "stackFrames": FRAMES, "samples": [sample(0, 1)] * 2})
    first, second = "1795399851176468.123", "1795399851176468.457"
    text = text.replace('"ts": 0', f'"ts": {first}', 1).replace('"ts": 0', f'"ts": {second}', 1)
    assert calls(parse(text.encode(), FILE)) == [["main", 1795399851176468123, 668]]


@pytest.mark.parametrize("frame", [404, 8, 7, None])
def test_samples_of_frames_that_are_broken_are_counted(frame: Any) -> None:
    record = trace(
        BOX,
        stackFrames=FRAMES,
        samples=[sample(1000, 1), sample(1005, frame), sample(1010, 1), sample("x", 1)],
    )
    assert [row[2] for row in calls(record)] == [20 * US]
    assert any(note.startswith("1 of 4 samples have no stack, or one") for note in notes_of(record))
    assert any(note.startswith("1 of 4 samples have no valid ts") for note in notes_of(record))


def test_a_single_sample_has_no_duration() -> None:
    record = trace(BOX, stackFrames=FRAMES, samples=[sample(1000, 1)])
    assert not calls(record)
    assert any("1 of 1 samples are the only ones of their thread" in n for n in notes_of(record))


def test_frames_100_000_deep_are_read() -> None:
    frames = {str(n): {"name": "f", "parent": n - 1} for n in range(1, 100_001)}
    frames["0"] = {"name": "main"}
    record = trace(BOX, stackFrames=frames, samples=[sample(1, 100_000), sample(2, 100_000)])
    assert record.trace.slices["depth"].max() == 100_000


def test_implausible_samples_are_left_out() -> None:
    far = [sample(10**15, 1), sample(10**15 + 10, 1)]
    record = trace(*([BOX] * 9), stackFrames=FRAMES, samples=far)
    assert record.trace.span_ns == 500 * US
    assert any("away from most" in note for note in notes_of(record))


def test_samples_of_the_user_are_metadata() -> None:
    assert trace(BOX, samples=[1, 2]).metadata["samples"] == [1, 2]


def test_a_file_without_anything_that_can_be_shown_says_what_it_has() -> None:
    with pytest.raises(TraceError, match=r"without a single slice .*1 of 1 samples have no stack"):
        trace({"ph": "P", "name": "x", "pid": 1, "tid": 1, "ts": 1})


def test_saved_and_opened_again_they_are_the_same(tmp_path: Path) -> None:
    record = trace(META, BOX, began(), chunk(NODES, [4, 6], [5, 10]))
    Profile(record.trace, None, record.metadata).export(tmp_path / "again.json")
    again = load(tmp_path / "again.json")
    assert calls(again) == calls(record)
    assert again.metadata["sampled"] is True


def test_functions_of_javascript_are_not_called_python_s() -> None:
    record = cpu_profile([4, 6, 6], [5, 9_000, 9_000])
    assert record.trace.tracks["label"].tolist() == ["main thread · JavaScript"]
    profile = Profile(record.trace, None, record.metadata)
    (said,) = (one for one in profile.findings() if one.rule == "python_time")
    assert said.text.startswith("The JavaScript function `a.js:21(mm)` itself took")
    assert said.remedy.startswith("Give it less to do")
    assert redacted(record).metadata["language"] == "JavaScript"
    panel = python_time_panel(record)
    assert panel is not None
    assert panel.title == "JavaScript functions"
    store = report_page(record, sort="device_self")["store"]
    assert frames_of(record) == store["frames_of"] == "JavaScript"
    assert python_calls(record).attrs[LACKS].startswith("samples count no calls")


def test_views_and_tables_work_on_them() -> None:
    record = trace(META, BOX, began(), chunk(NODES, [4, 6, 2], [5, 10, 400]))
    profile = Profile(record.trace, None, record.metadata)
    assert profile.python_time()["name"].tolist()[0] == "mm"
    assert "gpuprof-static" in profile.report()
    profile.findings()
