"""CUDA memory snapshots: allocations, totals, stacks and peaks, as the allocator knows them."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.cuda import _memory_viz

from gpuprof_widgets.analyses.allocator import allocator_events, memory_segments
from gpuprof_widgets.analyses.memory import allocations, memory, memory_curve, memory_peak
from gpuprof_widgets.analyses.reasons import SNAPSHOT, why_empty
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse
from tests.snapshots import (
    ADDMM,
    CALL,
    CONVERT,
    LINEAR,
    START_US,
    TRAIN,
    Allocator,
    frame,
    snapshot,
    training,
)

pytestmark = pytest.mark.slow

FILE = Path("snapshot.pickle")
EINX = frame("C:\\envs\\Lib\\site-packages\\einx\\api.py", 184, "inner")


def read(content: Any) -> Record:
    return parse(pickle.dumps(content), FILE)


def test_every_block_has_its_life_and_the_line_that_asked_for_it() -> None:
    table = allocations(read(snapshot(training(steps=2))))
    columns = ["bytes", "start_ns", "end_ns", "op_name", "line_name", "category"]
    assert table[columns].to_numpy().tolist() == [
        [400_000, 1000, -1, "", "train.py:12(step)", "parameters"],
        [100_000, 2000, 6000, "aten::addmm", "train.py:12(step)", "temporaries"],
        [50_000, 3000, 8000, "", "train.py:12(step)", "temporaries"],
        [800_000, 4000, -1, "", "train.py:12(step)", "optimizer state"],
        [100_000, 9000, 12000, "aten::addmm", "train.py:12(step)", "temporaries"],
        [50_000, 10000, -1, "", "train.py:12(step)", "activations"],
    ]


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        ([frame("<string>", 4, "op"), EINX, TRAIN], "train.py:12(step)"),
        ([frame("<frozen runpy>", 3, "_run_code"), TRAIN], "train.py:12(step)"),
        ([LINEAR, CALL, frame("<string>", 7, "<module>")], "<string>:7(<module>)"),
        ([frame("<ipython-input-3-5a>", 2, "<module>"), TRAIN], "<ipython-input-3-5a>:2(<module>)"),
        ([LINEAR, CALL], "linear.py:125(forward)"),
        ([ADDMM], ""),
        ([], ""),
    ],
)
def test_the_line_is_the_users_own_not_one_that_a_library_has_written(
    stack: list[Any], line: str
) -> None:
    """Libraries make code at run time, without a file; so is the text of ``python -c``."""
    gpu = Allocator()
    gpu.allocate(100, *stack)
    assert allocations(read(snapshot(gpu)))["line_name"].tolist() == [line]


def test_the_peak_says_who_held_it() -> None:
    peak = memory_peak(read(snapshot(training())))
    assert peak["allocated_bytes"].unique().tolist() == [1_350_000]
    assert peak[["category", "bytes", "op_name"]].to_numpy().tolist() == [
        ["optimizer state", 800_000, ""],
        ["parameters", 400_000, ""],
        ["temporaries", 100_000, "aten::addmm"],
        ["temporaries", 50_000, ""],
    ]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 3 * 2**20), st.integers(0, 9)), max_size=40), st.data())
def test_the_curve_is_what_the_allocator_held_after_each_step(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Also where the history begins late: the ring buffer of torch forgets its oldest entries."""
    gpu, held = Allocator(), []
    for size, released in steps:
        gpu.allocate(size, TRAIN)
        held.append(sum(gpu.requested.values()))
        if released < len(gpu.requested):
            gpu.release(list(gpu.requested)[released])
            held.append(sum(gpu.requested.values()))
    moves = [row for row, e in enumerate(gpu.history) if e["action"] in ("alloc", "free_completed")]
    forgotten = data.draw(st.integers(0, len(moves)))
    first = moves[forgotten] if forgotten < len(moves) else len(gpu.history)
    content = snapshot(gpu)
    content["device_traces"] = [gpu.history[first:]]
    if not gpu.requested and not content["device_traces"][0]:
        return
    curve = memory_curve(read(content))
    if content["device_traces"][0]:
        assert curve["allocated_bytes"].tolist() == held[forgotten:]
    alive = allocations(read(content))
    assert alive.loc[alive["end_ns"] == -1, "bytes"].sum() == sum(gpu.requested.values())


def test_what_was_there_before_the_history_keeps_its_line() -> None:
    gpu = Allocator()
    gpu.allocate(700, CONVERT, frame("/home/me/model.py", 3, "build"))
    early = gpu.allocate(1000, frame("/home/me/model.py", 4, "build"))
    gpu.history.clear()
    gpu.allocate(50, TRAIN)
    gpu.release(early)
    table = allocations(read(snapshot(gpu)))
    assert table[["start_ns", "bytes", "category", "line_name"]].to_numpy().tolist() == [
        [-1, 700, "parameters", "model.py:3(build)"],
        [0, 50, "other", "train.py:12(step)"],
        [-1, 1000, "before the record", ""],
    ]


def test_a_snapshot_without_a_history_shows_what_was_there() -> None:
    gpu = training()
    record = read(snapshot(gpu, history=False))
    peak = memory_peak(record)
    assert peak["bytes"].sum() == sum(gpu.requested.values())
    assert set(peak["line_name"]) == {"train.py:12(step)"}
    assert "the snapshot has no history" in record.metadata["notes"][0]


def test_memory_is_released_when_its_streams_are_done_with_it() -> None:
    gpu = Allocator()
    one, other = gpu.allocate(100, TRAIN), gpu.allocate(200, TRAIN)
    gpu.release(one, completed=False)
    gpu.release(other)
    table = allocations(read(snapshot(gpu)))
    assert table[["bytes", "end_ns"]].to_numpy().tolist() == [[100, -1], [200, 5000]]


def test_a_history_without_completed_releases_takes_those_asked_for() -> None:
    """Torch leaves them out with ``skip_actions=["free_completed"]``."""
    gpu = Allocator()
    gpu.release(gpu.allocate(100, TRAIN))
    gpu.history.pop()
    assert memory_curve(read(snapshot(gpu)))["allocated_bytes"].tolist() == [100, 0]


def test_devices_are_apart_on_one_clock() -> None:
    first, second, third = Allocator(0), Allocator(1, clock=START_US + 50), Allocator(2)
    first.allocate(100, TRAIN)
    second.allocate(300, TRAIN)
    third.allocate(700, TRAIN)
    content = snapshot(first, second, third)
    content["device_traces"][2] = []
    record = read(content)
    curve = memory_curve(record)
    assert curve[["device", "ts_ns", "allocated_bytes"]].to_numpy().tolist() == [
        ["GPU 0", 1000, 100],
        ["GPU 1", 51_000, 300],
        ["GPU 2", 0, 700],
    ]
    assert record.trace.epoch_ns == START_US * 1000
    assert [device["index"] for device in record.metadata["devices"]] == [0, 1, 2]


def test_calls_of_the_driver_and_failures_are_allocator_events() -> None:
    gpu = Allocator()
    gpu.release(gpu.allocate(100, TRAIN))
    gpu.empty_cache()
    gpu.fail(2**40, TRAIN, free=12)
    record = read(snapshot(gpu))
    events = allocator_events(record)
    assert events[["kind", "name", "bytes", "line_name"]].to_numpy().tolist() == [
        ["malloc", "cudaMalloc", 2 * 2**20, ""],
        ["free", "cudaFree", 2 * 2**20, ""],
        ["out of memory", "[OutOfMemory]", 2**40, "train.py:12(step)"],
    ]
    assert record.trace.args["Device Free"].tolist() == [12]
    assert memory_curve(record)["reserved_bytes"].tolist() == [2 * 2**20, 2 * 2**20]
    texts = [finding.text for finding in Profile(record.trace, None, record.metadata).findings()]
    assert (
        "GPU 0 ran out of memory when `train.py:12(step)` asked for 1.00 TiB. 12 B were free."
        in texts
    )


def test_annotations_are_regions_that_own_what_is_allocated_in_them() -> None:
    gpu = Allocator()
    gpu.allocate(100)
    marks = [
        {"name": "forward", "stage": "START", "device": 0, "time_us": START_US},
        {"name": "forward", "stage": "END", "device": 0, "time_us": START_US + 5},
        {"name": "never ends", "stage": "START", "device": 0, "time_us": START_US},
    ]
    record = read(snapshot(gpu, external_annotations=marks))
    owned = memory(record).set_index("name")["allocation_bytes"]
    assert owned.to_dict() == {"forward": 100}
    assert any("1 annotations have only a start or an end" in n for n in record.metadata["notes"])


def test_snapshots_without_times_stand_in_their_order() -> None:
    """Torch 2.0 wrote none."""
    gpu = Allocator(timed=False)
    gpu.release(gpu.allocate(100))
    record = read(snapshot(gpu))
    assert memory_curve(record)["ts_ns"].tolist() == [1000, 3000]
    assert "the history has no times" in record.metadata["notes"][0]


def test_snapshots_of_torch_1_13_and_2_0_are_read() -> None:
    """A list of segments; frames and sizes in each block's history, no addresses of blocks."""
    old = [{
        "device": 0, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small",
        "blocks": [
            {"size": 1024, "state": "active_allocated",
             "history": [{"addr": 4096, "real_size": 1000, "frames": [TRAIN]}]},
            {"size": 1024, "state": "inactive"},
        ],
    }]  # fmt: skip
    table = allocations(read(old))
    assert table[["bytes", "address", "line_name"]].to_numpy().tolist() == [
        [1000, 4096, "train.py:12(step)"]
    ]


def test_what_torch_makes_of_a_profile_keeps_its_categories() -> None:
    gpu = Allocator()
    gpu.allocate(100, TRAIN)
    gpu.history[-1]["category"] = "activation"
    table = allocations(read(snapshot(gpu)))
    assert table[["category", "classified_by"]].to_numpy().tolist() == [["activations", "torch"]]


def test_our_allocator_is_one_that_torch_s_own_viewer_accepts() -> None:
    """Its accounting is asserted there: what is allocated, free and reserved."""
    text = _memory_viz.segsum(snapshot(training(steps=3)))
    assert "total_reserved: 2.0MiB" in text


def test_without_paths_it_still_says_whose_memory_it_is() -> None:
    record = read(snapshot(training()))
    profile = Profile(record.trace, None, record.metadata)
    redacted = profile.redacted()
    assert "/home/me" not in str(redacted.metadata)
    for analysis in (memory_peak, memory_segments):
        assert analysis(redacted).equals(analysis(profile))


ODD = {
    "no dict": [3],
    "another dict": {"model": [1, 2]},
    "a dict without text": {1: 2, (3, 4): 5},
    "a list of other things": [{"weight": 1}],
    "no events": {"segments": [], "device_traces": [[]]},
    "lists in place of dicts": {"segments": [[1]], "device_traces": [[[]], 7]},
}


@pytest.mark.parametrize("name", ODD)
def test_other_pickles_of_plain_data_are_one_clear_error(name: str) -> None:
    with pytest.raises(TraceError, match=r"snapshot\.pickle: a (pickle, but not|memory snapshot)"):
        read(ODD[name])


def test_lists_that_hold_one_another_are_refused() -> None:
    """A few kB that stand for 10**9 entries."""
    trace = [{"action": "alloc", "addr": 512, "size": 1}] * 1000
    with pytest.raises(TraceError, match="1,000,000 entries in a file of"):
        read({"segments": [], "device_traces": [trace] * 1000})
    blocks = [{"size": 1, "state": "active_allocated", "frames": [TRAIN] * 1000}] * 1000
    segment = {"device": 0, "address": 1, "total_size": 9, "blocks": blocks}
    assert len(allocations(read({"segments": [segment] * 50, "device_traces": []}))) == 1000


def test_entries_that_are_odd_are_left_out_and_counted() -> None:
    gpu = Allocator()
    gpu.allocate(100, TRAIN)
    content = snapshot(gpu)
    content["device_traces"][0] += [
        {"action": "alloc", "addr": -1, "size": 5},
        {"action": "alloc", "addr": 512, "size": "5"},
        {"action": "alloc", "size": 5},
        {"action": "teleport", "addr": 1, "size": 5},
        {"addr": 1, "size": 5},
        {"action": "alloc", "addr": 2**70, "size": 5},
        None,
    ]
    content["segments"] += [{"device": 0}, 7]
    content["segments"][0]["blocks"] += [{"state": "inactive"}]
    record = read(content)
    assert allocations(record)["bytes"].tolist() == [100]
    assert record.metadata["notes"] == [
        "6 of 8 entries of the history have no known action, address or size "
        "and were left out (actions: 'teleport', '')",
        "4 segments, blocks or entries are not well-formed and were left out",
    ]


@settings(max_examples=40)
@given(st.data())
def test_any_value_in_any_place_is_read_or_one_error(data: st.DataObject) -> None:
    """No traceback of ours, whatever a field holds."""
    content: Any = deepcopy(snapshot(training(steps=1)))  # its frames are those of all tests
    place: Any = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([])
    place[key] = data.draw(odd | st.just({}) | st.lists(st.integers(), max_size=3))
    try:
        record = read(content)
    except TraceError:
        return
    memory_peak(record)
    assert np.isfinite(memory_curve(record)["allocated_bytes"]).all()


def test_what_outlives_its_module_is_an_activation() -> None:
    """It is saved for the backward pass, whose thread has no Python on its stacks."""
    gpu = Allocator()
    saved, inner, own = (gpu.allocate(size, LINEAR, CALL, TRAIN) for size in (10, 20, 30))
    gpu.allocate(40, LINEAR, CALL, TRAIN)
    outside = gpu.allocate(50, TRAIN)
    gpu.release(inner, LINEAR, CALL, TRAIN)
    gpu.release(own, TRAIN)
    gpu.release(outside, TRAIN)
    gpu.release(saved)
    assert allocations(read(snapshot(gpu)))["category"].tolist() == [
        "activations",
        "temporaries",
        "activations",
        "activations",
        "temporaries",
    ]


def test_its_findings_are_of_memory_and_no_time_is_broken_down() -> None:
    small, large = Allocator(), Allocator()
    small.allocate(100, TRAIN)
    large.allocate(2**20, TRAIN)
    said = []
    for gpu in (small, large):
        record = read(snapshot(gpu))
        profile = Profile(record.trace, None, record.metadata)
        said.append([finding.text.split(":")[0] for finding in profile.findings()])
        assert why_empty(profile.breakdown()) == SNAPSHOT
    assert said == [
        ["This is a CUDA memory snapshot"],
        ["Peak memory of GPU 0 was 1.00 MiB, at 1.00 µs"],
    ]


def test_the_backward_pass_leaves_gradients_behind() -> None:
    """Its C++ frames are on the stack; on CUDA's autograd thread there is no Python at all."""
    engine = frame("??", 0, "torch::autograd::Engine::evaluate_function(...)")
    gpu = Allocator()
    gpu.allocate(10, engine)
    gpu.release(gpu.allocate(20, engine))
    gpu.allocate(30, frame("??", 0, "torch::autograd::AccumulateGrad::apply(...)"), engine)
    assert allocations(read(snapshot(gpu)))["category"].tolist() == [
        "gradients",
        "autograd detail",
        "gradients",
    ]


def test_memory_is_told_by_the_line_that_asked_for_it_and_gave_it_back() -> None:
    gpu = Allocator()
    kept = gpu.allocate(100, TRAIN)
    gpu.allocate(300, frame("/home/me/model.py", 3, "build"))
    gpu.allocate(7)
    gpu.release(kept, frame("/home/me/model.py", 9, "close"))
    table = memory(read(snapshot(gpu)))
    columns = ["name", "calls", "size_increase_bytes", "allocation_bytes"]
    assert table[columns].to_numpy().tolist() == [
        ["model.py:3(build)", 1, 300, 300],
        ["train.py:12(step)", 1, 100, 100],
        ["[memory]", 1, 7, 7],
        ["model.py:9(close)", 1, -100, 0],
    ]
