"""Memory by op: its own and that of what it calls, per device."""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.analyses.memory import memory
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.trace.model import Record
from tests.traces import memory as event
from tests.traces import op, trace_of


def rows(record: Record, device: str) -> dict[str, dict[str, Any]]:
    table = memory(record)
    found = table[table["device"] == device].drop(columns="device").set_index("name")
    return {str(name): row for name, row in found.to_dict("index").items()}


def nested() -> Record:
    """``linear`` allocates 100 on the GPU, ``mm`` in it 60 of which 20 are given back."""
    return trace_of(
        op("aten::linear", ts=0, dur=100),
        event(100, ts=5, device=0),
        op("aten::mm", ts=10, dur=50),
        event(60, ts=15, device=0),
        event(-20, ts=20, device=0),
        event(8, ts=30),
        event(1000, ts=200, device=0),
    )


def test_an_op_has_its_own_and_what_it_calls() -> None:
    found = rows(nested(), "GPU 0")
    assert found["aten::mm"] == {
        "calls": 1,
        "size_increase_bytes": 40,
        "self_size_increase_bytes": 40,
        "allocations": 1,
        "self_allocations": 1,
        "allocation_bytes": 60,
        "self_allocation_bytes": 60,
    }
    assert found["aten::linear"] == {
        "calls": 1,
        "size_increase_bytes": 140,
        "self_size_increase_bytes": 100,
        "allocations": 2,
        "self_allocations": 1,
        "allocation_bytes": 160,
        "self_allocation_bytes": 100,
    }


def test_what_is_in_no_op_has_a_row_as_well() -> None:
    assert rows(nested(), "GPU 0")["[memory]"]["self_allocation_bytes"] == 1000


def test_devices_are_apart_and_the_largest_is_first() -> None:
    table = memory(nested())
    assert table[["device", "name"]].to_numpy().tolist() == [
        ["GPU 0", "[memory]"],
        ["GPU 0", "aten::linear"],
        ["GPU 0", "aten::mm"],
        ["CPU", "aten::mm"],
        ["CPU", "aten::linear"],
    ]
    assert rows(nested(), "CPU")["aten::linear"]["self_allocations"] == 0


def test_an_op_that_only_calls_itself_counts_once() -> None:
    record = trace_of(op("aten::sum", ts=0, dur=20), op("aten::sum", ts=5, dur=10), event(64, ts=7))
    row = rows(record, "CPU")["aten::sum"]
    assert (row["calls"], row["allocation_bytes"], row["self_allocation_bytes"]) == (1, 64, 64)


def test_a_trace_without_memory_says_so() -> None:
    assert "profile_memory" in why_empty(memory(trace_of(op("aten::mm", ts=0, dur=9))))


def test_it_is_the_op_tables_memory_and_all_there_was(shared_record: Record) -> None:
    table = memory(shared_record)
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
