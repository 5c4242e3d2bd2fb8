"""Interval arithmetic against sets of nanoseconds, and tracks cut where their slice changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.trace import intervals
from tests.traces import op, trace_of

BAGS = st.lists(
    st.tuples(st.integers(-20, 40), st.integers(0, 15)).map(lambda pair: (pair[0], sum(pair)))
)
"""Any intervals, empty and overlapping ones among them."""


def arrays(bag: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(bag, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def moments(bag: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in bag for moment in range(start, end)}


def of(result: intervals.Intervals) -> set[int]:
    """The nanoseconds of a result, which has to be sorted, disjoint and without empty parts."""
    start, end = result
    assert (start < end).all()
    assert (end[:-1] < start[1:]).all()
    return moments(list(zip(start.tolist(), end.tolist(), strict=True)))


@given(BAGS)
def test_union_covers_each_moment_once(bag: list[tuple[int, int]]) -> None:
    union = intervals.union(*arrays(bag))
    assert of(union) == moments(bag)
    assert intervals.length(union) == len(moments(bag))


@given(BAGS, st.integers(-25, 60), st.integers(0, 40))
def test_gaps_are_what_is_left_of_the_range(bag: list[tuple[int, int]], t0: int, span: int) -> None:
    union = intervals.union(*arrays(bag))
    gaps = intervals.gaps(union, t0, t0 + span)
    assert of(gaps) == set(range(t0, t0 + span)) - moments(bag)
    inside = intervals.clip(union, t0, t0 + span)
    assert intervals.length(inside) + intervals.length(gaps) == span


@given(BAGS, BAGS)
def test_overlap_counts_shared_moments_of_each(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    shared = intervals.overlap(arrays(left), intervals.union(*arrays(right)))
    assert shared.tolist() == [len(moments([each]) & moments(right)) for each in left]


@given(BAGS, BAGS)
def test_difference_is_what_the_others_leave_and_intersection_the_rest(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    pair = intervals.union(*arrays(left)), intervals.union(*arrays(right))
    assert of(intervals.difference(*pair)) == moments(left) - moments(right)
    assert of(intervals.intersection(*pair)) == moments(left) & moments(right)


@given(BAGS)
def test_a_moment_is_inside_from_the_start_until_before_the_end(bag: list[tuple[int, int]]) -> None:
    times = range(-25, 60)
    inside = intervals.inside(np.array(times, np.int64), intervals.union(*arrays(bag)))
    assert {time for time, is_inside in zip(times, inside, strict=True) if is_inside} == moments(
        bag
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9), st.integers(0, 9))))
def test_length_by_group_is_the_length_of_each_groups_union(
    rows: list[tuple[int, int, int]],
) -> None:
    group, start, dur = np.array(rows, np.int64).reshape(-1, 3).T
    lengths = intervals.length_by(group, start, start + dur, 4)
    expected = [moments([(s, s + d) for g, s, d in rows if g == number]) for number in range(4)]
    assert lengths.tolist() == [len(each) for each in expected]


@given(st.lists(st.lists(st.integers(-9, 9)), min_size=1))
def test_distinct_numbers_are_sorted_and_each_there_once(several: list[list[int]]) -> None:
    assert intervals.distinct(*several).tolist() == sorted(
        {each for some in several for each in some}
    )


def test_a_stack_of_any_depth_that_ends_bit_by_bit() -> None:
    depth = 2_000
    trace = trace_of(*(op("a", ts=n, dur=2 * (depth - n)) for n in range(depth))).trace
    inner = np.arange(depth)
    assert trace.index.segments(0).row.tolist() == [*inner, *inner[-2::-1]]
