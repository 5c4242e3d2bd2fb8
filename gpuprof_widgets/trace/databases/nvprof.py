"""Reader of nvprof's files (`nvprof -o file.nvprof`), which are SQLite.

Tables are named after CUPTI's activity kinds and have the fields of its records (cupti_activity.h)
as columns; `load_nvprof` in torch/autograd/profiler.py shows how the tables refer to each other.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.assemble import counter_table
from gpuprof_widgets.trace.databases import activity
from gpuprof_widgets.trace.databases.activity import Group, gpu_group, named, of_one, texts
from gpuprof_widgets.trace.databases.cuda_calls import DRIVER_CALLS, RUNTIME_CALLS
from gpuprof_widgets.trace.databases.nvtx_ops import UNNAMED, crossing_group, emitted_group
from gpuprof_widgets.trace.databases.readings import Found, Reading
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


DEVICES = "CUPTI_ACTIVITY_KIND_DEVICE"
ENVIRONMENT = "CUPTI_ACTIVITY_KIND_ENVIRONMENT"

PROPERTIES = {
    "totalGlobalMem": "globalMemorySize",
    "computeMajor": "computeCapabilityMajor",
    "computeMinor": "computeCapabilityMinor",
    "maxThreadsPerBlock": "maxThreadsPerBlock",
    "regsPerBlock": "maxRegistersPerBlock",
    "regsPerMultiprocessor": "maxRegistersPerMultiprocessor",
    "warpSize": "numThreadsPerWarp",
    "sharedMemPerBlock": "maxSharedMemoryPerBlock",
    "sharedMemPerMultiprocessor": "maxSharedMemoryPerMultiprocessor",
    "numSms": "numMultiprocessors",
}
"""Kineto's names of a device's properties, and nvprof's columns."""

MEASURED = {
    1: (("SM clock", 1.0), ("memory clock", 1.0)),
    2: (("temperature", 1.0),),
    3: (("power", 1e-3),),
}
"""By CUPTI's CUpti_ActivityEnvironmentKind: its first fields (32 bits each: MHz, °C, mW)."""


def metadata(reading: Reading, strings: Mapping[int, str]) -> dict[str, Any]:
    """``devices``, ``deviceProperties`` (Kineto's words), and who recorded it."""
    held = reading.table(DEVICES, ["id", "name", *PROPERTIES.values()], ["name"])
    found = []
    for row, number in enumerate(held["id"].tolist()):
        name = held.texts["name"][row] or strings.get(int(held["name"][row]), "")
        told = {key: int(held[column][row]) for key, column in PROPERTIES.items()}
        known = {key: value for key, value in told.items() if value != MISSING}
        found.append({"id": number, "name": name} | known)
    devices = [
        {"index": one["id"], "name": one["name"], "total_memory_bytes": one.get("totalGlobalMem")}
        for one in found
    ]
    return {"devices": devices, "deviceProperties": found, "recorder": "nvprof"}


def environment(reading: Reading) -> pd.DataFrame:
    """A counters table of clocks, temperature and power, where they were sampled."""
    data = reading.database.blobs(ENVIRONMENT, "data")
    index = np.arange(len(data), dtype=np.int64)
    columns = ["deviceId", "environmentKind"]
    held = reading.moments(ENVIRONMENT, "timestamp", columns, beside={"row": index})
    rows = zip(*(held[key].tolist() for key in ("timestamp", *columns, "row")), strict=True)
    found = [
        (at, f"GPU {device} {word}", scale * int.from_bytes(data[row][4 * n : 4 * n + 4], "little"))
        for at, device, kind, row in rows
        for n, (word, scale) in enumerate(MEASURED.get(kind, ()))
    ]
    return counter_table(
        np.array([one[0] for one in found], np.int64),
        [one[1] for one in found],
        np.array([one[2] for one in found], np.float64),
    )


MARKERS = "CUPTI_ACTIVITY_KIND_MARKER"
INSTANT, START, END = 1, 2, 4
"""CUPTI's CUpti_ActivityFlag of markers."""
PROCESS, THREAD = 1, 2
"""CUPTI's CUpti_ActivityObjectKind."""


def marker_groups(reading: Reading, strings: Mapping[int, str]) -> list[Group]:
    """Ranges on their threads, ranges of a whole process or across threads, and marks."""
    held = _held(reading)
    said = _texts(held, strings)
    marks = (held["flags"] & INSTANT) > 0
    first, last = _pairs(reading, held)
    start = held["timestamp"][first]
    ends = np.append(held["timestamp"], 0)[last]
    end = np.where(last >= 0, np.maximum(ends, start), max(reading.latest, 0))
    process, thread = held["process"][first], held["thread"][first]
    ended = np.append(held["thread"], -1)[last]
    on_thread = (held["objectKind"][first] == THREAD) & ((last < 0) | (ended == thread))
    across = ~on_thread
    domain = _domains(held, strings)
    ours = np.array([name is None for name in domain[first][on_thread]], bool)
    pushed = emitted_group(
        start[on_thread],
        end[on_thread],
        said[first][on_thread],
        process[on_thread],
        thread[on_thread],
        ours,
        several=len(np.unique(process)) > 1,
    )
    crossing = crossing_group(start[across], end[across], said[first][across], process[across])
    return [
        pushed.with_args(domain=domain[first][on_thread]),
        crossing.with_args(domain=domain[first][across]),
        _marks(held.chosen(marks), said[marks]).with_args(domain=domain[marks]),
    ]


def object_ids(blobs: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Process and thread of CUPTI's ``objectId``: 32 bits each, little-endian."""
    whole = b"".join(blob[:8].ljust(8, b"\0") for blob in blobs)
    numbers = np.frombuffer(whole, "<u4").reshape(-1, 2).astype(np.int64)
    return numbers[:, 0], numbers[:, 1]


def _held(reading: Reading) -> Table:
    columns = ["flags", "id", "objectKind", "name", "domain"]
    process, thread = object_ids(reading.database.blobs(MARKERS, "objectId"))
    return reading.moments(
        MARKERS, "timestamp", columns, beside={"process": process, "thread": thread}
    )


def _texts(held: Table, strings: Mapping[int, str]) -> Texts:
    said = np.empty(len(held), object)
    said[:] = [strings.get(number, UNNAMED) for number in held["name"].tolist()]
    return said


def _domains(held: Table, strings: Mapping[int, str]) -> Texts:
    """The name of each row's domain; None for the one that needs none."""
    found = np.empty(len(held), object)
    found[:] = [strings.get(number) or None for number in held["domain"].tolist()]
    return found


def _pairs(reading: Reading, held: Table) -> tuple[Ints, Ints]:
    """Rows of starts, and for each the row of its end; -1 where there is none.

    They share an id; where it is used again, the first start has the first end.
    """
    starts, ends = (np.flatnonzero((held["flags"] & flag) > 0) for flag in (START, END))
    by_id = pd.Series(ends, index=_uses(held, ends))
    last = by_id.reindex(_uses(held, starts), fill_value=-1).to_numpy(np.int64)
    missing = int(np.count_nonzero(last < 0))
    if missing:
        reading.notes.append(
            f"{missing:,} of {len(starts):,} NVTX ranges were open when the recording ended; "
            "they end with it"
        )
    if loose := len(ends) - len(starts) + missing:
        reading.notes.append(f"{loose:,} ends of NVTX ranges have no start and were left out")
    return starts, last


def _uses(held: Table, rows: Ints) -> pd.MultiIndex:
    """The process and id of each row, and how often they were in use before."""
    ids = pd.DataFrame({key: held[key][rows] for key in ("process", "id", "timestamp")})
    in_time = ids.sort_values("timestamp", kind="stable")
    use = in_time.groupby(["process", "id"]).cumcount().reindex(ids.index)
    return pd.MultiIndex.from_arrays([ids["process"], ids["id"], use])


def _marks(held: Table, said: Texts) -> Group:
    none = np.zeros(len(held), np.int64)
    category = of_one("cpu_instant_event", len(held))
    process, thread = texts(held["process"]), texts(held["thread"])
    return Group(held["timestamp"], none, said, category, process, thread)


LONGEST = 4_096
"""Names and readable names beyond it stay as they are: they may be nobody's."""

_MANGLED = re.compile(r"_Z[A-Za-z0-9_.$]+")
_SECONDS = 2
"""Of a processor; names of real traces take a few milliseconds."""
_DEMANGLER = f"""
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
free = ctypes.CDLL(None).free
demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
for line in sys.stdin.buffer:
    found = demangle(line.rstrip(), None, None, None)
    text = ctypes.string_at(found) if found else b""
    free(found)
    sys.stdout.buffer.write((text if len(text) <= {LONGEST} else b"") + b"\\n")
    sys.stdout.buffer.flush()
"""
"""Answers each line with a line, which is empty where the name cannot be read."""


def readable(names: Iterable[str]) -> dict[str, str]:
    """``gemm(float*)`` of ``_Z4gemmPf``, by name; what cannot be read is as it was."""
    distinct = dict.fromkeys(names)
    mangled = [name for name in distinct if len(name) <= LONGEST and _MANGLED.fullmatch(name)]
    found = dict(zip(mangled, _demangled(mangled), strict=False)) if mangled else {}
    return {name: found.get(name) or name for name in distinct}


def _demangled(names: list[str]) -> list[str]:
    """A line for each name, or fewer where the process did not come to its end."""
    command = [sys.executable, "-I", "-S", "-c", _DEMANGLER]
    given = "".join(f"{name}\n" for name in names).encode()
    try:
        answered = subprocess.run(
            command, input=given, capture_output=True, timeout=30, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        answered = error.stdout or b""
    except (OSError, TypeError):  # no Python can be started, as in an embedded one
        return []
    return answered.decode("utf-8", "replace").split("\n")
