"""The page's numbers are Python's: the same traces and windows, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser

from gpuprof_widgets.analyses.call_tree import call_tree
from gpuprof_widgets.analyses.columns import Unit
from gpuprof_widgets.analyses.gpu_work import device_busy
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.analyses.operators import SELF_TIMES, operators
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.exceptions import printable_values
from gpuprof_widgets.trace.links import self_times
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.pstats import ADDRESS
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.table import cell_text
from tests.browser.engine import Engine, start_engine
from tests.records import records
from tests.traces import (
    annotation,
    calls_of,
    cell_line,
    copy,
    gpu_annotation,
    kernel,
    memory,
    op,
    python,
    runtime,
    trace_of,
)

Numbers = dict[tuple[str, ...], tuple[float, ...]]
Bounds = tuple[int, int]

STEP = trace_of(
    annotation("ProfilerStep#1", ts=0, dur=50),
    python("train.py(3): step", ts=1, dur=45),
    python("nn.Module: Linear_0", ts=2, dur=30),
    op("aten::linear", ts=3, dur=25, shapes=[[2, 3], [3]]),
    op("aten::addmm", ts=4, dur=20, shapes=[[2, 3]]),
    op("aten::addmm", ts=5, dur=18, shapes=[[2, 3]]),
    memory(512, ts=6, allocated=512),
    runtime("cudaLaunchKernel", ts=8, dur=4),
    kernel("gemm", ts=20, dur=15, launched_by=7),
    kernel("relu", ts=30, dur=10, launched_by=7, stream=20),
    copy(ts=41, dur=9, bytes=64, launched_by=3),
    kernel("unowned", ts=60, dur=7),
    annotation("outlives", ts=40, dur=12),
    gpu_annotation("ProfilerStep#1", ts=20, dur=30),
    op("aten::is_leaf", ts=33, dur=2),
    op("aten::add", ts=2, dur=9, thread=7),
    op("aten::mm", ts=42, dur=11, shapes=[[2, 3], [3, 5]]),
    memory(2048, ts=7, device=0),
    memory(-512, ts=44),
    memory(-1024, ts=47, device=0),
    memory(64, ts=5, thread=7),
    memory(8, ts=66),
    memory(16, ts=66, device=0),
    cell_line(2, "for x in data:", ts=0, dur=64),
    cell_line(3, "y = model(x)", ts=2, dur=30),
    cell_line(4, "loss.backward()", ts=43, dur=20),
    op("encoder.0", ts=3, dur=26, category="module", root="model"),
    op("aten::matmul", ts=11, dur=6, sequence=9),
    op("autograd::engine::evaluate_function: MmBackward0", ts=46, dur=15, thread=9),
    op("encoder.0", ts=47, dur=12, thread=9, category="module_backward", root="model"),
    op("MmBackward0", ts=48, dur=10, thread=9, sequence=9, forward_thread=1),
    runtime("cudaMemcpyAsync", ts=49, dur=8, thread=9),
    copy(ts=50, dur=6, bytes=8, launched_by=31),
    runtime("cudaStreamSynchronize", ts=20, dur=11),
    runtime("cudaLaunchKernel", ts=52, dur=2, thread=9),
    kernel("gemm_backward", ts=58, dur=9, launched_by=34),
    cell_line(3, "y = model(x)", ts=65, dur=1, resumed=1),
)
"""What the definitions are about: repeats, crossings, owners on the other side of an edge."""

ENDS = st.lists(st.integers(-2, 75), min_size=2, max_size=2).map(sorted).map(tuple)


@pytest.fixture(scope="module")
def engine(browser: Browser) -> Iterator[Engine]:
    engine = start_engine(browser)
    yield engine
    engine.page.close()


@given(records(), ENDS)
@example(STEP, (0, 67))
@example(STEP, (5, 22))
@example(STEP, (22, 42))
@example(STEP, (42, 67))
def test_every_table_of_a_window_is_pythons(engine: Engine, record: Record, ends: Bounds) -> None:
    engine.load(record)
    assert_same_tables(engine, record, ends)


def test_every_table_of_a_random_trace_is_pythons(engine: Engine) -> None:
    rng = np.random.default_rng(20)
    for _ in range(5):
        record = crowded(rng)
        engine.load(record)
        for ends in (0, 2000), (300, 1100), (1100, 1101), (1999, 2000):
            assert_same_tables(engine, record, ends)


def test_every_table_of_a_real_trace_is_pythons(engine: Engine, shared_record: Record) -> None:
    engine.load(shared_record)
    for ends in busy_windows(shared_record):
        assert_same_tables(engine, shared_record, ends)


def test_a_record_of_a_window_shows_the_window(engine: Engine) -> None:
    for ends in (0, 67), (5, 22), (22, 42), (42, 67):
        part = window(STEP, *ends)
        engine.load(part)
        assert_same_tables(engine, part, ends)


def test_the_page_of_merged_events_keeps_the_numbers(engine: Engine) -> None:
    rng = np.random.default_rng(4)
    steps = []
    for i, length in enumerate(1_000 * rng.integers(20, 90, 3_000)):
        ts = 100_000 * i
        steps += [
            op(f"aten::op{rng.integers(0, 9)}", ts=ts, dur=int(length)),
            runtime("cudaLaunchKernel", ts=ts + 2_000, dur=5_000),
            kernel("gemm", ts=ts + 9_000, dur=int(length), launched_by=4 * i + 1),
            memory(int(length) - 50_000, ts=ts + 3_000, device=(None, 0)[i % 2]),
        ]
    record = trace_of(*steps)
    engine.load(record, budget_bytes=8_000)
    assert engine.run("() => store.rows") < len(record.trace) / 2
    bounds = (0, record.trace.end_ns)
    assert operators_of_page(engine, bounds, by_shape=False) == operators_of(record, by_shape=False)
    assert tree_of_page(engine, bounds, "ops") == tree_of(record, "ops")


@given(records())
@example(STEP)
def test_the_page_decodes_what_was_recorded(engine: Engine, record: Record) -> None:
    engine.load(record)
    assert_same_rows(engine, record)


def test_the_page_decodes_a_real_trace(engine: Engine, shared_record: Record) -> None:
    engine.load(shared_record)
    assert_same_rows(engine, shared_record)


def test_cprofiles_tree_is_pythons_estimate(engine: Engine) -> None:
    edges = (None, "main", 1, 10), ("main", "load", 4, 300), ("main", "step", 4, 90)
    record = trace_of(op("aten::mm", ts=0, dur=1), calls=calls_of(*edges, ("step", "mm", 8, 50)))
    engine.load(record)
    assert tree_of_page(engine, (0, 1), "cprofile") == tree_of(record, "cprofile")


@given(records(), ENDS)
@example(STEP, (0, 67))
@example(STEP, (5, 22))
def test_pythons_functions_have_their_self_times_of_any_range(
    engine: Engine, record: Record, ends: Bounds
) -> None:
    assert_same_functions(engine, record, ends)


def test_pythons_functions_of_very_many_calls_have_theirs_too(engine: Engine) -> None:
    """As many as the page would get events of, were it not to find them by itself."""
    calls = [python(f"a.py({n % 7}): f", ts=3 * n + 1, dur=2) for n in range(30_000)]
    record = trace_of(python("a.py(90): main", ts=0, dur=90_000), *calls)
    for ends in (0, 90_000), (40_000, 40_011):
        assert_same_functions(engine, record, ends)


def assert_same_functions(engine: Engine, record: Record, ends: Bounds) -> None:
    engine.load(record)
    part = window(record, *ends)
    table = python_time(part)
    labels = printable_values(list(function_labels(table)))
    expected = zip(labels, table["self_ns"].tolist(), strict=True)
    bounds = (part.trace.start_ns, part.trace.end_ns)
    page = engine.run(
        """([start, end]) => {
            const panel = engine.panel(store, "python_time")
            if (panel == null) return []
            const values = panel.values({start, end})
            const self = values[panel.at("self_ns")]
            const names = values[panel.at("label")]  // not there where no function has a name
            return self.map((ns, row) => [names?.[row] ?? "", ns])
        }""",
        bounds,
    )
    assert sorted((name, ns) for name, ns in page if ns) == sorted(
        (name, ns) for name, ns in expected if ns
    )


NUMBERS = st.one_of(
    st.integers(-(10**13), 10**13),
    st.integers(0, 10**6).map(lambda value: value / 8),
    st.floats(0, 1e14),
)


SIZES: dict[Unit, float] = {"share": 1e-13, "ratio": 1e-11, "number": 1e-8}
"""What the largest numbers are multiplied by where they would make no sense in a unit."""


@given(st.lists(NUMBERS, min_size=50, max_size=200))
@example([0, 999, 1000, 999.4, 999.6, 999_500, 1125, 2500, 1_000_000_000, 512.5, 0.125, -1500])
@settings(max_examples=20)
def test_cells_are_written_as_in_python(engine: Engine, numbers: list[float]) -> None:
    for unit in set(get_args(Unit)) - {"text"}:
        values = [SIZES.get(unit, 1) * number for number in numbers]
        if unit in ("count", "moment", "address"):
            values = [abs(round(value)) for value in values]
        # Of what is zero the page has a dash, and of what is next to zero no exponent.
        values = [value for value in values if abs(value) > 1e-3]
        write = (
            "([values, unit]) => values.map((value) => engine.plain(engine.cell_text(value, unit)))"
        )
        assert engine.run(write, [values, unit]) == [cell_text(v, unit) for v in values], unit


def assert_same_tables(engine: Engine, record: Record, ends: Bounds) -> None:
    part = window(record, *ends)
    bounds = (part.trace.start_ns, part.trace.end_ns)
    for by_shape in False, True:
        expected = operators_of(part, by_shape=by_shape)
        assert operators_of_page(engine, bounds, by_shape=by_shape) == expected
    assert_same_totals(engine, part)
    assert lines_of_page(engine, bounds) == lines_of(part, among=record)
    for source in "ops", "merged":
        page, expected = tree_of_page(engine, bounds, source), tree_of(part, source)
        # The page keeps the level of threads that the whole trace has.
        assert page == expected or below_the_thread(page) == expected
        wide, expected = widths_of_page(engine, bounds, source), widths_of(part, source)
        assert wide == expected or below_the_thread(wide) == expected
        assert functions_of_page(engine, bounds, source) == functions_of(part, source)
    # The page keeps the GPUs that the whole trace has.
    unused = (0, part.trace.span_ns)
    devices = dict.fromkeys(devices_of_page(engine, bounds), unused) | devices_of(part)
    assert devices_of_page(engine, bounds) == devices


def functions_of_page(engine: Engine, bounds: Bounds, source: str) -> Numbers:
    """Calls and self times of each function in the flame graph that is upside down."""
    nodes = engine.run(
        """([start, end, source]) => {
            const tree = engine.flame(store, {start, end}, source)
            return engine.reshaped(store, tree, {...engine.PLAIN, bottom_up: true})
                .filter(({depth}) => depth == 1)
                .map((node) => [node.name, node.category, node.calls, node.total, node.device])
        }""",
        [*bounds, source],
    )
    return keyed(((*node[:2],) for node in nodes), (node[2:] for node in nodes))


def functions_of(record: Record, source: str) -> Numbers:
    """The same from the call tree, in which a function has a row for each of its paths."""
    tree = call_tree(record, source=source)
    called = tree[(tree["parent"] >= 0) & (tree["category"] != "thread")]
    name = called["name"].str.replace(ADDRESS, "", regex=True)
    values = ["calls", "self_ns", "device_self_ns"]
    sums = called[values].groupby([name, called["category"].astype(str)]).sum()
    return keyed(iter(sums.index), sums.itertuples(index=False))


def operators_of(record: Record, *, by_shape: bool) -> Numbers:
    """Numbers of the op table by what identifies a row, without rows that say nothing."""
    table = operators(record, by_shape=by_shape)
    keys = ["name", "category", "input_shapes"][: 3 if by_shape else 2]
    values = ["calls", "cpu_total_ns", "cpu_self_ns", "device_total_ns", "device_self_ns"]
    values += ["cpu_self_memory_bytes", "device_self_memory_bytes", "flops"]
    told = table[values].fillna(0)  # the page has 0 and shows a dash
    return keyed(table[keys].itertuples(index=False), told.itertuples(index=False))


def operators_of_page(engine: Engine, bounds: Bounds, *, by_shape: bool) -> Numbers:
    rows = engine.run(
        """([start, end, grouping]) => engine.op_table(store, {start, end}, grouping).map((row) => [
            grouping == "name" ? [row.name, row.category]
                : [row.name, row.category, store.header.shapes[row.shape] ?? ""],
            [row.calls, row.cpu_total, row.cpu_self, row.device_total, row.device_self,
                row.cpu_self_memory, row.device_self_memory, row.flops]])""",
        [*bounds, "name_shape" if by_shape else "name"],
    )
    assert len({tuple(key) for key, _ in rows}) == len(rows)
    return keyed((key for key, _ in rows), (values for _, values in rows))


def assert_same_totals(engine: Engine, part: Record) -> None:
    """What stands below the op table, of which its shares are."""
    page = engine.run(
        """([start, end]) => engine.self_times(store,
            engine.op_table(store, {start, end}, "name"))""",
        [part.trace.start_ns, part.trace.end_ns],
    )
    expected = operators(part).attrs.get(SELF_TIMES, {})
    assert (page["cpu"], page["gpu"]) == (expected.get("CPU"), expected.get("GPU"))


LINE_VALUES = {
    "calls": "calls",
    "wall": "wall_ns",
    "self": "self_ns",
    "cpu_self": "cpu_self_ns",
    "device": "device_ns",
    "backward_cpu": "backward_cpu_ns",
    "backward_device": "backward_device_ns",
    "wait": "wait_ns",
    "allocated": "allocated_bytes",
    "freed": "freed_bytes",
}
"""The numbers of a line as the page and as Python call them."""


def lines_of(record: Record, *, among: Record) -> Numbers:
    """Numbers of every line of the whole record: those that are not in a window are zero."""
    none = dict.fromkeys(((cell, line) for cell, line in line_keys(among)), (0,) * len(LINE_VALUES))
    table = lines(record).set_index(["cell", "line"])[list(LINE_VALUES.values())]
    return none | dict(zip(table.index, map(tuple, table.to_numpy().tolist()), strict=True))


def line_keys(record: Record) -> list[tuple[str, int]]:
    return list(lines(record)[["cell", "line"]].itertuples(index=False, name=None))


def lines_of_page(engine: Engine, bounds: Bounds) -> Numbers:
    rows = engine.run(
        """([start, end, values]) => engine.line_rows(store, {start, end}).map((row) => [
            store.header.lines.cells[row.cell].name, row.line, ...values.map((key) => row[key]),
        ])""",
        [*bounds, list(LINE_VALUES)],
    )
    return {(cell, line): tuple(values) for cell, line, *values in rows}


def keyed(keys: Any, values: Any) -> Numbers:
    shown = (tuple(map(printable_values, key)) for key in keys)  # a page has no control codes
    table = zip(shown, map(tuple, values), strict=True)
    return {key: numbers for key, numbers in table if any(numbers)}


def tree_of(record: Record, source: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Numbers of the call tree by path."""
    tree = call_tree(record, source=source)
    return by_path(tree[[*PATH, *TREE_VALUES]].itertuples(index=False))


PATH = ["parent", "name", "category"]
TREE_VALUES = ["calls", "total_ns", "self_ns", "device_ns", "device_self_ns"]


def widths_of(record: Record, source: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Numbers of the paths that caused GPU time."""
    tree = call_tree(record, source=source, time="device")
    return by_path(tree[[*PATH, *TREE_VALUES]].itertuples(index=False))


def widths_of_page(engine: Engine, bounds: Bounds, source: str) -> dict[tuple[Any, ...], Any]:
    """The same of what has a width by GPU time, which is its share of the whole."""
    nodes = engine.run(
        """([start, end, source]) => {
            const nodes = engine.laid_out(engine.flame(store, {start, end}, source), "device")
            const whole = nodes[0].device || 1
            const off = nodes.slice(1).filter(
                ({x0, x1, device}) => Math.abs((x1 - x0)*whole - device) > 1e-6*whole)
            if (off.length > 0) throw new Error(`${off[0].name} is not as wide as its GPU time`)
            const number = new Map()
            const shown = nodes.filter(({id, x0, x1}) => id == 0 || x1 > x0)
            shown.forEach(({id}, i) => number.set(id, i))
            return shown.map((node) => [
                number.get(node.parent) ?? -1, node.name, node.category,
                node.calls, node.total, node.self, node.device, node.device_self,
            ])
        }""",
        [*bounds, source],
    )
    return by_path(nodes)


def tree_of_page(engine: Engine, bounds: Bounds, source: str) -> dict[tuple[Any, ...], Any]:
    nodes = engine.run(
        """([start, end, source]) => engine.flame(store, {start, end}, source).map((node) => [
            node.parent, node.name, node.category,
            node.calls, node.total, node.self, node.device, node.device_self,
        ])""",
        [*bounds, source],
    )
    return by_path(nodes)


def by_path(nodes: Any) -> dict[tuple[Any, ...], tuple[int, ...]]:
    paths: list[tuple[Any, ...]] = []
    numbers = {}
    for parent, name, category, *values in nodes:
        shown = printable_values(name)
        paths.append((*paths[parent], (shown, category)) if parent >= 0 else ())
        numbers[paths[-1]] = tuple(values)
    assert len(numbers) == len(paths)
    return numbers


def below_the_thread(tree: dict[tuple[Any, ...], Any]) -> dict[tuple[Any, ...], Any]:
    """A tree of one thread without the level of threads; the root has all GPU time."""
    beside = {path: tree[path] for path in tree if path and path[0][1] == "unlaunched"}
    threads = [path for path in tree if len(path) == 1 and path not in beside]
    assert len(threads) <= 1
    below = {path[1:]: tree[path] for path in tree if path[:1] in threads}
    return below | beside | {(): tree[()]}


def devices_of(record: Record) -> dict[int, tuple[int, int]]:
    table = device_busy(record)[["device", "busy_ns", "idle_ns"]]
    return {device: (busy, idle) for device, busy, idle in table.itertuples(index=False)}


def devices_of_page(engine: Engine, bounds: Bounds) -> dict[int, tuple[int, int]]:
    totals = engine.run(
        "([start, end]) => engine.totals(store, {start, end})",
        list(bounds),
    )
    assert totals["span"] == bounds[1] - bounds[0]
    return {row["device"]: (row["busy"], row["idle"]) for row in totals["devices"]}


def assert_same_rows(engine: Engine, record: Record) -> None:
    """Times, texts, links and self times of every slice."""
    page = engine.run(
        """(columns) => ({
            ...Object.fromEntries(columns.map((name) => [name, Array.from(store[name])])),
            name: Array.from(store.ts, (_, row) => store.name(row)),
            category: Array.from(store.ts, (_, row) => store.category(row)),
            self: Array.from(store.ts, (_, row) => store.self_time(row)),
        })""",
        ["ts", "end", "track", "parent", "depth", "owner", "op", "forward", "count"],
    )
    slices = record.trace.slices
    end = slices["ts"] + slices["dur"]
    is_gpu = slices["category"].isin(GPU_CATEGORIES)
    launched = slices["launch"].where(slices["launch"] >= 0, slices["op"])
    same = ["ts", "track", "parent", "depth", "op", "forward", "count", "name", "category"]
    expected = {name: slices[name].tolist() for name in same} | {
        "end": end.tolist(),
        "name": list(map(printable_values, slices["name"])),
        "owner": launched.where(is_gpu, -1).tolist(),
        "self": self_times(
            slices["ts"].to_numpy(), end.to_numpy(), slices["parent"].to_numpy()
        ).tolist(),
    }
    for name, values in expected.items():
        assert page[name] == values, name


def busy_windows(record: Record) -> list[Bounds]:
    """The whole, parts of it, and short ones around the ends of slices in the middle."""
    end = record.trace.end_ns
    slices = record.trace.slices
    middle = slices.iloc[len(slices) // 2]
    around = int(middle["ts"] + middle["dur"])
    return [(0, end), (end // 3, end // 2), (around - 20_000, around + 30_000), (around, around)]


def crowded(rng: np.random.Generator) -> Record:
    """Three hundred slices of few names that nest, cross and repeat on two threads."""
    rows = []
    for _ in range(200):
        make = rng.choice([op, op, op, annotation, python, runtime])  # type: ignore[arg-type]
        ts, dur = int(rng.integers(0, 1900)), int(rng.exponential(80))
        thread = int(rng.choice([100, 100, 101]))
        rows.append(make(f"f{rng.integers(0, 5)}", ts=ts, dur=dur, thread=thread))
    owners = [i for i, row in enumerate(rows) if row.category in ("cpu_op", "cuda_runtime")]
    for _ in range(100):
        ts, dur = int(rng.integers(0, 1900)), int(rng.exponential(40))
        owner = int(rng.choice(owners))
        rows.append(kernel(f"k{rng.integers(0, 5)}", ts=ts, dur=dur, launched_by=owner))
    for _ in range(100):
        device = None if rng.integers(0, 2) else 0
        thread = int(rng.choice([100, 101]))
        size, ts = int(rng.integers(-(2**33), 2**33)), int(rng.integers(0, 1999))
        rows.append(memory(size, ts=ts, device=device, thread=thread))
        dims = rng.integers(1, 9, (2, 2)).tolist()
        rows.append(op("aten::mm", ts=ts, dur=int(rng.exponential(40)), shapes=dims, thread=thread))
    for _ in range(60):
        number, ts = int(rng.integers(1, 6)), int(rng.integers(0, 1900))
        thread, dur = int(rng.choice([100, 101])), int(rng.exponential(90))
        rows.append(cell_line(number, "f()", ts=ts, dur=dur, thread=thread))
        rows.append(op("head", ts=ts, dur=dur + 3, thread=thread, category="module", root="m"))
    for i in range(40):
        ts = int(rng.integers(0, 1800))
        rows.append(op("aten::mul", ts=ts, dur=20, sequence=i))
        backward = {"sequence": i, "forward_thread": 1, "thread": int(rng.choice([100, 102]))}
        rows.append(op("MulBackward0", ts=ts + 50, dur=30, **backward))
        rows.append(runtime("cudaDeviceSynchronize", ts=ts + 55, dur=9, thread=backward["thread"]))
    return trace_of(*rows, op("last", ts=1999, dur=1))


def test_crowded_traces_cross_and_repeat() -> None:
    slices = crowded(np.random.default_rng(20)).trace.slices
    child = slices[slices["parent"] >= 0]
    parent = slices.loc[child["parent"]].set_index(child.index)
    outlasts = child["ts"] + child["dur"] > parent["ts"] + parent["dur"]
    assert outlasts.sum() > 20
    assert (child["name"].astype(str) == parent["name"].astype(str)).sum() > 20
