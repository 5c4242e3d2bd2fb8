"""The allocator's state in a memory snapshot: as the allocator and torch's own viewer have it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from torch.cuda import _memory_viz

from gpuprof_widgets.analyses.allocator import memory_segments
from gpuprof_widgets.analyses.columns import format_bytes
from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse
from gpuprof_widgets.views.panels.counters import allocator_panel
from tests.snapshots import CONVERT, GRANULE, SEGMENT, TRAIN, Allocator, frame, snapshot
from tests.traces import op, trace_of

MIB = 2**20


def read(*allocators: Allocator) -> Record:
    return parse(pickle.dumps(snapshot(*allocators)), Path("snapshot.pickle"))


def in_pieces() -> Allocator:
    """Every other 256 KiB of two segments is free, and 1 MiB was asked for in vain."""
    gpu = Allocator()
    blocks = [gpu.allocate(MIB // 4, TRAIN) for _ in range(16)]
    for address in blocks[1::2]:
        gpu.release(address)
    gpu.fail(MIB, TRAIN)
    return gpu


def test_a_segment_says_what_of_it_is_used_free_and_rounded_up() -> None:
    gpu = Allocator()
    gpu.allocate(1000, CONVERT, frame("/home/me/model.py", 3, "build"))
    waiting = gpu.allocate(3000, TRAIN)
    gpu.allocate(100, TRAIN)
    gpu.release(waiting, completed=False)
    (row,) = memory_segments(read(gpu)).to_dict("records")
    assert row == {
        "device": "GPU 0",
        "stream": 0,
        "pool": "0.0",
        "kind": "large",
        "expandable": False,
        "address": gpu.segments[0]["address"],
        "bytes": SEGMENT,
        "allocated_bytes": 1024 + GRANULE,
        "awaiting_bytes": 3072,
        "free_bytes": SEGMENT - 1024 - GRANULE - 3072,
        "largest_free_bytes": SEGMENT - 1024 - GRANULE - 3072,
        "rounding_bytes": 24 + 412,
        "blocks": 4,
        "free_blocks": 1,
        "line_name": "model.py:3(build)",
    }


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 3 * MIB), st.booleans()), min_size=1, max_size=30))
def test_sums_are_those_of_torch_s_viewer(steps: list[tuple[int, bool]]) -> None:
    gpu = Allocator()
    for size, kept in steps:
        address = gpu.allocate(size)
        if not kept:
            gpu.release(address)
    table = memory_segments(read(gpu))
    text = _memory_viz.segsum(snapshot(gpu))
    assert f"segments: {len(table)}\n" in text
    external = table["free_bytes"].sum()
    asked_for = table["allocated_bytes"].sum() - table["rounding_bytes"].sum()
    assert _shown(text, "total_reserved") == _as_torch(table["bytes"].sum())
    assert _shown(text, "total_allocated") == _as_torch(asked_for)
    assert _shown(text, "total_free") == _as_torch(external + table["rounding_bytes"].sum())


def _shown(text: str, name: str) -> str:
    found = re.search(rf"{name}: (\S+)", text)
    assert found
    return found[1]


def _as_torch(size: int) -> str:
    return str(_memory_viz.Bytes(int(size)))


def test_pieces_that_do_not_do_are_found_with_what_was_asked_for() -> None:
    (finding,) = FINDINGS["fragmentation"](read(in_pieces()))
    assert finding.text == (
        "PyTorch had reserved 4.00 MiB on GPU 0 when the snapshot was taken. 2.00 MiB (50 %) of "
        "that was free, in 8 pieces of at most 256 KiB. A request for 1.00 MiB failed."
    )
    assert "expandable_segments" in finding.remedy


def test_pieces_that_do_not_hold_what_the_run_once_had_are_found() -> None:
    gpu = Allocator()
    gpu.release(gpu.allocate(MIB))
    for address in [gpu.allocate(MIB // 4) for _ in range(16)][1::2]:
        gpu.release(address)
    (finding,) = FINDINGS["fragmentation"](read(gpu))
    assert (
        "in 8 pieces of at most 256 KiB. The largest allocated block was 1.00 MiB." in finding.text
    )


def test_many_free_pieces_that_hold_anything_are_no_fragmentation() -> None:
    """As the backward pass leaves them: the allocator keeps them for the next step."""
    gpu = Allocator()
    for address in [gpu.allocate(2 * MIB) for _ in range(8)]:
        gpu.release(address)
    assert FINDINGS["fragmentation"](read(gpu)) == []


def test_one_large_free_piece_is_no_fragmentation() -> None:
    gpu = Allocator()
    gpu.allocate(MIB // 2)
    gpu.fail(64 * MIB)
    assert FINDINGS["fragmentation"](read(gpu)) == []


def test_the_panel_shows_segments_by_state() -> None:
    panel = allocator_panel(read(in_pieces()))
    assert panel is not None
    assert panel.rows.groupby("state")["size"].sum().to_dict() == {
        "allocated": 2 * MIB,
        "free": 2 * MIB,
    }
    assert panel.rows["share"].tolist() == [0.5] * 4
    assert format_bytes(4 * MIB) in " ".join(panel.notes)


def test_anything_else_has_no_segments_and_says_so() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=9))
    assert "memory snapshot" in why_empty(memory_segments(record))
    assert allocator_panel(record) is None
