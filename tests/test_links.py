"""Nesting, self times and joins, against slow plain references."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.trace.links import (
    below_its_like,
    innermost_open,
    itself_or_ancestor,
    last_above,
    latest_before,
    nearest_ancestor,
    nest,
    open_ancestor,
    outermost,
    path_sum,
    preorder,
    rows_by,
    self_times,
    subtree_end,
    subtree_sum,
)
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.owners import causes
from tests.traces import annotation, kernel, op, python, runtime, trace_of

LONGEST = 24


def unlinked_gpu(record: Record) -> int:
    """Count the GPU slices for which the trace holds no launch."""
    return int((record.trace.index.is_gpu & (record.trace.index.column("launch") < 0)).sum())


@dataclass
class Slices:
    """Slices of a few tracks in the order in which `nest` wants them."""

    group: np.ndarray
    ts: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.ts)


@st.composite
def slices(draw: st.DrawFn) -> Slices:
    """Few moments and tracks, so that ties, crossings and zero lengths are common."""
    moment = st.integers(0, 12)
    rows = draw(st.lists(st.tuples(st.integers(0, 2), moment, st.integers(0, 8)), max_size=16))
    rows.sort(key=lambda row: (row[0], row[1], -row[2]))
    group, ts, dur = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    return Slices(group, ts, ts + dur)


def open_slices(given: Slices, group: int, moment: int, before: int) -> list[int]:
    """Rows of a track, up to a row, that are open at a moment, in order of their start."""
    return [
        row
        for row in range(before)
        if given.group[row] == group and given.ts[row] <= moment < given.end[row]
    ]


def slow_parents(given: Slices) -> list[int]:
    """One stack per track; what has ended is removed from wherever it is in the stack."""
    parents = []
    stacks: dict[int, list[int]] = {}
    for row in range(len(given)):
        stack = stacks.setdefault(int(given.group[row]), [])
        stack[:] = [other for other in stack if given.end[other] > given.ts[row]]
        parents.append(stack[-1] if stack else -1)
        stack.append(row)
    return parents


def slow_self_times(given: Slices) -> list[int]:
    """Every ns belongs to the latest-started slice that is open in it."""
    own = [0] * len(given)
    for group in set(given.group.tolist()):
        for moment in range(LONGEST):
            running = open_slices(given, group, moment, len(given))
            if running:
                own[running[-1]] += 1
    return own


@given(slices())
def test_parent_is_the_latest_started_slice_still_open(given: Slices) -> None:
    parent, depth = nest(given.ts, given.end, given.group)
    assert parent.tolist() == slow_parents(given)
    assert depth.tolist() == [len(ancestors(parent, row)) for row in range(len(given))]


@given(slices())
def test_self_time_is_the_time_as_latest_started_open_slice(given: Slices) -> None:
    parent, _ = nest(given.ts, given.end, given.group)
    assert self_times(given.ts, given.end, parent).tolist() == slow_self_times(given)


@given(slices(), st.randoms(use_true_random=False))
def test_parents_among_some_slices_are_their_ancestors_that_are_open(
    given: Slices, random: object
) -> None:
    kept = np.array([random.random() < 0.5 for _ in range(len(given))], dtype=bool)  # type: ignore[attr-defined]
    parent, _ = nest(given.ts, given.end, given.group)
    number = np.append(np.cumsum(kept) - 1, -1)
    above = np.where(kept, nearest_ancestor(parent, kept), -1)[kept]
    ts, end, group = given.ts[kept], given.end[kept], given.group[kept]
    alone, _ = nest(ts, end, group)
    assert open_ancestor(number[above], ts, end).tolist() == alone.tolist()


@given(slices(), st.randoms(use_true_random=False))
def test_nearest_ancestor_skips_the_unwanted(given: Slices, random: object) -> None:
    parent, _ = nest(given.ts, given.end, given.group)
    wanted = np.array([random.random() < 0.4 for _ in range(len(given))], dtype=bool)  # type: ignore[attr-defined]
    found, itself = nearest_ancestor(parent, wanted), itself_or_ancestor(parent, wanted)
    for row in range(len(given)):
        above = parent[row]
        while above >= 0 and not wanted[above]:
            above = parent[above]
        assert found[row] == above
        assert itself[row] == (row if wanted[row] else above)


@given(
    st.lists(st.integers(0, 9), max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(-1, 9)), max_size=9),
)
def test_the_last_above_a_bound_is_found(values: list[int], asked: list[tuple[int, int]]) -> None:
    queries = [(min(before, len(values)), bound) for before, bound in asked]
    before, bound = np.array(queries, np.int64).reshape(-1, 2).T
    expected = [
        max((at for at in range(end) if values[at] > least), default=-1) for end, least in queries
    ]
    assert last_above(np.array(values, np.int64), before, bound).tolist() == expected


FORESTS = st.lists(st.integers(-1, 40), max_size=30).map(
    lambda drawn: np.array([min(above, row - 1) for row, above in enumerate(drawn)], np.int32)
)


@given(FORESTS, st.randoms(use_true_random=False))
def test_sums_and_places_of_a_forest_are_those_of_walking_it(
    forest: np.ndarray, random: Random
) -> None:
    """Rows in any order: a parent need not stand before its children."""
    size = len(forest)
    moved = np.array(random.sample(range(size), size), np.int64)
    parent = np.full(size, -1, np.int32)
    parent[moved] = np.where(forest >= 0, moved[forest], -1)
    values = np.array([random.randrange(-5, 9) for _ in range(size)], np.int64)
    key = np.array([random.randrange(3) for _ in range(size)], np.int64)
    wanted = np.array([random.random() < 0.4 for _ in range(size)], bool)
    paths = [ancestors(parent, row) for row in range(size)]
    below = [[at for at in range(size) if at == row or row in paths[at]] for row in range(size)]
    assert path_sum(values, parent).tolist() == [
        values[[row, *path]].sum() for row, path in enumerate(paths)
    ]
    assert subtree_sum(values, parent).tolist() == [values[rows].sum() for rows in below]
    place, sizes = preorder(parent, values)
    assert place.tolist() == walked(parent, values)
    assert sizes.tolist() == list(map(len, below))
    assert below_its_like(parent, key).tolist() == [
        any(key[above] == key[row] for above in path) for row, path in enumerate(paths)
    ]
    assert outermost(parent, wanted).tolist() == [
        ([above for above in (row, *path) if wanted[above]] or [-1])[-1]
        for row, path in enumerate(paths)
    ]
    assert {one: rows.tolist() for one, rows in rows_by(key).items()} == {
        one: np.flatnonzero(key == one).tolist() for one in np.unique(key).tolist()
    }


def ancestors(parent: np.ndarray, row: int) -> list[int]:
    """From the parent up."""
    path: list[int] = []
    while (row := int(parent[row])) >= 0:
        path.append(row)
    return path


def walked(parent: np.ndarray, rank: np.ndarray) -> list[int]:
    """Places of a walk from every root down, siblings by their rank."""
    seen: list[int] = []
    left = [-1]
    while left:
        row = left.pop()
        seen.append(row)
        left += sorted(np.flatnonzero(parent == row).tolist(), key=rank.__getitem__)[::-1]
    return [seen.index(row) - 1 for row in range(len(parent))]


PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8)


@given(PAIRS, PAIRS)
def test_latest_before_joins_the_nearest_with_the_same_key(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    key, ts = np.array(left, dtype=np.int64).reshape(-1, 2).T
    other_key, other_ts = np.array(right, dtype=np.int64).reshape(-1, 2).T
    found = latest_before(key, ts, other_key, other_ts)
    for (wanted, moment), index in zip(left, found.tolist(), strict=True):
        same = sorted((at, i) for i, (k, at) in enumerate(right) if k == wanted)
        before = [i for at, i in same if at <= moment]
        assert index == (before[-1] if before else same[0][1] if same else -1)


def steps_of(work: Callable[[], object]) -> int:
    """Lines of Python that run in the functions of this package while this is done."""
    lines = 0

    def count(frame: object, event: str, argument: object) -> Callable[..., object]:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def test_a_chain_of_crossing_slices_takes_as_many_rounds_as_its_length_has_binary_digits() -> None:
    """Each slice crosses the one before it and the one after, so the last end rises to the top."""
    count = 1 << 12
    ts = np.arange(count, dtype=np.int64)
    end = ts + count
    parent, _ = nest(ts, end, np.zeros(count, dtype=np.int64))
    assert parent.tolist() == list(range(-1, count - 1))
    assert set(subtree_end(end, parent).tolist()) == {2 * count - 1}
    assert steps_of(lambda: subtree_end(end, parent)) < 10 * 12 + 20


def test_a_slice_is_open_from_its_start_until_before_its_end() -> None:
    ts, end = np.array([0, 5]), np.array([10, 8])
    is_open = innermost_open(ts, end, np.arange(-1, 11)).tolist()
    assert is_open == [-1, *[0] * 5, *[1] * 3, *[0] * 2, -1]


# Owners


def owners(record: Record, name: str) -> tuple[str, str]:
    """Names of the launch and the op of the slices with this name ("" for none)."""
    table = record.trace.slices
    row = table[table["name"] == name].iloc[0]
    names = [*table["name"], ""]
    return names[row["launch"]], names[row["op"]]


def test_a_kernel_belongs_to_the_op_around_its_launch() -> None:
    record = trace_of(
        annotation("step", ts=0, dur=50),
        op("aten::linear", ts=1, dur=20),
        op("aten::addmm", ts=2, dur=10),
        python("forward", ts=0, dur=50),
        runtime("cudaLaunchKernel", ts=3, dur=2),
        kernel("gemm", ts=30, dur=5, launched_by=4),
    )
    assert owners(record, "gemm") == ("cudaLaunchKernel", "aten::addmm")


def test_an_annotation_owns_what_no_op_launched() -> None:
    record = trace_of(
        annotation("step", ts=0, dur=50),
        runtime("cudaMemsetAsync", ts=3, dur=2),
        kernel("memset", ts=30, dur=5, launched_by=1, category="gpu_memset"),
    )
    assert owners(record, "memset") == ("cudaMemsetAsync", "step")


def test_without_a_launch_the_external_id_finds_the_op() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=10, dur=5, launched_by=0))
    assert owners(record, "gemm") == ("", "aten::mm")
    assert unlinked_gpu(record) == 1


def test_a_launch_on_a_thread_without_ops_finds_its_op_by_external_id() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=9, **{"External id": 5}),
        runtime("cudaLaunchKernel", ts=3, dur=2, thread=999, **{"External id": 5}),
        kernel("gemm", ts=10, dur=5, launched_by=1),
    )
    assert owners(record, "gemm") == ("cudaLaunchKernel", "aten::mm")


def test_a_kernel_without_any_owner_is_kept_and_counted() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=10, dur=5, correlation=77))
    assert owners(record, "gemm") == ("", "")
    assert unlinked_gpu(record) == 1


# Forward and backward


def forward_of(record: Record, name: str) -> str:
    """Name of the forward op of the slice with this name ("" for none)."""
    table = record.trace.slices
    row = table[table["name"] == name].iloc[0]
    return str([*table["name"], ""][row["forward"]])


def engines_forward(name: str) -> int:
    """Row of the forward op of the engine's slice of that name around ``AddmmBackward0``."""
    record = trace_of(
        op("aten::addmm", ts=8, dur=5, sequence=4, forward_thread=0),
        op(f"autograd::engine::evaluate_function: {name}", ts=40, dur=30),
        op("aten::mul", ts=41, dur=5),  # of a hook before it
        op("AddmmBackward0", ts=50, dur=5, sequence=4, forward_thread=1),
    )
    return int(record.trace.slices["forward"].iloc[1])


def test_the_engines_slice_has_the_forward_op_of_its_backward_op() -> None:
    """Torch writes no sequence number there where a hook has run an op before."""
    assert engines_forward("AddmmBackward0") == 0
    assert engines_forward("MulBackward0") == -1


def test_a_backward_op_finds_the_last_forward_op_with_its_number() -> None:
    record = trace_of(
        op("aten::linear", ts=0, dur=20, sequence=3, forward_thread=0),
        op("aten::t", ts=1, dur=5, sequence=3, forward_thread=0),
        op("aten::addmm", ts=8, dur=5, sequence=4, forward_thread=0),
        op("TBackward0", ts=50, dur=5, sequence=3, forward_thread=1, thread=101),
        op("AddmmBackward0", ts=40, dur=5, sequence=4, forward_thread=1, thread=101),
    )
    assert forward_of(record, "TBackward0") == "aten::t"
    assert forward_of(record, "AddmmBackward0") == "aten::addmm"
    arrows = record.trace.flows
    names = record.trace.slices["name"]
    assert sorted(zip(names[arrows["source"]], names[arrows["target"]], strict=True)) == [
        ("aten::addmm", "AddmmBackward0"),
        ("aten::t", "TBackward0"),
    ]


def test_a_number_that_comes_again_joins_the_forward_op_before() -> None:
    record = trace_of(
        op("first", ts=0, dur=5, sequence=3),
        op("Backward1", ts=10, dur=5, sequence=3, forward_thread=1),
        op("second", ts=20, dur=5, sequence=3),
        op("Backward2", ts=30, dur=5, sequence=3, forward_thread=1),
    )
    assert forward_of(record, "Backward1") == "first"
    assert forward_of(record, "Backward2") == "second"


def test_a_backward_op_before_every_forward_op_has_none() -> None:
    record = trace_of(
        op("Backward", ts=10, dur=5, sequence=3, forward_thread=1),
        op("forward", ts=20, dur=5, sequence=3),
    )
    assert forward_of(record, "Backward") == ""


def test_forward_threads_are_told_apart_by_the_numbers_they_share() -> None:
    record = trace_of(
        op("main3", ts=0, dur=5, sequence=3),
        op("main4", ts=6, dur=5, sequence=4),
        op("other3", ts=0, dur=5, sequence=3, thread=200),
        op("other9", ts=6, dur=5, sequence=9, thread=200),
        op("Main3", ts=50, dur=2, sequence=3, forward_thread=1, thread=101),
        op("Main4", ts=52, dur=2, sequence=4, forward_thread=1, thread=101),
        op("Other3", ts=54, dur=2, sequence=3, forward_thread=2, thread=101),
        op("Other9", ts=56, dur=2, sequence=9, forward_thread=2, thread=101),
    )
    names = ("Main3", "Main4", "Other3", "Other9")
    assert [forward_of(record, name) for name in names] == ["main3", "main4", "other3", "other9"]


# Real traces


def test_parents_in_a_real_trace_are_the_latest_still_open(shared_record: Record) -> None:
    trace = shared_record.trace
    columns = (trace.slices[name].to_numpy() for name in ("track", "ts", "dur"))
    track, ts, dur = columns
    assert trace.slices["parent"].tolist() == slow_parents(Slices(track, ts, ts + dur))


def test_launches_in_a_real_trace_carry_the_kernels_correlation(shared_record: Record) -> None:
    slices = shared_record.trace.slices
    linked = slices[slices["launch"] >= 0]
    launch = slices.iloc[linked["launch"]]
    assert set(linked["category"]) <= {"kernel", "gpu_memcpy", "gpu_memset"}
    assert set(launch["category"]) <= {"cuda_runtime", "cuda_driver"}
    assert (launch["correlation"].to_numpy() == linked["correlation"].to_numpy()).all()
    gpu = slices["category"].isin(["kernel", "gpu_memcpy", "gpu_memset"])
    calls = slices[slices["category"].isin(["cuda_runtime", "cuda_driver"])]
    loose = gpu & ~slices["correlation"].isin(calls["correlation"])
    assert unlinked_gpu(shared_record) == loose.sum()


def test_a_forward_op_that_begins_with_its_backward_op_is_linked_but_no_cause() -> None:
    record = trace_of(
        op("aten::exp", ts=5, dur=5, sequence=2),
        op("ExpBackward0", ts=5, dur=3, thread=2, sequence=2, forward_thread=1),
    )
    assert record.trace.slices["forward"].tolist() == [-1, 0]
    assert causes(record.trace.slices).tolist() == [-1, -1]
