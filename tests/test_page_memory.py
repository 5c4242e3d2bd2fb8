"""What the page is told of memory adds up to what torch counted, at every moment that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from gpuprof_widgets.analyses.memory import allocations, memory_curve
from gpuprof_widgets.analyses.memory_categories import CATEGORIES
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import page_panels as module
from gpuprof_widgets.views.page import has_view
from gpuprof_widgets.views.page_panels import page_memory
from tests.records import records
from tests.test_memory import training_step
from tests.traces import block, op, trace_of


def told(record: Record) -> dict[str, Any]:
    memory = page_memory(record, rows_kept=True)
    assert memory is not None
    return memory


def totals(device: dict[str, Any]) -> dict[int, int]:
    """The total after each moment, as the page adds it up."""
    ts, size = np.cumsum(device["ts"]), np.cumsum(device["bytes"])
    return dict(zip(ts.tolist(), size.tolist(), strict=True))


def assert_adds_up(record: Record) -> None:
    curve = memory_curve(record)
    for device in told(record)["devices"]:
        own = curve[curve["device"] == device["name"]]
        expected = own.groupby("ts_ns")["allocated_bytes"].last()
        shown = totals(device)
        moments = np.array(sorted(shown))
        for ts, total in expected.items():
            before = moments[moments <= ts]
            assert (shown[int(before[-1])] if len(before) else 0) == total


def test_the_changes_add_up_to_the_totals_of_torch() -> None:
    assert_adds_up(training_step())


@given(records())
def test_any_changes_add_up_to_the_totals_of_torch(record: Record) -> None:
    if len(memory_curve(record)):
        assert_adds_up(record)


def test_what_was_there_before_comes_with_the_start() -> None:
    record = trace_of(
        op("a", ts=0, dur=9),
        block(8, at=1, ts=3, device=0, allocated=108, reserved=512),
        block(-8, at=1, ts=5, device=0, allocated=100, reserved=1024),
    )
    (device,) = told(record)["devices"]
    names = [told(record)["categories"][code] for code in device["category"]]
    assert list(zip(np.cumsum(device["ts"]).tolist(), names, device["bytes"], strict=True)) == [
        (0, "before the record", 100),
        (3, "temporaries", 8),
        (5, "temporaries", -8),
    ]
    assert (device["reserved_ts"], device["reserved"]) == ([3, 2], [512, 1024])


def test_blocks_carry_their_life_and_their_owners() -> None:
    memory, table = told(training_step()), allocations(training_step())
    blocks = memory["blocks"]
    assert blocks["bytes"] == table["bytes"].tolist()
    for owner in ("op", "module", "line"):
        names = [blocks["names"][code] for code in blocks[f"{owner}_name"]]
        assert names == table[f"{owner}_name"].tolist()
    assert blocks["op"] == table["op"].tolist()
    lived = (table["end_ns"] - table["start_ns"]).where(table["end_ns"] >= 0, -1)
    assert blocks["dur"] == lived.tolist()


def test_rows_that_the_page_does_not_have_are_not_named() -> None:
    memory = page_memory(training_step(), rows_kept=False)
    assert memory is not None
    assert set(memory["blocks"]["op"]) == set(memory["blocks"]["row"]) == {-1}


def test_very_many_changes_are_thinned_but_the_peak_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MEMORY_CHANGES", 20)
    monkeypatch.setattr(module, "MEMORY_SLOTS", 8)
    rows = [block(1 + (i == 57), at=i + 1, ts=10 * i) for i in range(100)]
    rows += [block(-1 - (i == 57), at=i + 1, ts=10 * i + 1000) for i in range(100)]
    record = trace_of(op("a", ts=0, dur=2000), *rows)
    (device,) = told(record)["devices"]
    assert not device["exact"]
    shown = totals(device)
    assert len(shown) <= 2 * 8 + 1
    assert max(shown.values()) == 101
    assert list(shown.values())[-1] == 0


def test_only_the_biggest_blocks_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BLOCKS", 2)
    rows = [block(size, at=size, ts=size) for size in (5, 30, 1, 20)]
    blocks = told(trace_of(op("a", ts=0, dur=99), *rows))["blocks"]
    assert blocks["bytes"] == [20, 30]
    assert blocks["left_out"] == 2


def test_the_view_is_there_only_where_memory_was_recorded() -> None:
    assert has_view(training_step(), "memory")
    without = trace_of(op("a", ts=0, dur=9))
    assert not has_view(without, "memory")
    assert page_memory(without, rows_kept=True) is None


def test_real_traces_add_up(shared_record: Record) -> None:
    if len(memory_curve(shared_record)):
        assert_adds_up(shared_record)


def test_every_category_has_a_colour_of_its_own_on_the_page() -> None:
    source = (Path(module.__file__).parent / "extension" / "memory_paint.ts").read_text()
    colours = dict(re.findall(r'"([\w ]+)": hex\("(#\w+)"\)', source))
    assert set(colours) == set(CATEGORIES) - {"other", "before the record"}  # these are grey
    assert len(set(colours.values())) == len(colours)


def test_memory_of_the_cpu_is_not_reserved() -> None:
    """Torch has been seen to write some bytes there, fewer than were allocated."""
    record = trace_of(
        op("aten::empty", ts=0, dur=9),
        block(2**22, at=64, ts=1, allocated=2**22, reserved=0),
        block(2**20, at=2**23, ts=2, allocated=2**22 + 2**20, reserved=2**17),
        block(512, at=64, ts=3, device=0, allocated=512, reserved=2**21),
    )
    gpu, cpu = told(record)["devices"]
    assert (gpu["reserved"], cpu["reserved"]) == ([2**21], [])
    on_cpu = memory_curve(record).query("device == 'CPU'")
    assert on_cpu["reserved_bytes"].tolist() == [-1, -1]
