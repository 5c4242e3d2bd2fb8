"""What `emit_nvtx` writes into the text of a range, and what is read from it.

torch's own function is not there without CUDA; its format is that of getNvtxStr in
torch/csrc/profiler/util.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.trace.databases.nvtx_ops import Range, read_range, read_ranges
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING
from tests.profiler_databases import Nsys, emitted

OP, NOTE = "cpu_op", "user_annotation"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "aten::addmm, seq = 12, op_id = 5, sizes = [[128], [64, 32], [32, 128], [], []], "
            "input_op_ids = [(0,-1), (4,0), (3,0)]",
            Range(
                "aten::addmm",
                OP,
                12,
                [[128], [64, 32], [32, 128], [], []],
                "[(0,-1), (4,0), (3,0)]",
            ),
        ),
        ("aten::empty, op_id = 5", Range("aten::empty", OP)),
        ("AddmmBackward0, seq = 12, op_id = 9", Range("AddmmBackward0", OP, 12)),
        ("ProfilerStep#3, op_id = 1", Range("ProfilerStep#3", NOTE)),
        (
            "Optimizer.step#SGD.step, op_id = 1, sizes = [[]]",
            Range("Optimizer.step#SGD.step", OP, shapes=[[]]),
        ),
        ("3: loss = net(x), op_id = 4", Range("3: loss = net(x)", "cell_line", line=3)),
        ("record_param_comms, op_id = 4", Range("record_param_comms", OP)),
        # torch 1.5 to 1.10: no numbers of ops
        ("aten::relu, seq = 3, sizes = [[8]]", Range("aten::relu", OP, 3, [[8]])),
        # before torch 1.5: ops without a namespace, and the forward's number on backward nodes
        ("addmm, seq = 7", Range("addmm", OP, 7)),
        ("AddmmBackward, stashed seq=7", Range("AddmmBackward", OP, 7)),
        # what people push themselves
        ("epoch 3", Range("epoch 3", NOTE, emitted=False)),
        ("3: third", Range("3: third", NOTE, emitted=False)),
        ("mylib::run", Range("mylib::run", NOTE, emitted=False)),
        ("aten::add", Range("aten::add", OP, emitted=False)),
        ("sweep, sizes = small", Range("sweep, sizes = small", NOTE, emitted=False)),
        (", seq = 1", Range("", OP, 1)),
        ("", Range("", NOTE, emitted=False)),
    ],
)
def test_the_text_of_a_range_says_what_it_is(text: str, expected: Range) -> None:
    assert read_range(text) == expected


sizes = st.lists(st.lists(st.integers(0, 2**31), max_size=4), max_size=4)


@given(
    name=st.from_regex(r"(aten|c10d|my_ops)::[a-z_.0-9]{1,20}", fullmatch=True),
    number=st.integers(1, 2**62),
    sequence=st.none() | st.integers(0, 2**40),
    shapes=sizes,
)
def test_whatever_is_emitted_is_read(
    name: str, number: int, sequence: int | None, shapes: list[Any]
) -> None:
    found = read_range(emitted(name, number=number, sequence=sequence, sizes=shapes))
    assert (found.name, found.category) == (name, OP)
    assert found.sequence == (MISSING if sequence is None else sequence)
    assert found.shapes == (shapes or None)


@given(st.text())
def test_any_text_is_a_name_or_less(text: str) -> None:
    """Nothing is lost but marks at its end."""
    assert text.startswith(read_range(text).name)


def test_a_name_of_a_megabyte_is_read_at_once() -> None:
    """Its length counts once: nothing looks at it from every place in it."""
    text = ", sizes = [" * 100_000
    assert read_range(text).name == text


def test_a_mark_under_the_name_of_an_op_is_an_op() -> None:
    """As ``detach`` in ``aten::detach``, and a node in the engine's call of it."""
    said = ["aten::detach, op_id = 1", "detach, op_id = 2", "train, op_id = 3", "detach"]
    engine = ["autograd::engine::evaluate_function: AddBackward0, op_id = 4"]
    node = ["AddBackward0, op_id = 5"]
    found = read_ranges(np.array([*said, *engine, *node], object))
    assert found.category.tolist() == [OP, OP, NOTE, NOTE, OP, OP]


def test_backward_ops_find_their_forward_ops() -> None:
    """Two devices: each has a backward thread, and a forward thread with numbers of its own."""
    made = Nsys()
    for replica, tid in enumerate((200, 300)):
        for number in (5, 6):
            op = emitted("aten::mul", number=1, sequence=number)
            start = 100 * number + 10 * replica
            made.range(op, start, start + 5, tid=tid)
        for number in (6, 5):
            node = emitted("MulBackward0", number=1, sequence=number)
            start = 2_000 - 100 * number + 10 * replica
            made.range(node, start, start + 5, tid=tid + 1)
    made.range(emitted("aten::mul", number=1, sequence=7), 700, 705, tid=200)
    made.range(emitted("MulBackward0", number=1, sequence=7), 1_100, 1_105, tid=201)
    made.range(emitted("aten::div", number=1, sequence=8), 800, 805, tid=300)
    made.range(emitted("DivBackward0", number=1, sequence=8), 1_110, 1_115, tid=301)
    trace = made.record().trace
    slices, thread = trace.slices, trace.tracks["thread"].to_numpy()[trace.slices["track"]]
    backward = slices.index[slices["name"].str.contains("Backward")]
    assert len(backward) == 6
    forward = slices.loc[backward, "forward"].to_numpy()
    assert (forward >= 0).all()
    assert (slices["sequence"][forward].to_numpy() == slices["sequence"][backward].to_numpy()).all()
    homes = [(int(thread[b]), int(thread[f])) for b, f in zip(backward, forward, strict=True)]
    assert set(homes) == {(201, 200), (301, 300)}


def test_processes_count_their_sequence_numbers_each_for_itself() -> None:
    made = Nsys()
    for pid, name in ((100, "mul"), (200, "div")):
        made.range(emitted(f"aten::{name}", number=1, sequence=1), 100, 105, pid=pid, tid=pid)
        node = emitted(f"{name.title()}Backward0", number=1, sequence=1)
        made.range(node, 200, 205, pid=pid, tid=pid + 1)
        made.call("cudaLaunchKernel_v7000", 101, 102, correlation=1, pid=pid, tid=pid)
    slices = made.record().trace.slices
    names = slices["name"].to_numpy(object)
    backward = slices.index[slices["name"].str.contains("Backward")]
    pairs = {(names[row], names[slices["forward"][row]]) for row in backward}
    assert pairs == {("MulBackward0", "aten::mul"), ("DivBackward0", "aten::div")}


def test_shapes_that_no_tensor_has_are_no_work() -> None:
    made = Nsys()
    for number, shapes in enumerate(([[10**20, 9], [9, 8]], [[2**62, 2], [2, 2**62]]), 1):
        made.range(emitted("aten::mm", number=number, sizes=shapes), number * 100, number * 150)
    made.range(emitted("aten::mm", number=9, sizes=[[4, 8], [8, 2]]), 900, 950)
    (row,) = ANALYSES["operators"].function(made.record()).itertuples()
    assert (row.calls, row.flops) == (3, 2 * 4 * 8 * 2)


def test_lines_that_the_cell_magic_emitted_are_lines_of_the_cell() -> None:
    made = Nsys()
    made.range("Cell [3]", 100, 900)
    made.range("1: a = net(x), op_id = 4", 110, 400)
    made.range("2: a.sum().backward(), op_id = 9", 400, 700)
    made.call("cudaLaunchKernel_v7000", 500, 510, correlation=1)
    made.kernel("sum", 600, 650, correlation=1)
    made.range("1: elsewhere(), op_id = 12", 950, 960)
    found = made.record()
    table = ANALYSES["lines"].function(found)[["cell", "line", "code", "wall_ns", "device_ns"]]
    assert list(table.itertuples(index=False, name=None)) == [
        ("Cell [3]", 1, "a = net(x)", 290, 0),
        ("Cell [3]", 2, "a.sum().backward()", 300, 50),
        ("", 1, "elsewhere()", 10, 0),
    ]
