"""SQLite files as nvprof and Nsight Systems write them, made by the descriptions of their tables.

Columns are those of nvprof's schema version 9 and of the "SQLite Schema Reference" of the Nsight
Systems User Guide; what a test does not say is 0 (nvprof) or NULL (Nsight Systems).
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.readers import parse

_GPU = "start end deviceId contextId streamId correlationId"
_LAUNCH = (
    "gridX gridY gridZ blockX blockY blockZ registersPerThread staticSharedMemory "
    "dynamicSharedMemory"
)

NSYS = {
    "StringIds": "id value",
    "ThreadNames": "nameId priority globalTid",
    "PROCESSES": "globalPid pid name",
    "TARGET_INFO_GPU": (
        "vmId id name totalMemory smCount cuDevice maxRegistersPerBlock maxShmemPerBlock "
        "maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp maxThreadsPerBlock "
        "computeMajor computeMinor"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName name nameEnum value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "TARGET_INFO_GPU_METRICS": "typeId sourceId typeName metricId metricName",
    "META_DATA_EXPORT": "name value",
    "ENUM_CUDA_MEM_KIND": "id name label",
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": "id name label",
    "DIAGNOSTIC_EVENT": "timestamp timestampType source severity text globalPid",
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start end eventClass globalTid correlationId nameId returnValue callchainId"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_GPU} globalPid demangledName shortName mangledName {_LAUNCH}",
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{_GPU} globalPid bytes copyKind srcKind dstKind srcDeviceId dstDeviceId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_GPU} globalPid value bytes memKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_GPU} globalPid syncType eventId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId contextId streamId correlationId globalPid eventId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_GPU} globalPid graphId graphExecId",
    "NVTX_EVENTS": (
        "start end eventType rangeId category text globalTid endGlobalTid textId domainId"
    ),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        "start globalPid deviceId contextId address bytes memKind memoryOperationType"
    ),
    "GPU_METRICS": "timestamp typeId metricId value",
    "OSRT_API": "start end eventClass globalTid nameId returnValue nestingLevel callchainId",
    "CUBLAS_EVENTS": "start end eventClass globalTid nameId",
    "PROFILER_OVERHEAD": "start end globalTid correlationId nameId returnValue",
    "SCHED_EVENTS": "start cpu isSchedIn globalTid",
}
"""Tables of an export, and their columns."""

_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
NVPROF = {
    "StringTable": "_id_ value",
    "Version": "version",
    f"{_ACTIVITY}CONCURRENT_KERNEL": f"_id_ {_GPU} {_LAUNCH} name",
    f"{_ACTIVITY}RUNTIME": "_id_ cbid start end processId threadId correlationId returnValue",
    f"{_ACTIVITY}DRIVER": "_id_ cbid start end processId threadId correlationId returnValue",
    f"{_ACTIVITY}MEMCPY": f"_id_ {_GPU} copyKind srcKind dstKind flags bytes",
    f"{_ACTIVITY}MEMCPY2": (
        f"_id_ {_GPU} copyKind srcKind dstKind flags bytes srcDeviceId dstDeviceId"
    ),
    f"{_ACTIVITY}MEMSET": f"_id_ {_GPU} value bytes flags memoryKind",
    f"{_ACTIVITY}MARKER": "_id_ flags timestamp id objectKind objectId name domain",
    f"{_ACTIVITY}NAME": "_id_ objectKind objectId name",
    f"{_ACTIVITY}OVERHEAD": "_id_ overheadKind objectKind objectId start end",
    f"{_ACTIVITY}SYNCHRONIZATION": (
        "_id_ type start end correlationId contextId streamId cudaEventId"
    ),
    f"{_ACTIVITY}CUDA_EVENT": "_id_ correlationId contextId streamId eventId",
    f"{_ACTIVITY}CONTEXT": "_id_ contextId deviceId computeApiKind nullStreamId",
    f"{_ACTIVITY}ENVIRONMENT": "_id_ deviceId timestamp environmentKind data",
    f"{_ACTIVITY}DEVICE": (
        "_id_ globalMemorySize numThreadsPerWarp numMultiprocessors maxRegistersPerBlock "
        "maxRegistersPerMultiprocessor maxSharedMemoryPerBlock maxSharedMemoryPerMultiprocessor "
        "maxThreadsPerBlock computeCapabilityMajor computeCapabilityMinor id name"
    ),
}
"""Tables of an nvprof file, and their columns."""

PID, TID = 100, 100


class Database:
    """A file in the making; ``text`` gives the number of a string in its table of strings."""

    def __init__(self, tables: dict[str, str], strings: str, nothing: int | None) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.tables = {name: columns.split() for name, columns in tables.items()}
        self._strings, self._nothing = strings, nothing
        self._numbers: dict[str, int] = {}
        for name, columns in self.tables.items():
            self.connection.execute(f"CREATE TABLE {name} ({', '.join(map(_quoted, columns))})")

    def text(self, value: str) -> int:
        if value not in self._numbers:
            number = self._numbers[value] = len(self._numbers) + 1
            self.connection.execute(f"INSERT INTO {self._strings} VALUES (?, ?)", (number, value))
        return self._numbers[value]

    def add(self, table: str, **row: Any) -> None:
        columns = self.tables[table]
        unknown = set(row) - set(columns)
        assert not unknown, f"{table} has no {unknown}"
        values = [row.get(name, None if name == "_id_" else self._nothing) for name in columns]
        marks = ", ".join("?" * len(columns))
        self.connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def run(self, statement: str) -> None:
        """Any SQL, for tests that need a file to be odd."""
        self.connection.execute(statement)

    def without(self, *tables: str) -> None:
        for table in tables:
            self.connection.execute(f"DROP TABLE {table}")

    def bytes(self) -> bytes:
        self.connection.commit()
        return self.connection.serialize()

    def record(self) -> Record:
        """What the reader makes of it."""
        return parse(self.bytes(), Path("made.sqlite"))


class Nsys(Database):
    """An export of Nsight Systems."""

    def __init__(self) -> None:
        super().__init__(NSYS, "StringIds", None)

    def call(
        self, name: str, start: int, end: int, *, correlation: int, pid: int = PID, tid: int = TID
    ) -> None:
        ids = {"globalTid": global_id(pid, tid), "correlationId": correlation}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, nameId=self.text(name), **ids)

    def gpu(
        self,
        kind: str,
        start: int,
        end: int,
        *,
        correlation: int = 0,
        stream: int = 7,
        device: int = 0,
        pid: int = PID,
        **row: Any,
    ) -> None:
        place = {"deviceId": device, "contextId": 1, "streamId": stream}
        ids = {"correlationId": correlation, "globalPid": global_id(pid, 0)}
        self.add(f"{_ACTIVITY}{kind}", start=start, end=end, **place, **ids, **row)

    def kernel(self, name: str, start: int, end: int, **row: Any) -> None:
        number = self.text(name)
        grid = {"gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 64, "blockY": 1, "blockZ": 1}
        shared = {"registersPerThread": 32, "staticSharedMemory": 16, "dynamicSharedMemory": 8}
        names = {"demangledName": number, "shortName": number}
        self.gpu("KERNEL", start, end, **({**grid, **shared, **names} | row))

    def range(
        self, text: str, start: int, end: int | None, *, pid: int = PID, tid: int = TID, **row: Any
    ) -> None:
        given = {"eventType": 59, "text": text, "domainId": 0} | row
        self.add("NVTX_EVENTS", start=start, end=end, globalTid=global_id(pid, tid), **given)


class Nvprof(Database):
    """A file of nvprof."""

    def __init__(self) -> None:
        super().__init__(NVPROF, "StringTable", 0)
        self._ranges = 0

    def call(
        self,
        cbid: int,
        start: int,
        end: int,
        *,
        correlation: int,
        pid: int = PID,
        tid: int = TID,
        table: str = "RUNTIME",
    ) -> None:
        ids = {"processId": pid, "threadId": tid, "correlationId": correlation}
        self.add(f"{_ACTIVITY}{table}", cbid=cbid, start=start, end=end, **ids)

    def gpu(
        self,
        kind: str,
        start: int,
        end: int,
        *,
        correlation: int = 0,
        stream: int = 7,
        device: int = 0,
        **row: Any,
    ) -> None:
        place = {"contextId": 1, "streamId": stream, "correlationId": correlation}
        if kind != "SYNCHRONIZATION":  # its context says which device
            place["deviceId"] = device
        self.add(f"{_ACTIVITY}{kind}", start=start, end=end, **place, **row)

    def kernel(self, name: str, start: int, end: int, **row: Any) -> None:
        grid = {"gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 64, "blockY": 1, "blockZ": 1}
        shared = {"registersPerThread": 32, "staticSharedMemory": 16, "dynamicSharedMemory": 8}
        given = {**grid, **shared, "name": self.text(name)} | row
        self.gpu("CONCURRENT_KERNEL", start, end, **given)

    def marker(self, flags: int, at: int, number: int, *, text: str = "", **row: Any) -> None:
        name = self.text(text) if text else 0
        given = {"objectKind": 2, "objectId": object_id(PID, TID)} | row
        self.add(f"{_ACTIVITY}MARKER", flags=flags, timestamp=at, id=number, name=name, **given)

    def range(self, text: str, start: int, end: int | None, *, tid: int = TID, **row: Any) -> None:
        self._ranges += 1
        given = {"objectId": object_id(PID, tid)} | row
        self.marker(2, start, self._ranges, text=text, **given)
        if end is not None:
            self.marker(4, end, self._ranges, **given)


def rows(trace: Trace, category: str) -> pd.DataFrame:
    """Slices of a category, with their track's process, thread, device and stream."""
    found = trace.slices[trace.slices["category"] == category]
    where = trace.tracks[["process", "thread", "device", "stream", "label"]]
    return found.join(where, on="track").assign(end=found["ts"] + found["dur"])


def notes(record: Record) -> str:
    return "\n".join(record.metadata["notes"])


def global_id(pid: int, tid: int) -> int:
    """How Nsight Systems packs a process and a thread into one number."""
    return (1 << 56) | (pid << 24) | tid


def object_id(pid: int, tid: int) -> bytes:
    """CUPTI's CUpti_ActivityObjectKindId of a thread."""
    return struct.pack("<III", pid, tid & 0xFFFFFFFF, 0)


def emitted(
    name: str, *, number: int, sequence: int | None = None, sizes: Sequence[Any] = ()
) -> str:
    """The text that `emit_nvtx` pushes for an op (getNvtxStr, torch/csrc/profiler/util.cpp)."""
    text = name if sequence is None else f"{name}, seq = {sequence}"
    text += f", op_id = {number}"
    return f"{text}, sizes = {list(sizes)}, input_op_ids = [(0,-1)]" if sizes else text


def written(data: bytes, path: Path) -> Path:
    """The file, as it was in memory."""
    path.write_bytes(data)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return path


def _quoted(name: str) -> str:
    return '"_id_" INTEGER PRIMARY KEY' if name == "_id_" else f'"{name}"'
