"""Reader of Nsight Systems' SQLite export (`nsys export --type sqlite`).

Tables and columns differ by version; the reader takes those that are there. Sources: "SQLite Schema
Reference" in the Nsight Systems User Guide, and CUPTI's activity records.

Its parts: CUDA's activity and other libraries' calls, counters, NVTX, and the machine: processes,
threads, GPUs, clock and warnings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.assemble import joined_counters
from gpuprof_widgets.trace.databases import activity
from gpuprof_widgets.trace.databases.activity import Group, as_texts, gpu_group, named
from gpuprof_widgets.trace.databases.nvtx_ops import (
    UNNAMED,
    NvtxRows,
    crossing_group,
    emitted_group,
    mark_group,
)
from gpuprof_widgets.trace.databases.readings import Contents, Reading, first_known
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Database, Table, Texts
from gpuprof_widgets.trace.events import Names

KIND = "CUPTI_ACTIVITY_KIND_"
KERNELS, RUNTIME, COPIES = f"{KIND}KERNEL", f"{KIND}RUNTIME", f"{KIND}MEMCPY"
SIGNS = (KERNELS, RUNTIME, COPIES, "NVTX_EVENTS", "OSRT_API")

LIBRARIES = {
    "OSRT_API": "osrt",
    "CUDNN_EVENTS": "cudnn",
    "CUBLAS_EVENTS": "cublas",
    "MPI_P2P_EVENTS": "mpi",
    "MPI_COLLECTIVES_EVENTS": "mpi",
    "MPI_START_WAIT_EVENTS": "mpi",
    "MPI_OTHER_EVENTS": "mpi",
}
"""Tables of other libraries' calls, and the category of their slices."""

_VERSION_SUFFIX = re.compile(r"(_ptsz|_ptds)?_v\d{4,5}$|_pt(sz|ds)$")
"""CUPTI's names have a version: ``cudaLaunchKernel_v7000``."""
_DRIVER_CALL = re.compile(r"cu[A-Z]")

ALLOCATION = 0
"""ENUM_CUDA_DEV_MEM_EVENT_OPER: 0 allocates memory, 1 frees it."""

CATEGORY, MARK, PUSH_POP, START_END, DOMAIN = 33, 34, 59, 60, 75
TEXT_PUSH_POP, TEXT_START_END = 70, 71
"""ENUM_NSYS_EVENT_TYPE; those from 70 on come from NVTXT files."""
PUSHED, STARTED = (PUSH_POP, TEXT_PUSH_POP), (START_END, TEXT_START_END)


def is_nsys(database: Database) -> bool:
    """Return whether these are the tables of an export of Nsight Systems."""
    return database.has("StringIds") and any(map(database.has, SIGNS))


def read_nsys(database: Database) -> Contents:
    """Read the events of CUDA, NVTX and the operating system, and the GPU's metrics."""
    reading = Reading(database)
    strings = database.texts_by_id("StringIds", "id", "value")
    gpu = reading.table(KERNELS, ["globalPid"])["globalPid"]
    calls = reading.table(RUNTIME, ["globalTid"])["globalTid"]
    several = len(np.unique(process_of(np.concatenate([gpu, calls])))) > 1
    memory = _memory_kinds(reading)
    memsets = _gpu_rows(reading, f"{KIND}MEMSET", ["bytes", "memKind"], several)
    overhead = reading.events("PROFILER_OVERHEAD", ["globalTid", "nameId"])
    cost = named(overhead["nameId"], strings, "profiler overhead")
    groups = [
        _kernels(reading, strings, several),
        _graphs(reading, several),
        activity.copy_group(_gpu_rows(reading, COPIES, activity.COPY_COLUMNS, several), memory),
        activity.memset_group(memsets, memsets["memKind"], memory),
        _calls(reading, strings, several),
        _synchronisations(reading, several),
        *[_library(reading, table, strings) for table in LIBRARIES],
        activity.overhead_group(overhead, cost, process_of(overhead["globalTid"])),
    ]
    counters = joined_counters([_memory(reading), _metrics(reading)])
    groups += _nvtx_groups(reading, strings, several)  # open ranges end with what was read before
    reading.ignore(*NOT_EVENTS)
    return Contents(
        groups=groups,
        names=_names(reading, strings),
        counters=counters,
        epoch_ns=_epoch_ns(reading),
        notes=[*_warnings(reading), *reading.all_notes()],
        metadata=_metadata(reading),
    )


def _gpu_rows(reading: Reading, table: str, columns: Sequence[str], several: bool) -> Table:
    """Return rows of GPUs with their ``process``; ids of GPUs and correlations are the file's."""
    ids = ["deviceId", "contextId", "streamId", "correlationId", "globalPid"]
    rows = _with_unique_correlations(reading.events(table, [*ids, *columns]), several)
    return rows.with_ints(deviceId=gpu_numbers(reading, rows["process"], rows["deviceId"]))


def _with_unique_correlations(table: Table, several: bool) -> Table:
    process = process_of(table["globalPid"])
    unique = activity.unique_correlations(process, table["correlationId"], several=several)
    return table.with_ints(correlationId=unique, process=process)


def _kernels(reading: Reading, strings: dict[int, str], several: bool) -> Group:
    columns = [*activity.LAUNCH_COLUMNS, "demangledName", "shortName"]
    rows = _gpu_rows(reading, KERNELS, columns, several)
    name = named(first_known(rows["demangledName"], rows["shortName"]), strings, "kernel")
    return gpu_group(rows, name, "kernel", activity.launch_args(rows))


def _graphs(reading: Reading, several: bool) -> Group:
    """Return CUDA graphs that were traced as a whole: one row each, whatever kernels are in it."""
    rows = _gpu_rows(reading, f"{KIND}GRAPH_TRACE", ["graphId", "graphExecId"], several)
    name = named(first_known(rows["graphExecId"], rows["graphId"]), {}, "CUDA graph")
    return gpu_group(rows, name, "kernel")


def _calls(reading: Reading, strings: dict[int, str], several: bool) -> Group:
    rows = reading.events(RUNTIME, ["globalTid", "correlationId", "nameId"])
    versioned = named(rows["nameId"], strings, "CUDA call")
    name = activity.each_distinct(versioned, partial(_VERSION_SUFFIX.sub, ""))
    process = process_of(rows["globalTid"])
    correlation = activity.unique_correlations(process, rows["correlationId"], several=several)
    category = activity.each_distinct(
        name, lambda call: "cuda_driver" if _DRIVER_CALL.match(call) else "cuda_runtime"
    )
    return _on_thread(rows, name, category, correlation=correlation)


def _synchronisations(reading: Reading, several: bool) -> Group:
    """Return waits of the host or of a stream; event waits name the event's latest record."""
    rows = _gpu_rows(reading, f"{KIND}SYNCHRONIZATION", ["syncType", "eventId"], several)
    columns = ["globalPid", "streamId", "correlationId", "eventId"]
    recorded = reading.table(f"{KIND}CUDA_EVENT", columns)
    recorded = _with_unique_correlations(recorded, several)
    args = activity.event_wait_args(
        rows["syncType"],
        {"event": rows["eventId"], "process": rows["globalPid"]},
        rows["correlationId"],
        {"event": recorded["eventId"], "process": recorded["globalPid"]},
        recorded,
    )
    return activity.sync_group(rows, rows["syncType"], args)


def _library(reading: Reading, table: str, strings: dict[int, str]) -> Group:
    rows = reading.events(table, ["globalTid", "nameId", "textId"])
    name = named(first_known(rows["nameId"], rows["textId"]), strings, "call")
    return _on_thread(rows, name, LIBRARIES[table])


def _on_thread(table: Table, name: Texts, category: Texts | str, **args: Ints) -> Group:
    process, thread = process_of(table["globalTid"]), thread_of(table["globalTid"])
    dur = table["end"] - table["start"]
    return Group(table["start"], dur, name, category, as_texts(process), as_texts(thread), args)


def _memory(reading: Reading) -> pd.DataFrame:
    """Return the bytes that the program holds of each GPU by its cudaMalloc and cudaFree calls.

    PyTorch's allocator takes memory in bulk, so that these are its reserved bytes.
    """
    rows = reading.moments(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        "start",
        ["globalPid", "deviceId", "bytes", "memKind", "memoryOperationType"],
    )
    gpu = gpu_numbers(reading, process_of(rows["globalPid"]), rows["deviceId"])
    order = np.argsort(rows["start"], kind="stable")
    kinds = _memory_kinds(reading)
    words = {kind: f"{name.lower()} memory used" for kind, name in kinds.items()}
    words |= {kind: "reserved" for kind, name in kinds.items() if name == "Device"}
    names = [
        f"GPU {number} {words.get(kind, 'unknown memory used')}"
        for kind, number in zip(rows["memKind"][order].tolist(), gpu[order].tolist(), strict=True)
    ]
    size = np.maximum(rows["bytes"][order], 0)
    change = np.where(rows["memoryOperationType"][order] == ALLOCATION, size, -size)
    table = pd.DataFrame({"ts": rows["start"][order], "name": names, "change": change})
    total = table.groupby("name")["change"].cumsum()
    # Memory allocated before the recording is unknown: the sum starts high enough to stay above 0.
    lowest = total.groupby(table["name"]).transform("min").clip(upper=0)
    return table.assign(value=total - lowest)


def _metrics(reading: Reading) -> pd.DataFrame:
    """Return samples of the GPU's hardware counters; the type's last byte is the GPU's number."""
    metric = reading.table("TARGET_INFO_GPU_METRICS", ["typeId", "metricId"], ["metricName"])
    rows = reading.moments("GPU_METRICS", "timestamp", ["typeId", "metricId", "value"])
    metrics = pd.DataFrame(
        {"type": metric["typeId"], "metric": metric["metricId"], "name": metric.texts["metricName"]}
    ).drop_duplicates(["type", "metric"])
    columns = {"ts": "timestamp", "type": "typeId", "metric": "metricId", "value": "value"}
    samples = pd.DataFrame({key: rows[column] for key, column in columns.items()})
    samples = samples.merge(metrics, how="inner", on=["type", "metric"])
    gpu = (samples["type"].to_numpy(np.int64) & 0xFF).tolist()
    labels = [f"GPU {number} {name}" for number, name in zip(gpu, samples["name"], strict=True)]
    return samples.assign(name=labels)


def _nvtx_groups(reading: Reading, strings: dict[int, str], several: bool) -> list[Group]:
    """Return ranges on their threads, ranges across threads, and marks."""
    rows = _nvtx_rows(reading)
    kind, start, end = rows["eventType"], rows["start"], rows["end"]
    process, thread = process_of(rows["globalTid"]), thread_of(rows["globalTid"])
    # A range has its text in the row, or names a registered one.
    texts = zip(rows.texts["text"].tolist(), rows["textId"].tolist(), strict=True)
    text = np.array([inline or strings.get(number) or UNNAMED for inline, number in texts], object)
    domain = _domains(rows, text)
    pushed, started, mark = np.isin(kind, PUSHED), np.isin(kind, STARTED), kind == MARK
    others = kind[~(pushed | started | mark | np.isin(kind, (CATEGORY, DOMAIN)))]
    values, counts = np.unique(others, return_counts=True)
    reading.notes += [
        f"{count:,} NVTX events of type {'unknown' if number == MISSING else number} are not read"
        for number, count in zip(values.tolist(), counts.tolist(), strict=True)
    ]
    nvtx = NvtxRows(start, end, text, process, thread, domain)
    marks = nvtx.chosen(mark)
    return [
        emitted_group(nvtx.chosen(pushed), several=several),
        crossing_group(nvtx.chosen(started)),
        mark_group(replace(marks, end=marks.start)),
    ]


def _nvtx_rows(reading: Reading) -> Table:
    """Return all rows with a start; open ranges (old exports: end 0) end with the recording."""
    columns = ["end", "eventType", "textId", "globalTid", "domainId"]
    rows = reading.moments("NVTX_EVENTS", "start", columns, ["text"])
    start, end = rows["start"], rows["end"]
    ranges = np.isin(rows["eventType"], (*PUSHED, *STARTED))
    is_open = ranges & ((end == MISSING) | (end < start))
    reading.note_open_ranges(int(is_open.sum()), int(ranges.sum()))
    last = max(reading.latest, int(end.max(initial=0)))
    return rows.with_ints(end=np.where(is_open, np.maximum(last, start), np.maximum(end, start)))


def _domains(rows: Table, text: Texts) -> Texts:
    """Return the name of each row's domain, None for the default domain."""
    process = process_of(rows["globalTid"]).tolist()
    domain = rows["domainId"].tolist()
    names = {
        (process[row], domain[row]): text[row]
        for row in np.flatnonzero(rows["eventType"] == DOMAIN).tolist()
    }
    ids = zip(process, domain, strict=True)
    labels = [names.get((p, d), f"domain {d}") if d > 0 else None for p, d in ids]
    return np.array(labels, object)


DEFAULT_MEMORY_KINDS = dict(enumerate((*activity.MEMORY_KINDS, "Unknown")))
"""ENUM_CUDA_MEM_KIND, for exports without that table."""

NOT_EVENTS = (
    *("ANALYSIS_DETAILS", "DIAGNOSTIC_EVENT", "CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS"),
    "CUDA_GPU_MEMORY_POOL_EVENTS",
)
"""Tables with a time that hold nothing to draw, such as how graphs were built."""

DEVICE_PROPERTIES = {
    "totalGlobalMem": "totalMemory",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
    "maxThreadsPerBlock": "maxThreadsPerBlock",
    "regsPerBlock": "maxRegistersPerBlock",
    "regsPerMultiprocessor": "maxRegistersPerSm",
    "warpSize": "threadsPerWarp",
    "sharedMemPerBlock": "maxShmemPerBlock",
    "sharedMemPerBlockOptin": "maxShmemPerBlockOptin",
    "sharedMemPerMultiprocessor": "maxShmemPerSm",
    "numSms": "smCount",
}
"""Kineto's names of a device's properties, and the columns of TARGET_INFO_GPU."""

CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
MOST_WARNINGS = 5
LONGEST_WARNING = 500
_SERIOUS = re.compile(r"warn|err|fatal", re.IGNORECASE)
_PART = 0x1000000


def process_of(ids: Ints) -> Ints:
    """Return the process in a globalTid or globalPid: its second three bytes."""
    return np.where(ids == MISSING, MISSING, (ids // _PART) % _PART)


def thread_of(ids: Ints) -> Ints:
    """Return the thread in a globalTid: its last three bytes."""
    return np.where(ids == MISSING, MISSING, ids % _PART)


def _names(reading: Reading, strings: dict[int, str]) -> Names:
    """Return the names of processes and threads; of several names the one of highest priority."""
    rows = reading.table("PROCESSES", ["globalPid", "pid"], ["name"])
    pid = np.where(rows["pid"] == MISSING, process_of(rows["globalPid"]), rows["pid"])
    processes = {str(p): n for p, n in zip(pid.tolist(), rows.texts["name"], strict=True) if n}
    thread_names = reading.table("ThreadNames", ["nameId", "priority", "globalTid"])
    order = np.argsort(thread_names["priority"], kind="stable")
    tid = thread_names["globalTid"]
    columns = (process_of(tid), thread_of(tid), thread_names["nameId"])
    threads = {
        (str(process), str(thread)): strings[name]
        for process, thread, name in zip(*(ids[order].tolist() for ids in columns), strict=True)
        if name in strings
    }
    return Names(processes, threads)


def _memory_kinds(reading: Reading) -> dict[int, str]:
    """Return the names of the kinds of memory, as this export numbers them."""
    labels = reading.database.texts_by_id("ENUM_CUDA_MEM_KIND", "id", "label")
    return labels or DEFAULT_MEMORY_KINDS


def _epoch_ns(reading: Reading) -> int:
    """Return when the session began, in ns since 1970; 0 where the export does not say."""
    began = reading.table("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])["utcEpochNs"]
    return int(began[0]) if len(began) and began[0] > 0 else 0


def gpu_numbers(reading: Reading, process: Ints, device: Ints) -> Ints:
    """Translate each process's device numbers (CUDA_VISIBLE_DEVICES) to TARGET_INFO_GPU's ids.

    Without a translation in the export, the process's number stays.
    """
    rows = reading.table(CUDA_DEVICES, ["gpuId", "cudaId", "pid"])
    if not len(rows) or not len(device):
        return device
    gpus = pd.DataFrame(rows.ints).query("gpuId >= 0").drop_duplicates(["pid", "cudaId"])
    wanted = pd.DataFrame({"pid": process, "cudaId": device})
    exact = wanted.merge(gpus, how="left", on=["pid", "cudaId"])["gpuId"]
    numbers = gpus.groupby("cudaId")["gpuId"]
    agreed = wanted["cudaId"].map(numbers.first()[numbers.nunique() == 1])
    return exact.fillna(agreed).fillna(wanted["cudaId"]).to_numpy(np.int64)


def _metadata(reading: Reading) -> dict[str, Any]:
    """Return ``devices``, ``deviceProperties``, ``host``, and which program recorded the file."""
    values = _pairs(reading, "TARGET_INFO_SYSTEM_ENV") | _pairs(reading, "META_DATA_EXPORT")
    host = {"host": values["Hostname"]} if values.get("Hostname") else {}
    versions = {key: value for key, value in values.items() if re.match(r"EXPORT_\w*VERSION", key)}
    recorder = {"recorder": "Nsight Systems", "export": versions}
    return activity.device_metadata(_gpus(reading)) | host | recorder


def _warnings(reading: Reading) -> list[str]:
    """Return the warnings of Nsight Systems, each sentence once."""
    rows = reading.table("DIAGNOSTIC_EVENT", ["severity"], ["text"])
    levels = reading.database.texts_by_id("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "id", "label")
    serious = {level for level, word in levels.items() if _SERIOUS.search(word)}
    pairs = zip(rows["severity"].tolist(), rows.texts["text"].tolist(), strict=True)
    texts = list(dict.fromkeys(text for level, text in pairs if level in serious and text))
    more = len(texts) - MOST_WARNINGS
    rest = [f"Nsight Systems: {more:,} more warnings"] if more > 0 else []
    return [
        f"Nsight Systems: {shorten(text, LONGEST_WARNING)}" for text in texts[:MOST_WARNINGS]
    ] + rest


def _gpus(reading: Reading) -> list[dict[str, Any]]:
    """Return the GPUs by the numbers of `gpu_numbers`; without those, by CUDA's if it has any.

    Only those with CUDA: exports also list display adapters, with compute capability 0.0.
    """
    columns = ["id", "cuDevice", *DEVICE_PROPERTIES.values()]
    rows = reading.table("TARGET_INFO_GPU", columns, ["name"])
    rows = rows.chosen(rows["computeMajor"] != 0)
    cuda = rows["cuDevice"]
    numbered = len(np.unique(cuda)) == len(cuda) and bool(np.all(cuda >= 0))
    by_cuda = numbered and not reading.database.count(CUDA_DEVICES)
    ids = cuda if by_cuda else rows["id"]
    gpus = activity.device_properties(rows, ids, rows.texts["name"].tolist(), DEVICE_PROPERTIES)
    return sorted(gpus, key=lambda gpu: int(gpu["id"]))


def _pairs(reading: Reading, table: str) -> dict[str, str]:
    rows = reading.table(table, [], ["name", "value"])
    pairs = zip(rows.texts["name"].tolist(), rows.texts["value"].tolist(), strict=True)
    return {name: value for name, value in pairs if name and value}
