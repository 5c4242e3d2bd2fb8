"""Reader of nvprof's files (`nvprof -o file.nvprof`), which are SQLite.

Tables are named after CUPTI's activity kinds and have the fields of its records (cupti_activity.h)
as columns; `load_nvprof` in torch/autograd/profiler.py shows how the tables refer to each other.

Its parts: CUDA's activity, the GPUs (properties, clocks, temperature, power), NVTX (one row where a
range starts, one where it ends), and the demangling of kernel names.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.assemble import counter_table
from gpuprof_widgets.trace.databases import activity
from gpuprof_widgets.trace.databases.activity import (
    DRIVER_CALLS,
    RUNTIME_CALLS,
    Group,
    as_texts,
    gpu_group,
    named,
)
from gpuprof_widgets.trace.databases.nvtx_ops import (
    UNNAMED,
    NvtxRows,
    crossing_group,
    emitted_group,
    mark_group,
)
from gpuprof_widgets.trace.databases.readings import Contents, Reading
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Database, Table
from gpuprof_widgets.trace.events import Names
from gpuprof_widgets.trace.index import take

KIND = "CUPTI_ACTIVITY_KIND_"
KERNELS = (f"{KIND}CONCURRENT_KERNEL", f"{KIND}KERNEL", f"{KIND}CDP_KERNEL")
CALLS = {f"{KIND}RUNTIME": RUNTIME_CALLS, f"{KIND}DRIVER": DRIVER_CALLS}
COPIES = (f"{KIND}MEMCPY", f"{KIND}MEMCPY2")
MARKERS = f"{KIND}MARKER"

MEMORY_KINDS = dict(enumerate(("Unknown", *activity.MEMORY_KINDS)))
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

SAMPLES = {
    1: (("SM clock", 1.0), ("memory clock", 1.0)),
    2: (("temperature", 1.0),),
    3: (("power", 1e-3),),
}
"""By CUPTI's CUpti_ActivityEnvironmentKind: its first fields (32 bits each: MHz, °C, mW)."""

INSTANT, START, END = 1, 2, 4
"""CUPTI's CUpti_ActivityFlag of markers."""
PROCESS, THREAD = 1, 2
"""CUPTI's CUpti_ActivityObjectKind."""

_THREAD_BITS = 0xFFFFFFFF


def is_nvprof(database: Database) -> bool:
    """Return whether these are the tables of nvprof."""
    activities = (*KERNELS, *CALLS, *COPIES, MARKERS)
    return database.has("StringTable") and any(map(database.has, activities))


def read_nvprof(database: Database) -> Contents:
    """Read the events of CUDA and NVTX, and the GPU's state."""
    reading = Reading(database)
    strings = database.texts_by_id("StringTable", "_id_", "value")
    memsets = _gpu_rows(reading, f"{KIND}MEMSET", ["bytes", "memoryKind"])
    groups = [
        *[_kernels(reading, table, strings) for table in KERNELS],
        *[
            activity.copy_group(_gpu_rows(reading, table, activity.COPY_COLUMNS), MEMORY_KINDS)
            for table in COPIES
        ],
        activity.memset_group(memsets, memsets["memoryKind"], MEMORY_KINDS),
        *[_calls(reading, table, functions) for table, functions in CALLS.items()],
        _synchronisations(reading),
    ]
    overhead = reading.events(f"{KIND}OVERHEAD", ["overheadKind"])
    name = named(overhead["overheadKind"], OVERHEADS, "overhead of kind")
    no_process = np.full(len(overhead), MISSING, np.int64)
    groups.append(activity.overhead_group(overhead, name, no_process))
    counters = _counters(reading)
    groups += _marker_groups(reading, strings)  # open ranges end with what was read before
    return Contents(
        groups=groups,
        names=_names(reading, strings),
        counters=counters,
        notes=reading.all_notes(),
        metadata=_metadata(reading, strings),
    )


def _gpu_rows(reading: Reading, table: str, columns: Sequence[str]) -> Table:
    ids = ["deviceId", "contextId", "streamId", "correlationId"]
    rows = reading.events(table, [*ids, *columns])
    return rows.with_ints(process=np.full(len(rows), MISSING, np.int64))  # nvprof does not say it


def _kernels(reading: Reading, table: str, strings: Mapping[int, str]) -> Group:
    rows = _gpu_rows(reading, table, [*activity.LAUNCH_COLUMNS, "name"])
    mangled = named(rows["name"], strings, "kernel")
    name = activity.each_distinct(mangled, readable(mangled.tolist()).__getitem__)
    return gpu_group(rows, name, "kernel", activity.launch_args(rows))


def _calls(reading: Reading, table: str, functions: Mapping[int, str]) -> Group:
    rows = reading.events(table, ["cbid", "processId", "threadId", "correlationId"])
    category = "cuda_driver" if functions is DRIVER_CALLS else "cuda_runtime"
    # Thread ids are 32 bits without a sign; some columns hold them with one.
    thread = rows["threadId"]
    thread = np.where(thread == MISSING, MISSING, thread & _THREAD_BITS)
    return Group(
        rows["start"],
        rows["end"] - rows["start"],
        named(rows["cbid"], functions, f"{category} call"),
        category,
        as_texts(rows["processId"]),
        as_texts(thread),
        {"correlation": rows["correlationId"], "cbid": rows["cbid"]},
    )


def _synchronisations(reading: Reading) -> Group:
    """Return waits of the host or of a stream; event waits name the event's latest record."""
    rows = _gpu_rows(reading, f"{KIND}SYNCHRONIZATION", ["type", "cudaEventId"])
    contexts = reading.table(f"{KIND}CONTEXT", ["contextId", "deviceId"])
    device_of = dict(
        zip(contexts["contextId"].tolist(), contexts["deviceId"].tolist(), strict=True)
    )
    device = [device_of.get(context, MISSING) for context in rows["contextId"].tolist()]
    placed = rows.with_ints(deviceId=np.array(device, np.int64))
    recorded = reading.table(f"{KIND}CUDA_EVENT", ["streamId", "correlationId", "eventId"])
    args = activity.event_wait_args(
        rows["type"],
        {"event": rows["cudaEventId"]},
        rows["correlationId"],
        {"event": recorded["eventId"]},
        recorded,
    )
    return activity.sync_group(placed, rows["type"], args)


def _names(reading: Reading, strings: Mapping[int, str]) -> Names:
    """Return the names that the program gave to its processes and threads."""
    table = f"{KIND}NAME"
    rows = reading.table(table, ["objectKind", "name"])
    process, thread = _object_ids(reading.database.blobs(table, "objectId"))
    processes: dict[str, str] = {}
    threads: dict[tuple[str, str], str] = {}
    columns = (rows["objectKind"], rows["name"], process, thread)
    for kind, name, pid, tid in zip(*(column.tolist() for column in columns), strict=True):
        if kind == PROCESS and name in strings:
            processes[str(pid)] = strings[name]
        elif kind == THREAD and name in strings:
            threads[str(pid), str(tid)] = strings[name]
    return Names(processes, threads)


def _object_ids(blobs: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Return process and thread of CUPTI's ``objectId``: 32 bits each, little-endian."""
    content = b"".join(blob[:8].ljust(8, b"\0") for blob in blobs)
    numbers = np.frombuffer(content, "<u4").reshape(-1, 2).astype(np.int64)
    return numbers[:, 0], numbers[:, 1]


def _metadata(reading: Reading, strings: Mapping[int, str]) -> dict[str, Any]:
    rows = reading.table(f"{KIND}DEVICE", ["id", "name", *PROPERTIES.values()], ["name"])
    pairs = zip(rows.texts["name"], rows["name"].tolist(), strict=True)
    names = [name or strings.get(number) for name, number in pairs]
    properties = activity.device_properties(rows, rows["id"], names, PROPERTIES)
    return {**activity.device_metadata(properties), "recorder": "nvprof"}


def _counters(reading: Reading) -> pd.DataFrame:
    """Return the samples of clocks, temperature and power as a counters table."""
    table = f"{KIND}ENVIRONMENT"
    data = reading.database.blobs(table, "data")
    columns = ["deviceId", "environmentKind"]
    index = {"row": np.arange(len(data), dtype=np.int64)}
    rows = reading.moments(table, "timestamp", columns, more=index)
    keys = ("timestamp", *columns, "row")
    samples = [
        (ts, f"GPU {gpu} {name}", scale * int.from_bytes(data[row][4 * n : 4 * n + 4], "little"))
        for ts, gpu, kind, row in zip(*(rows[key].tolist() for key in keys), strict=True)
        for n, (name, scale) in enumerate(SAMPLES.get(kind, ()))
    ]
    names = [name for _, name, _ in samples]
    return counter_table([s[0] for s in samples], names, [s[2] for s in samples])


def _marker_groups(reading: Reading, strings: Mapping[int, str]) -> list[Group]:
    """Return ranges on their threads, ranges of a whole process or across threads, and marks."""
    process, thread = _object_ids(reading.database.blobs(MARKERS, "objectId"))
    columns = ["flags", "id", "objectKind", "name", "domain"]
    ids = {"process": process, "thread": thread}
    rows = reading.moments(MARKERS, "timestamp", columns, more=ids)
    ts = rows["timestamp"]
    text = np.array([strings.get(number, UNNAMED) for number in rows["name"].tolist()], object)
    # The default domain has no name.
    domain = np.array([strings.get(n) or None for n in rows["domain"].tolist()], object)
    marks = NvtxRows(ts, ts, text, rows["process"], rows["thread"], domain)
    first, last = _starts_and_ends(reading, rows)
    starts = marks.chosen(first)
    end = np.where(last >= 0, np.maximum(take(ts, last), starts.start), reading.latest)
    ranges = replace(starts, end=end)
    on_thread = rows["objectKind"][first] == THREAD
    on_thread &= (last < 0) | (take(rows["thread"], last) == ranges.thread)
    return [
        emitted_group(ranges.chosen(on_thread), several=len(np.unique(ranges.process)) > 1),
        crossing_group(ranges.chosen(~on_thread)),
        mark_group(marks.chosen((rows["flags"] & INSTANT) > 0)),
    ]


def _starts_and_ends(reading: Reading, markers: Table) -> tuple[Ints, Ints]:
    """Return the rows of range starts, and for each the row of its end; -1 without one.

    Both have the same id; where an id is used again, the first start gets the first end.
    """
    starts, ends = (np.flatnonzero((markers["flags"] & flag) > 0) for flag in (START, END))
    row_of_end = pd.Series(ends, index=_uses(markers, ends))
    last = row_of_end.reindex(_uses(markers, starts), fill_value=-1).to_numpy(np.int64)
    missing = int(np.count_nonzero(last < 0))
    reading.note_open_ranges(missing, len(starts))
    if loose := len(ends) - len(starts) + missing:
        reading.notes.append(f"{loose:,} ends of NVTX ranges have no start and were left out")
    return starts, last


def _uses(markers: Table, rows: Ints) -> pd.MultiIndex:
    """Return process and id of each row, and how often they were used before."""
    ids = pd.DataFrame({key: markers[key][rows] for key in ("process", "id", "timestamp")})
    in_time = ids.sort_values("timestamp", kind="stable")
    use = in_time.groupby(["process", "id"]).cumcount().reindex(ids.index)
    return pd.MultiIndex.from_arrays([ids["process"], ids["id"], use])


LONGEST = 4_096
"""Names beyond this length stay mangled, and demangled texts beyond it are discarded."""

_MANGLED = re.compile(r"_Z[A-Za-z0-9_.$]+")
_SECONDS = 2
"""Processor time allowed; the names of real traces take a few milliseconds."""
_DEMANGLER = f"""
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
free = ctypes.CDLL(None).free
demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
for line in sys.stdin.buffer:
    address = demangle(line.rstrip(), None, None, None)
    text = ctypes.string_at(address) if address else b""
    free(address)
    sys.stdout.buffer.write((text if len(text) <= {LONGEST} else b"") + b"\\n")
    sys.stdout.buffer.flush()
"""
"""Answers each line with a line, which is empty where the name cannot be demangled.

It runs in a process with little memory and time: a name of 250 letters can stand for a text of
gigabytes, and others could crash the C++ library that demangles them.
"""


def readable(names: Iterable[str]) -> dict[str, str]:
    """Return the demangled form of each name (``gemm(float*)`` of ``_Z4gemmPf``), else the name."""
    distinct = dict.fromkeys(names)
    mangled = [name for name in distinct if len(name) <= LONGEST and _MANGLED.fullmatch(name)]
    demangled = dict(zip(mangled, _demangled(mangled), strict=False)) if mangled else {}
    return {name: demangled.get(name) or name for name in distinct}


def _demangled(names: list[str]) -> list[str]:
    """Return a line for each name, or fewer where the process did not finish."""
    command = [sys.executable, "-I", "-S", "-c", _DEMANGLER]
    lines = "".join(f"{name}\n" for name in names).encode()
    try:
        output = subprocess.run(
            command, input=lines, capture_output=True, timeout=30, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    except (OSError, TypeError):  # no Python can be started, as in an embedded one
        return []
    return output.decode("utf-8", "replace").split("\n")
