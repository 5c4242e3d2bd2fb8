"""Files of stacks without times: pyinstrument's JSON, and collapsed stacks of anybody."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyinstrument.renderers import JSONRenderer

from gpuprof_widgets.analyses.call_tree import call_tree
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load, parse
from gpuprof_widgets.trace.readers.collapsed import is_collapsed
from gpuprof_widgets.trace.writers.stacks import collapsed_stacks
from tests.fuzz_readers import check_record
from tests.records import records
from tests.test_stack_files import read_collapsed
from tests.test_stack_readers import RECORDS, session
from tests.traces import op, python, trace_of

FILE = Path("profile")
FOLDED = Path("run.collapsed")
DATA = Path(__file__).parent / "data"
US = 1000

Stacks = Counter[tuple[str, ...]]


def stacks_of(record: Record) -> Stacks:
    """Own time (ns) by stack, as the flame graph has it."""
    found: Stacks = Counter()
    paths: list[tuple[str, ...]] = []
    tree = call_tree(record, source="merged")
    for parent, name, own in zip(tree["parent"], tree["name"], tree["self_ns"], strict=True):
        paths.append((*paths[parent], name) if parent >= 0 else ())
        if own:
            found[paths[-1]] += int(own)
    return found


def totals_of(record: Record) -> dict[tuple[str, ...], int]:
    """All time (ns) by path."""
    paths: list[tuple[str, ...]] = []
    tree = call_tree(record, source="merged")
    for parent, name in zip(tree["parent"], tree["name"], strict=True):
        paths.append((*paths[parent], name) if parent >= 0 else ())
    return dict(zip(paths, tree["total_ns"].tolist(), strict=True))


def tree_of(root: dict[str, Any] | None, **changes: Any) -> Record:
    content = {
        "start_time": 1.7e9,
        "duration": 2.5,
        "sample_count": 3,
        "target_description": "Program: train.py",
        "cpu_time": 0.5,
        "root_frame": root,
    }
    return parse(json.dumps(content | changes).encode(), FILE)


def frame(name: str, time: float, *children: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "function": name,
        "file_path_short": "a.py",
        "file_path": "/home/me/a.py",
        "line_no": 7,
        "time": time,
        "await_time": 0.0,
        "is_application_code": True,
        "children": list(children),
        **more,
    }


def test_frames_stand_side_by_side_for_as_long_as_they_took() -> None:
    inner = frame("[self]", 0.25, file_path="", line_no=0), frame("sleep", 0.5, group_id="g")
    record = tree_of(frame("main", 2.5, frame("step", 1.0, *inner, class_name="T"), frame("f", 1)))
    rows = record.trace.slices[["name", "ts", "dur"]].values.tolist()
    assert rows == [
        ["/home/me/a.py(7): main", 0, 2_500_000 * US],
        ["/home/me/a.py(7): T.step", 0, 1_000_000 * US],
        ["/home/me/a.py(7): sleep", 0, 500_000 * US],
        ["/home/me/a.py(7): f", 1_000_000 * US, 1_000_000 * US],
    ]
    assert record.trace.slices["parent"].tolist() == [-1, 0, 1, 0]
    assert record.trace.epoch_ns == 1_700_000_000 * 10**9
    (label,) = record.trace.tracks["label"]
    assert label.startswith("Program: train.py · totals, not in order of time")
    assert record.metadata["sampled"] is True
    assert "side by side" in record.metadata["notes"][0]


@settings(max_examples=30)
@given(RECORDS)
def test_times_are_those_of_pyinstrument_s_own_tree(
    stacks: list[tuple[list[str], float]],
) -> None:
    """By path; a time is rounded to the µs, and holds those in it."""
    written = JSONRenderer(show_all=True).render(session(stacks))
    expected: Counter[tuple[str, ...]] = Counter()
    root = json.loads(written)["root_frame"]
    todo = [(root, ())]
    below: Counter[tuple[str, ...]] = Counter()
    while todo:
        each, above = todo.pop()
        path = (*above, each["function"])
        expected[path] += round(each["time"] * 1e9)
        todo += [(child, path) for child in each["children"] if child["function"] != "[self]"]
        for place in range(1, len(path) + 1):
            below[path[:place]] += 1
    found: Counter[tuple[str, ...]] = Counter()
    for path, total in totals_of(parse(written.encode(), FILE)).items():
        if path:
            plain = [name.rsplit(": ")[-1].rsplit(".")[-1] for name in path]
            called = [name.removeprefix("<built-in function ").rstrip(">") for name in plain]
            found[tuple(called)] += total
    assert found.keys() == expected.keys()
    for path, total in found.items():
        assert abs(total - expected[path]) <= US * below[path]


@pytest.mark.parametrize("version", ["3_4", "4_6"])
def test_files_of_older_versions_have_their_times(version: str) -> None:
    """Recorded by these versions themselves."""
    path = DATA / f"pyinstrument_{version}_tree.json"
    whole = json.loads(path.read_text())
    record = load(path)
    totals = {names[-1]: total for names, total in totals_of(record).items() if names}
    assert abs(record.trace.span_ns - whole["root_frame"]["time"] * 1e9) < 20 * US
    found = [totals[name] for name in totals if name.endswith(("loop", "main"))]
    todo, expected = [whole["root_frame"]], []
    while todo:
        each = todo.pop()
        todo += each["children"]
        if each["function"] in ("loop", "main"):
            expected.append(each["time"] * 1e9)
    assert sorted(found) == pytest.approx(sorted(expected), abs=20 * US)


def test_a_tree_deeper_than_any_decoder_goes_is_read() -> None:
    depth = 100_000
    head = b'{"start_time": 1, "duration": 1, "sample_count": 1, "root_frame": '
    opening = b'{"function": "f", "file_path": "/home/me/a.py", "line_no": 3, "time": 1, '
    opening += b'"file_path_short": "a.py", "await_time": 0, "is_application_code": true, '
    data = head + (opening + b'"children": [') * depth + b"]}" * depth + b"}"
    record = parse(data, FILE)
    assert len(record.trace) == depth
    assert record.trace.slices["depth"].max() == depth - 1


def test_what_takes_less_than_its_calls_is_stretched_and_counted() -> None:
    record = tree_of(frame("main", 1.0, frame("f", 1.5)))
    assert record.trace.slices["dur"].tolist() == [1_500_000 * US] * 2
    assert record.metadata["notes"][-1].startswith("1 frames take less time than what they called")


BAD_TREES = {
    "no frame": (None, {}, "without any time in it"),
    "text as time": ({"function": "f", "time": "1"}, {}, r"Expected `float`, got `str`"),
    "no function": ({"time": 1.0}, {}, "missing required field `function`"),
    "below 0": ({"function": "f", "time": -1}, {}, r"a time of -1.0 s"),
    "endless": ({"function": "f", "time": 1e300}, {}, r"a time of 1e\+300 s"),
    "start": ({"function": "f", "time": 1}, {"start_time": -5.0}, r"a time of -5.0 s"),
}


@pytest.mark.parametrize("name", BAD_TREES)
def test_bad_trees_are_one_clear_error(name: str) -> None:
    root, changes, words = BAD_TREES[name]
    with pytest.raises(TraceError, match=rf"profile: a call tree of pyinstrument.*{words}"):
        tree_of(root, **changes)


def test_a_tree_that_is_cut_off_says_so() -> None:
    data = (DATA / "pyinstrument_4_6_tree.json").read_bytes()
    for cut in (data[:-3], data[: len(data) // 2]):
        with pytest.raises(TraceError, match=r"pyinstrument that is not whole: its .* bytes"):
            parse(cut, FILE)


def test_many_tiny_frames_are_refused() -> None:
    tiny = {"function": "", "time": 1}
    root = {**tiny, "children": [tiny] * 150_000}
    data = json.dumps({"sample_count": 1, "root_frame": root}, separators=(",", ":"))
    with pytest.raises(TraceError, match="150,002 frames in"):
        parse(data.encode(), FILE)


# Collapsed stacks


def test_lines_are_stacks_whose_numbers_add_up() -> None:
    record = parse(b"main;step;mm 30\nmain;load 12\r\n\nmain;step;mm 3\nmain 5\nother;x 1\n", FILE)
    assert record.trace.slices[["name", "ts", "dur"]].values.tolist() == [
        *(["main", 0, 50], ["step", 0, 33], ["mm", 0, 33], ["load", 33, 12]),
        *(["other", 50, 1], ["x", 50, 1]),
    ]
    (label,) = record.trace.tracks["label"]
    assert label == "all stacks · totals, not in order of time"
    assert record.metadata["language"] == ""
    notes = record.metadata["notes"]
    assert "the file does not say when they ran" in notes[0]
    assert "does not say what its numbers count: each 1 is shown as 1 ns" in notes[1]
    assert record.metadata["sampled"] is True


def test_nothing_is_said_of_ops_that_a_sampler_could_not_record() -> None:
    record = parse(b"main;step;mm 3000000\nmain;load 12\n", FILE)
    (said,) = Profile(record.trace, None, record.metadata).findings()
    assert said.text.startswith("The function `mm` itself took")


@pytest.mark.slow
@settings(max_examples=60)
@given(records(), st.sampled_from(["ops", "merged"]))
def test_what_we_write_opens_with_the_same_stacks_to_the_ns(record: Record, source: str) -> None:
    data = b"".join(collapsed_stacks(call_tree(record, source=source)))
    assume(data and data[:1] not in b"[{")  # what begins as JSON is read as that
    numbers = [line.split()[-2:] for line in data.decode().splitlines()]
    assume(not all(len(two) == 2 and two[0].isdecimal() for two in numbers))
    found = stacks_of(parse(data, FOLDED))
    expected: Stacks = Counter()
    for stack, own in read_collapsed(data).items():
        expected[stack] += own
    assert found == expected


def test_our_file_is_known_by_its_name_where_no_line_has_a_semicolon(tmp_path: Path) -> None:
    record = trace_of(op("aten::mm", ts=0, dur=9), op("aten::add", ts=20, dur=5))
    data = b"".join(collapsed_stacks(call_tree(record, source="ops")))
    for name in ("run.collapsed", "RUN.Folded", "run.folded.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        assert stacks_of(load(path)) == {("aten::mm",): 9, ("aten::add",): 5}
    with pytest.raises(TraceError, match="not a kind of file that can be read"):
        parse(data, Path("log.txt"))


def test_names_that_begin_as_comments_do_are_names() -> None:
    data = b"# made by: us\n# made on day 3\n#\n## forward ## 5\n## forward ##;mm 7\n# 2\n"
    assert stacks_of(parse(data, FOLDED)) == {
        ("## forward ##",): 5,
        ("## forward ##", "mm"): 7,
        ("#",): 2,
    }


def test_frames_of_ours_keep_their_file_and_line() -> None:
    record = trace_of(python("/home/me/train.py(3): step", ts=0, dur=100), op("mm", ts=1, dur=2))
    data = b"".join(collapsed_stacks(call_tree(record, source="merged")))
    again = parse(data, FOLDED)
    table = Profile(again.trace, None, again.metadata).python_time()
    assert table[["file", "line", "name", "self_ns"]].values.tolist() == [
        ["/home/me/train.py", 3, "step", 98],
        ["~", 0, "mm", 2],
    ]


def test_frames_of_py_spy_have_their_file_and_line() -> None:
    text = b"process 1:a.py;main (/x y/a.py:12);<lambda> (<stdin>:3);read (libc.so:1) 7\na;b 1\n"
    assert stacks_of(parse(text, FILE)) == {
        ("process 1:a.py", "/x y/a.py(12): main", "<stdin>(3): <lambda>", "read (libc.so:1)"): 7,
        ("a", "b"): 1,
    }


AUSTIN = b"""# austin: 3.7.0
# interval: 100
# mode: wall

P12;T0x7f;/a b/t.py:<module>:1;C:\\x.py:f:22 150
P12;T0x7f;/a b/t.py:<module>:1 50
P12;T9:1;/a b/t.py:g:3;:GC: 7
# duration: 300
"""


def test_austin_has_threads_places_and_microseconds() -> None:
    record = parse(AUSTIN, FILE)
    tracks = record.trace.tracks["label"].tolist()
    assert [label.split(" · ")[0] for label in tracks] == [
        "process 12, thread 0x7f",
        "process 12, thread 9:1",
    ]
    rows = record.trace.slices[["name", "dur"]].values.tolist()
    assert rows == [
        ["/a b/t.py(1): <module>", 200 * US],
        ["C:\\x.py(22): f", 150 * US],
        ["/a b/t.py(3): g", 7 * US],
        [":GC:", 7 * US],
    ]
    assert record.metadata["recorded_by"] == "Austin"
    assert "language" not in record.metadata
    assert not any("1 ns" in note for note in record.metadata["notes"])


def test_austin_s_full_mode_has_the_time_first_and_its_memory_mode_none() -> None:
    full = AUSTIN.replace(b"wall", b"full").replace(b" 150", b" 150,0,-4096")
    assert parse(full, FILE).trace.slices["dur"].tolist()[1] == 150 * US
    with pytest.raises(TraceError, match="measure memory, not time"):
        parse(AUSTIN.replace(b"wall", b"memory"), FILE)


def test_austin_s_binary_files_come_with_what_to_do() -> None:
    with pytest.raises(TraceError, match=r"an Austin profile in its binary format.*mojo2austin"):
        parse(b"MOJ\x03\x01mode\0wall\0", FILE)


def test_bytes_that_are_no_text_and_other_letters_are_read() -> None:
    record = parse("größe;関数 3\n".encode() + b"a\xff;b 4\n", FILE)
    assert stacks_of(record) == {("größe", "関数"): 3, ("a\ufffd", "b"): 4}


def test_decimals_are_rounded_by_stack_and_counted() -> None:
    record = parse(b"a;b 1.5\na;b 1.5\na;c 2.\n", FILE)
    assert stacks_of(record) == {("a", "b"): 3, ("a", "c"): 2}
    assert "2 numbers have decimals" in record.metadata["notes"][-1]


def test_a_last_line_that_is_cut_off_is_left_out_and_told() -> None:
    record = parse(b"a;b 15\na;c 3\na;lon", FILE)
    assert stacks_of(record) == {("a", "b"): 15, ("a", "c"): 3}
    assert record.metadata["notes"][-1].startswith("line 3, the last one, is cut off")


BAD_STACKS = {
    "a line that is none": (b"a;b 3\n" * 20 + b"a;c\n" + b"a;b 1\n", "line 21 .*: 'a;c'"),
    "below 0": (b"a;b 3\na;b -5\n", "line 2 .* the number -5"),
    "huge": (b"a;b 3\na;b " + b"9" * 5000 + b"\n", "line 2 .* the number 9+"),
    "huge together": (b"a;b %d\n" % 2**61 * 2, "up to line 2 add up to"),
    "nothing": (b"a;b 0\n", "without a number above 0"),
    "two runs": (b"a;b 3 4\na;c 1 0\n", "difference of two runs .*gpuprof diff A B"),
}


@pytest.mark.parametrize("name", BAD_STACKS)
def test_bad_stacks_are_one_clear_error_with_the_line(name: str) -> None:
    data, words = BAD_STACKS[name]
    with pytest.raises(TraceError, match=rf"profile: .*{words}"):
        parse(data, FILE)


NONE = {
    "a table": b"name;calls;time\nmm;3;12\nadd;4;7\n",
    "a table of numbers": b"1 2\n3 4\n",
    "a log": b"2024-01-01 12:00:00 step 1 loss 3\n2024-01-01 12:00:01 step 2 loss 2\n",
    "a log with a semicolon": b"epoch 1\nepoch 2\nepoch 3; lr 4\nepoch 5\n",
    "C": b"for (i = 0; i < 3; i++)\n  x = 1;\nreturn 0;\n",
    "CSS": b"a { color: red; margin: 0 }\n",
    "JSON that is cut": b'{"a": "x;y", "ts": 12',
    "a list that is cut": b'[{"name": "a;b", "ts": 12',
    "nothing but blanks": b" \n\n",
    "words": b"hello world\n",
}


@pytest.mark.parametrize("name", NONE)
def test_other_text_is_not_taken_for_stacks(name: str) -> None:
    assert not is_collapsed(NONE[name])


@pytest.mark.parametrize("start", [b"[unknown]", b"[[vdso]]", b"{lambda()#1}::operator()"])
def test_stacks_that_begin_as_json_does_are_stacks(start: bytes) -> None:
    assert stacks_of(parse(start + b";main 5\n", FILE)) == {(start.decode(), "main"): 5}


def test_a_stack_of_100_000_functions_is_read() -> None:
    names = b";".join(b"function number %d" % place for place in range(100_000))
    record = parse(b"a;b 1\n" + names + b" 2\n", FILE)
    assert record.trace.slices["depth"].max() == 99_999


def test_many_tiny_frames_are_made_to_do_harm() -> None:
    with pytest.raises(TraceError, match="made to do harm"):
        parse(b"a;b 1\n" + b";".join([b"a"] * 1_000_000) + b" 2\n", FILE)


@settings(max_examples=60)
@given(st.binary(max_size=80))
def test_any_bytes_are_stacks_or_one_error(data: bytes) -> None:
    with suppress(TraceError):
        check_record(parse(b"a;b 1\n" + data, FOLDED))


def test_views_and_tables_work_on_them() -> None:
    record = parse(AUSTIN, FILE)
    profile = Profile(record.trace, None, record.metadata)
    assert profile.python_time()["self_ns"].sum() == 207 * US
    assert "gpuprof-static" in profile.report()
    profile.findings()
