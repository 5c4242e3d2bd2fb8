"""What is taken out of a recorded trace: only what is not the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gpuprof_widgets
from gpuprof_widgets.capture.frame_filter import (
    without_profiler_calls,
    without_profiler_slices,
)
from gpuprof_widgets.capture.loop.iterations import without_steps_taken_back
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Calls
from gpuprof_widgets.trace.pstats import calls_from_slices
from tests.cells import recorded
from tests.traces import annotation, calls_of, gpu_annotation, op, python, trace_of


def names_left(*rows: object, **known: Any) -> list[str]:
    trace = trace_of(annotation("cell", ts=10, dur=100), *rows).trace  # type: ignore[arg-type]
    return sorted(without_profiler_slices(trace, "cell", **known).slices["name"].astype(str))


def test_another_thread_that_only_sleeps_is_left_out() -> None:
    sleeping = python("<built-in function sleep>", ts=20, dur=80, thread=7)
    assert names_left(sleeping) == ["cell"]


def test_another_thread_that_runs_python_functions_is_kept_with_its_built_ins() -> None:
    work = python("worker.py(3): fetch", ts=20, dur=80, thread=7)
    waits = python("<built-in function sleep>", ts=30, dur=20, thread=7)
    assert names_left(work, waits) == ["<built-in function sleep>", "cell", "worker.py(3): fetch"]


def test_threads_of_the_kernel_are_left_out_unless_they_do_the_users_work() -> None:
    known = {"cells": ["Cell [3]"], "threads_before": [7, 8, 9]}
    kernels = python("ipykernel/iostream.py(706): _flush", ts=20, dur=50, thread=7)
    unknown = python("sqlite3.py(3): commit", ts=20, dur=50, thread=0)
    with_op = python("loader.py(3): pin", ts=20, dur=50, thread=8)
    pinned = op("aten::copy_", ts=30, dur=10, thread=8)
    of_a_cell = python("Cell [3](4): watch", ts=20, dur=50, thread=9)
    started = python("worker.py(3): fetch", ts=20, dur=50, thread=10)
    assert names_left(kernels, unknown, with_op, pinned, of_a_cell, started, **known) == [
        "Cell [3](4): watch",
        "aten::copy_",
        "cell",
        "loader.py(3): pin",
        "worker.py(3): fetch",
    ]


def test_built_ins_of_the_cell_itself_are_kept() -> None:
    own = python("<built-in function sleep>", ts=20, dur=80)
    assert names_left(own) == ["<built-in function sleep>", "cell"]


def test_frames_of_the_magic_around_the_cell_are_ours() -> None:
    ours = python("gpuprof_widgets/magic.py(188): __exit__", ts=11, dur=98)
    assert names_left(ours, python("train.py(3): step", ts=20, dur=50)) == [
        "cell",
        "train.py(3): step",
    ]


def test_calls_are_those_of_the_thread_of_the_cell() -> None:
    record = trace_of(
        annotation("cell", ts=10, dur=100),
        python("train.py(3): step", ts=20, dur=50),
        python("selectors.py(435): select", ts=20, dur=80, thread=7),
    )
    assert calls_from_slices(record.trace, "cell").functions["name"].tolist() == ["step"]


BETWEEN = str(Path(gpuprof_widgets.__file__).parent / "capture" / "loop" / "steps.py")


def calls_between(*edges: tuple[str | None, str, int, int]) -> Calls:
    """Calls of which `_items` is the function of ours that stands between a loop and its items."""
    calls = calls_of(*edges)
    ours = calls.functions["name"] == "_items"
    return Calls(
        calls.functions.assign(file=calls.functions["file"].mask(ours, BETWEEN)), calls.edges
    )


@pytest.mark.parametrize("calls", [calls_of((None, "f", 1, 9)), calls_of()], ids=["some", "none"])
def test_the_calls_of_a_cell_load_back_equal(calls: Calls, tmp_path: Path) -> None:
    """To the dtype: what the cell's label takes the place of is a column of objects still."""
    left = without_profiler_calls(calls, {"cell.py": "Cell [3]"})
    profile = Profile(trace_of(op("aten::mm", ts=0, dur=9)).trace, left, {})
    loaded = gpuprof_widgets.load(profile.save(tmp_path / "x.gpuprof"))
    assert profile.python_calls()["file"].tolist() == ["Cell [3]"] * len(calls.functions)
    pd.testing.assert_frame_equal(loaded.python_calls(), profile.python_calls())
    assert loaded.python_calls().equals(profile.python_calls())


def pairs(calls: Calls) -> set[tuple[str, str]]:
    names = calls.functions["name"].to_numpy()
    return set(zip(names[calls.edges["caller"]], names[calls.edges["callee"]], strict=True))


def test_what_fetched_an_item_was_called_by_the_loop() -> None:
    calls = calls_between(
        (None, "train", 1, 5), ("train", "_items", 3, 1), ("_items", "fetch", 3, 9),
        ("train", "fetch", 1, 2), ("fetch", "read", 3, 4),
    )  # fmt: skip
    left = without_profiler_calls(calls, {})
    assert pairs(left) == {("train", "fetch"), ("fetch", "read")}
    edge = left.edges.iloc[[left.functions["name"][n] == "fetch" for n in left.edges["callee"]]]
    assert edge["calls"].tolist() == [4]
    assert edge["self_ns"].tolist() == [11]


def test_in_a_cell_the_calls_by_frames_that_were_open_are_the_cells() -> None:
    calls = calls_between(
        (None, "_items", 3, 1), ("_items", "fetch", 3, 9), (None, "work", 3, 2),
        ("work", "inner", 3, 2), (None, "poll", 3, 2),
    )  # fmt: skip
    kernels = calls.functions["file"].mask(
        calls.functions["name"] == "poll", "/lib/zmq/sugar/poll.py"
    )
    calls = Calls(calls.functions.assign(file=kernels), calls.edges)
    labels = {"/tmp/cell_7.py": "Cell [7]"}
    left = without_profiler_calls(calls, labels, began_inside=True)
    assert left.functions["name"].tolist() == ["fetch", "work", "inner"]
    without = without_profiler_calls(calls, labels)
    assert without.functions["name"].tolist() == ["fetch"]


def test_what_a_cell_awaits_is_among_its_calls() -> None:
    """With marked lines it is driven by us, through a built-in."""
    cell = "import contextlib\nawait contextlib.AsyncExitStack().aclose()\n"
    for options in ({"lines": True}, {"lines": False}):
        calls = recorded(cell, **options)[1].calls
        assert calls is not None
        assert {"aclose", "__aexit__"} <= set(calls.functions["name"]), options
        assert not calls.functions["file"].str.contains("gpuprof_widgets").any()


def test_steps_that_were_taken_back_are_left_out_on_every_device() -> None:
    rows = [
        annotation("ProfilerStep#3", ts=0, dur=10),  # taken back twice, then it ran
        annotation("ProfilerStep#3", ts=20, dur=10),
        gpu_annotation("ProfilerStep#3", ts=25, dur=20),
        annotation("ProfilerStep#3", ts=50, dur=10),
        gpu_annotation("ProfilerStep#3", ts=55, dur=20),
        annotation("ProfilerStep#4", ts=80, dur=10),
        annotation("ProfilerStep#5", ts=90, dur=10),  # that never came
        gpu_annotation("ProfilerStep#5", ts=95, dur=20),
    ]
    taken_back = {"ProfilerStep#3": 2, "ProfilerStep#5": 1}
    kept = without_steps_taken_back(trace_of(*rows).trace, taken_back).slices
    assert sorted(zip(kept["name"].astype(str), kept["ts"], strict=True)) == [
        ("ProfilerStep#3", 50),
        ("ProfilerStep#3", 55),
        ("ProfilerStep#4", 80),
    ]
