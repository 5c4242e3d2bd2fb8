"""Stacks for other tools: collapsed ones for flamegraph.pl, and speedscope's JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from gpuprof_widgets.analyses.call_tree import call_tree, estimated_tree
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from gpuprof_widgets.trace.writers.stacks import collapsed_stacks, frame_text, speedscope
from tests.records import records
from tests.traces import calls_of, kernel, op, python, runtime, trace_of

pytestmark = pytest.mark.slow

# Of speedscope (MIT), as https://www.speedscope.app/file-format-schema.json has it.
SCHEMA = json.loads(
    (Path(__file__).parent / "data" / "speedscope-file-format-schema.json").read_text()
)

NESTED = trace_of(
    python("/home/me/train.py(3): step", ts=0, dur=100),
    op("aten::mm", ts=10, dur=50),
    runtime("cudaLaunchKernel", ts=20, dur=10),
    kernel("gemm<float, 4>", ts=70, dur=40, launched_by=2),
)


def read_collapsed(data: bytes) -> Counter[tuple[str, ...]]:
    """Time by stack, as flamegraph.pl splits a line."""
    found: Counter[tuple[str, ...]] = Counter()
    for line in data.decode().splitlines():
        stack, _, number = line.rpartition(" ")
        found[tuple(stack.split(";"))] += int(number)
    return found


def collapsed(record: Record, source: str = "ops") -> bytes:
    return b"".join(collapsed_stacks(call_tree(record, source=source)))


def as_speedscope(record: Record) -> dict[str, Any]:
    """What the file says, after it was found to be as its schema says."""
    trees = {"calls": estimated_tree(record.calls)} if record.calls is not None else {}
    told: dict[str, Any] = json.loads(b"".join(speedscope(record.trace, trees, name="run")))
    Draft7Validator(SCHEMA).validate(told)
    return told


def times_in(profile: dict[str, Any], frames: list[dict[str, Any]]) -> Counter[str]:
    """Time by frame of an evented profile, whose opens and closes have to be a strict stack."""
    found: Counter[str] = Counter()
    stack: list[tuple[int, int]] = []
    last = profile["startValue"]
    for event in profile["events"]:
        assert event["at"] >= last
        last = event["at"]
        if event["type"] == "O":
            stack.append((event["frame"], last))
        else:
            frame, since = stack.pop()
            assert frame == event["frame"]
            found[frames[frame]["name"]] += last - since
    assert not stack
    assert last <= profile["endValue"]
    return found


def times_of(record: Record) -> Counter[str]:
    """Time by name of all slices that have any; of a frame the function."""
    slices = record.trace.slices
    found: Counter[str] = Counter()
    for name, category, dur in zip(slices["name"], slices["category"], slices["dur"], strict=True):
        if dur:
            function = name.rpartition("): ")[2] if category == "python_function" else name
            found[function] += int(dur)
    return found


def test_a_line_is_a_stack_and_its_own_time() -> None:
    assert collapsed(NESTED).decode().splitlines() == [
        "aten::mm 40",
        "aten::mm;cudaLaunchKernel 10",
    ]
    assert collapsed(NESTED, "merged").decode().splitlines() == [
        "/home/me/train.py(3): step 50",
        "/home/me/train.py(3): step;aten::mm 40",
        "/home/me/train.py(3): step;aten::mm;cudaLaunchKernel 10",
    ]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("f(int; int)", "f(int, int)"),
        ("two\nlines\r\u2028here", "two lines  here"),
        ("ends in 7", "ends in 7"),
        ("", "(no name)"),
        (" \t", "(no name)"),
    ],
)
def test_what_a_line_cannot_hold_is_written_otherwise(name: str, written: str) -> None:
    assert frame_text(name) == written
    record = trace_of(op(name, ts=0, dur=5), op("aten::mm", ts=1, dur=2))
    assert read_collapsed(collapsed(record)) == {(written,): 3, (written, "aten::mm"): 2}


@settings(max_examples=40)
@given(records(), st.sampled_from(["ops", "merged"]))
def test_collapsed_stacks_hold_the_times_of_the_flame_graph(record: Record, source: str) -> None:
    tree = call_tree(record, source=source)
    expected: Counter[tuple[str, ...]] = Counter()
    paths: list[tuple[str, ...]] = []
    for parent, name, own in zip(tree["parent"], tree["name"], tree["self_ns"], strict=True):
        paths.append((*paths[parent], frame_text(name)) if parent >= 0 else ())
        if own:
            expected[paths[-1]] += int(own)
    assert read_collapsed(collapsed(record, source)) == expected


@pytest.mark.skipif(shutil.which("perl") is None, reason="without perl")
def test_the_pattern_of_flamegraph_pl_reads_every_line(tmp_path: Path) -> None:
    """Which is how it splits a line, in its own words."""
    record = trace_of(op("a 1; b 2", ts=0, dur=5), op("c\n3", ts=1, dur=2), op("", ts=7, dur=1))
    path = tmp_path / "stacks.collapsed"
    path.write_bytes(collapsed(record))
    split = r'while (<>) { my ($s, $n) = (/^(.*)\s+?(\d+(?:\.\d*)?)$/); print "$n:$s\n"; }'
    done = subprocess.run(["perl", "-e", split, path], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["1:(no name)", "2:a 1, b 2;c 3", "3:a 1, b 2"]


def test_each_thread_and_stream_is_a_profile_in_order_of_time() -> None:
    told = as_speedscope(NESTED)
    frames = told["shared"]["frames"]
    assert frames == [
        {"name": "step", "file": "/home/me/train.py", "line": 3},
        {"name": "aten::mm"},
        {"name": "cudaLaunchKernel"},
        {"name": "gemm<float, 4>"},
    ]
    thread, stream = told["profiles"]
    assert (thread["unit"], thread["startValue"], thread["endValue"]) == ("nanoseconds", 0, 110)
    assert [(e["type"], e["frame"], e["at"]) for e in thread["events"]] == [
        *[("O", 0, 0), ("O", 1, 10), ("O", 2, 20), ("C", 2, 30), ("C", 1, 60), ("C", 0, 100)],
    ]
    assert [(e["type"], e["frame"], e["at"]) for e in stream["events"]] == [
        ("O", 3, 70),
        ("C", 3, 110),
    ]


@settings(max_examples=40)
@given(records())
def test_every_name_keeps_its_time_in_speedscope(record: Record) -> None:
    told = as_speedscope(record)
    found: Counter[str] = Counter()
    for profile in told["profiles"]:
        found += times_in(profile, told["shared"]["frames"])
    assert found == +times_of(record)


def test_calls_are_samples_with_their_own_time() -> None:
    record = trace_of(calls=calls_of((None, "main", 1, 100), ("main", "step", 3, 250)))
    told = as_speedscope(record)
    (profile,) = told["profiles"]
    assert (profile["type"], profile["endValue"]) == ("sampled", 350)
    names = [frame["name"] for frame in told["shared"]["frames"]]
    stacks = [[names[frame] for frame in sample] for sample in profile["samples"]]
    assert list(zip(stacks, profile["weights"], strict=True)) == [
        (["cell.py:1(main)"], 100),
        (["cell.py:1(main)", "cell.py:2(step)"], 250),
    ]


def written(record: Record, path: Path) -> Path:
    """The stacks by GPU time, in the format of that name."""
    return Profile(record.trace, record.calls, record.metadata).export(path, what="device")


def test_stacks_by_gpu_time_have_what_they_caused(tmp_path: Path) -> None:
    rows = (op("aten::empty", ts=62, dur=9), kernel("of_before", ts=0, dur=12))
    record = trace_of(
        python("/home/me/train.py(3): step", ts=0, dur=100),
        op("aten::mm", ts=10, dur=50),
        runtime("cudaLaunchKernel", ts=20, dur=10),
        kernel("gemm", ts=70, dur=40, launched_by=2),
        kernel("bias", ts=80, dur=20, launched_by=1, stream=20),
        *rows,
    )
    path = written(record, tmp_path / "gpu.collapsed")
    step = "/home/me/train.py(3): step"
    expected = {
        (step, "aten::mm"): 20,
        (step, "aten::mm", "cudaLaunchKernel"): 40,
        ("GPU work without a launch in the trace",): 12,
    }
    assert read_collapsed(path.read_bytes()) == expected
    told = json.loads(written(record, tmp_path / "gpu.speedscope.json").read_text())
    Draft7Validator(SCHEMA).validate(told)
    (profile,) = told["profiles"]
    names = [frame["name"] for frame in told["shared"]["frames"]]
    stacks = [tuple(names[frame] for frame in sample) for sample in profile["samples"]]
    assert dict(zip(stacks, profile["weights"], strict=True)) == expected
    assert (profile["name"], profile["unit"], profile["endValue"]) == (
        "GPU time by call path, summed over streams",
        "nanoseconds",
        72,
    )


@pytest.mark.parametrize("name", ["gpu.collapsed", "gpu.speedscope.json"])
def test_without_gpu_time_there_are_no_stacks_by_it(name: str, tmp_path: Path) -> None:
    calls = calls_of((None, "main", 1, 100))
    for record in (trace_of(), trace_of(op("aten::mm", ts=0, dur=5)), trace_of(calls=calls)):
        with pytest.raises(RecordingError, match="no stacks by GPU time: the trace has no GPU wor"):
            written(record, tmp_path / name)
    assert not list(tmp_path.iterdir())


@settings(max_examples=40)
@given(records())
def test_stacks_by_gpu_time_hold_all_of_it(record: Record) -> None:
    slices = record.trace.slices
    expected = int(slices["dur"][slices["category"].isin(GPU_CATEGORIES)].sum())
    tree = call_tree(record, time="device")
    stacks = collapsed_stacks(tree.assign(self_ns=tree["device_self_ns"]))
    assert read_collapsed(b"".join(stacks)).total() == expected
