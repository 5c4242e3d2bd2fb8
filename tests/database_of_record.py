"""A run that Kineto recorded, as nvprof and Nsight Systems would have stored it under `emit_nvtx`.

Both read what CUPTI records, as Kineto does: whatever is known of the run from Kineto's trace must
be known from these files as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuprof_widgets.trace.databases.activity import RUNTIME_CALLS
from gpuprof_widgets.trace.databases.nsys import DEVICE_PROPERTIES
from gpuprof_widgets.trace.databases.nvprof import PROPERTIES
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import LAUNCH_CATEGORIES, OP_CATEGORIES
from tests.profiler_databases import Nsys, Nvprof, emitted, global_id, object_id

LATER = 1_000
"""CUPTI's clocks do not begin at 0."""

NUMBERS = {name: number for number, name in RUNTIME_CALLS.items()}
COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
MEMORY = ("Pageable", "Pinned", "Device")
SYNC_KINDS = ("", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")

TABLES = {
    "kernel": ("CONCURRENT_KERNEL", "KERNEL"),
    "gpu_memcpy": ("MEMCPY", "MEMCPY"),
    "gpu_memset": ("MEMSET", "MEMSET"),
    "cuda_sync": ("SYNCHRONIZATION", "SYNCHRONIZATION"),
}
"""Tables of nvprof and of Nsight Systems by the category of what is in them."""


@dataclass(frozen=True)
class Row:
    """One slice of the run."""

    name: str
    category: str
    start: int
    end: int
    process: str
    thread: str
    correlation: int
    sequence: int
    args: dict[str, Any]


def rows_of(record: Record) -> Iterator[Row]:
    trace = record.trace
    args: dict[int, dict[str, Any]] = {}
    for key, values in trace.args.items():
        for row, value in values.items():
            args.setdefault(row, {})[key] = value
    tracks = trace.tracks
    for row, one in enumerate(trace.slices.itertuples(index=False)):
        start = int(one.ts) + LATER
        yield Row(
            *(one.name, one.category, start, start + int(one.dur)),
            *(tracks["process"][one.track], tracks["thread"][one.track]),
            *(max(int(one.correlation), 0), int(one.sequence), args.get(row, {})),
        )


def text_of(row: Row, number: int) -> str:
    """As `emit_nvtx` writes it; a list of tensors stands flat."""
    dims = [one for one in row.args.get("Input Dims", []) if not _is_list_of_tensors(one)]
    sequence = row.sequence if row.sequence >= 0 else None
    return emitted(row.name, number=number, sequence=sequence, sizes=dims)


def nsys_of(record: Record) -> Nsys:
    """The run as Nsight Systems exports it."""
    made, pid = Nsys(), _main_process(record)
    events = set()
    for number, row in enumerate(rows_of(record), 1):
        if row.category in OP_CATEGORIES:
            made.range(text_of(row, number), row.start, row.end, pid=pid, tid=int(row.thread))
        elif row.category in LAUNCH_CATEGORIES:
            name = f"{row.name}_v7000" if row.category == "cuda_runtime" else row.name
            ids = {"correlation": row.correlation, "pid": pid, "tid": int(row.thread)}
            made.call(name, row.start, row.end, **ids)
        elif row.category in TABLES:
            text = {"demangledName": made.text(row.name)} if row.category == "kernel" else {}
            _, kind = TABLES[row.category]
            made.gpu(kind, row.start, row.end, pid=pid, **_place(row), **_columns(row), **text)
        events |= _recorded(row)
    for event, stream, correlation in sorted(events):
        ids = {"eventId": event, "streamId": stream, "correlationId": correlation}
        made.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", globalPid=global_id(pid, 0), **ids)
    for device in record.metadata.get("deviceProperties", ()):
        number = device["id"]
        known = {column: device[key] for key, column in DEVICE_PROPERTIES.items()}
        made.add("TARGET_INFO_GPU", id=number, cuDevice=number, name=device["name"], **known)
    return made


def nvprof_of(record: Record) -> Nvprof:
    """The run as nvprof stores it."""
    made, pid = Nvprof(), _main_process(record)
    events = set()
    for number, row in enumerate(rows_of(record), 1):
        if row.category in OP_CATEGORIES:
            ids = object_id(pid, int(row.thread))
            made.range(text_of(row, number), row.start, row.end, objectId=ids)
        elif row.category == "cuda_runtime":
            ids = {"correlation": row.correlation, "pid": pid, "tid": int(row.thread)}
            made.call(NUMBERS[row.name], row.start, row.end, **ids)
        elif row.category in TABLES:
            kind, _ = TABLES[row.category]
            text = {"name": made.text(row.name)} if row.category == "kernel" else {}
            made.gpu(kind, row.start, row.end, **_place(row), **_in_nvprof(_columns(row)), **text)
        events |= _recorded(row)
    for event, stream, correlation in sorted(events):
        ids = {"eventId": event, "streamId": stream, "correlationId": correlation}
        made.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", **ids)
    for device in record.metadata.get("deviceProperties", ()):
        name = made.text(device["name"])
        known = {column: device[key] for key, column in PROPERTIES.items()}
        made.add("CUPTI_ACTIVITY_KIND_DEVICE", id=device["id"], name=name, **known)
    made.add("CUPTI_ACTIVITY_KIND_CONTEXT", contextId=1, deviceId=0)
    return made


def _main_process(record: Record) -> int:
    on_cpu = record.trace.tracks["kind"] == "cpu"
    return int(record.trace.tracks.loc[on_cpu, "process"].iloc[0])


def _place(row: Row) -> dict[str, int]:
    place = {"device": row.args["device"], "stream": row.args["stream"]}
    return {"correlation": row.correlation, **place}


def _columns(row: Row) -> dict[str, int]:
    """What of a GPU row is in columns that only its table has."""
    args = row.args
    if row.category == "kernel":
        x, y, z = args["grid"]
        grid = {"gridX": x, "gridY": y, "gridZ": z}
        x, y, z = args["block"]
        block = {"blockX": x, "blockY": y, "blockZ": z}
        shared = {"staticSharedMemory": 0, "dynamicSharedMemory": args["shared memory"]}
        return {**grid, **block, **shared, "registersPerThread": args["registers per thread"]}
    if row.category == "gpu_memcpy":
        way, memory = row.name.removeprefix("Memcpy ").rstrip(")").split(" (")
        source, target = map(MEMORY.index, memory.split(" -> "))
        ends = {"copyKind": COPY_KINDS[way], "srcKind": source, "dstKind": target}
        return {"bytes": args["bytes"], **ends}
    if row.category == "gpu_memset":
        return {"bytes": args["bytes"], "memKind": MEMORY.index("Device")}
    event = args.get("wait_on_cuda_event_id", 0)
    return {"syncType": SYNC_KINDS.index(row.name), "eventId": event}


def _in_nvprof(columns: dict[str, int]) -> dict[str, int]:
    """CUPTI's own names, and kinds of memory, which begin with Unknown."""
    names = {"memKind": "memoryKind", "syncType": "type", "eventId": "cudaEventId"}
    kinds = ("srcKind", "dstKind", "memKind")
    return {names.get(key, key): value + (key in kinds) for key, value in columns.items()}


def _recorded(row: Row) -> set[tuple[int, int, int]]:
    """The record of the event that a synchronisation waited for."""
    keys = ("wait_on_cuda_event_id", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
    known = row.category == "cuda_sync" and all(key in row.args for key in keys)
    return {tuple(int(row.args[key]) for key in keys)} if known else set()  # type: ignore[misc]


def _is_list_of_tensors(dims: Any) -> bool:
    return any(isinstance(size, list) for size in dims)
