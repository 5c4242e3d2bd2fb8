"""Runs that Kineto recorded, read back from the files that nvprof and Nsight Systems would write.

All three read CUPTI's records: tables of the one trace are the tables of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pandas as pd
import pytest

from gpuprof_widgets.analyses import Analysis, plain_analyses
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.databases.nsys import DEVICE_PROPERTIES
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.database_of_record import nsys_of, nvprof_of
from tests.profiler_databases import Database
from tests.traces import (
    Shared,
    annotation,
    backward_op,
    copy,
    gpu_annotation,
    kernel,
    op,
    runtime,
    trace_of,
)

PROGRAMS: dict[str, Callable[[Record], Database]] = {"nsys": nsys_of, "nvprof": nvprof_of}
REAL = ("hta/critical_path_alexnet_a100.json.gz", "hta/cuda_event_sync_multi_stream_a100.json.gz")

NOT_IN_DATABASES = frozenset({"blocks_per_sm", "occupancy", "sm_efficiency", "rank", "thread"})
"""Columns from Kineto's own estimates, and from what torch tells it of ranks and threads."""

OF_GPU_ANNOTATIONS = frozenset({"row", "track", "gpu", "copy", "before", "after", "gpu_span_ns"})
"""Numbers of rows, and what annotations cover on the GPU: old versions of Kineto did not say it."""

LAUNCHED = {
    "grid": [4, 1, 1],
    "block": [128, 1, 1],
    "registers per thread": 32,
    "shared memory": 512,
}


def hand_made() -> Record:
    """Two steps with a forward, its backward on another thread, a copy and a wait."""
    rows = []
    for step, at in enumerate((0, 10_000)):
        first = len(rows)
        rows += [
            annotation(f"ProfilerStep#{step}", ts=at, dur=9_000),
            op("aten::copy_", ts=at + 100, dur=400, shapes=[[8, 4], [8, 4], []]),
            runtime("cudaMemcpyAsync", ts=at + 200, dur=200),
            copy(ts=at + 450, dur=300, bytes=128, launched_by=first + 2),
            op("aten::linear", ts=at + 1_000, dur=900, shapes=[[8, 4], [2, 4], [2]]),
            op("aten::addmm", ts=at + 1_100, dur=700, shapes=[[2], [8, 4], [4, 2]], sequence=step),
            runtime("cudaLaunchKernel", ts=at + 1_200, dur=100),
            kernel("gemm", ts=at + 1_400, dur=2_000, launched_by=first + 6, **LAUNCHED),
            *backward_op("AddmmBackward0", ts=at + 3_000, dur=900, sequence=step, thread=7),
            op("aten::mm", ts=at + 3_100, dur=500, shapes=[[2, 8], [8, 4]], thread=7),
            runtime("cudaLaunchKernel", ts=at + 3_200, dur=100, thread=7),
            kernel("gemm_nt", ts=at + 3_500, dur=2_500, launched_by=first + 11, **LAUNCHED),
            runtime("cudaStreamSynchronize", ts=at + 5_000, dur=1_200),
            gpu_annotation(f"ProfilerStep#{step}", ts=at + 450, dur=2_950),
        ]
    a100 = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42_297_524_224}
    a100 |= {"computeMajor": 8, "computeMinor": 0, "numSms": 108, "warpSize": 32}
    a100 |= {key: 1_024 for key in DEVICE_PROPERTIES if key not in a100}
    devices = [{"index": 0, "name": a100["name"], "total_memory_bytes": a100["totalGlobalMem"]}]
    return trace_of(*rows, devices=devices, deviceProperties=[a100])


@cache
def recorded(name: str, shared: Shared) -> Record:
    return hand_made() if name == "hand-made" else load(shared(name))


@cache
def read_back(name: str, shared: Shared, program: str) -> Record:
    return PROGRAMS[program](recorded(name, shared)).record()


@pytest.fixture(params=["hand-made", *REAL])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=PROGRAMS)
def pair(request: pytest.FixtureRequest, name: str, shared: Shared) -> tuple[Record, Record]:
    """The run as Kineto wrote it, and as it is read from a database."""
    return recorded(name, shared), read_back(name, shared, request.param)


@pytest.mark.slow
@pytest.mark.parametrize("one", plain_analyses(), ids=lambda one: one.name)
def test_every_analysis_answers_as_of_kineto_s_trace(
    pair: tuple[Record, Record], one: Analysis
) -> None:
    expected, found = (one.function(record) for record in pair)
    same_rows = len(pair[0].trace) == len(pair[1].trace)
    unknown = NOT_IN_DATABASES if same_rows else NOT_IN_DATABASES | OF_GPU_ANNOTATIONS
    known = [column for column in expected if column not in unknown]
    pd.testing.assert_frame_equal(found[known], expected[known])


def test_each_op_causes_the_same_and_the_findings_are_the_same(
    pair: tuple[Record, Record],
) -> None:
    expected, found = (Profile(one.trace, None, one.metadata) for one in pair)
    for ask in (lambda one: one.attribution("op"), Profile.call_tree, Profile.backward_ops):
        pd.testing.assert_frame_equal(ask(found), ask(expected))
    assert [one.text for one in found.findings()] == [one.text for one in expected.findings()]


@pytest.mark.parametrize("program", PROGRAMS)
def test_annotations_cover_on_the_gpu_what_kineto_says(program: str, shared: Shared) -> None:
    """It begins a microsecond early, and knows one whose CPU side it did not record."""
    name = "hta/gpu_user_annotation_gp100.json.gz"
    both = recorded(name, shared), read_back(name, shared, program)
    expected, found = map(on_gpu, both)
    expected = expected[expected["ts"] < expected["ts"].max()]
    assert len(found) == len(expected) == 9
    assert found["name"].tolist() == expected["name"].tolist()
    assert set(found["ts"].to_numpy() - expected["ts"].to_numpy()) == {1_000}
    assert expected["end"].tolist() == found["end"].tolist()


def on_gpu(record: Record) -> pd.DataFrame:
    slices = record.trace.slices
    rows = slices[slices["category"] == "gpu_user_annotation"].sort_values("ts")
    return rows.assign(end=rows["ts"] + rows["dur"])


@pytest.mark.parametrize("program", PROGRAMS)
def test_shapes_and_launches_are_the_same(program: str, shared: Shared) -> None:
    keys = ("Input Dims", "grid", "block", "registers per thread", "shared memory", "bytes")
    expected = recorded("hand-made", shared).trace
    found = read_back("hand-made", shared, program).trace
    for key in keys:
        assert found.args[key].to_dict() == expected.args[key].to_dict()
