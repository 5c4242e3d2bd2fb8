"""Exports that Nsight Systems itself wrote: what is read is what plain SQL finds in them."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.profiles import Profile
from tests.fuzz_readers import check_record
from tests.profiler_databases import notes, rows
from tests.test_every_trace import all_answers
from tests.traces import Shared

FILES = ("nsys/cs336_transformer.sqlite.gz", "nsys/test_cuda.sqlite.gz")
"""A transformer in PyTorch on Windows, and copies on four streams in plain CUDA on Linux."""

KIND = "CUPTI_ACTIVITY_KIND_"
GPU_WORK = {"kernel": "KERNEL", "gpu_memcpy": "MEMCPY", "gpu_memset": "MEMSET"}


@dataclass(frozen=True)
class Export:
    """The tables as they are, and the profile that we make of them."""

    database: sqlite3.Connection
    profile: Profile

    def has(self, table: str) -> bool:
        return bool(self.sql(f"SELECT 1 FROM sqlite_master WHERE name = '{table}'"))

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        return self.database.execute(query).fetchall()

    def sql_of(self, table: str, query: str) -> list[tuple[Any, ...]]:
        """Its rows, where the export has that table."""
        return self.sql(query) if self.has(table) else []

    @property
    def gpu_work(self) -> str:
        """A query for all kernels, copies and memsets."""
        tables = [KIND + table for table in GPU_WORK.values() if self.has(KIND + table)]
        columns = "start, end, deviceId, correlationId"
        return " UNION ALL ".join(f"SELECT {columns} FROM {table}" for table in tables)

    @property
    def first(self) -> int:
        """When the trace begins on the export's clock."""
        ((epoch,),) = self.sql("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        return self.profile.trace.epoch_ns - int(epoch)


@pytest.fixture(scope="module", params=FILES)
def export(request: pytest.FixtureRequest, shared: Shared) -> Iterator[Export]:
    path = shared(request.param)
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(gzip.decompress(path.read_bytes()))
        yield Export(database, Profile.load(path))


def tuples(table: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return list(table[list(columns)].itertuples(index=False, name=None))


@pytest.mark.parametrize("category", GPU_WORK)
def test_all_work_of_the_gpu_is_there(export: Export, category: str) -> None:
    table, trace = KIND + GPU_WORK[category], export.profile.trace
    name = "(SELECT value FROM StringIds WHERE id = demangledName)"
    expected = export.sql_of(
        table,
        f"SELECT start - {export.first}, end - start, deviceId, streamId, correlationId,"
        f" {name if category == 'kernel' else 'bytes'} FROM {table} ORDER BY start, streamId",
    )
    found = rows(trace, category).sort_values(["ts", "stream"])
    found["bytes"] = trace.args["bytes"].reindex(found.index)
    last = "name" if category == "kernel" else "bytes"
    assert tuples(found, "ts", "dur", "device", "stream", "correlation", last) == expected


def test_every_call_is_there(export: Export) -> None:
    trace = export.profile.trace
    calls = pd.concat([rows(trace, "cuda_runtime"), rows(trace, "cuda_driver")])
    assert tuples(calls.sort_values(["ts", "dur"]), "ts", "dur", "correlation") == export.sql(
        f"SELECT start - {export.first}, end - start, correlationId FROM {KIND}RUNTIME"
        " ORDER BY 1, 2"
    )


def test_work_was_launched_by_the_call_of_its_correlation(export: Export) -> None:
    trace = export.profile.trace
    work = pd.concat([rows(trace, category) for category in GPU_WORK])
    launched = zip(work["ts"], trace.slices["ts"].to_numpy()[work["launch"]], strict=True)
    assert sorted(launched) == export.sql(
        f"SELECT work.start - {export.first}, call.start - {export.first}"
        f" FROM ({export.gpu_work}) work JOIN {KIND}RUNTIME call USING (correlationId)"
        " ORDER BY 1, 2"
    )


def test_ranges_hold_the_work_that_was_launched_in_them(export: Export) -> None:
    table = ANALYSES["annotations"].function(export.profile)
    assert bool(why_empty(table)) is not export.has("NVTX_EVENTS")
    launched = (
        "SELECT text, count(DISTINCT range.start), sum(work.end - work.start), count(*)"
        f" FROM NVTX_EVENTS range JOIN {KIND}RUNTIME call ON call.globalTid = range.globalTid"
        " AND call.start BETWEEN range.start AND range.end"
        f" JOIN ({export.gpu_work}) work USING (correlationId) GROUP BY 1 ORDER BY 1"
    )
    table = table.sort_values("name")
    columns = ("name", "calls", "kernel_ns", "kernels")
    assert tuples(table, *columns) == export.sql_of("NVTX_EVENTS", launched)
    on_cpu = "SELECT text, sum(end - start) FROM NVTX_EVENTS GROUP BY 1 ORDER BY 1"
    assert tuples(table, "name", "cpu_total_ns") == export.sql_of("NVTX_EVENTS", on_cpu)


def test_a_table_with_times_that_is_not_read_is_told_of(export: Export) -> None:
    ((count,),) = export.sql(f"SELECT count(*) FROM {KIND}OVERHEAD")
    assert f"{KIND}OVERHEAD is not read ({count} rows)" in notes(export.profile)


def test_every_analysis_and_the_report_answer(export: Export) -> None:
    check_record(export.profile)
    assert all_answers(export.profile) == {}
    assert "<html" in export.profile.report().lower()
