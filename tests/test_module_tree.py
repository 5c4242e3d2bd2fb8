"""The tree of modules: hand-made, recorded by ourselves, and from torch's frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpuprof_widgets.analyses.attribution import attribution
from gpuprof_widgets.analyses.modules import modules
from gpuprof_widgets.analyses.owners import MODULE_FRAME
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.panels import regions as panel
from gpuprof_widgets.views.panels.regions import modules_panel
from tests.test_modules import record as recorded
from tests.traces import (
    annotation,
    backward_op,
    kernel,
    memory,
    module,
    op,
    python,
    runtime,
    trace_of,
)

MATRIX = {"shapes": [[2, 3], [3, 4]], "Input type": ["float", "float"]}


def by_name(record: Record) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in modules(record).to_dict("records")}


def trained() -> Record:
    """A model of two layers: forward of 100 ns, then the backward of the second one."""
    return trace_of(
        module("model", ts=0, dur=100, kind="Net"),
        module("first", ts=10, dur=30, kind="Linear"),
        op("aten::mm", ts=15, dur=20, sequence=1, forward_thread=0, **MATRIX),
        module("second", ts=50, dur=40, kind="Linear"),
        op("aten::mm", ts=55, dur=30, sequence=2, forward_thread=0, **MATRIX),
        memory(64, ts=60, device=0),
        runtime("cudaLaunchKernel", ts=70, dur=5),
        kernel("gemm", ts=200, dur=50, launched_by=6),
        *backward_op("MmBackward0", ts=300, dur=60, sequence=2, thread=2),
        op("aten::mm", ts=305, dur=40, thread=2, **MATRIX),
        runtime("cudaLaunchKernel", ts=310, dur=5, thread=2),
        kernel("gemm", ts=400, dur=70, launched_by=11),
    )


def test_the_tree_has_parents_before_their_children() -> None:
    table = modules(trained())
    assert table["name"].tolist() == ["model", "first", "second", ""]
    assert table["class"].tolist() == ["Net", "Linear", "Linear", ""]
    assert table["parent"].tolist() == [-1, 0, 0, -1]
    assert table["depth"].tolist() == [0, 1, 1, 0]
    assert trained().trace.slices["name"][table["row"][:-1]].tolist() == table["name"].tolist()[:-1]
    assert table["row"].tolist()[-1] == -1
    assert table["calls"].tolist() == [1, 1, 1, 0]


def test_forward_and_backward_are_apart_and_totals_hold_what_is_within() -> None:
    found = by_name(trained())
    assert found["model"]["cpu_self_ns"] == 100 - 30 - 40
    assert found["model"]["cpu_total_ns"] == 100
    assert found["second"]["cpu_self_ns"] == 40
    assert found["second"]["backward_cpu_self_ns"] == found["model"]["backward_cpu_total_ns"] == 60
    assert found["model"]["backward_cpu_self_ns"] == 0
    assert (found["second"]["device_self_ns"], found["model"]["device_total_ns"]) == (50, 50)
    assert found["model"]["backward_device_total_ns"] == 70
    assert found["model"]["device_self_ns"] == 0


def test_work_and_memory_are_those_of_the_ops_within() -> None:
    found = by_name(trained())
    assert [found[name]["flops"] for name in ("model", "first", "second")] == [96, 48, 48]
    assert [found[name]["backward_flops"] for name in ("model", "first", "second")] == [48, 0, 48]
    assert found["second"]["allocated_bytes"] == found["model"]["allocated_total_bytes"] == 64
    assert found["model"]["allocated_bytes"] == 0


def test_a_module_that_several_call_is_in_the_tree_once() -> None:
    record = trace_of(
        module("a", ts=0, dur=20),
        module("shared", ts=5, dur=10),
        module("b", ts=30, dur=20),
        module("shared", ts=35, dur=10),
    )
    table = modules(record)
    assert table["name"].tolist() == ["a", "shared", "b", ""]
    assert table["parent"].tolist() == [-1, 0, -1, -1]
    assert table["calls"].tolist() == [1, 2, 1, 0]
    assert by_name(record)["b"]["cpu_total_ns"] == 20


def test_a_module_that_calls_itself_counts_its_time_once() -> None:
    record = trace_of(module("rec", ts=0, dur=20), module("rec", ts=5, dur=10))
    assert modules(record)["parent"].tolist() == [-1, -1]
    assert by_name(record)["rec"]["cpu_total_ns"] == 20


def test_frames_are_modules_where_none_were_recorded() -> None:
    record = trace_of(
        annotation("ProfilerStep#1", ts=0, dur=100),
        python("nn.Module: Net_0", ts=0, dur=100),
        python("train.py(3): forward", ts=5, dur=90),
        python("nn.Module: Linear_1", ts=10, dur=50),
        op("aten::mm", ts=15, dur=20, **MATRIX),
        memory(64, ts=18),
        op("aten::relu", ts=70, dur=10),
    )
    table = modules(record)
    assert table["name"].tolist() == ["Net_0", "Linear_1", ""]
    assert table["class"].tolist() == ["Net", "Linear", ""]
    columns = ["cpu_self_ns", "cpu_total_ns", "flops", "allocated_bytes"]
    assert table[columns].to_numpy().tolist() == [[50, 100, 48, 0], [50, 50, 48, 64], [0, 0, 0, 0]]
    recorded_first = [python("nn.Module: Net_0", ts=0, dur=100), module("model", ts=1, dur=90)]
    assert modules(trace_of(*recorded_first))["name"].tolist() == ["model", ""]


def assert_agrees(record: Record) -> None:
    """Every module has the selfs of `attribution`, and its own total is at least its parts'."""
    table, parts = modules(record), attribution(record, "module")
    parts = parts.set_index(parts["name"].str.removeprefix(MODULE_FRAME))
    assert set(parts.index) == set(table["name"])
    columns = {
        "cpu_self_ns": "cpu_self_ns",
        "backward_cpu_self_ns": "backward_cpu_ns",
        "device_self_ns": "device_ns",
        "backward_device_self_ns": "backward_device_ns",
        "allocated_bytes": "allocated_bytes",
        "wait_ns": "wait_ns",
    }
    for ours, theirs in columns.items():
        assert (table.set_index("name")[ours] - parts[theirs]).abs().sum() == 0
    both = table["cpu_total_ns"] + table["backward_cpu_total_ns"]
    assert (both.to_numpy() == parts.loc[table["name"], "cpu_total_ns"].to_numpy()).all()
    parent = table["parent"].to_numpy()
    assert (parent < np.arange(len(table))).all()
    assert (table["depth"].to_numpy()[parent >= 0] > 0).all()


def test_it_agrees_with_attribution_on_real_traces(shared_record: Record) -> None:
    table = modules(shared_record)
    if why_empty(table):
        assert (attribution(shared_record, "module")["name"] == "").all()
        return
    assert_agrees(shared_record)
    gpu = shared_record.trace.slices["dur"].to_numpy()[shared_record.trace.index.gpu]
    assert (table["device_self_ns"] + table["backward_device_self_ns"]).sum() == gpu.sum()


def test_windows_add_up_to_the_whole(shared_record: Record) -> None:
    if why_empty(modules(shared_record)):
        return
    trace = shared_record.trace
    middle = trace.start_ns + trace.span_ns // 2
    parts = [
        window(shared_record, t0, t1)
        for t0, t1 in ((trace.start_ns, middle), (middle, trace.end_ns))
    ]
    whole, *halves = (
        modules(part).set_index("name").drop("", errors="ignore")
        for part in (shared_record, *parts)
    )
    for column in ("cpu_self_ns", "cpu_total_ns", "device_total_ns", "backward_device_total_ns"):
        added = halves[0][column].add(halves[1][column], fill_value=0)
        difference = added.sub(whole[column], fill_value=0)
        assert (difference == 0).all(), column


def test_flops_of_a_recorded_model_are_those_of_torchs_counter() -> None:
    """Forward and backward, per module, against ``torch.utils.flop_counter``."""
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    given = torch.randn(2, 3, 8, 8)
    made = recorded(lambda: model(given).sum().backward(), {"model": model}, shapes=True)
    with FlopCounterMode(display=False) as counter:
        model(given).sum().backward()
    found = by_name(made)
    per_module = counter.get_flop_counts()
    for ours, theirs in {"model.0": "Sequential.0", "model.3": "Sequential.3"}.items():
        counted = sum(per_module[theirs].values())
        assert found[ours]["flops"] + found[ours]["backward_flops"] == counted
    assert_agrees(made)


def test_the_panel_shows_the_tree_and_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = modules_panel(trained())
    assert shown is not None
    assert shown.events is not None
    assert shown.rows["label"].tolist() == ["model", "\u2003first", "\u2003second"]
    keys = [column.key for column in shown.columns]
    assert "backward_flops" in keys
    assert "allocated_total_bytes" in keys
    assert shown.events[["group", "start_ns", "end_ns"]].to_numpy().tolist() == [
        [0, 0, 100],
        [1, 10, 40],
        [2, 50, 90],
    ]
    assert modules_panel(trace_of()) is None
    forward = modules_panel(trace_of(module("model", ts=0, dur=100)))
    assert forward is not None
    assert "backward_flops" not in [column.key for column in forward.columns]
    monkeypatch.setattr(panel, "MOST_MODULES", 2)
    fewer = modules_panel(trained())
    assert fewer is not None
    assert fewer.rows["name"].tolist() == ["model", "second"]
    assert "costliest 2 of 3 modules" in " ".join(fewer.notes)
