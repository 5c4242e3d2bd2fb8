"""Snapshots of real GPUs' memory: what is read is what plain Python finds in their pickles."""

from __future__ import annotations

import gzip
import pickle
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from gpuprof_widgets.profiles import Profile
from tests.fuzz_readers import check_record
from tests.test_every_trace import all_answers
from tests.traces import Shared

FILES = ("snapshots/cs336_forward.pickle.gz", "snapshots/cs336_magma.pickle.gz")
"""Of the forward pass of a transformer, and of a forward and backward pass; both from Windows."""


@dataclass(frozen=True)
class Snapshot:
    """What torch wrote, as ``pickle`` has it, and the profile that we make of the file."""

    content: dict[str, Any]
    profile: Profile

    @property
    def history(self) -> list[dict[str, Any]]:
        """What its one GPU's allocator did, in order of time."""
        (history,) = self.content["device_traces"]
        return list(history)

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return [block for segment in self.content["segments"] for block in segment["blocks"]]

    @property
    def alive(self) -> dict[int, int]:
        """Bytes that were asked for of each block that was in use in the end, by its address."""
        used = (block for block in self.blocks if block["state"].startswith("active"))
        return {block["address"]: block["requested_size"] for block in used}


@pytest.fixture(scope="module", params=FILES)
def snapshot(request: pytest.FixtureRequest, shared: Shared) -> Snapshot:
    path = shared(request.param)
    return Snapshot(pickle.loads(gzip.decompress(path.read_bytes())), Profile.load(path))


def test_the_curve_leads_to_what_was_in_use_in_the_end(snapshot: Snapshot) -> None:
    held, totals = sum(snapshot.alive.values()), []
    for entry in reversed(snapshot.history):
        if entry["action"] in ("alloc", "free_completed"):
            totals.append(held)
            held -= entry["size"] if entry["action"] == "alloc" else -entry["size"]
    curve = snapshot.profile.memory_curve()
    assert curve["allocated_bytes"].tolist() == totals[::-1]
    assert snapshot.profile.memory_peak()["bytes"].sum() == max(totals)
    reserved = sum(segment["total_size"] for segment in snapshot.content["segments"])
    assert set(curve["reserved_bytes"]) == {reserved}  # no segment came or went


def test_every_block_lives_from_its_allocation_to_its_release(snapshot: Snapshot) -> None:
    first = snapshot.history[0]["time_us"]
    since: dict[int, tuple[int, int]] = {}
    lives = Counter[tuple[int, int, int]]()
    for entry in snapshot.history:
        time_ns = (entry["time_us"] - first) * 1_000
        if entry["action"] == "alloc":
            since[entry["addr"]] = (entry["size"], time_ns)
        elif entry["action"] == "free_completed":
            lives[(*since.pop(entry["addr"], (entry["size"], -1)), time_ns)] += 1
    for address, size in snapshot.alive.items():
        lives[(*since.pop(address, (size, -1)), -1)] += 1
    found = snapshot.profile.allocations()[["bytes", "start_ns", "end_ns"]]
    assert Counter(found.itertuples(index=False, name=None)) == lives


def test_the_line_is_the_innermost_in_a_file_of_their_own(snapshot: Snapshot) -> None:
    """Which is neither installed nor made at run time, as some of einx's functions are."""
    expected = Counter[str]()
    for entry in snapshot.history:
        if entry["action"] == "alloc":
            own = (f for f in entry["frames"] if "assignment2" in f["filename"])
            own = (f for f in own if "site-packages" not in f["filename"])
            frame = next(own, None)
            expected[_line(frame) if frame else ""] += 1
    table = snapshot.profile.allocations()
    assert Counter(table.loc[table["row"] >= 0, "line_name"]) == expected


def _line(frame: dict[str, Any]) -> str:
    file = frame["filename"].rsplit("\\", 1)[-1]
    return f"{file}:{frame['line']}({frame['name']})"


def test_segments_are_as_full_as_their_blocks(snapshot: Snapshot) -> None:
    def in_use(segment: dict[str, Any]) -> int:
        return sum(b["size"] for b in segment["blocks"] if b["state"] == "active_allocated")

    expected = {
        segment["address"]: (segment["total_size"], in_use(segment), len(segment["blocks"]))
        for segment in snapshot.content["segments"]
    }
    table = snapshot.profile.memory_segments().set_index("address")
    found = table[["bytes", "allocated_bytes", "blocks"]].itertuples(name=None)
    assert {address: tuple(row) for address, *row in found} == expected
    assert (table["free_bytes"] + table["allocated_bytes"] == table["bytes"]).all()


def test_memory_that_any_block_fits_in_is_not_said_to_be_in_pieces(snapshot: Snapshot) -> None:
    """After the backward pass 90 % are free, in 226 pieces; the largest holds any of its blocks."""
    largest = max(entry["size"] for entry in snapshot.history if entry["action"] == "alloc")
    assert largest <= max(b["size"] for b in snapshot.blocks if b["state"] == "inactive")
    assert "fragmentation" not in {finding.rule for finding in snapshot.profile.findings()}


def test_every_analysis_and_the_report_answer(snapshot: Snapshot) -> None:
    check_record(snapshot.profile)
    assert snapshot.profile.metadata["notes"] == []
    assert all_answers(snapshot.profile) == {}
    assert "<html" in snapshot.profile.report().lower()
