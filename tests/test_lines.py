"""Cell lines: what each took, launched, waited for, allocated and freed, in exact sums."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.traces import (
    Row,
    annotation,
    backward_op,
    cell_line,
    copy,
    kernel,
    memory,
    op,
    runtime,
    trace_of,
)

SOURCE = "%%gpuprofile\nfor x in data:\n    y = model(x)\n    loss.backward()\nelse:\n    done()"
METADATA = {
    "cells": [
        {"label": "Cell [3]", "first_line": 1, "source": SOURCE, "statements": [2, 3, 4, 6]},
    ]
}


def step(*, backward_thread: int = 100) -> list[Row]:
    """A loop of one step: a forward op and its kernel, then its backward op and kernel."""
    return [
        cell_line(2, "for x in data:", ts=0, dur=100),
        cell_line(3, "y = model(x)", ts=5, dur=25),
        cell_line(4, "loss.backward()", ts=40, dur=50),
        op("aten::mm", ts=10, dur=10, sequence=7),
        runtime("cudaLaunchKernel", ts=12, dur=3),
        kernel("gemm", ts=20, dur=30, launched_by=4),
        op(
            "autograd::engine::evaluate_function: MmBackward0",
            ts=45,
            dur=35,
            thread=backward_thread,
        ),
        op("MmBackward0", ts=50, dur=20, sequence=7, forward_thread=1, thread=backward_thread),
        runtime("cudaLaunchKernel", ts=55, dur=4, thread=backward_thread),
        kernel("gemm_backward", ts=95, dur=8, launched_by=8),
    ]


def numbers(table: pd.DataFrame, *columns: str) -> dict[int, list[int]]:
    return {
        int(row["line"]): [row[column] for column in columns] for row in table.to_dict("records")
    }


def test_a_loops_head_has_what_its_body_has_not() -> None:
    table = lines(trace_of(*step(), lines=METADATA))
    assert numbers(table, "calls", "wall_ns", "self_ns", "cpu_self_ns") == {
        2: [1, 100, 25, 0],
        3: [1, 25, 25, 10],
        4: [1, 50, 50, 35],
        6: [0, 0, 0, 0],
    }
    assert table["code"].tolist() == ["for x in data:", "y = model(x)", "loss.backward()", "done()"]
    assert set(table["cell"]) == {"Cell [3]"}


@pytest.mark.parametrize("thread", [100, 101])
def test_backward_work_counts_where_it_ran_and_for_its_forward_line(thread: int) -> None:
    table = lines(trace_of(*step(backward_thread=thread), lines=METADATA))
    columns = ("cpu_self_ns", "device_ns", "backward_cpu_ns", "backward_device_ns")
    assert numbers(table, *columns) == {
        2: [0, 0, 0, 0],
        3: [10, 30, 35, 8],
        4: [35, 8, 0, 0],
        6: [0, 0, 0, 0],
    }


ACCUMULATE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def hooked(*, thread: int = 100, hooks: bool = True) -> Record:
    """Two lines, their backward ops, and lines of hooks within what the engine runs."""
    rows = [
        cell_line(2, "y = model(x)", ts=0, dur=20),
        op("aten::mm", ts=5, dur=10, sequence=1),
        cell_line(3, "z = y.exp()", ts=20, dur=20),
        op("aten::exp", ts=25, dur=10, sequence=2),
        cell_line(4, "z.backward()", ts=40, dur=160),
        *backward_op("ExpBackward0", ts=50, dur=30, sequence=2, thread=thread),
        *backward_op("MmBackward0", ts=80, dur=40, sequence=1, thread=thread),
        op(ACCUMULATE, ts=120, dur=50, thread=thread),
        runtime("cudaLaunchKernel", ts=130, dur=5, thread=thread),
        kernel("add", ts=300, dur=9, launched_by=10),
    ]
    lines_of_hooks = [
        cell_line(7, "sleep()  # in ExpBackward0", ts=55, dur=20, thread=thread),
        cell_line(8, "sleep()  # in MmBackward0", ts=82, dur=9, thread=thread),
        cell_line(9, "grad.add(1)", ts=140, dur=20, thread=thread),
    ]
    return trace_of(*rows, *(lines_of_hooks if hooks else []))


@pytest.mark.parametrize("thread", [100, 101])
def test_hooks_are_part_of_the_backward_of_their_forward_line(thread: int) -> None:
    table = lines(hooked(thread=thread))
    assert numbers(table, "backward_cpu_ns", "backward_device_ns") == {
        2: [40 + 50, 9],
        3: [30, 0],
        4: [0, 0],
        7: [0, 0],
        8: [0, 0],
        9: [0, 0],
    }
    assert table["backward_cpu_ns"].sum() == 30 + 40 + 50  # what the engine ran
    without = lines(hooked(thread=thread, hooks=False))
    assert without["backward_cpu_ns"].tolist() == table["backward_cpu_ns"][:3].tolist()


def test_what_the_engine_does_in_another_call_belongs_to_no_op_before() -> None:
    record = trace_of(
        cell_line(2, "y = model(x)", ts=0, dur=20),
        op("aten::mm", ts=5, dur=10, sequence=1),
        cell_line(3, "y.backward()", ts=40, dur=20),
        *backward_op("MmBackward0", ts=42, dur=10, sequence=1),
        cell_line(4, "leaf.backward()", ts=60, dur=20),
        op(ACCUMULATE, ts=65, dur=10),
    )
    assert numbers(lines(record), "backward_cpu_ns") == {2: [10], 3: [0], 4: [0]}


@pytest.mark.parametrize("thread", [100, 101])
def test_a_range_of_the_backward_pass_knows_its_lines(thread: int) -> None:
    record = trace_of(*step(backward_thread=thread), lines=METADATA)
    table = lines(window(record, 92, 103))
    columns = ("calls", "wall_ns", "device_ns", "backward_device_ns")
    assert numbers(table, *columns) == {
        2: [1, 8, 0, 0],
        3: [0, 0, 0, 8],
        4: [0, 0, 8, 0],
        6: [0, 0, 0, 0],
    }


def test_a_thread_that_is_no_backward_pass_belongs_to_no_line() -> None:
    record = trace_of(
        cell_line(2, "work()", ts=0, dur=90), op("aten::pin", ts=10, dur=20, thread=101)
    )
    assert numbers(lines(record), "cpu_self_ns", "self_ns") == {2: [0, 90]}


def test_recursion_of_a_line_counts_its_time_once() -> None:
    record = trace_of(
        cell_line(3, "return f(n - 1)", ts=0, dur=90),
        cell_line(3, "return f(n - 1)", ts=10, dur=60),
        cell_line(2, "work()", ts=20, dur=30),
    )
    assert numbers(lines(record), "calls", "wall_ns", "self_ns") == {
        2: [1, 30, 30],
        3: [2, 90, 60],
    }


def test_the_pieces_of_a_generator_are_one_execution() -> None:
    record = trace_of(
        cell_line(3, "yield x", ts=0, dur=10),
        cell_line(3, "yield x", ts=50, dur=20, resumed=1),
        cell_line(3, "yield x", ts=80, dur=5),
    )
    assert numbers(lines(record), "calls", "wall_ns") == {3: [2, 35]}


def test_waits_and_allocations_are_those_of_the_innermost_line() -> None:
    record = trace_of(
        cell_line(2, "for x in data:", ts=0, dur=100),
        cell_line(3, "x.item()", ts=10, dur=60),
        runtime("cudaStreamSynchronize", ts=20, dur=40),
        runtime("cudaMemcpyAsync", ts=62, dur=6),
        copy(ts=63, dur=4, launched_by=3),
        runtime("cudaDeviceSynchronize", ts=80, dur=5),
        memory(512, ts=15),
        memory(-512, ts=16),
        memory(2048, ts=17, device=0),
        memory(8, ts=90),
    )
    columns = ("wait_ns", "allocated_bytes", "freed_bytes")
    assert numbers(lines(record), *columns) == {2: [5, 8, 0], 3: [46, 2560, 512]}


def test_an_annotation_is_no_op_of_its_line() -> None:
    record = trace_of(
        cell_line(2, "for x in data:", ts=0, dur=100),
        annotation("ProfilerStep#1", ts=10, dur=80),
        op("aten::mm", ts=20, dur=30),
    )
    assert numbers(lines(record), "cpu_self_ns") == {2: [30]}


def test_what_ran_beyond_the_limit_makes_its_line_and_the_one_around_incomplete() -> None:
    source = {**METADATA["cells"][0], "beyond_limit": [3, 4], "statements": [1, 2, 3, 4, 5]}
    record = trace_of(
        cell_line(1, "f()", ts=0, dur=100),
        cell_line(2, "for x in data:", ts=5, dur=60),
        cell_line(3, "for y in x:", ts=10, dur=20),
        cell_line(4, "g(y)", ts=12, dur=8),
        cell_line(5, "h()", ts=70, dur=8),
        kernel("gemm", ts=99, dur=12),
        lines={"limit": 10_000, "cells": [source]},
    )
    complete = lines(record).set_index("line")["complete"]
    assert complete.to_dict() == {1: True, 2: False, 3: False, 4: False, 5: True}
    assert not lines(window(record, 101, 109))["cpu_self_ns"].any()  # no line ran then


@st.composite
def lined(draw: st.DrawFn) -> Record:
    """Random events, and lines around, in and across them."""
    made = [
        cell_line(
            draw(st.integers(1, 4)),
            "f()",
            ts=draw(st.integers(0, 40)),
            dur=draw(st.integers(0, 25)),
            cell=draw(st.sampled_from(["Cell [1]", "helpers.py"])),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]
    moved = [replace(row, thread=draw(st.sampled_from(["100", "101"]))) for row in made]
    return trace_of(*moved, op("aten::mm", ts=draw(st.integers(0, 40)), dur=9))


@given(lined(), st.integers(0, 60))
def test_self_times_add_up_to_the_time_in_lines(record: Record, cut: int) -> None:
    cut = min(cut, record.trace.end_ns)
    for part in record, window(record, 0, cut), window(record, cut, record.trace.end_ns):
        slices = part.trace.slices
        rows = slices[slices["category"] == "cell_line"]
        ends = rows["ts"] + rows["dur"]
        covered = sum(
            intervals.length(intervals.union(own["ts"], ends[own.index]))
            for _, own in rows.groupby("track")
        )
        assert lines(part)["self_ns"].sum() == covered
