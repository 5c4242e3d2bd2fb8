"""Profiles opened from databases: analyses, the page, windows, and saving work as on any other."""

from __future__ import annotations

import pandas as pd
import pytest

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.trace.model import Record
from tests.profiler_databases import PID, TID, Database, Nsys, Nvprof, global_id, object_id
from tests.test_every_trace import all_answers

pytestmark = pytest.mark.slow


def everything(kind: type[Nsys] | type[Nvprof]) -> Database:
    """A file with at least one row of each kind that is read."""
    made: Nsys | Nvprof = kind()
    made.range("Cell [1]", 10, 5_000)
    made.range("1: loss.backward(), op_id = 1", 20, 4_000)
    made.range("aten::mm, seq = 1, op_id = 2, sizes = [[4, 8], [8, 2]]", 100, 600)
    made.range("MmBackward0, seq = 1, op_id = 3", 700, 1_200, tid=TID + 1)
    made.kernel("gemm", 300, 900, correlation=1)
    made.kernel("gemm_nt", 1_000, 1_700, correlation=2, stream=9)
    made.gpu("MEMCPY", 1_800, 1_900, bytes=64, copyKind=1, correlation=3)
    made.gpu("MEMSET", 1_900, 1_950, bytes=64)
    made.gpu("SYNCHRONIZATION", 1_950, 2_000, correlation=4)
    if isinstance(made, Nsys):
        made.range("across", 50, 6_000, eventType=60)
        made.range("here", 60, None, eventType=34)
        place = {"globalTid": global_id(PID, TID), "nameId": made.text("poll")}
        made.add("OSRT_API", start=30, end=40, **place)
        made.add("PROFILER_OVERHEAD", start=30, end=40, **place)
        memory = {"deviceId": 0, "bytes": 512, "memKind": 2, "memoryOperationType": 0}
        made.add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=90, **memory)
        made.gpu("GRAPH_TRACE", 2_100, 2_200, graphId=1, graphExecId=2)
        names = ("cudaLaunchKernel_v7000", "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020")
        calls: tuple[str | int, ...] = (*names, "cudaStreamWaitEvent_v3020")
    else:
        made.range("across", 50, 6_000, objectKind=1)
        made.marker(1, 60, 99, text="here")
        flush = {"overheadKind": 1 << 16, "objectId": object_id(PID, TID)}
        made.add("CUPTI_ACTIVITY_KIND_OVERHEAD", start=30, end=40, **flush)
        calls = (211, 211, 41, 147)
    for number, call in enumerate(calls, 1):
        tid = TID + 1 if number == 2 else TID
        made.call(
            call,
            150 * number + 500 * (number == 2),
            150 * number + 600,
            correlation=number,
            tid=tid,
        )  # type: ignore[arg-type]
    return made


@pytest.fixture(params=[Nsys, Nvprof])
def database(request: pytest.FixtureRequest) -> Database:
    return everything(request.param)


@pytest.fixture
def record(database: Database) -> Record:
    return database.record()


def test_every_analysis_answers_or_says_what_is_lacking(record: Record) -> None:
    assert all_answers(record) == {}


def test_a_file_of_a_mark_alone_is_answered() -> None:
    """Nothing in it took any time."""
    made = Nsys()
    made.range("here", 10, None, eventType=34)
    assert all_answers(made.record()) == {}


def started_range(made: Database, text: str, start: int, end: int) -> None:
    """A range that is ended by its number, wherever that happens."""
    if isinstance(made, Nsys):
        made.range(text, start, end, eventType=60, endGlobalTid=global_id(PID, TID + 1))
    elif isinstance(made, Nvprof):
        made.marker(2, start, 77, text=text)
        made.marker(4, end, 77, objectId=object_id(PID, TID + 1))


@pytest.mark.parametrize("kind", [Nsys, Nvprof])
@pytest.mark.parametrize(
    "name",
    ["operators", "breakdown", "critical_path", "what_ifs", "idle", "waits", "lines"],
)
def test_a_range_that_is_no_threads_changes_no_other_figure(
    kind: type[Nsys] | type[Nvprof], name: str
) -> None:
    """It was taken for a thread that works all the time."""
    without, beside = everything(kind), everything(kind)
    started_range(beside, "epoch", 60, 4_900)
    first, second = (ANALYSES[name].function(made.record()) for made in (without, beside))
    assert len(first) or name == "waits"
    pd.testing.assert_frame_equal(second, first)


@pytest.mark.parametrize("kind", [Nsys, Nvprof])
def test_a_range_that_is_no_threads_is_listed(kind: type[Nsys] | type[Nvprof]) -> None:
    made = everything(kind)
    started_range(made, "epoch", 60, 4_900)
    record = made.record()
    table = ANALYSES["annotations"].function(record).set_index("name")
    columns = ["calls", "cpu_total_ns", "cpu_self_ns", "kernels"]
    assert table.loc["epoch", columns].tolist() == [1, 4_840, 4_840, 0]
    row = int(table.loc["epoch", "row"])
    assert record.trace.tracks["kind"][record.trace.slices["track"][row]] == "other"
