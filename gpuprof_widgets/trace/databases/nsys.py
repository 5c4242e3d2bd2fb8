"""Reader of Nsight Systems' SQLite export (`nsys export --type sqlite`).

Tables and columns differ by version: those that are there are read. Source of their description:
"SQLite Schema Reference" in the Nsight Systems User Guide, and CUPTI's activity records.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.assemble import counter_table
from gpuprof_widgets.trace.databases import activity
from gpuprof_widgets.trace.databases.activity import Group, gpu_group, named, of_one, texts
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
from gpuprof_widgets.trace.databases.nvtx_ops import UNNAMED, crossing_group, emitted_group
from gpuprof_widgets.trace.databases.readings import Found, Reading, first_known
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Database, Ints, Table, Texts

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


ALLOCATION = 0
"""ENUM_CUDA_DEV_MEM_EVENT_OPER: 0 takes memory, 1 gives it back."""


def counters(reading: Reading) -> pd.DataFrame:
    """A counters table of all of them, on the clock of the file (ns)."""
    tables = [_memory(reading), _metrics(reading)]
    return counter_table(
        np.concatenate([table["ts"].to_numpy(np.int64) for table in tables]),
        [name for table in tables for name in table["name"]],
        np.concatenate([table["value"].to_numpy(np.float64) for table in tables]),
    )


def _memory(reading: Reading) -> pd.DataFrame:
    """Bytes that the program holds of each GPU, from its cudaMalloc and cudaFree calls.

    To PyTorch, whose allocator takes memory in bulk, that is what is reserved.
    """
    held = reading.moments(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        "start",
        ["globalPid", "deviceId", "bytes", "memKind", "memoryOperationType"],
    )
    device = gpu_numbers(reading, process_of(held["globalPid"]), held["deviceId"])
    order = np.argsort(held["start"], kind="stable")
    kinds = memory_kinds(reading)
    names = [
        _memory_name(kinds.get(kind, "Unknown"), device)
        for kind, device in zip(
            held["memKind"][order].tolist(), device[order].tolist(), strict=True
        )
    ]
    size = np.maximum(held["bytes"][order], 0)
    change = np.where(held["memoryOperationType"][order] == ALLOCATION, size, -size)
    table = pd.DataFrame({"ts": held["start"][order], "name": names, "change": change})
    # What was taken before the recording began is not known: then more comes back than went out.
    return table.assign(value=table.groupby("name")["change"].transform(_from_zero))


def _memory_name(kind: str, device: int) -> str:
    word = "reserved" if kind == "Device" else f"{kind.lower()} memory used"
    return f"GPU {device} {word}"


def _from_zero(change: pd.Series) -> pd.Series:
    total = change.cumsum()
    return total - min(int(total.min()), 0)


def _metrics(reading: Reading) -> pd.DataFrame:
    """Samples of the GPU's hardware counters; the last byte of a type is the GPU's number."""
    kind = reading.table("TARGET_INFO_GPU_METRICS", ["typeId", "metricId"], ["metricName"])
    held = reading.moments("GPU_METRICS", "timestamp", ["typeId", "metricId", "value"])
    called = pd.DataFrame(
        {"type": kind["typeId"], "metric": kind["metricId"], "name": kind.texts["metricName"]}
    ).drop_duplicates(["type", "metric"])
    sampled = pd.DataFrame(
        {"ts": held["timestamp"], "type": held["typeId"], "metric": held["metricId"]}
    )
    sampled = sampled.assign(value=held["value"]).merge(called, how="inner", on=["type", "metric"])
    return sampled.assign(name=_of_gpu(sampled["type"].to_numpy(np.int64), list(sampled["name"])))


def _of_gpu(kind: Ints, names: list[str]) -> list[str]:
    return [f"GPU {gpu} {name}" for gpu, name in zip((kind & 0xFF).tolist(), names, strict=True)]


CATEGORY, MARK, PUSH_POP, START_END, DOMAIN = 33, 34, 59, 60, 75
TEXT_PUSH_POP, TEXT_START_END = 70, 71
"""ENUM_NSYS_EVENT_TYPE; those of 70 on come from NVTXT files."""


def nvtx_groups(reading: Reading, strings: dict[int, str], *, several: bool) -> list[Group]:
    """Ranges on their threads, ranges across threads, and marks."""
    held = _held(reading)
    said = _texts(held, strings)
    kind = held["eventType"]
    domain = _domains(held, said)
    pushed = np.isin(kind, (PUSH_POP, TEXT_PUSH_POP))
    started = np.isin(kind, (START_END, TEXT_START_END))
    marked = kind == MARK
    _count_others(reading, kind[~(pushed | started | marked | np.isin(kind, (CATEGORY, DOMAIN)))])
    return [
        _pushed(held.chosen(pushed), said[pushed], domain[pushed], several),
        _started(held.chosen(started), said[started], domain[started]),
        _marks(held.chosen(marked), said[marked], domain[marked]),
    ]


def _held(reading: Reading) -> Table:
    """All rows that have a start; ranges without an end get the recording's (old exports: 0)."""
    columns = ["end", "eventType", "textId", "globalTid", "domainId"]
    held = reading.moments("NVTX_EVENTS", "start", columns, ["text"])
    start, end = held["start"], held["end"]
    ranges = np.isin(held["eventType"], (PUSH_POP, TEXT_PUSH_POP, START_END, TEXT_START_END))
    open_ = ranges & ((end == MISSING) | (end < start))
    if open_.any():
        reading.notes.append(
            f"{np.count_nonzero(open_):,} of {np.count_nonzero(ranges):,} NVTX ranges were open "
            "when the recording ended; they end with it"
        )
    last = max(reading.latest, int(end.max(initial=0)))
    ends = np.where(open_, np.maximum(last, start), np.maximum(end, start))
    return Table(len(held), {**held.ints, "end": ends}, held.texts)


def _texts(held: Table, strings: dict[int, str]) -> Texts:
    """The text beside a row, else the registered one that it names."""
    pairs = zip(held.texts["text"].tolist(), held["textId"].tolist(), strict=True)
    said = np.empty(len(held), object)
    said[:] = [text or strings.get(number) or UNNAMED for text, number in pairs]
    return said


def _domains(held: Table, said: Texts) -> Texts:
    """The name of each row's domain; None for the one that needs none."""
    process = process_of(held["globalTid"])
    made = np.flatnonzero(held["eventType"] == DOMAIN)
    known = {
        (p, number): name
        for p, number, name in zip(
            process[made].tolist(), held["domainId"][made].tolist(), said[made], strict=True
        )
    }
    numbers = zip(process.tolist(), held["domainId"].tolist(), strict=True)
    found = np.empty(len(held), object)
    found[:] = [
        known.get((p, number), f"domain {number}") if number > 0 else None for p, number in numbers
    ]
    return found


def _pushed(held: Table, said: Texts, domain: Texts, several: bool) -> Group:
    process, thread = process_of(held["globalTid"]), thread_of(held["globalTid"])
    ours = np.array([name is None for name in domain], bool)
    group = emitted_group(held["start"], held["end"], said, process, thread, ours, several=several)
    return group.with_args(domain=domain)


def _started(held: Table, said: Texts, domain: Texts) -> Group:
    process = process_of(held["globalTid"])
    return crossing_group(held["start"], held["end"], said, process).with_args(domain=domain)


def _marks(held: Table, said: Texts, domain: Texts) -> Group:
    process, thread = texts(process_of(held["globalTid"])), texts(thread_of(held["globalTid"]))
    none = np.zeros(len(held), np.int64)
    category = of_one("cpu_instant_event", len(held))
    return Group(held["start"], none, said, category, process, thread, {"domain": domain})


def _count_others(reading: Reading, kinds: NDArray[np.int64]) -> None:
    values, counts = np.unique(kinds, return_counts=True)
    reading.notes += [
        f"{count:,} NVTX events of type {'unknown' if kind == MISSING else kind} are not read"
        for kind, count in zip(values.tolist(), counts.tolist(), strict=True)
    ]
