"""CUPTI's activity records as events of a trace, with the names, categories and args of Kineto.

nvprof and Nsight Systems both store these records, in different tables and columns. Their readers
turn each table into a `Group` of rows with the functions here; `joined` makes one trace's events.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Table, Texts
from gpuprof_widgets.trace.events import Events, text_codes
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.schema import NONE

# CUPTI's callback ids (cbid), by which alone nvprof names a call: those of CUPTI 12.4, the last
# version that shipped with nvprof; CUPTI never reuses an id. The names lack the version suffix that
# CUPTI adds (cudaLaunchKernel_v7000).
_CALLS_TABLE = files("gpuprof_widgets.trace.databases").joinpath("cuda_calls.csv")
_ROWS = list(csv.reader(_CALLS_TABLE.read_text("utf-8").splitlines()))

RUNTIME_CALLS = {int(cbid): name for api, cbid, name in _ROWS if api == "runtime"}
DRIVER_CALLS = {int(cbid): name for api, cbid, name in _ROWS if api == "driver"}

Columns = Mapping[str, Ints]
Values = Ints | Texts

GEOMETRY = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
SHARED_MEMORY = ("staticSharedMemory", "dynamicSharedMemory")
LAUNCH_COLUMNS = (*GEOMETRY, *SHARED_MEMORY, "registersPerThread")
"""Columns of kernels that both profilers call alike."""
COPY_COLUMNS = ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
"""The same of copies."""

_MEMORY = "Pageable,Pinned,Device,Array,Managed,Device Static,Managed Static"
MEMORY_KINDS = tuple(_MEMORY.split(","))
"""Kinds of memory in the order of both profilers, which number them from 1 and from 0."""

_COPIES = "HtoD,DtoH,HtoA,AtoH,AtoA,AtoD,DtoA,DtoD,HtoH,PtoP"
_UNIFIED_COPIES = "HtoD (Unified),DtoH (Unified),DtoD (Unified)"
COPY_KINDS = dict(enumerate(f"{_COPIES},{_UNIFIED_COPIES}".split(","), 1))
"""CUPTI's CUpti_ActivityMemcpyKind; from 11 on, Nsight Systems' kinds for unified memory."""
PEER_COPY = 10

SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""CUPTI's CUpti_ActivitySynchronizationType, under Kineto's names."""
EVENT_WAITS = (1, 2)

NO_STREAM = 0xFFFFFFFF
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE: the call does not wait for a single stream."""


@dataclass(frozen=True)
class Group:
    """Events of one table, times in ns; in args, `MISSING` and None stand for no value.

    A text in the place of a column is that of all rows.
    """

    ts: Ints
    dur: Ints
    name: Texts
    category: Texts | str
    process: Texts
    thread: Texts | str
    args: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ts)


def joined(groups: Sequence[Group]) -> Events:
    """Return the rows of all groups, one group after the other."""
    first = np.cumsum([0, *map(len, groups)])
    args: dict[str, list[tuple[Ints, NDArray[Any]]]] = {}
    for start, group in zip(first.tolist(), groups, strict=False):
        for key, values in group.args.items():
            is_object = values.dtype == object
            rows = np.flatnonzero(values != (None if is_object else MISSING))
            if len(rows):
                args.setdefault(key, []).append((rows + start, values[rows]))

    def coded(column: str) -> pd.Categorical:
        texts = [np.asarray(getattr(group, column), object) for group in groups]
        parts = [np.broadcast_to(t, len(g)) for t, g in zip(texts, groups, strict=True)]
        return text_codes(np.concatenate(parts).tolist())

    return Events(
        ts=np.concatenate([group.ts for group in groups]),
        dur=np.concatenate([group.dur for group in groups]),
        name=coded("name"),
        category=coded("category"),
        process=coded("process"),
        thread=coded("thread"),
        args={key: _series(parts) for key, parts in args.items()},
    )


def _series(parts: Sequence[tuple[Ints, NDArray[Any]]]) -> pd.Series:
    rows = np.concatenate([rows for rows, _ in parts])
    values = np.concatenate([values for _, values in parts])
    return pd.Series(values, index=pd.Index(rows, dtype=np.int64), dtype=values.dtype)


def as_texts(numbers: Ints) -> Texts:
    """Return numbers as text, "" for `MISSING`."""
    distinct, place = np.unique(numbers, return_inverse=True)
    words = ["" if number == MISSING else str(number) for number in distinct.tolist()]
    return np.array(words, object)[place]


def named(numbers: Ints, names: Mapping[int, str], otherwise: str) -> Texts:
    """Return the name of each number; without a name, ``otherwise`` followed by the number."""
    distinct, place = np.unique(numbers, return_inverse=True)
    unknown = [f"{otherwise} {n}" if n != MISSING else otherwise for n in distinct.tolist()]
    words = [names.get(n, word) for n, word in zip(distinct.tolist(), unknown, strict=True)]
    return np.array(words, object)[place]


def each_distinct(values: Texts, function: Callable[[str], str]) -> Texts:
    """Apply a function to every row's text, calling it once for each distinct text."""
    results = {value: function(value) for value in set(values.tolist())}
    return np.array([results[value] for value in values.tolist()], object)


def unique_correlations(process: Ints, correlation: Ints, *, several: bool) -> Ints:
    """Return correlation ids that differ between processes where the file has ``several``."""
    if not several:
        return correlation
    # CUPTI counts in 32 bits, and process ids have at most 22.
    unique = (process << 32) | (correlation & 0xFFFFFFFF)
    return np.where((correlation > 0) & (process != MISSING), unique, MISSING)


def gpu_group(
    table: Table, name: Texts, category: str, args: Mapping[str, Values] | None = None
) -> Group:
    """Return rows on GPU streams: kernels, copies, memsets or synchronisations."""
    device, stream = _device_and_stream(table["deviceId"], table["streamId"], table["process"])
    place = {"device": table["deviceId"], "context": table["contextId"]}
    place |= {"stream": table["streamId"], "correlation": table["correlationId"]}
    dur = table["end"] - table["start"]
    return Group(table["start"], dur, name, category, device, stream, {**place, **(args or {})})


def _device_and_stream(device: Ints, stream: Ints, process: Ints) -> tuple[Texts, Texts]:
    """Return process and thread of GPU rows as Kineto has them: the device and the stream.

    Where two processes use the same stream number on one GPU, these are different streams: then the
    thread also names the process.
    """
    ids = pd.DataFrame({"device": device, "stream": stream, "process": process})
    processes = ids.groupby(["device", "stream"])["process"].transform("nunique").to_numpy()
    thread = as_texts(stream)
    shared = processes > 1
    thread[shared] = [
        f"{number} of process {pid}"
        for number, pid in zip(thread[shared], as_texts(process)[shared], strict=True)
    ]
    return as_texts(device), thread


def launch_args(table: Table) -> dict[str, Values]:
    """Return the launch configuration of kernels under Kineto's keys."""
    static, dynamic = (table[key] for key in SHARED_MEMORY)
    known = (static >= 0) & (dynamic >= 0)
    return {
        "registers per thread": table["registersPerThread"],
        "shared memory": np.where(known, static + dynamic, MISSING),
        "grid": _sizes(*(table[key] for key in GEOMETRY[:3])),
        "block": _sizes(*(table[key] for key in GEOMETRY[3:])),
    }


def _sizes(*columns: Ints) -> Texts:
    """Return grids or blocks as lists ``[x, y, z]``; equal ones share one object."""
    distinct, place = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    lists = np.empty(len(distinct), object)
    lists[:] = [None if MISSING in row else row for row in distinct.tolist()]
    return lists[place.reshape(-1)]


def copy_group(table: Table, memory: Mapping[int, str]) -> Group:
    """Return copies, named as Kineto names them: ``Memcpy HtoD (Pageable -> Device)``."""
    directions = named(table["copyKind"], COPY_KINDS, "of kind")
    sources, targets = (named(table[end], memory, "Unknown") for end in ("srcKind", "dstKind"))
    names = [
        f"Memcpy {direction}" if "(" in direction else f"Memcpy {direction} ({source} -> {target})"
        for direction, source, target in zip(directions, sources, targets, strict=True)
    ]
    peers = table["copyKind"] == PEER_COPY
    args = {
        "bytes": table["bytes"],
        "fromDevice": np.where(peers, table["srcDeviceId"], MISSING),
        "toDevice": np.where(peers, table["dstDeviceId"], MISSING),
    }
    return gpu_group(table, np.array(names, object), "gpu_memcpy", args)


def memset_group(table: Table, kind: Ints, memory: Mapping[int, str]) -> Group:
    """Return memsets, named as Kineto names them: ``Memset (Device)``."""
    names = [f"Memset ({word})" for word in named(kind, memory, "Unknown")]
    return gpu_group(table, np.array(names, object), "gpu_memset", {"bytes": table["bytes"]})


def event_wait_args(
    kind: Ints, waiting: Columns, waited: Ints, records: Columns, recorded: Table
) -> dict[str, Values]:
    """Return the event of each event wait, and stream and call of its latest record before.

    ``waiting`` and ``records`` are the columns that identify an event; ``waited`` holds the
    correlation ids of the waits. "Before" compares these, which rise with time.
    """
    on_event = np.isin(kind, EVENT_WAITS)
    keys = list(waiting)
    both = pd.DataFrame({key: np.concatenate([waiting[key], records[key]]) for key in keys})
    event = np.asarray(both.groupby(keys, sort=False).ngroup(), np.int64)
    calls = recorded["correlationId"]
    row = links.latest_before(event[: len(waited)], waited, event[len(waited) :], calls)
    row = np.where(on_event & (take(calls, row, MISSING) < waited), row, NONE)
    return {
        "wait_on_stream": take(recorded["streamId"], row, MISSING),
        "wait_on_cuda_event_record_corr_id": take(calls, row, MISSING),
        "wait_on_cuda_event_id": np.where(on_event, waiting["event"], MISSING),
    }


def sync_group(table: Table, kind: Ints, args: Mapping[str, Values]) -> Group:
    """Return synchronisations; those of no single stream are on the thread -1, as in Kineto's."""
    group = gpu_group(table, named(kind, SYNC_KINDS, "Sync of type"), "cuda_sync", args)
    no_stream = group.args["stream"] == NO_STREAM
    return replace(group, thread=np.where(no_stream, "-1", group.thread))


def overhead_group(table: Table, name: Texts, process: Ints) -> Group:
    """Return the profiler's own work, on a separate thread as in Kineto's traces."""
    dur, thread = table["end"] - table["start"], "profiler overhead"
    return Group(table["start"], dur, name, "overhead", as_texts(process), thread)


def device_properties(
    table: Table, ids: Ints, names: Sequence[str | None], columns: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return id, name and known properties of each device.

    ``columns``: Kineto's name of each property, and the column that holds it.
    """
    properties = []
    for row, (number, name) in enumerate(zip(ids.tolist(), names, strict=True)):
        values = {key: int(table[column][row]) for key, column in columns.items()}
        known = {key: value for key, value in values.items() if value != MISSING}
        properties.append({"id": number, "name": name or ""} | known)
    return properties


def device_metadata(properties: list[dict[str, Any]]) -> dict[str, Any]:
    """Return ``devices`` and ``deviceProperties`` (Kineto's keys) of a record's metadata."""
    devices = [
        {"index": gpu["id"], "name": gpu["name"], "total_memory_bytes": gpu.get("totalGlobalMem")}
        for gpu in properties
    ]
    return {"devices": devices, "deviceProperties": properties}
