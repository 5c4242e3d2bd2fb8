"""No analysis changes what it is given, and all work on windows, on nothing, and on one clock."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuprof_widgets.analyses
from gpuprof_widgets.analyses.analyze import analyze
from gpuprof_widgets.analyses.attribution import LEVELS, attribution
from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.call_tree import call_tree
from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.critical_path import (
    ON_GPU,
    cpu_path_ns,
    critical_path,
    gpu_path_saving_ns,
    path_between,
    path_range,
)
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.gpu_peaks import device_name, peaks_of
from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.owners import owners
from gpuprof_widgets.analyses.path_graph import path_graph
from gpuprof_widgets.analyses.regions import time_ranges
from gpuprof_widgets.analyses.roofline import grouped_pieces, roofline
from gpuprof_widgets.analyses.selected import selected_rows, selected_slices
from gpuprof_widgets.analyses.streams import streams
from gpuprof_widgets.analyses.tensor_cores import products, unaligned
from gpuprof_widgets.analyses.what_if import saved_without_ns, what_if
from gpuprof_widgets.analyses.workers import by_worker, per_batch_ns, worker_calls
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.records import records
from tests.traces import (
    Row,
    annotation,
    calls_of,
    cell_line,
    copy,
    gpu_annotation,
    kernel,
    memory,
    module,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow

WORKER_TIMES = ("fetch_ns", "item_ns", "collate_ns", "put_ns", "idle_ns")


def _what_is_there(record: Record) -> list[str]:
    """A few names of ops and kernels."""
    slices = record.trace.slices
    wanted = slices["category"].isin(["cpu_op", "kernel"]) & (slices["count"] > 0)
    return [str(name) for name in slices["name"][wanted].unique()[:3]]


def _half_as_long(record: Record) -> tuple[pd.DataFrame, pd.Series]:
    """All GPU work as pieces, and half of their times."""
    rows = record.trace.index.gpu
    time = record.trace.slices["dur"].to_numpy()[rows]
    pieces = pd.DataFrame({"row": rows, "time_ns": time})
    return pieces, pieces["time_ns"] // 2


def _whole(record: Record) -> tuple[int, int]:
    return record.trace.start_ns, record.trace.end_ns


ASKED: dict[str, Callable[[Record], Any]] = {
    "cpu_path_ns": lambda record: cpu_path_ns(record, record.trace.index.gpu),
    "saved_without_ns": lambda record: saved_without_ns(record, record.trace.index.gpu[:1]),
    "gpu_path_saving_ns": lambda record: gpu_path_saving_ns(record, *_half_as_long(record)),
    "what_if": lambda record: [what_if(record, name) for name in _what_is_there(record)],
    "path_range": lambda record: path_range(record, None, None),
    "path_graph": lambda record: path_graph(record, *_whole(record)),
    "path_between": lambda record: path_between(record, *_whole(record)),
    "time_ranges": lambda record: time_ranges(record, "step"),
    "selected_slices": lambda record: selected_slices(record, range(len(record.trace))),
    "selected_rows": lambda record: selected_rows(record, "duration_ns > 10"),
    "owners": lambda record: [owners(record, row) for row in range(len(record.trace))],
    "attribution": lambda record: [attribution(record, level) for level in LEVELS],
    "grouped_pieces": lambda record: grouped_pieces(record, "op"),
    "unaligned": lambda record: unaligned(record, products(record)),
    "device_name": lambda record: device_name(record, 0),
    "peaks_of": lambda record: peaks_of(record, 0),
    "worker_calls": lambda record: [worker_calls(record, worker) for worker in by_worker(record)],
    "per_batch_ns": lambda record: [per_batch_ns(record, column) for column in WORKER_TIMES],
}
"""What the analyses that take more than a record are asked."""

OTHER_WAYS: dict[str, Callable[[Record], Any]] = {
    "findings": findings,
    "analyze_by_type": lambda record: analyze(record, side="host", by="type"),
    "operators_by_shape": lambda record: operators(record, by_shape=True),
    "operators_by_stack": lambda record: operators(record, stack_depth=3),
    "kernels_by_geometry": lambda record: kernels(record, by="geometry"),
    "kernels_by_kind": lambda record: kernels(record, by="kind"),
    "copies_by_kind": lambda record: copies(record, by="kind"),
    "copies_by_op": lambda record: copies(record, by="op"),
    "call_tree_merged": lambda record: call_tree(record, source="merged"),
    "call_tree_cprofile": lambda record: call_tree(record, source="cprofile"),
    "idle_by_stream": lambda record: idle(record, by="stream"),
    "breakdown_by_step": lambda record: breakdown(record, by="step"),
    "streams_by_pair": lambda record: streams(record, by="pair"),
    "streams_by_concurrency": lambda record: streams(record, by="concurrency"),
    "critical_path_by_kind": lambda record: critical_path(record, by="kind"),
    "roofline_by_shape": lambda record: roofline(record, by="shape"),
    "roofline_by_kernel": lambda record: roofline(record, by="kernel"),
}

PARTS = {
    *("blocks_at_peak", "categories", "holders", "in_hooks", "is_beyond_the_range", "lines_at"),
    *("line_that_holds", "lines_counted_for", "main_callee", "op_times", "outermost_op_times"),
    "recorded_calls",
}
"""What analyses ask of each other with more than a record; `recorded_calls` raises without any."""


def taking_a_record() -> dict[str, Callable[..., Any]]:
    """Whatever public function of the package has a record as its first argument."""
    found = {}
    for path in sorted(Path(gpuprof_widgets.analyses.__file__).parent.glob("*.py")):
        module = import_module(f"gpuprof_widgets.analyses.{path.stem}")
        for name, function in vars(module).items():
            is_own = getattr(function, "__module__", "") == module.__name__
            if is_own and inspect.isfunction(function) and not name.startswith("_"):
                first = next(iter(inspect.signature(function).parameters.values()), None)
                if first is not None and (first.name, first.annotation) == ("record", "Record"):
                    found[name] = function
    return found


ANALYSES = {name: each for name, each in taking_a_record().items() if name not in PARTS}
ANALYSES |= ASKED | OTHER_WAYS


def rich() -> Record:
    """A little of everything."""
    return trace_of(
        annotation("ProfilerStep#1", ts=0, dur=900),
        python("nn.Module: Linear_0", ts=0, dur=300),
        op("aten::linear", ts=10, dur=200, shapes=[[2, 3], [3, 4]], sequence=1, forward_thread=0),
        op("aten::mm", ts=11, dur=90, shapes=[[2, 3], [3, 4]]),
        runtime("cudaLaunchKernel", ts=20, dur=10),
        memory(64, ts=30, device=0),
        kernel("gemm", ts=60, dur=100, launched_by=4),
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts=300, dur=150),
        op("MmBackward0", ts=500, dur=90, sequence=1, forward_thread=1, thread=2),
        runtime("cudaStreamSynchronize", ts=600, dur=90),
        copy(ts=610, dur=70, bytes=64),
        gpu_annotation("ProfilerStep#1", ts=60, dur=620),
        kernel("stray", ts=700, dur=20, stream=9),
        python("train.py(7): step", ts=310, dur=90, **{"Sampled lines": [[0, 8], [50, 9]]}),
        calls=calls_of((None, "main", 1, 10), ("main", "step", 3, 800)),
        wall_ns=1000,
        overhead={"events": 13, "estimate_ns": 100},
        error="ValueError: no",
    )


def on_two_gpus() -> Record:
    """Launches of two threads on two GPUs, with lines, modules, waits, copies and memory."""
    rows: list[Row] = [annotation("ProfilerStep#4", ts=0, dur=900)]
    for number, ts in enumerate((10, 400)):
        first, thread = len(rows), 100 + number
        rows += [
            cell_line(number + 1, "step()", ts=ts, dur=300, thread=thread),
            module(f"layer.{number}", ts=ts + 5, dur=280, thread=thread),
            op(f"aten::to_{number}", ts=ts + 10, dur=200, thread=thread),
            runtime("cudaLaunchKernel", ts=ts + 20, dur=10, thread=thread),
            runtime("cudaMemcpyAsync", ts=ts + 40, dur=20 + number, thread=thread),
            runtime("cudaStreamSynchronize", ts=ts + 80, dur=50 + number, thread=thread),
            memory(64, ts=ts + 30, device=number, thread=thread),
            runtime("cudaMalloc", ts=ts + 140, dur=30 + number, thread=thread),
        ]
        at = {"device": number, "stream": 7}
        rows += [
            kernel(f"gemm_{number}", ts=ts + 50, dur=30 + number, launched_by=first + 3, **at),
            copy(ts=ts + 90, dur=35 + number, bytes=64, launched_by=first + 4, **at),
            kernel(
                "ncclDevKernel_AllReduce", ts=ts + 150, dur=40, device=number, stream=20 + number
            ),
        ]
    return trace_of(*rows)


NAMES_OF = {"name": "row"} | {f"{role}_name": role for role in (
    "op", "module", "line", "launch", "gpu", "copy", "before", "after", "cpu"
)}  # fmt: skip
"""Columns of names, and the columns of the rows that they name."""
OF_SLICES = ("copies", "launches", "waits", "idle", "idle_by_stream", "critical_path",
             "allocations", "allocator_events")  # fmt: skip
"""Tables that name slices by their rows."""


@pytest.mark.parametrize("analysis", OF_SLICES)
def test_what_a_table_says_of_a_slice_is_true_of_it(analysis: str) -> None:
    record = on_two_gpus()
    table, index = ANALYSES[analysis](record), record.trace.index
    assert len(table)
    for name, row in NAMES_OF.items():
        if name in table and row in table and table[row].dtype != object:
            assert table[name].tolist() == index.names_of(table[row].to_numpy(np.intp)).tolist()
    if analysis == "critical_path":  # whose rows are pieces of slices
        labels, on_gpu = record.trace.tracks["label"], table[table["kind"].isin(ON_GPU)]
        assert table["thread"].tolist() == labels[table["track"]].tolist()
        assert on_gpu["track"].tolist() == index.track[on_gpu["row"]].tolist()
        return
    if "row" not in table:
        return
    rows = table["row"].to_numpy(np.intp)
    columns = {"start_ns": index.ts, "dur_ns": index.dur}
    columns |= {"device": index.device, "stream": index.stream} if index.is_gpu[rows].all() else {}
    for column in columns.keys() & set(table):
        assert table[column].tolist() == columns[column][rows].tolist()


def digest(record: Record) -> dict[str, str]:
    """A hash of every table, values, index and types included."""
    trace = record.trace
    tables = {name: getattr(trace, name) for name in ("slices", "tracks", "counters", "flows")}
    tables |= {f"args of {key}": values.to_frame() for key, values in trace.args.items()}
    if record.calls is not None:
        tables |= {"functions": record.calls.functions, "edges": record.calls.edges}
    hashes = {name: _hash(table) for name, table in tables.items()}
    return hashes | {"metadata": repr(sorted(record.metadata.items()))}


def _hash(table: pd.DataFrame) -> str:
    content = (table.to_dict("split"), table.dtypes.tolist(), table.index.dtype)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def test_the_hash_notices_a_change() -> None:
    record = rich()
    before = digest(record)
    assert digest(rich()) == before
    record.trace.slices.loc[3, "dur"] += 1
    assert digest(record) != before


@pytest.mark.parametrize("analysis", ANALYSES)
def test_no_analysis_changes_its_input(analysis: str) -> None:
    record = rich()
    before = digest(record)
    first = ANALYSES[analysis](record)
    assert digest(record) == before
    assert str(ANALYSES[analysis](record)) == str(first), "a second call says something else"


@pytest.mark.slow
@pytest.mark.parametrize("analysis", ANALYSES)
def test_the_window_of_everything_gives_the_same(analysis: str) -> None:
    record = rich()
    whole = window(record, record.trace.start_ns, record.trace.end_ns)
    assert str(ANALYSES[analysis](whole)) == str(ANALYSES[analysis](record))


@pytest.mark.parametrize("analysis", ANALYSES)
def test_every_analysis_takes_an_empty_record(analysis: str) -> None:
    ANALYSES[analysis](trace_of())


@pytest.mark.slow
@given(records(), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=10)
def test_every_analysis_takes_every_record_and_window(record: Record, t0: int, span: int) -> None:
    for analysis in ANALYSES.values():
        analysis(record)
        analysis(window(record, t0, t0 + span))
