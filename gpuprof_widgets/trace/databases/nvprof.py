"""Reader of nvprof's files (`nvprof -o file.nvprof`), which are SQLite.

Tables are named after CUPTI's activity kinds and have the fields of its records (cupti_activity.h)
as columns; `load_nvprof` in torch/autograd/profiler.py shows how the tables refer to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuprof_widgets.trace.databases import activity
from gpuprof_widgets.trace.databases.activity import Group, gpu_group, named, of_one, texts
from gpuprof_widgets.trace.databases.cuda_calls import DRIVER_CALLS, RUNTIME_CALLS
from gpuprof_widgets.trace.databases.mangled import readable
from gpuprof_widgets.trace.databases.nvprof_device import environment, metadata
from gpuprof_widgets.trace.databases.nvprof_nvtx import PROCESS, THREAD, marker_groups, object_ids
from gpuprof_widgets.trace.databases.readings import Reading
from gpuprof_widgets.trace.databases.sqlite_profile import Found
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Database, Ints, Table, Texts
from gpuprof_widgets.trace.events import Names

KIND = "CUPTI_ACTIVITY_KIND_"
KERNELS = (f"{KIND}CONCURRENT_KERNEL", f"{KIND}KERNEL", f"{KIND}CDP_KERNEL")
CALLS = {f"{KIND}RUNTIME": RUNTIME_CALLS, f"{KIND}DRIVER": DRIVER_CALLS}
COPIES = (f"{KIND}MEMCPY", f"{KIND}MEMCPY2")

MEMORY_KINDS = dict(
    enumerate(
        (
            *("Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static"),
            "Managed Static",
        )
    )
)
"""CUPTI's CUpti_ActivityMemoryKind."""

OVERHEADS = {
    1: "Driver Compiler",
    1 << 16: "Buffer Flush",
    2 << 16: "Instrumentation",
    3 << 16: "Resource",
    4 << 16: "Runtime Triggered Module Loading",
    5 << 16: "Lazy Function Loading",
    6 << 16: "Command Buffer Full",
}
"""CUPTI's CUpti_ActivityOverheadKind."""

_GPU = ("deviceId", "contextId", "streamId", "correlationId")
_GEOMETRY = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_SHARED = ("staticSharedMemory", "dynamicSharedMemory")
_THREAD_BITS = 0xFFFFFFFF


def is_nvprof(database: Database) -> bool:
    """Whether these are the tables of nvprof."""
    activities = (*KERNELS, *CALLS, *COPIES, f"{KIND}MARKER")
    return database.has("StringTable") and any(map(database.has, activities))


def read_nvprof(database: Database) -> Found:
    """All that the file holds of CUDA, NVTX and the GPU's state."""
    reading = Reading(database)
    strings = database.texts_by_id("StringTable", "_id_", "value")
    groups = [
        *[_kernels(reading, table, strings) for table in KERNELS],
        *[_copies(reading, table) for table in COPIES],
        _memsets(reading),
        *[_calls(reading, table, known) for table, known in CALLS.items()],
        _synchronisations(reading),
        _overhead(reading),
    ]
    measured = environment(reading)
    groups += marker_groups(reading, strings)
    return Found(
        groups=groups,
        names=_names(reading, strings),
        counters=measured,
        notes=reading.all_notes(),
        metadata=metadata(reading, strings),
    )


def thread_ids(numbers: Ints) -> Ints:
    """Thread ids are 32 bits without a sign; some columns hold them with one."""
    return np.where(numbers == MISSING, MISSING, numbers & _THREAD_BITS)


def _gpu(table: Table, name: Texts, category: str, **args: activity.Values) -> Group:
    nobody = np.full(len(table), MISSING, np.int64)
    return gpu_group(table, nobody, table["correlationId"], name, category, args)


def _kernels(reading: Reading, table: str, strings: Mapping[int, str]) -> Group:
    wanted = [*_GPU, *_GEOMETRY, *_SHARED, "registersPerThread", "name"]
    found = reading.events(table, wanted)
    written = named(found["name"], strings, "kernel")
    name = activity.each_distinct(written, readable(written.tolist()).__getitem__)
    args = activity.launch_args(found, _GEOMETRY, _SHARED)
    return _gpu(found, name, "kernel", **args)


def _copies(reading: Reading, table: str) -> Group:
    ends = ("srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
    found = reading.events(table, [*_GPU, "bytes", "copyKind", *ends])
    name = activity.copy_names(found["copyKind"], found["srcKind"], found["dstKind"], MEMORY_KINDS)
    return _gpu(found, name, "gpu_memcpy", **activity.copy_args(found))


def _memsets(reading: Reading) -> Group:
    found = reading.events(f"{KIND}MEMSET", [*_GPU, "bytes", "memoryKind"])
    name = activity.memset_names(found["memoryKind"], MEMORY_KINDS)
    return _gpu(found, name, "gpu_memset", bytes=found["bytes"])


def _calls(reading: Reading, table: str, known: Mapping[int, str]) -> Group:
    found = reading.events(table, ["cbid", "processId", "threadId", "correlationId"])
    category = "cuda_driver" if known is DRIVER_CALLS else "cuda_runtime"
    return Group(
        found["start"],
        found["end"] - found["start"],
        named(found["cbid"], known, f"{category} call"),
        of_one(category, len(found)),
        texts(found["processId"]),
        texts(thread_ids(found["threadId"])),
        {"correlation": found["correlationId"], "cbid": found["cbid"]},
    )


def _synchronisations(reading: Reading) -> Group:
    """Waits of the host or of a stream; for an event's, the latest record of that event."""
    wanted = ["type", "contextId", "streamId", "correlationId", "cudaEventId"]
    found = reading.events(f"{KIND}SYNCHRONIZATION", wanted)
    contexts = reading.table(f"{KIND}CONTEXT", ["contextId", "deviceId"])
    device_of = dict(
        zip(contexts["contextId"].tolist(), contexts["deviceId"].tolist(), strict=True)
    )
    device = [device_of.get(context, MISSING) for context in found["contextId"].tolist()]
    placed = found.with_ints(deviceId=np.array(device, np.int64))
    recorded = reading.table(f"{KIND}CUDA_EVENT", ["streamId", "correlationId", "eventId"])
    waited = activity.waited_args(
        found["type"],
        {"event": found["cudaEventId"]},
        found["correlationId"],
        {"event": recorded["eventId"]},
        recorded,
    )
    name = named(found["type"], activity.SYNC_KINDS, "Sync of type")
    return activity.sync_group(_gpu(placed, name, "cuda_sync", **waited))


def _overhead(reading: Reading) -> Group:
    """What the profiler itself took; on a thread of its own, as Kineto has it."""
    found = reading.events(f"{KIND}OVERHEAD", ["overheadKind"])
    nobody = np.full(len(found), MISSING, np.int64)
    name = named(found["overheadKind"], OVERHEADS, "overhead of kind")
    return activity.overhead_group(found, name, nobody)


def _names(reading: Reading, strings: Mapping[int, str]) -> Names:
    """What the program itself called its processes and threads."""
    table = f"{KIND}NAME"
    held = reading.table(table, ["objectKind", "name"])
    process, thread = object_ids(reading.database.blobs(table, "objectId"))
    processes: dict[str, str] = {}
    threads: dict[tuple[str, str], str] = {}
    rows: Any = zip(
        held["objectKind"].tolist(), held["name"].tolist(), process, thread, strict=True
    )
    for kind, name, its_process, its_thread in rows:
        if kind == PROCESS and name in strings:
            processes[str(its_process)] = strings[name]
        elif kind == THREAD and name in strings:
            threads[str(its_process), str(its_thread)] = strings[name]
    return Names(processes, threads)
