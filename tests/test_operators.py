"""The op table against torch's own `key_averages()` of the same run, and on hand-made rows."""

from __future__ import annotations

import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd.profiler_util import EventList, FunctionEvent, MemRecordsAcc
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset

from gpuprof_widgets.analyses.columns import TORCH_KEYS, sort_column
from gpuprof_widgets.analyses.operators import SELF_TIMES, operators, self_time_lines
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from tests.traces import (
    annotation,
    copy,
    gpu_annotation,
    kernel,
    memory,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow

# Older torch (2.6 among them) looks an allocation's op up by float microseconds, a quarter of one
# apart, and so misses some; it keeps Python frames out of its events and threads out of its run.
EXACT_MEMORY = "start_ns" in inspect.signature(MemRecordsAcc.in_interval).parameters
needs_frames = pytest.mark.skipif(
    "is_python_function" not in inspect.signature(FunctionEvent).parameters,
    reason="this torch does not tell Python frames from ops",
)
needs_all_threads = pytest.mark.skipif(
    "profile_all_threads" not in (torch._C._profiler._ExperimentalConfig.__init__.__doc__ or ""),
    reason="this torch records the thread that starts it, and those of autograd",
)

RECORDINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "memory": {"profile_memory": True},
    "flops": {"with_flops": True},
    "everything": {"record_shapes": True, "profile_memory": True, "with_flops": True},
    "steps": {"record_shapes": True, "schedule": schedule(wait=0, warmup=1, active=3)},
}


@dataclass(frozen=True)
class Run:
    """One run as torch sums it up and as the project reads it from the exported file."""

    events: EventList
    record: Record


def train(step: Callable[[], None] = lambda: None) -> None:
    """A few steps of a model with convolutions, matmuls of every kind and repeated op names."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    )
    head, lookup = nn.Linear(8 * 8 * 8, 10), nn.Parameter(torch.randn(2, 4, 5))
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters(), lookup])
    data = TensorDataset(torch.randn(12, 3, 16, 16), torch.randint(0, 10, (12,)))
    for images, labels in DataLoader(data, batch_size=4):
        with record_function("forward"):
            loss = nn.functional.cross_entropy(head(model(images)), labels)
        loss = loss + torch.bmm(lookup, lookup.transpose(1, 2)).sum() * torch.ones(()) / 2
        loss = loss + torch.baddbmm(torch.zeros(1), lookup, lookup.mT).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        step()
    kept = [torch.zeros(1000) for _ in range(3)]
    del kept


@contextmanager
def recording(**options: Any) -> Iterator[Any]:
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
        yield profiler


def run_of(folder: Path, **options: Any) -> Run:
    with recording(**options) as profiler:
        train(profiler.step if "schedule" in options else lambda: None)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return Run(profiler.events(), load(folder / "trace.json"))


@pytest.fixture(scope="module", params=RECORDINGS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp(request.param), **RECORDINGS[request.param])


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("sort"), **RECORDINGS["everything"])


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Stacks in torch's events need the verbose flag; those in the file do not."""
    options = {"with_stack": True, "record_shapes": True, "profile_memory": True}
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
    return run_of(tmp_path_factory.mktemp("stacks"), experimental_config=verbose, **options)


def shape_text(shapes: Any) -> str:
    return "" if shapes in ("", None, []) else str(shapes)


def torchs_rows(averages: EventList) -> list[dict[str, Any]]:
    """Torch's table in our columns; its float microseconds rounded to the nanoseconds they were."""
    return [
        {
            "name": row.key,
            "annotation": bool(row.is_user_annotation),
            "input_shapes": shape_text(row.input_shapes),
            "stack": tuple(row.stack),
            "calls": row.count,
            "cpu_total_ns": round(row.cpu_time_total * 1000),
            "cpu_self_ns": round(row.self_cpu_time_total * 1000),
            "cpu_average_ns": pytest.approx(row.cpu_time * 1000, abs=1e-3),
            "device_total_ns": round(row.device_time_total * 1000),
            "device_self_ns": round(row.self_device_time_total * 1000),
            "cpu_memory_bytes": row.cpu_memory_usage,
            "cpu_self_memory_bytes": row.self_cpu_memory_usage,
            "device_memory_bytes": row.device_memory_usage,
            "device_self_memory_bytes": row.self_device_memory_usage,
            "flops": row.flops or 0,
        }
        for row in averages
    ]


def our_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """What is unknown as torch has it: 0."""
    quantities = {name: table[name].fillna(0) for name in (*MEMORY, "flops")}
    table = table.assign(**quantities, annotation=table["category"] == "user_annotation")
    for column, absent in (("input_shapes", ""), ("stack", ())):
        if column not in table:
            table[column] = pd.Series([absent] * len(table), dtype=object)
    return table.to_dict("records")


def by_row(rows: list[dict[str, Any]], without: tuple[str, ...] = ()) -> dict[Any, dict[str, Any]]:
    """The rows by what tells them apart, ``without`` some columns and names; no key twice."""
    found = {}
    for row in rows:
        if row["name"] in without:
            continue
        key = (row["name"], row["annotation"], row["input_shapes"], row["stack"])
        assert key not in found
        found[key] = {name: row[name] for name in COMPARED if name not in without}
    return found


LOOSE = "[memory]"  # torch's row of allocations outside of any op
MEMORY = (
    *("cpu_memory_bytes", "cpu_self_memory_bytes"),
    *("device_memory_bytes", "device_self_memory_bytes"),
)
COMPARED = (
    *("calls", "cpu_total_ns", "cpu_self_ns", "cpu_average_ns"),
    *("device_total_ns", "device_self_ns", *MEMORY, "flops"),
)


def assert_same_rows(ours: pd.DataFrame, torchs: EventList, without: tuple[str, ...] = ()) -> None:
    """Row by row; FLOPs only where torch was asked for them (we tell them from any shapes)."""
    expected = torchs_rows(torchs)
    if not any(row["flops"] for row in expected):
        without = (*without, "flops")
    if not EXACT_MEMORY:
        without = (*without, *MEMORY, LOOSE)
    got = by_row(our_rows(ours), without)
    wanted = by_row(expected, without)
    assert got.keys() == wanted.keys()
    assert got == wanted


def test_table_equals_key_averages(run: Run) -> None:
    assert_same_rows(operators(run.record), run.events.key_averages())


def test_table_by_shape_equals_key_averages_by_shape(run: Run) -> None:
    expected = run.events.key_averages(group_by_input_shapes=True)
    assert_same_rows(operators(run.record, by_shape=True), expected)


PRINTED = r"^Self (\w+) time total: ([\d.]+)(s|ms|us)$"
UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3}


def printed_totals(averages: EventList) -> dict[str, Any]:
    """Ns of each "Self ... time total" below torch's own table, as exact as it is printed."""
    lines = re.findall(PRINTED, averages.table(row_limit=-1), re.MULTILINE)
    return {
        side: pytest.approx(float(number) * UNITS_NS[unit], abs=0.0006 * UNITS_NS[unit])
        for side, number, unit in lines
    }


def test_totals_and_cpu_total_percent_are_those_of_torchs_table(run: Run) -> None:
    table = operators(run.record)
    averages = run.events.key_averages()
    assert table.attrs[SELF_TIMES] == printed_totals(averages)
    wanted = {
        (row.key, bool(row.is_user_annotation)): float(str(row.total_cpu_percent).rstrip("%"))
        for row in averages
    }
    for row in our_rows(table):
        percent = wanted[row["name"], row["annotation"]]
        assert 100 * row["cpu_total_share"] == pytest.approx(percent, abs=0.0051)


def test_totals_stay_those_of_all_rows_where_the_first_are_asked_for(run: Run) -> None:
    whole = operators(run.record)
    assert operators(run.record, top=1).attrs == whole.attrs
    assert whole.attrs[SELF_TIMES] == {"CPU": whole["cpu_self_ns"].sum()}


@needs_all_threads
def test_table_of_several_threads_equals_key_averages(tmp_path: Path) -> None:
    def multiply() -> None:
        for _ in range(20):
            torch.randn(50, 50).mm(torch.randn(50, 50)).sum()

    everyone = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with recording(experimental_config=everyone, record_shapes=True) as profiler:
        threads = [threading.Thread(target=multiply) for _ in range(3)]
        for thread in threads:
            thread.start()
        with record_function("main"):
            multiply()
        for thread in threads:
            thread.join()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    record = load(tmp_path / "trace.json")
    assert (record.trace.tracks["kind"] == "cpu").sum() == 4
    assert_same_rows(operators(record), profiler.events().key_averages())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_times_equal_those_of_key_averages(tmp_path: Path) -> None:
    """Ops and kernels; runtime calls and GPU-side annotations are counted otherwise there.

    Torch also counts kernels a second time for what CUDA and the recording did amid their launch.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        left = torch.randn(500, 500, device="cuda", requires_grad=True)
        for _ in range(5):
            (left @ left).relu().sum().backward()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    record = load(tmp_path / "trace.json")
    table = operators(record)
    assert table.attrs[SELF_TIMES]["GPU"] == printed_totals(profiler.key_averages())["CUDA"]
    ours = table[table["category"].isin(["cpu_op", "kernel", "gpu_memcpy", "gpu_memset"])]
    wanted = {row["name"]: row for row in torchs_rows(profiler.key_averages())}
    amid = set(record.trace.slices.query("category == 'overhead'")["name"])
    twice = sum(wanted[name]["device_self_ns"] for name in amid)
    assert (ours["device_self_ns"] > 0).any()
    for row in ours.to_dict("records"):
        theirs = wanted[row["name"]]
        for column in ("calls", "cpu_total_ns", "device_self_ns"):
            assert row[column] == theirs[column]
        assert 0 <= theirs["device_total_ns"] - row["device_total_ns"] <= twice


def without_python_rows(events: EventList) -> EventList:
    """Torch's own table of the same events, less those of Python functions."""
    kept = EventList([event for event in events if not event.is_python_function], use_device=None)
    for event in kept:
        event.cpu_children, event.cpu_parent = [], None
    kept._build_tree()
    return kept


def with_stacks_of_the_last_forward_op(events: EventList) -> EventList:
    """As torch, but backward takes the stack of the last forward op with its sequence number."""
    nodes = {}
    forward: dict[tuple[int, int], list[str]] = {}
    for event in events:
        above = event
        while above is not None and above.scope != 1:
            above = above.cpu_parent
        if above is not None:
            nodes[id(event)] = above
        elif event.sequence_nr >= 0 and not event.fwd_thread:
            forward[event.sequence_nr, event.thread] = event.stack
    for event in events:
        if id(event) in nodes:
            node = nodes[id(event)]
            event.stack = forward.get((node.sequence_nr, node.fwd_thread), [])
    return events


def assert_same_but_loose_memory(ours: pd.DataFrame, torchs: EventList) -> None:
    """Python frames that hold an allocation hide it from torch's row of loose allocations."""
    kept = EventList([row for row in torchs if row.key != LOOSE])
    assert_same_rows(ours[ours["name"] != LOOSE], kept)


@needs_frames
def test_with_stacks_the_ops_are_the_same_without_rows_for_python_functions(stacked: Run) -> None:
    events = without_python_rows(stacked.events)
    assert any(event.is_python_function for event in stacked.events)
    assert_same_but_loose_memory(operators(stacked.record), events.key_averages())
    expected = events.key_averages(group_by_input_shapes=True)
    assert_same_but_loose_memory(operators(stacked.record, by_shape=True), expected)
    # A share is of the rows that are there: Python functions have a table of their own.
    totals = operators(stacked.record).attrs[SELF_TIMES]
    assert totals == printed_totals(without_python_rows(stacked.events).key_averages())
    assert totals != printed_totals(stacked.events.key_averages())


@needs_frames
@pytest.mark.parametrize("depth", [1, 2, 3, 5, 100])
def test_table_by_stack_equals_key_averages_by_stack(stacked: Run, depth: int) -> None:
    events = with_stacks_of_the_last_forward_op(without_python_rows(stacked.events))
    ours = operators(stacked.record, stack_depth=depth)
    assert_same_but_loose_memory(ours, events.key_averages(group_by_stack_n=depth))


def test_backward_has_the_stack_of_the_op_that_made_its_node() -> None:
    """Torch takes the first op that saw the number, which need not have made the node."""
    engine = "autograd::engine::evaluate_function: "
    record = trace_of(
        python("load", ts=0, dur=10),
        op("aten::random_", ts=1, dur=2, sequence=0, forward_thread=0),
        python("model", ts=20, dur=10),
        op("aten::mul", ts=21, dur=2, sequence=0, forward_thread=0),
        python("backward", ts=39, dur=20),
        op(engine + "MulBackward0", ts=40, dur=9, sequence=0, forward_thread=1),
        op("MulBackward0", ts=41, dur=7, sequence=0, forward_thread=1),
        op("aten::neg", ts=42, dur=3),
        op(engine + "torch::autograd::AccumulateGrad", ts=50, dur=6),
        op("torch::autograd::AccumulateGrad", ts=51, dur=3),
    )
    stack = operators(record, stack_depth=2).set_index("name")["stack"]
    assert stack["aten::random_"] == ("load",)
    assert stack[engine + "MulBackward0"] == ("backward",)
    assert stack["MulBackward0"] == stack["aten::neg"] == ("model",)
    assert stack["torch::autograd::AccumulateGrad"] == ()


def row(table: pd.DataFrame, name: str) -> Any:
    return table.set_index("name").loc[name]


def test_gpu_time_belongs_to_the_op_that_launched_it_and_to_all_around_it() -> None:
    record = trace_of(
        annotation("step", ts=0, dur=50),
        op("aten::linear", ts=0, dur=20),
        op("aten::mm", ts=1, dur=9),
        runtime("cudaLaunchKernel", ts=4, dur=3),
        kernel("gemm", ts=30, dur=15, launched_by=3),
        runtime("cudaLaunchKernel", ts=12, dur=2),
        kernel("bias", ts=45, dur=2, launched_by=5),
        kernel("stray", ts=60, dur=4),
    )
    table = operators(record)
    device = table.set_index("name")[["device_total_ns", "device_self_ns"]]
    assert device.loc["step"].tolist() == [17, 0]
    assert device.loc["aten::linear"].tolist() == [17, 2]
    assert device.loc["aten::mm"].tolist() == [15, 15]
    assert device.loc["gemm"].tolist() == [15, 15]
    assert device.loc["stray"].tolist() == [4, 4]
    assert device.loc["cudaLaunchKernel"].tolist() == [0, 0]
    assert row(table, "gemm")["device_self_share"] == 15 / 21
    assert row(table, "cudaLaunchKernel")["calls"] == 2
    assert row(table, "step")["cpu_total_share"] == 1
    assert row(table, "aten::linear")["cpu_total_share"] == 20 / 50
    assert row(table, "aten::mm")["cpu_self_ns"] == 6


def test_totals_of_a_gpu_are_of_its_kernels_and_copies() -> None:
    """Kernels side by side both count, annotations on the GPU do not; nor do ops once more."""
    record = trace_of(
        annotation("step", ts=0, dur=50_000),
        op("aten::mm", ts=1_000, dur=9_000),
        runtime("cudaLaunchKernel", ts=4_000, dur=3_000),
        kernel("gemm", ts=30_000, dur=15_000, launched_by=2),
        kernel("bias", ts=40_000, dur=2_500, stream=20),
        copy(ts=60_000, dur=4_001, bytes=8),
        gpu_annotation("step", ts=30_000, dur=20_000),
    )
    table = operators(record)
    assert row(table, "step")[["calls", "device_self_ns"]].tolist() == [1, 0]
    assert table.attrs[SELF_TIMES] == {"CPU": 50_000, "GPU": 21_501}
    lines = ["Self CPU time total: 50.0 µs", "Self GPU time total: 21.5 µs"]
    assert self_time_lines(table) == lines


def test_a_range_without_gpu_work_has_a_total_of_none_and_a_run_without_a_gpu_has_no_total() -> (
    None
):
    record = trace_of(
        op("aten::add", ts=0, dur=10), kernel("gemm", ts=50, dur=5), op("aten::mm", ts=90, dur=5)
    )
    assert operators(window(record, 0, 20)).attrs[SELF_TIMES] == {"CPU": 10, "GPU": 0}
    only_gpu = trace_of(kernel("gemm", ts=50, dur=5))
    assert operators(only_gpu).attrs[SELF_TIMES] == {"GPU": 5}
    assert self_time_lines(operators(trace_of())) == []


def test_an_op_that_is_its_parents_only_child_and_has_its_name_counts_once() -> None:
    record = trace_of(
        op("aten::sum", ts=0, dur=20),
        op("aten::sum", ts=2, dur=15),
        op("aten::fill_", ts=3, dur=4),
        runtime("cudaLaunchKernel", ts=10, dur=2),
        kernel("reduce", ts=20, dur=7, launched_by=3),
        memory(64, ts=5),
    )
    table = operators(record)
    expected = {"calls": 1, "cpu_total_ns": 20, "cpu_self_ns": 14, "device_total_ns": 7}
    expected |= {"device_self_ns": 7, "cpu_memory_bytes": 64}
    assert row(table, "aten::sum")[list(expected)].to_dict() == expected


def test_an_op_inside_one_of_its_name_counts_twice_where_it_has_siblings() -> None:
    record = trace_of(
        op("aten::cat", ts=0, dur=20), op("aten::cat", ts=2, dur=5), op("aten::add", ts=8, dur=5)
    )
    assert row(operators(record), "aten::cat")[["calls", "cpu_total_ns"]].tolist() == [2, 25]


def test_what_was_not_recorded_is_unknown_and_not_zero() -> None:
    rows = [op("aten::mm", ts=0, dur=9, shapes=[[2, 3], [3, 4]]), op("aten::relu", ts=10, dur=5)]
    table = operators(trace_of(*rows)).set_index("name")
    assert table[list(MEMORY)].isna().all(axis=None)
    assert table["flops"].to_dict() == {"aten::mm": 48, "aten::relu": None}
    table = operators(trace_of(*rows, memory(64, ts=2))).set_index("name")
    assert table["cpu_memory_bytes"].to_dict() == {"aten::mm": 64, "aten::relu": 0}


def test_memory_goes_to_the_op_on_the_same_thread_only() -> None:
    """Torch also gives it to what other threads were running at that moment."""
    record = trace_of(
        annotation("main waits", ts=0, dur=100),
        op("aten::mm", ts=10, dur=20, thread=2),
        memory(512, ts=15, thread=2),
        memory(-512, ts=50, thread=2),
        memory(2048, ts=60, device=0),
    )
    memories = operators(record).set_index("name")[
        ["cpu_memory_bytes", "cpu_self_memory_bytes", "device_memory_bytes"]
    ]
    assert memories.loc["aten::mm"].tolist() == [512, 512, 0]
    assert memories.loc["main waits"].tolist() == [0, 0, 2048]
    assert memories.loc["[memory]"].tolist() == [-512, -512, 0]


TORCHS_WORDS = {
    key.replace("device", side) for key in TORCH_KEYS for side in ("device", "cuda", "xpu")
}


@pytest.mark.parametrize("key", sorted(TORCHS_WORDS))
def test_every_key_of_torch_sorts_as_it_does_there(key: str, everything: Run) -> None:
    if "memory" in key and not EXACT_MEMORY:
        pytest.skip("this torch rounds memory's times")
    attribute = re.sub("cuda|xpu|privateuse1", "device", key)
    averages = {(r.key, bool(r.is_user_annotation)): r for r in everything.events.key_averages()}
    table = operators(everything.record, sort=key)
    if "device" in attribute and "time" in attribute:
        attribute = attribute.replace("device", "cpu")  # without a GPU these sort by CPU time
    keys = zip(table["name"], table["category"] == "user_annotation", strict=True)
    # Torch's float microseconds differ in their last digits where the nanoseconds are equal.
    values = [round(getattr(averages[each], attribute), 5) for each in keys]
    assert values == sorted(values, reverse=True)


def test_an_unknown_key_is_an_error_that_names_the_nearest_one() -> None:
    with pytest.raises(OptionError, match="Did you mean 'self_cpu_time_total'"):
        sort_column("self_cpu_total_time")
    with pytest.raises(OptionError, match="device_self"):
        operators(trace_of(op("aten::mm", ts=0, dur=9)), sort="nonsense")


def test_without_gpu_time_the_default_sorts_by_cpu_self_time() -> None:
    record = trace_of(
        op("aten::small", ts=0, dur=2), op("aten::large", ts=10, dur=9), op("aten::x", ts=30, dur=4)
    )
    assert operators(record)["name"].tolist() == ["aten::large", "aten::x", "aten::small"]
    assert operators(record, top=2)["name"].tolist() == ["aten::large", "aten::x"]


# Hand-made traces at random.


@dataclass(frozen=True)
class Slow:
    """One op of a random tree: its place, its name, and what it launched."""

    name: str
    start: int
    end: int
    parent: int
    launched: int


@st.composite
def op_trees(draw: st.DrawFn) -> list[Slow]:
    """Nested ops on one thread; each may launch a kernel."""
    ops: list[Slow] = []
    clock = 0

    def grow(parent: int, depth: int) -> None:
        nonlocal clock
        for _ in range(draw(st.integers(0, 3 if depth < 4 else 0))):
            clock += draw(st.integers(0, 3))
            start, index = clock, len(ops)
            name, launched = draw(st.sampled_from("abc")), draw(st.integers(0, 9))
            ops.append(Slow(name, start, start, parent, launched))
            grow(index, depth + 1)
            clock += draw(st.integers(1, 5))
            ops[index] = Slow(name, start, clock, parent, launched)

    grow(-1, 0)
    return ops


def record_of(ops: list[Slow]) -> Record:
    rows: list[Any] = [op(each.name, ts=each.start, dur=each.end - each.start) for each in ops]
    clock = 1000
    for index, each in enumerate(ops):
        if each.launched:
            rows.append(kernel("kernel", ts=clock, dur=each.launched, launched_by=index))
            clock += each.launched
    return trace_of(*rows)


def assert_derived(table: pd.DataFrame) -> None:
    """Averages are totals by calls, shares are parts of the self time of all rows."""
    totals = table.attrs.get(SELF_TIMES, {})
    for side in ("cpu", "device"):
        whole = max(totals.get("CPU" if side == "cpu" else "GPU", 0), 1)
        average = table[f"{side}_total_ns"] / table["calls"].clip(lower=1)
        assert (table[f"{side}_average_ns"] == average).all()
        assert (table[f"{side}_self_share"] == table[f"{side}_self_ns"] / whole).all()
    assert (table["cpu_total_share"] == table["cpu_total_ns"] / max(totals.get("CPU", 0), 1)).all()


@given(op_trees(), st.lists(st.integers(0, 60), max_size=3))
def test_windows_that_tile_a_run_add_up_to_it(ops: list[Slow], cuts: list[int]) -> None:
    record = record_of(ops)
    end = record.trace.end_ns
    bounds = [0, *sorted(cut for cut in cuts if cut < end), end]
    parts = [operators(window(record, *pair)) for pair in itertools.pairwise(bounds)]
    for table in parts:
        assert_derived(table)
    sums = pd.concat(parts).groupby("name")[["cpu_self_ns", "device_self_ns"]].sum()
    whole = operators(record).set_index("name")[["cpu_self_ns", "device_self_ns"]]
    whole, sums = whole.sort_index(), sums.reindex(sorted(whole.index), fill_value=0)
    assert sums.to_dict() == whole.to_dict()
    totals = [part.attrs.get(SELF_TIMES, {}) for part in parts]
    for side, ns in operators(record).attrs.get(SELF_TIMES, {}).items():
        assert sum(total.get(side, 0) for total in totals) == ns
