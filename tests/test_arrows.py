"""The slice that an arrow meets, against a plain search through all slices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.trace.chrome_slices import _ThreadSlices
from gpuprof_widgets.trace.events import Events, text_codes
from gpuprof_widgets.trace.readers import parse

PLACES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=12)


def nested(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those (start, end) that cross none before them."""
    kept: list[tuple[int, int]] = []
    for start, dur in places:
        end = start + dur
        if not any(a < start < b < end or start < a < end < b for a, b in kept):
            kept.append((start, end))
    return kept


@given(PLACES)
def test_an_arrow_meets_the_innermost_slice_that_is_open(places: list[tuple[int, int]]) -> None:
    slices = nested(places)
    text = text_codes(["1"] * len(slices))
    starts = np.array([start for start, _ in slices], dtype=np.int64)
    ends = np.array([end for _, end in slices], dtype=np.int64)
    on = _ThreadSlices(Events(starts, ends - starts, text, text, text, text))
    moments = np.arange(-1, 32, dtype=np.int64)
    lane = on.lane(["1"] * len(moments), ["1"] * len(moments))
    for at, met in zip(moments.tolist(), on.open_at(lane, moments).tolist(), strict=True):
        is_open = [row for row, (start, end) in enumerate(slices) if start <= at <= end]
        assert (met >= 0) == bool(is_open)
        if is_open:
            assert met in is_open
            assert starts[met] == max(starts[row] for row in is_open)


def test_arrows_beside_instants_alone_meet_nothing() -> None:
    common = {"pid": 1, "tid": 1, "name": "x", "cat": "c"}
    events = [{**common, "ph": "i", "ts": 1, "s": "t"}] + [
        {**common, "ph": ph, "id": 1, "ts": 2} for ph in "sf"
    ]
    record = parse(json.dumps(events).encode(), Path("trace.json"))
    assert len(record.trace) == 1
    assert len(record.trace.flows) == 0
    assert record.metadata["notes"] == ["2 of 2 ends of arrows have no other end, or meet no slice"]
