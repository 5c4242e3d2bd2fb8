"""The time of a track cut where its innermost slice changes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.window import window
from tests.traces import op, trace_of


def nested_or_not(seed: int) -> Trace:
    """Ops on one thread, of which some cross, some begin together, and some have no length."""
    rng = random.Random(seed)
    ops = [op("a", ts=rng.randrange(60), dur=rng.choice([0, 1, 5, 40])) for _ in range(30)]
    return trace_of(*ops).trace


@pytest.mark.parametrize("seed", range(20))
def test_in_each_segment_the_slice_that_began_last_of_those_open_is_innermost(seed: int) -> None:
    whole = nested_or_not(seed)
    for trace in (whole, window(whole, 13, 38)):
        for track in range(len(trace.tracks)):
            parts, rows = trace.index.segments(track), trace.index.rows_of_track(track)
            expected = trace.index.innermost_open(rows, parts.start)
            assert parts.row.tolist() == expected.tolist()
            assert parts.start[0] == trace.start_ns
            assert parts.end[-1] == trace.end_ns
            assert parts.start[1:].tolist() == parts.end[:-1].tolist()


def test_a_stack_of_any_depth_that_ends_bit_by_bit() -> None:
    depth = 2_000
    trace = trace_of(*(op("a", ts=n, dur=2 * (depth - n)) for n in range(depth))).trace
    inner = np.arange(depth)
    assert trace.index.segments(0).row.tolist() == [*inner, *inner[-2::-1]]
