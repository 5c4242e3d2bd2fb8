"""Profiles that a real GPU made (an NVIDIA H200), each of a cell whose cause is known.

`scripts/record_gpu_profiles.py` recorded them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets import Profile, load
from gpuprof_widgets.analyses.cold_start import recording_time
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.trace import intervals
from scripts.record_gpu_profiles import MOST_BYTES, file_name
from tests.everyday import ALWAYS, Everyday
from tests.everyday_gpu import GPU_CELLS

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data" / "gpu"
ALIKE_NS = 1_000
"""By which the times of ten kernels differ that spin for equally many clocks."""


def of(name: str) -> Profile:
    return load(DATA / f"{file_name(name)}.gpuprof")


def said(profile: Profile) -> dict[str, Any]:
    """The costliest finding of each rule."""
    return {finding.rule: finding for finding in reversed(profile.findings())}


@pytest.mark.parametrize("cell", GPU_CELLS, ids=lambda cell: cell.name.replace(" ", "-"))
def test_the_cause_is_found_and_nothing_else(cell: Everyday) -> None:
    rules = said(of(cell.name))
    assert set(cell.says) <= set(rules)
    right = {*cell.says, *cell.may, *ALWAYS}
    assert {rule: one.text for rule, one in rules.items() if rule not in right} == {}


@pytest.mark.parametrize(
    ("cell", "rule", "words"),
    [
        ("the loss read in every step", "synchronising", "in 8 calls of `cudaStreamSynchronize`"),
        ("the loss read in every step", "synchronising", "on line 9"),
        ("a boolean mask in every step", "synchronising", "`aten::index` waited"),
        ("a dataset that prepares its items in Python", "dataloader", "__getitem__"),
        ("a step of many small kernels", "optimizer_loops", "`Adam.step` updated one tensor"),
        ("batches copied from pageable memory", "pageable_copies", "8 copies from pageable"),
        ("two streams that take turns", "synchronising", "in 20 calls of `cudaDeviceSynchronize`"),
    ],
)
def test_what_is_said_of_it_is_what_the_cell_does(cell: str, rule: str, words: str) -> None:
    assert words in said(of(cell))[rule].text


@pytest.mark.parametrize("rule", ["memory", "synchronising"])
def test_emptying_the_cache_is_told_from_memory_that_runs_short(rule: str) -> None:
    remedy = said(of("the allocator emptied in every step"))[rule].remedy
    assert remedy.startswith("Leave torch.cuda.empty_cache() out of the loop")


def test_the_one_wait_for_the_result_at_the_end_is_not_to_be_left_out() -> None:
    remedy = said(of("a training that keeps its GPU busy"))["synchronising"].remedy
    assert remedy.startswith("This call waits for the final results")


@pytest.mark.parametrize("cell", GPU_CELLS, ids=lambda cell: cell.name.replace(" ", "-"))
def test_what_the_recording_itself_takes_is_no_first_call(cell: Everyday) -> None:
    """All cells had run before, so no op, launch or library was called for the first time."""
    made = of(cell.name)
    assert intervals.length(recording_time(made.trace)) > 0
    assert "cold_calls" not in said(made)


def test_a_request_for_memory_meanwhile_another_thread_launches_held_nothing_up() -> None:
    trace = load(DATA / "ddp_with_nccl.gpuprof").trace
    asked = trace.slices[trace.slices["name"] == "Activity Buffer Request"]
    own = recording_time(trace)
    assert len(asked) == 5
    assert len(own[0]) < 5
    calls = trace.slices[trace.slices["category"] == "cuda_runtime"]
    for start, end in zip(*own, strict=True):
        assert not ((calls["ts"] >= start) & (calls["ts"] + calls["dur"] <= end)).any()


def test_in_a_range_of_one_step_reading_the_loss_is_to_be_done_less_often() -> None:
    step = of("the loss read in every step").window(10_100_000, 17_100_000)
    assert said(step)["synchronising"].remedy.startswith("Read results less often")


def test_the_recordings_own_start_is_told_with_its_cost() -> None:
    finding = said(of("torch.compile with CUDA graphs"))["overhead"]
    assert "2.47 ms of that went into asking for memory" in finding.text
    assert finding.cost_ns > 2_474_412


@pytest.mark.parametrize(
    ("cell", "is_advised"),
    [("attention written out", False), ("a boolean mask in every step", True)],
)
def test_16_bits_are_advised_only_where_kernels_have_more(cell: str, is_advised: bool) -> None:
    remedy = said(of(cell))["critical_path"].remedy
    assert ("compute in 16 instead of 32 bits" in remedy) == is_advised


def test_two_streams_overlap_or_take_turns() -> None:
    """Each spins ten times for two million clocks of the GPU."""
    together = of("two streams side by side").streams()
    turns = of("two streams that take turns").streams()
    for table in (together, turns):
        assert table["calls"].tolist() == [10, 10]
        assert abs(table["busy_ns"].diff().iloc[-1]) < ALIKE_NS
    assert (together["shared_ns"] > 0.9 * together["busy_ns"]).all()
    assert (turns["shared_ns"] == 0).all()


def test_pinned_copies_run_beside_the_work_and_pageable_ones_do_not() -> None:
    shares = [
        of(name).overlaps()["copy_overlapped_share"].iloc[0]
        for name in ("pinned batches copied beside the work", "batches copied from pageable memory")
    ]
    assert shares[0] > 0.75
    assert shares[1] == 0


def test_kernels_of_a_replayed_graph_belong_to_its_launch() -> None:
    made = of("torch.compile with CUDA graphs")
    slices = made.trace.slices
    launches = slices.index[slices["name"] == "cudaGraphLaunch"]
    assert len(launches) == 20  # one in each iteration
    kernels = slices[slices["category"] == "kernel"]
    assert kernels["launch"].isin(launches).mean() > 0.9


def test_times_are_those_of_torchs_own_table() -> None:
    """Torch takes the recording's own time off the op it fell into, and counts its kernel twice.

    The trace does not tell on which thread that was, so the op keeps it here.
    """
    made = load(DATA / "torch_profiler_two_steps.json.gz")
    rows = json.loads((DATA / "torch_profiler_two_steps.key_averages.json").read_text())
    annotations = {row["key"] for row in rows if row["is_user_annotation"]}
    theirs = {row["key"]: row for row in rows if row["key"] not in annotations}
    (own,) = (row for name, row in theirs.items() if name == "Activity Buffer Request")
    around = {"aten::to", "aten::_to_copy", "aten::copy_"}
    ours = operators(made)
    ours = ours[ours["category"] != "user_annotation"].set_index("name")
    assert set(ours.index) == set(theirs)
    for name, row in theirs.items():
        here = ours.loc[name]
        assert here["calls"] == row["count"]
        assert here["cpu_total_ns"] == round(1000 * row["cpu_time_total"])
        less = round(1000 * own["self_cpu_time_total"]) if name == "aten::copy_" else 0
        assert here["cpu_self_ns"] - less == round(1000 * row["self_cpu_time_total"])
        if row is own:
            continue
        assert here["device_self_ns"] == round(1000 * row["self_device_time_total"])
        twice = round(1000 * own["self_device_time_total"]) if name in around else 0
        assert here["device_total_ns"] + twice == round(1000 * row["device_time_total"])


def test_a_snapshot_of_a_request_that_failed_says_what_was_free() -> None:
    finding = load(DATA / "out_of_memory.pickle").findings()[0]
    assert finding.text.endswith("asked for 140 GiB. 135 GiB were free.")


def test_one_rank_has_calls_of_nccl_and_no_kernels_of_it() -> None:
    """NCCL has nothing to reduce there, and nothing is said of what that took."""
    made = load(DATA / "ddp_with_nccl.gpuprof")
    assert (made.trace.slices["name"] == "nccl:all_reduce").sum() == 2  # one in each step
    assert made.collectives().attrs["lacks"].endswith("none of their kernels")
    assert (made.metadata["rank"], made.metadata["world_size"]) == (0, 1)


@pytest.mark.parametrize("path", sorted(DATA.iterdir()), ids=lambda path: path.name)
def test_each_file_is_small(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
