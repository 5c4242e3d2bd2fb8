"""Files of speedscope and pyinstrument: as these libraries write and read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyinstrument.renderers import SpeedscopeRenderer
from pyinstrument.session import Session

from gpuprof_widgets.analyses.call_tree import call_tree
from gpuprof_widgets.exceptions import RecordingError, TraceError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load, parse
from gpuprof_widgets.trace.redact import redacted
from tests.traces import kernel, op, python, trace_of

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
FILE = Path("profile.json")
FRAMES = [
    {"name": "main", "file": "/home/me/train.py", "line": 1},
    {"name": "step", "file": "/home/me/train.py", "line": 9},
    {"name": "len"},
]


def sampled(samples: list[list[int]], weights: list[float], **given: Any) -> dict[str, Any]:
    whole = {"type": "sampled", "name": "MainThread", "unit": "seconds", "startValue": 0}
    return {**whole, "endValue": sum(weights), "samples": samples, "weights": weights, **given}


def evented(events: list[tuple[str, int, float]], **given: Any) -> dict[str, Any]:
    listed = [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events]
    whole = {"type": "evented", "name": "MainThread", "unit": "microseconds", "startValue": 0}
    return {**whole, "endValue": 9, "events": listed, **given}


def read(*profiles: dict[str, Any], frames: Any = FRAMES, **given: Any) -> Record:
    content = {"$schema": SCHEMA, "shared": {"frames": frames}, "profiles": list(profiles), **given}
    return parse(json.dumps(content).encode(), FILE)


def calls(record: Record) -> list[list[Any]]:
    """Name, start and duration of every slice, outer ones first."""
    table = record.trace.slices.sort_values(["ts", "depth"], kind="stable")
    return [list(row) for row in zip(table["name"], table["ts"], table["dur"], strict=True)]


def test_begins_and_ends_are_calls() -> None:
    events = [("O", 0, 0), ("O", 1, 1), ("C", 1, 3), ("O", 2, 4), ("C", 2, 4.5), ("C", 0, 9)]
    record = read(evented(events))
    assert calls(record) == [
        ["/home/me/train.py(1): main", 0, 9000],
        ["/home/me/train.py(9): step", 1000, 2000],
        ["len", 4000, 500],
    ]
    assert record.trace.slices["parent"].tolist() == [-1, 0, 0]
    assert record.trace.tracks["label"].tolist() == ["MainThread · Python"]
    assert record.metadata["notes"] == []


def test_samples_in_a_row_are_one_call() -> None:
    record = read(sampled([[0], [0, 1], [0, 1, 2], [0, 2], [1]], [1, 2, 3, 0, 4]))
    second = 10**9
    assert calls(record) == [
        ["/home/me/train.py(1): main", 0, 6 * second],
        ["/home/me/train.py(9): step", second, 5 * second],
        ["len", 3 * second, 3 * second],
        ["/home/me/train.py(9): step", 6 * second, 4 * second],
    ]
    assert record.metadata["notes"] == [
        "recorded by samples: calls are not counted, times are estimates"
    ]


def many_samples() -> Record:
    """What a generator expression that ran once leaves behind: found in every second sample."""
    return read(sampled([[0], [0, 1]] * 30, [0.005, 0.01] * 30))


SAMPLERS: dict[str, Callable[[], Record]] = {
    "speedscope's samples": many_samples,
    "pyinstrument's session": lambda: parse(
        json.dumps(session([(STACK[:1], 0.005), (STACK, 0.01)] * 30).to_json()).encode(), FILE
    ),
    "pyinstrument's speedscope file": lambda: parse(
        SpeedscopeRenderer(show_all=True)
        .render(session([(STACK[:1], 0.005), (STACK, 0.01)] * 30))
        .encode(),
        FILE,
    ),
}
STACK = ["main\x00/home/me/train.py\x001", "step\x00/home/me/train.py\x009"]


@pytest.mark.parametrize("recorder", SAMPLERS)
def test_of_samples_no_number_of_calls_is_told(recorder: str) -> None:
    record = SAMPLERS[recorder]()
    assert record.metadata["sampled"] is True
    assert any("calls are not counted" in note for note in record.metadata["notes"])
    profile = Profile(record.trace, None, record.metadata)
    table = profile.python_time()
    assert table["exact"].tolist() == [False, False]
    assert set(table["name"]) == {"main", "step"}
    said = [one.text for one in profile.findings() if one.rule == "python_time"]
    assert len(said) == 1
    assert said[0].endswith("(300 ms).")


@pytest.mark.parametrize("recorder", SAMPLERS)
def test_samples_are_not_written_as_counted_calls(recorder: str, tmp_path: Path) -> None:
    record = SAMPLERS[recorder]()
    profile = Profile(record.trace, None, record.metadata)
    with pytest.raises(RecordingError, match=r"was sampled, so that its calls are not known"):
        profile.export(tmp_path / "run.prof")
    with pytest.raises(RecordingError, match="was sampled"):
        profile.save_pstats(tmp_path / "run.pstats")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["run.json", "run.gpuprof", "run.speedscope.json"])
def test_written_and_read_again_samples_are_still_samples(name: str, tmp_path: Path) -> None:
    record = many_samples()
    Profile(record.trace, None, record.metadata).export(tmp_path / name)
    assert load(tmp_path / name).metadata["sampled"] is True
    assert redacted(record).metadata["sampled"] is True


def test_calls_with_begin_and_end_stay_counted_and_exact() -> None:
    record = read(
        evented([("O", 0, 0), ("O", 1, 1), ("C", 1, 9000), ("C", 0, 9000)], endValue=9000)
    )
    profile = Profile(record.trace, None, record.metadata)
    assert "sampled" not in record.metadata
    assert profile.python_time()["exact"].all()
    assert any(one.text.endswith(" in 1 call).") for one in profile.findings())


THREAD = "MainThread\x00<thread>\x00140255364012928"
SORTED = "sorted\x00<built-in>\x000"


@pytest.mark.parametrize("written", ["session", "speedscope"])
def test_threads_and_built_in_functions_of_pyinstrument_have_no_file(written: str) -> None:
    whole = session([([THREAD, *STACK], 0.5), ([THREAD, *STACK, SORTED], 1.5)])
    file = json.dumps(whole.to_json())
    if written == "speedscope":
        file = SpeedscopeRenderer(show_all=True).render(whole)
    record = parse(file.encode(), FILE)
    names = set(record.trace.slices["name"])
    assert {"MainThread", "<built-in function sorted>"} <= names
    assert not [name for name in names if name.startswith(("<thread>", "<built-in>"))]
    said = [one.text for one in Profile(record.trace, None, record.metadata).findings()]
    assert "`sorted`" in said[0]


def test_own_time_that_pyinstrument_writes_as_a_frame_is_its_function_s() -> None:
    file = SpeedscopeRenderer(show_all=True).render(session([(STACK[:1], 0.5), (STACK, 1.5)]))
    assert "[self]" in file
    record = parse(file.encode(), FILE)
    assert [(name.split(": ")[-1], dur) for name, _, dur in calls(record)] == [
        ("main", 2 * 10**9),
        ("step", 15 * 10**8),
    ]


def test_threads_are_apart_and_what_measures_no_time_is_left_out() -> None:
    record = read(
        sampled([[0]], [1], name="a"),
        sampled([[1]], [1], name="b"),
        sampled([[1]], [512], unit="bytes"),
    )
    assert record.trace.tracks["label"].tolist() == ["a · Python", "b · Python"]
    assert record.metadata["notes"][0].startswith("1 of 3 profiles do not measure time")


def test_what_has_no_unit_is_shown_as_counts_where_nothing_measures_time() -> None:
    count = sampled([[0], [0, 1]], [2, 3], unit="none")
    record = read(count)
    assert [row[1:] for row in calls(record)] == [[0, 5], [2, 3]]
    assert any("each 1 is shown as 1 ns" in note for note in record.metadata["notes"])
    both = read(count, sampled([[0]], [1]))
    assert [row[1:] for row in calls(both)] == [[0, 10**9]]


def test_calls_out_of_turn_are_mended_and_counted() -> None:
    """An outer end closes what is in it; one without a begin is left out; times never go back."""
    events = [("C", 2, 0), ("O", 0, 1), ("O", 1, 2), ("C", 0, 5), ("O", 2, 4), ("O", 1, 6)]
    record = read(evented(events))
    assert calls(record) == [
        ["/home/me/train.py(1): main", 0, 4000],
        ["/home/me/train.py(9): step", 1000, 3000],
        ["len", 4000, 4000],
        ["/home/me/train.py(9): step", 5000, 3000],
    ]
    assert record.metadata["notes"] == ["4 calls begin or end out of order and were mended"]


def test_nanoseconds_stay_exact() -> None:
    late = 2**60 + 1
    record = read(evented([("O", 0, late), ("C", 0, late + 1)], unit="nanoseconds", endValue=0))
    assert calls(record)[0][1:] == [0, 1]
    assert record.trace.epoch_ns == late


BAD = {
    "cut off": (b'{"$schema": "%s", "shared": {"fra' % SCHEMA.encode(), "is not whole"),
    "no profiles": ({"shared": {"frames": []}, "profiles": []}, "nothing: there are none"),
    "no frames": ({"profiles": []}, "not as its schema says.*`shared`"),
    "frame too high": ([evented([("O", 3, 0), ("C", 3, 1)])], "names frame 3, but the file has"),
    "frame below 0": ([sampled([[-1]], [1])], "names frame -1"),
    "text as time": ([evented([("O", 0, "now")])], r"got `str` - at `\$\.profiles\[0\]\.events"),  # type: ignore[list-item]
    "endless": ([evented([("O", 0, 0)], endValue=1e300)], "the time 1e.?300 is too large"),
    "weights missing": ([sampled([[0], [1]], [1])], "2 samples and 1 weights"),
    "bytes": ([sampled([[0]], [1], unit="bytes")], "measure bytes"),
    "no time": ([sampled([[0]], [0])], "without any time"),
    "unknown type": ([{"type": "other"}], "not as its schema says"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_clear_error(name: str) -> None:
    content, words = BAD[name]
    if isinstance(content, list):
        content = {"shared": {"frames": FRAMES}, "profiles": content}
    if isinstance(content, dict):
        content = json.dumps({"$schema": SCHEMA, **content}).encode()
    with pytest.raises(TraceError, match=rf"profile\.json: .*{words}"):
        parse(content, FILE)


def test_many_ends_without_a_begin_take_no_longer_than_others() -> None:
    """Each is looked up, not searched for among the 50,000 calls that are open."""
    events = [("O", 0, 0)] * 50_000 + [("C", 1, 0)] * 50_000
    record = read(evented(events))
    assert len(record.trace) == 50_000
    assert record.metadata["notes"][0].startswith("100,000 calls")


def test_what_we_write_for_speedscope_comes_back() -> None:
    record = trace_of(
        python("train.py(1): main", ts=0, dur=100),
        python("train.py(9): step", ts=10, dur=50),
        python("<built-in function len>", ts=20, dur=5),
    )
    path = FILE
    again = _exported(Profile(record.trace, None, {}), path)
    columns = ["name", "ts", "dur", "parent"]
    pd.testing.assert_frame_equal(
        again.trace.slices[columns].astype({"name": object}),
        record.trace.slices[columns].astype({"name": object}),
    )


def test_ops_and_kernels_that_we_write_keep_their_names_and_times() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=5, dur=20, launched_by=0))
    again = _exported(Profile(record.trace, None, {}), FILE)
    assert sorted(calls(again)) == [["aten::mm", 0, 9], ["gemm", 5, 20]]


def _exported(profile: Profile, path: Path) -> Record:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "a.speedscope.json"
        profile.export(target)
        return parse(target.read_bytes(), path)


INFO = st.sampled_from(
    [
        "main\x00/home/me/train.py\x001",
        "step\x00/home/me/train.py\x009\x01cTrainer\x01l12",
        "len\x00<built-in>\x000",
        "load\x00/home/me/data.py\x003\x01l4",
    ]
)
RECORDS = st.lists(
    st.tuples(st.lists(INFO, min_size=1, max_size=5), st.integers(1, 99).map(lambda ms: ms / 1000)),
    min_size=1,
    max_size=12,
)


def session(records: list[tuple[list[str], float]]) -> Session:
    return Session(
        frame_records=records,
        start_time=1.7e9,
        duration=sum(time for _, time in records),
        min_interval=0.001,
        max_interval=0.001,
        sample_count=len(records),
        start_call_stack=["main\x00/home/me/train.py\x001"],
        target_description="Program: train.py",
        cpu_time=0.5,
        sys_path=[],
        sys_prefixes=[],
    )


@settings(max_examples=40)
@given(RECORDS)
def test_a_session_of_pyinstrument_has_the_times_of_its_own_tree(
    records: list[tuple[list[str], float]],
) -> None:
    """Of every function all time on the stack, as pyinstrument itself adds it up."""
    record = parse(json.dumps(session(records).to_json()).encode(), FILE)
    found = record.trace.slices.groupby("name", observed=True)["dur"].sum()
    root = session(records).root_frame(trim_stem=False)
    expected: dict[str, float] = {}
    todo = [root] if root else []
    while todo:
        frame = todo.pop()
        todo += frame.children
        if frame.is_synthetic or not frame.function:
            continue
        expected[frame.function] = expected.get(frame.function, 0) + frame.time
    by_function = found.rename(lambda name: str(name).rsplit(": ", 1)[-1]).groupby(level=0).sum()
    called = [name.removeprefix("<built-in function ").rstrip(">") for name in by_function.index]
    named = {name.split(".")[-1]: ns / 1e9 for name, ns in zip(called, by_function, strict=True)}
    assert named == pytest.approx(expected)
    assert record.trace.epoch_ns == 1_700_000_000 * 10**9
    assert record.trace.span_ns == pytest.approx(sum(time for _, time in records) * 1e9, abs=99)


@settings(max_examples=20)
@given(RECORDS)
def test_pyinstrument_s_speedscope_file_says_the_same(
    records: list[tuple[list[str], float]],
) -> None:
    own = parse(json.dumps(session(records).to_json()).encode(), FILE)
    theirs = parse(SpeedscopeRenderer(show_all=True).render(session(records)).encode(), FILE)
    sums = [
        record.trace.slices[record.trace.slices["parent"] < 0]["dur"].sum()
        for record in (own, theirs)
    ]
    assert sums[1] == pytest.approx(sums[0], rel=1e-6)


def test_a_class_is_part_of_a_method_s_name() -> None:
    stack = ["main\x00/a.py\x001", "step\x00/a.py\x009\x01cTrainer\x01l12"]
    record = parse(json.dumps(session([(stack, 0.5)]).to_json()).encode(), FILE)
    assert [name for name, *_ in calls(record)] == ["/a.py(1): main", "/a.py(9): Trainer.step"]
    assert "sampled every 1 ms" in record.metadata["notes"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frame_records": []}, "without a single sample"),
        ({"frame_records": [["main", 1]]}, r"Expected `array`.*frame_records"),
        ({"frame_records": [[["main"], -1]]}, "a time of -1.0 s"),
        ({"start_time": 1e300}, r"a time of 1e\+300 s"),
        ({"frame_records": None}, "not as its version 4 or 5"),
    ],
)
def test_bad_sessions_are_one_clear_error(change: dict[str, Any], words: str) -> None:
    content = session([(["main\x00/a.py\x001"], 1.0)]).to_json() | change
    with pytest.raises(TraceError, match=rf"profile\.json: .*{words}"):
        parse(json.dumps(content).encode(), FILE)


def test_a_session_that_is_cut_off_says_so() -> None:
    whole = json.dumps(session([(["main\x00/a.py\x001"], 1.0)]).to_json()).encode()
    with pytest.raises(TraceError, match="a session of pyinstrument that is not whole"):
        parse(whole[:-3], FILE)


def test_views_and_analyses_work_on_them() -> None:
    record = read(sampled([[0], [0, 1], [0, 1, 2]], [0.001, 0.002, 0.003]))
    profile = Profile(record.trace, None, record.metadata)
    tree = call_tree(record, source="merged")
    assert tree.set_index("name")["total_ns"].loc["len"] == 3_000_000
    assert profile.python_time()["self_ns"].sum() == 6_000_000
    assert "gpuprof-static" in profile.report()
