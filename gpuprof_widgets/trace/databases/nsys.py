"""Reader of Nsight Systems' SQLite export (`nsys export --type sqlite`).

Tables and columns differ by version: those that are there are read. Source of their description:
"SQLite Schema Reference" in the Nsight Systems User Guide, and CUPTI's activity records.
"""

from __future__ import annotations

import numpy as np

from gpuprof_widgets.trace.databases import activity
from gpuprof_widgets.trace.databases.activity import Group, gpu_group, named, of_one, texts
from gpuprof_widgets.trace.databases.nsys_counters import counters
from gpuprof_widgets.trace.databases.nsys_nvtx import nvtx_groups
from gpuprof_widgets.trace.databases.nsys_target import (
    NOT_EVENTS,
    epoch_ns,
    gpu_numbers,
    memory_kinds,
    metadata,
    names,
    process_of,
    thread_of,
    warnings,
)
from gpuprof_widgets.trace.databases.readings import Reading, first_known
from gpuprof_widgets.trace.databases.sqlite_profile import Found
from gpuprof_widgets.trace.databases.sqlite_tables import Database, Ints, Table, Texts

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SIGNS = (KERNELS, RUNTIME, "NVTX_EVENTS", "OSRT_API", "CUPTI_ACTIVITY_KIND_MEMCPY")

LIBRARIES = {
    "OSRT_API": "osrt",
    "CUDNN_EVENTS": "cudnn",
    "CUBLAS_EVENTS": "cublas",
    "MPI_P2P_EVENTS": "mpi",
    "MPI_COLLECTIVES_EVENTS": "mpi",
    "MPI_START_WAIT_EVENTS": "mpi",
    "MPI_OTHER_EVENTS": "mpi",
}
"""Tables of other libraries' calls, and the category that these get."""

_GPU = ("deviceId", "contextId", "streamId", "correlationId", "globalPid")
_GEOMETRY = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_SHARED = ("staticSharedMemory", "dynamicSharedMemory")


def is_nsys(database: Database) -> bool:
    """Whether these are the tables of an export of Nsight Systems."""
    return database.has("StringIds") and any(map(database.has, SIGNS))


def read_nsys(database: Database) -> Found:
    """All that the export holds of CUDA, NVTX, the operating system and the GPU's metrics."""
    reading = Reading(database)
    strings = database.texts_by_id("StringIds", "id", "value")
    several = _several_processes(reading)
    groups = [
        _kernels(reading, strings, several),
        _graphs(reading, several),
        _copies(reading, several),
        _memsets(reading, several),
        _calls(reading, strings, several),
        _synchronisations(reading, several),
        *[_library(reading, table, strings) for table in LIBRARIES],
        _overhead(reading, strings),
    ]
    counted = counters(reading)
    groups += nvtx_groups(reading, strings, several=several)
    reading.passed_over(*NOT_EVENTS)
    return Found(
        groups=groups,
        names=names(reading, strings),
        counters=counted,
        epoch_ns=epoch_ns(reading),
        notes=[*warnings(reading), *reading.all_notes()],
        metadata=metadata(reading),
    )


def _several_processes(reading: Reading) -> bool:
    gpu = reading.table(KERNELS, ["globalPid"])["globalPid"]
    calls = reading.table(RUNTIME, ["globalTid"])["globalTid"]
    return len(np.unique(process_of(np.concatenate([gpu, calls])))) > 1


def _unique(table: Table, several: bool) -> Table:
    """With correlation ids that no two processes share."""
    process = process_of(table["globalPid"])
    unique = activity.unique_correlations(process, table["correlationId"], several=several)
    return table.with_ints(correlationId=unique)


def _gpu(
    reading: Reading,
    table: Table,
    name: Texts,
    category: str,
    several: bool,
    **args: activity.Values,
) -> Group:
    process = process_of(table["globalPid"])
    placed = table.with_ints(deviceId=gpu_numbers(reading, process, table["deviceId"]))
    correlation = _unique(table, several)["correlationId"]
    return gpu_group(placed, process, correlation, name, category, args)


def _kernels(reading: Reading, strings: dict[int, str], several: bool) -> Group:
    found = reading.events(
        KERNELS,
        [*_GPU, *_GEOMETRY, *_SHARED, "registersPerThread", "demangledName", "shortName"],
    )
    name = first_known(found["demangledName"], found["shortName"])
    args = activity.launch_args(found, _GEOMETRY, _SHARED)
    return _gpu(reading, found, named(name, strings, "kernel"), "kernel", several, **args)


def _graphs(reading: Reading, several: bool) -> Group:
    """Graphs that were traced as a whole: one row each, whatever kernels are in it."""
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    found = reading.events(table, [*_GPU, "graphId", "graphExecId"])
    number = first_known(found["graphExecId"], found["graphId"])
    return _gpu(reading, found, named(number, {}, "CUDA graph"), "kernel", several)


def _copies(reading: Reading, several: bool) -> Group:
    ends = ("srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
    found = reading.events("CUPTI_ACTIVITY_KIND_MEMCPY", [*_GPU, "bytes", "copyKind", *ends])
    kinds = memory_kinds(reading)
    name = activity.copy_names(found["copyKind"], found["srcKind"], found["dstKind"], kinds)
    return _gpu(reading, found, name, "gpu_memcpy", several, **activity.copy_args(found))


def _memsets(reading: Reading, several: bool) -> Group:
    found = reading.events("CUPTI_ACTIVITY_KIND_MEMSET", [*_GPU, "bytes", "memKind"])
    name = activity.memset_names(found["memKind"], memory_kinds(reading))
    return _gpu(reading, found, name, "gpu_memset", several, bytes=found["bytes"])


def _calls(reading: Reading, strings: dict[int, str], several: bool) -> Group:
    found = reading.events(RUNTIME, ["globalTid", "correlationId", "nameId"])
    written = named(found["nameId"], strings, "CUDA call")
    name = activity.each_distinct(written, activity.call_name)
    process = process_of(found["globalTid"])
    correlation = activity.unique_correlations(process, found["correlationId"], several=several)
    category = activity.each_distinct(name, activity.call_category)
    return _on_thread(found, name, category, correlation=correlation)


def _synchronisations(reading: Reading, several: bool) -> Group:
    """Waits of the host or of a stream; for an event's, the latest record of that event."""
    table, records = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
    found = reading.events(table, [*_GPU, "syncType", "eventId"])
    recorded = reading.table(records, ["globalPid", "streamId", "correlationId", "eventId"])
    recorded = _unique(recorded, several)
    waiting = _unique(found, several)
    waited = activity.waited_args(
        found["syncType"],
        {"event": found["eventId"], "process": found["globalPid"]},
        waiting["correlationId"],
        {"event": recorded["eventId"], "process": recorded["globalPid"]},
        recorded,
    )
    name = named(found["syncType"], activity.SYNC_KINDS, "Sync of type")
    return activity.sync_group(_gpu(reading, found, name, "cuda_sync", several, **waited))


def _library(reading: Reading, table: str, strings: dict[int, str]) -> Group:
    found = reading.events(table, ["globalTid", "nameId", "textId"])
    name = named(first_known(found["nameId"], found["textId"]), strings, "call")
    return _on_thread(found, name, of_one(LIBRARIES[table], len(found)))


def _overhead(reading: Reading, strings: dict[int, str]) -> Group:
    found = reading.events("PROFILER_OVERHEAD", ["globalTid", "nameId"])
    name = named(found["nameId"], strings, "profiler overhead")
    return activity.overhead_group(found, name, process_of(found["globalTid"]))


def _on_thread(table: Table, name: Texts, category: Texts, **args: Ints) -> Group:
    process, thread = process_of(table["globalTid"]), thread_of(table["globalTid"])
    took = table["end"] - table["start"]
    return Group(table["start"], took, name, category, texts(process), texts(thread), args)
