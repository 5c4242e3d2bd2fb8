"""Equality of records, and hypothesis strategies that make them."""

from __future__ import annotations

from typing import Any

import pandas as pd
from hypothesis import strategies as st

from gpuprof_widgets.trace.gather import MORE_ARGS
from gpuprof_widgets.trace.known_args import KINDS
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, UNCUT_ARGS, WRITTEN_CATEGORY
from tests.traces import Row, annotation, copy, kernel, memory, op, python, runtime, trace_of

TABLES = ("slices", "tracks", "counters", "flows")


def assert_same_trace(left: Trace, right: Trace) -> None:
    """Every table, arg and bound is equal, types and order included."""
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(left, table), getattr(right, table), check_exact=True)
    assert list(left.args) == list(right.args)
    for key, values in left.args.items():
        pd.testing.assert_series_equal(values, right.args[key], check_exact=True)
        assert [type(v) for v in values.tolist()] == [type(v) for v in right.args[key].tolist()]
    assert (left.start_ns, left.end_ns, left.epoch_ns) == (
        right.start_ns,
        right.end_ns,
        right.epoch_ns,
    )


def assert_same_calls(left: Calls | None, right: Calls | None) -> None:
    """Functions and edges are equal, order included."""
    assert (left is None) == (right is None)
    if left is not None and right is not None:
        pd.testing.assert_frame_equal(left.functions, right.functions)
        pd.testing.assert_frame_equal(left.edges, right.edges)


def assert_same_record(left: Record, right: Record) -> None:
    """Trace, calls and metadata are equal."""
    assert_same_trace(left.trace, right.trace)
    assert_same_calls(left.calls, right.calls)
    assert left.metadata == right.metadata


NAMES = st.one_of(
    st.sampled_from(
        ["aten::mm", 'step "x"', "</script>", "a\\b", "ProfilerStep#1", "", "\n\t\x00"]
    ),
    st.text(max_size=12),
)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, NAMES),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
TYPED_KEYS = {*KINDS, *UNCUT_ARGS, EXECUTOR_LANE, WRITTEN_CATEGORY, MORE_ARGS}
"""Reading takes from these values of their kind alone; hypothesis draws literals of our modules."""
ARGS = st.dictionaries(NAMES.filter(lambda key: key not in TYPED_KEYS), JSON, max_size=3)
MOMENT = st.integers(0, 40)
LENGTH = st.integers(0, 15)
THREAD = st.sampled_from(["100", "101", "worker", "-7", "007"])


@st.composite
def region(draw: st.DrawFn) -> Row:
    """A cell line or a module, on any thread."""
    category = draw(st.sampled_from(["cell_line", "cell_line", "module", "module_backward"]))
    given: dict[str, Any] = {"line": draw(st.integers(1, 3)), "cell": "Cell [1]"}
    name = f"{given['line']}: f()"
    if category != "cell_line":
        name, given = draw(st.sampled_from(["encoder.0", "head"])), {"class": "Linear", "root": "m"}
    elif draw(st.booleans()):
        given["resumed"] = 1
    when = {"ts": draw(MOMENT), "dur": draw(LENGTH), "thread": draw(THREAD)}
    return op(name, category=category, **when, **given)


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Ops, frames, calls and GPU slices that nest, cross and touch at random."""
    cpu: list[Row] = []
    for _ in range(draw(st.integers(1, 7))):
        make = draw(st.sampled_from([op, runtime, python]))
        when: dict[str, Any] = {"ts": draw(MOMENT), "dur": draw(LENGTH), "thread": draw(THREAD)}
        row = make(draw(NAMES), **when)
        row.args.update(draw(ARGS))
        cpu.append(row)
    if draw(st.booleans()):
        cpu.append(annotation(draw(NAMES), ts=draw(MOMENT), dur=draw(LENGTH)))
    for _ in range(draw(st.integers(0, 2))):
        cpu.append(draw(region()))
    if draw(st.booleans()):
        cpu.append(memory(draw(st.integers(-9, 9)), ts=draw(MOMENT), allocated=draw(LENGTH)))
    owners = [i for i, row in enumerate(cpu) if row.category in ("cpu_op", "cuda_runtime")]
    gpu: list[Row] = []
    for _ in range(draw(st.integers(0, 4))):
        when = {"ts": draw(MOMENT), "dur": draw(LENGTH), "stream": draw(st.sampled_from([7, 20]))}
        if owners and draw(st.booleans()):
            when["launched_by"] = draw(st.sampled_from(owners))
        gpu.append(draw(st.sampled_from([kernel, copy]))(draw(NAMES), **when))
    return cpu + gpu


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Records of a few rows, some with several forward and backward ops."""
    made = draw(rows())
    if draw(st.booleans()):
        made.append(op("forward", ts=draw(MOMENT), dur=3, sequence=1))
        made.append(op("Backward", ts=draw(MOMENT), dur=3, sequence=1, forward_thread=1))
    return trace_of(*made, label=draw(NAMES))
