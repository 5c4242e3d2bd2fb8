"""Allocations: their lives, owners and categories, and that they add up to the curve exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.allocator import allocator_events
from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.memory import allocations, memory_curve, memory_peak
from gpuprof_widgets.analyses.memory import memory as by_op
from gpuprof_widgets.analyses.memory_blocks import memory_events
from gpuprof_widgets.analyses.memory_categories import BEFORE
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, annotation, block, memory, op, runtime, trace_of

memory_findings = FINDINGS["memory"]

MIB = 2**20


def lives(record: Record) -> list[tuple[int, int, int]]:
    """Start, end and bytes of each block."""
    columns = allocations(record)[["start_ns", "end_ns", "bytes"]]
    return [tuple(row) for row in columns.to_numpy().tolist()]  # type: ignore[misc]


def test_addresses_of_two_devices_are_not_the_same_memory() -> None:
    rows = [block(8, at=1, ts=1, device=0), block(8, at=1, ts=2), block(-8, at=1, ts=3, device=0)]
    table = allocations(trace_of(op("a", ts=0, dur=9), *rows))
    assert table[["device", "end_ns"]].to_numpy().tolist() == [["GPU 0", 3], ["CPU", -1]]


def test_an_address_allocated_twice_was_released_unseen_by_then() -> None:
    record = trace_of(op("a", ts=0, dur=9), block(8, at=1, ts=1), block(4, at=1, ts=6))
    table = allocations(record)
    assert table["end_ns"].tolist() == [6, -1]
    assert table["release"].tolist() == [-1, -1]


def test_what_was_released_between_two_windows_is_not_alive_in_the_second() -> None:
    rows = [block(8, at=1, ts=1, allocated=8), block(4, at=2, ts=2, allocated=12)]
    rows.append(block(5, at=3, ts=50, allocated=9))  # 8 bytes were released before, unseen
    record = trace_of(op("a", ts=0, dur=5), *rows, op("a", ts=49, dur=5))
    assert lives(record) == [(1, 50, 8), (2, -1, 4), (50, -1, 5)]
    assert allocations(record)["release"].tolist() == [-1, -1, -1]
    assert sorted(memory_peak(record)["bytes"]) == [4, 8]  # before the second window


def test_without_addresses_a_release_ends_the_latest_block_of_its_size() -> None:
    rows = [memory(8, ts=1), memory(8, ts=2), memory(4, ts=3), memory(-8, ts=4), memory(-8, ts=5)]
    record = trace_of(op("a", ts=0, dur=9), *rows, memory(-2, ts=6))
    assert lives(record) == [(1, 5, 8), (2, 4, 8), (3, -1, 4), (-1, 6, 2)]


def test_the_owners_are_the_outermost_op_the_module_and_the_line() -> None:
    record = trace_of(
        op("3: y = model(x)", ts=0, dur=50, category="cell_line"),
        op("encoder.0", ts=5, dur=40, category="module"),
        op("aten::linear", ts=6, dur=20),
        op("aten::addmm", ts=7, dur=10),
        block(64, at=1, ts=8),
    )
    (row,) = allocations(record).to_dict("records")
    assert (row["line_name"], row["module_name"], row["op_name"]) == (
        "3: y = model(x)",
        "encoder.0",
        "aten::linear",
    )


def training_step() -> Record:
    """A forward, a backward and an optimizer step, one block of each category, by ten bytes."""
    node = "autograd::engine::evaluate_function: MmBackward0"
    return trace_of(
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts=0, dur=10),
        op("aten::stack", ts=1, dur=5),
        block(10, at=1, ts=2),
        op("fc", ts=20, dur=20, category="module"),
        op("aten::mm", ts=21, dur=10, sequence=7, forward_thread=0),
        block(20, at=2, ts=22),
        block(1, at=3, ts=23),
        block(-1, at=3, ts=24),
        op("aten::relu", ts=32, dur=4),
        block(2, at=4, ts=33),
        block(-2, at=4, ts=41),
        op(node, ts=50, dur=20),
        op("MmBackward0", ts=51, dur=18, sequence=7, forward_thread=1),
        block(30, at=5, ts=52),
        block(40, at=6, ts=53),
        op(node, ts=72, dur=5),
        block(-40, at=6, ts=73),
        annotation("Optimizer.step#SGD.step", ts=80, dur=10),
        op("aten::clone", ts=81, dur=3),
        block(50, at=7, ts=82),
        op("aten::mul_", ts=85, dur=3),
        block(3, at=8, ts=86),
        block(-3, at=8, ts=87),
        annotation("Optimizer.zero_grad#SGD.zero_grad", ts=92, dur=3),
        block(-30, at=5, ts=93),
        block(-20, at=2, ts=95),
    )


def test_the_rules_tell_the_categories_of_a_training_step() -> None:
    table = allocations(training_step())
    assert dict(zip(table["bytes"], table["category"], strict=True)) == {
        10: "inputs",
        20: "activations",
        1: "temporaries",
        2: "temporaries",
        30: "gradients",
        40: "autograd detail",
        50: "optimizer state",
        3: "temporaries",
    }
    assert set(table["classified_by"]) == {"rules"}
    gradient = table.set_index("bytes").loc[30, ["module_name", "op_name"]]
    assert gradient.tolist() == ["fc", "MmBackward0"]  # the module of its forward op


@pytest.mark.parametrize(
    ("op_name", "size", "seen", "is_kept", "category"),
    [
        ("aten::mm", 2**25, True, True, "autograd detail"),
        ("aten::mm", 2**25, True, False, "gradients"),
        ("aten::mm", 2**25, False, True, "gradients"),
        ("aten::mm", 2**25 + 512, True, True, "gradients"),
        ("aten::sum", 2**25, True, True, "gradients"),
    ],
)
def test_a_workspace_of_cublas_is_no_gradient_where_gradients_were_seen(
    op_name: str, size: int, seen: bool, is_kept: bool, category: str
) -> None:
    held = {"Held as": "gradients", "Held by": "fc.weight"} if seen else {}
    node = "autograd::engine::evaluate_function: MmBackward0"
    record = trace_of(
        op(node, ts=50, dur=20),
        op(op_name, ts=52, dur=10),
        block(size, at=5, ts=53, device=0),
        block(64, at=6, ts=54, device=0, **held),
        op("aten::mul_", ts=80, dur=10),
        *([] if is_kept else [block(-size, at=5, ts=95, device=0)]),
    )
    table = allocations(record).set_index("bytes")
    assert table.loc[64, "category"] == "gradients"
    assert table.loc[size, "category"] == category


def test_what_a_tensor_was_held_as_comes_before_the_rules_and_torch_before_both() -> None:
    held = {"Held as": "parameters", "Held by": "fc.weight"}
    record = trace_of(
        op("aten::empty", ts=0, dur=9),
        block(8, at=1, ts=1, **held),
        block(4, at=2, ts=2, **held, **{"Memory category": "activations"}),
    )
    table = allocations(record)
    assert table["category"].tolist() == ["parameters", "activations"]
    assert table["classified_by"].tolist() == ["rules", "torch"]
    assert table["tensor"].tolist() == ["fc.weight", "fc.weight"]


def test_the_peak_tells_what_was_alive_then_the_biggest_first() -> None:
    rows = memory_peak(training_step())
    assert set(rows["ts_ns"]) == {86}
    assert rows[["category", "bytes"]].to_numpy().tolist() == [
        ["optimizer state", 50],
        ["gradients", 30],
        ["activations", 20],
        ["inputs", 10],
        ["temporaries", 3],
    ]
    assert rows["allocated_bytes"].tolist() == [113] * 5
    assert rows["blocks"].tolist() == [1] * 5
    assert rows["share"].sum() == pytest.approx(1)


def test_parameters_seen_before_the_record_are_part_of_what_was_there() -> None:
    (held,) = held_before(600)["before"]
    record = trace_of(
        op("aten::empty", ts=0, dur=9),
        block(512, at=1, ts=1, device=0, allocated=4096),
        memory={"before": [held, held | {"device": "CPU"}]},
    )
    peak = memory_peak(record).set_index("category")["bytes"]
    assert peak.to_dict() == {"parameters": 1024, BEFORE: 4096 - 512 - 1024, "other": 512}


def held_before(size: int) -> dict[str, Any]:
    """What was seen to hold a block of GPU 0 before the record."""
    held = {"device": "GPU 0", "address": 9, "category": "parameters", "tensor": "w"}
    return {"before": [held | {"bytes": size}]}


@pytest.mark.parametrize(("total", "kept"), [(512 + 1024, "parameters"), (512 + 1023, BEFORE)])
def test_what_was_there_before_is_named_as_far_as_there_is_room_for_it(
    total: int, kept: str
) -> None:
    new = block(512, at=1, ts=1, device=0, allocated=total, reserved=4096)
    peak = memory_peak(trace_of(op("aten::empty", ts=0, dur=9), new, memory=held_before(1024)))
    assert peak.set_index("category")["bytes"].to_dict() == {kept: total - 512, "other": 512}
    assert set(peak["reserved_bytes"]) == {4096}


def test_memory_from_before_the_record_is_what_held_it_then() -> None:
    freed = [block(-512, at=at, ts=at, device=0) for at in (8, 9)]
    table = allocations(trace_of(op("a", ts=0, dur=20), *freed, memory=held_before(512)))
    held = table[["category", "tensor", "address"]].to_numpy().tolist()
    assert held == [[BEFORE, "", 8], ["parameters", "w", 9]]


@pytest.mark.parametrize(
    ("within", "category"), [("module", "activations"), ("cell_line", "inputs")]
)
def test_a_copy_is_an_input_unless_a_module_made_it(within: str, category: str) -> None:
    record = trace_of(
        op("around", ts=0, dur=20, category=within),
        op("aten::to", ts=1, dur=9),
        block(8, at=1, ts=2),
    )
    assert allocations(record)["category"].tolist() == [category]


@st.composite
def allocation_runs(draw: st.DrawFn) -> tuple[list[Row], int]:
    """Allocations and releases that a real allocator could make, with its exact totals."""
    base = draw(st.integers(0, 1000))
    old = {
        address: draw(st.integers(1, 99)) for address in range(1000, 1000 + draw(st.integers(0, 3)))
    }
    total = base + sum(old.values())
    living, rows, ts = dict(old), [], 0
    for _ in range(draw(st.integers(1, 25))):
        ts += draw(st.integers(0, 3))
        if living and draw(st.booleans()):
            address = draw(st.sampled_from(sorted(living)))
            size = -living.pop(address)
        else:
            address = draw(st.integers(1, 6).filter(lambda number: number not in living))
            size = living[address] = draw(st.integers(1, 99))
        total += size
        rows.append(block(size, at=address, ts=ts, allocated=total, device=0))
    return rows, base + sum(old.values())


@given(allocation_runs())
def test_the_blocks_add_up_to_the_curve_at_every_event(run: tuple[list[Row], int]) -> None:
    rows, at_first = run
    record = trace_of(op("a", ts=0, dur=200), *rows)
    table, curve = allocations(record), memory_curve(record)
    old = table["start_ns"] < 0
    untouched = at_first - int(table[old]["bytes"].sum())
    last_of_moment = curve.groupby("ts_ns")["allocated_bytes"].last()
    for ts, total in last_of_moment.items():
        begun = old | (table["start_ns"] <= ts)
        alive = begun & ((table["end_ns"] < 0) | (table["end_ns"] > ts))
        assert untouched + table[alive]["bytes"].sum() == total
    peak = memory_peak(record)
    assert peak["bytes"].sum() == curve["allocated_bytes"].max()
    assert (peak["allocated_bytes"] == curve["allocated_bytes"].max()).all()
    assert (peak["bytes"] > 0).all()


@given(allocation_runs(), st.data())
def test_a_peak_counted_from_zero_is_what_its_blocks_hold(
    run: tuple[list[Row], int], data: st.DataObject
) -> None:
    """As in a window: releases of what was allocated before it; totals or none at all."""
    rows, at_first = run
    cut = data.draw(st.integers(0, len(rows) - 1))
    totals = data.draw(st.booleans())
    rows = [replace(row, args=of_cpu(row.args, at_first, totals=totals)) for row in rows[cut:]]
    record = trace_of(op("a", ts=0, dur=200), *rows)
    peak, curve = memory_peak(record), memory_curve(record)
    assert (peak["bytes"] > 0).all()
    assert peak["bytes"].sum() == curve["allocated_bytes"].max()
    assert (curve["allocated_bytes"] >= 0).all()
    change = pd.Series([row.args["Bytes"] for row in rows[1:]], dtype="int64")
    assert curve["allocated_bytes"].diff().iloc[1:].tolist() == change.tolist()


def of_cpu(args: Mapping[str, Any], first: int, *, totals: bool) -> dict[str, Any]:
    """An event's args as of the CPU, counted from 0 where it has totals."""
    kept = {key: value for key, value in args.items() if totals or not key.startswith("Total ")}
    kept |= {"Total Allocated": args["Total Allocated"] - first} if totals else {}
    return kept | {"Device Type": 0, "Device Id": -1}


def test_out_of_memory_is_a_row_and_a_finding() -> None:
    asked = {"Bytes": 3 * MIB, "Device Type": 1, "Device Id": 0}
    failure = Row("[OutOfMemory]", "cpu_instant_event", 5, 0, args=asked)
    record = trace_of(op("aten::mm", ts=0, dur=9), failure)
    columns = ["kind", "device", "bytes", "op_name"]
    (row,) = allocator_events(record)[columns].to_numpy().tolist()
    assert row == ["out of memory", "GPU 0", 3 * MIB, "aten::mm"]
    (finding,) = memory_findings(record)
    assert "GPU 0 ran out of memory when `aten::mm` asked for 3.00 MiB." in finding.text


def retrying(reserved_after: int) -> Record:
    """An op that frees and allocates on the driver, then has its memory."""
    return trace_of(
        block(8, at=1, ts=1, device=0, allocated=8, reserved=100 * MIB),
        op("aten::empty", ts=10, dur=90),
        runtime("cudaMalloc", ts=11, dur=1),
        runtime("cudaFree", ts=20, dur=30),
        runtime("cudaMalloc", ts=60, dur=10),
        block(40 * MIB, at=2, ts=80, device=0, allocated=40 * MIB + 8, reserved=reserved_after),
    )


def test_a_retry_is_where_the_allocator_gave_memory_back_to_have_more() -> None:
    events = allocator_events(retrying(reserved_after=90 * MIB))
    retry = events[events["kind"] == "retry"]
    assert retry[["start_ns", "dur_ns", "op_name"]].to_numpy().tolist() == [[19, 50, "aten::empty"]]
    assert events["kind"].tolist().count("malloc") == 2
    assert set(events["bytes"]) == {-1}  # the calls of the driver do not tell
    texts = [finding.text for finding in memory_findings(retrying(reserved_after=90 * MIB))]
    assert any("free cached GPU memory and ask again in 1 allocation" in text for text in texts)


def test_a_library_that_frees_its_own_memory_is_no_retry() -> None:
    assert "retry" not in set(allocator_events(retrying(reserved_after=140 * MIB))["kind"])


def test_calls_of_the_driver_that_take_long_are_a_finding() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=1000), runtime("cudaMalloc", ts=10, dur=400))
    (finding,) = memory_findings(record)
    assert finding.cost_ns == 400
    assert "`cudaMalloc` in `aten::mm`" in finding.text


def test_the_peak_is_a_finding_with_its_categories_and_their_largest_owner() -> None:
    record = trace_of(
        op("7: loss.backward()", ts=0, dur=90, category="cell_line"),
        op("encoder.mlp", ts=1, dur=30, category="module"),
        op("aten::linear", ts=2, dur=9, sequence=3, forward_thread=0),
        block(6 * MIB, at=1, ts=3),
        op("MmBackward0", ts=50, dur=9, sequence=3, forward_thread=1),
        block(4 * MIB, at=2, ts=51),
    )
    (finding,) = memory_findings(record)
    assert finding.text == (
        "Peak memory was 10.0 MiB, at 51 ns: 60 % activations (most from `encoder.mlp`, `7: "
        "loss.backward()`), 40 % gradients. One block alone is 6.00 MiB, allocated in "
        "`aten::linear`."
    )
    names = record.trace.slices["name"]
    assert {names[row] for row in finding.rows} == {"aten::linear", "MmBackward0"}


@pytest.mark.parametrize(
    ("in_its_moment", "alive"),
    [
        ([(-6, 1), (10, 2)], ["aten::second"]),
        ([(10, 2), (-10, 2), (2, 3)], ["aten::second", "aten::first"]),
    ],
    ids=["released before", "released after"],
)
def test_of_the_moment_of_the_peak_the_order_counts(
    in_its_moment: list[tuple[int, int]], alive: list[str]
) -> None:
    record = trace_of(
        op("aten::first", ts=0, dur=9),
        block(6 * MIB, at=1, ts=5),
        op("aten::second", ts=50, dur=9),
        *(block(size * MIB, at=at, ts=51) for size, at in in_its_moment),
    )
    (finding,) = memory_findings(record)
    assert "One block alone is 10.0 MiB, allocated in `aten::second`" in finding.text
    assert record.trace.slices["name"][[*finding.rows]].tolist() == alive


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        (0, ""),  # as much of the one as of the other
        (1, "Activations live until their backward pass"),
        (-1, "Gradients are as large as the parameters"),
    ],
)
def test_what_to_do_about_a_gpu_s_peak_goes_by_what_most_of_it_is(more: int, remedy: str) -> None:
    half, on_gpu = 5 * MIB, {"device": 0}
    record = trace_of(
        op("aten::linear", ts=2, dur=9, sequence=3, forward_thread=0),
        block(half + more, at=1, ts=3, allocated=half + more, **on_gpu),
        op("MmBackward0", ts=50, dur=9, sequence=3, forward_thread=1),
        block(half, at=2, ts=51, allocated=2 * half + more, **on_gpu),
    )
    (finding,) = memory_findings(record)
    assert finding.remedy.startswith(remedy)
    assert bool(finding.remedy) == bool(remedy)


def test_little_memory_is_no_finding() -> None:
    assert memory_findings(training_step()) == []


def test_real_traces_add_up_to_what_torch_counted(shared_record: Record) -> None:
    peak, curve = memory_peak(shared_record), memory_curve(shared_record)
    most = curve.groupby("device")["allocated_bytes"].max()
    assert peak.groupby("device")["bytes"].sum().to_dict() == most.to_dict()
    assert (peak["bytes"] > 0).all()
    table = allocations(shared_record)
    ended = table["end_ns"] >= 0
    assert (table["end_ns"] >= table["start_ns"])[ended].all()
    events = memory_events(shared_record.trace)
    first_sizes = pd.Series(events.size).groupby(events.device).first()
    before = curve.groupby("device")["allocated_bytes"].first() - first_sizes
    began, freed = table[table["row"] >= 0], table[table["release"] >= 0]
    change = (
        began.groupby("device")["bytes"]
        .sum()
        .sub(freed.groupby("device")["bytes"].sum(), fill_value=0)
    )
    last = curve.groupby("device")["allocated_bytes"].last()
    assert (before + change).to_dict() == last.to_dict()


def test_of_several_devices_the_fullest_gpu_is_told_of() -> None:
    rows = [block(9 * MIB, at=1, ts=1), block(3 * MIB, at=2, ts=2, device=1)]
    rows.append(block(2 * MIB, at=3, ts=3, device=0))
    (finding,) = memory_findings(trace_of(op("aten::empty", ts=0, dur=9), *rows))
    assert finding.text.startswith("Peak memory of GPU 1 was 3.00 MiB, at 2 ns")


# By op: its own memory and that of what it calls, per device.


def rows_by_op(record: Record, device: str) -> dict[str, list[int]]:
    """Calls, size increase, allocations and their bytes: each with what it calls, then its own."""
    table = by_op(record)
    found = table[table["device"] == device].drop(columns="device").set_index("name")
    return {str(name): numbers.tolist() for name, numbers in found.iterrows()}


def nested() -> Record:
    """``linear`` allocates 100 on the GPU, ``mm`` in it 60 of which 20 are given back."""
    return trace_of(
        op("aten::linear", ts=0, dur=100),
        memory(100, ts=5, device=0),
        op("aten::mm", ts=10, dur=50),
        memory(60, ts=15, device=0),
        memory(-20, ts=20, device=0),
        memory(8, ts=30),
        memory(1000, ts=200, device=0),
    )


def test_an_op_has_its_own_and_what_it_calls() -> None:
    found = rows_by_op(nested(), "GPU 0")
    assert found["aten::mm"] == [1, 40, 40, 1, 1, 60, 60]
    assert found["aten::linear"] == [1, 140, 100, 2, 1, 160, 100]


def test_devices_are_apart_and_the_largest_is_first() -> None:
    table = by_op(nested())
    assert table[["device", "name"]].to_numpy().tolist() == [
        ["GPU 0", "[memory]"],
        ["GPU 0", "aten::linear"],
        ["GPU 0", "aten::mm"],
        ["CPU", "aten::mm"],
        ["CPU", "aten::linear"],
    ]
    assert rows_by_op(nested(), "CPU")["aten::linear"][4] == 0


def test_an_op_that_only_calls_itself_counts_once() -> None:
    record = trace_of(
        op("aten::sum", ts=0, dur=20), op("aten::sum", ts=5, dur=10), memory(64, ts=7)
    )
    assert rows_by_op(record, "CPU")["aten::sum"] == [1, 64, 64, 1, 1, 64, 64]


def test_it_is_the_op_tables_memory_and_all_there_was(shared_record: Record) -> None:
    table = by_op(shared_record)
    if why_empty(table):
        return
    trace = shared_record.trace
    given = trace.args["Bytes"][trace.slices["name"] == "[memory]"].astype(int)
    assert table["self_size_increase_bytes"].sum() == given.sum()
    assert table["self_allocation_bytes"].sum() == given[given > 0].sum()
    assert table["self_allocations"].sum() == (given > 0).sum()
    ops = operators(shared_record).groupby("name").sum(numeric_only=True)
    for kind, devices in {
        "cpu": table["device"] == "CPU",
        "device": table["device"] != "CPU",
    }.items():
        ours = (
            table[devices]
            .groupby("name")[["size_increase_bytes", "self_size_increase_bytes"]]
            .sum()
        )
        theirs = ops.loc[ours.index, [f"{kind}_memory_bytes", f"{kind}_self_memory_bytes"]]
        assert (ours.to_numpy() == theirs.to_numpy()).all()
