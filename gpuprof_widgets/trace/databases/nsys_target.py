"""What an export of Nsight Systems says of the machine: processes, threads, GPUs, the clock."""

from __future__ import annotations

import re
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.databases.readings import Reading
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Ints
from gpuprof_widgets.trace.events import Names

MEMORY_KINDS = (
    *("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static"),
    "Unknown",
)
"""ENUM_CUDA_MEM_KIND, for exports without that table."""

NOT_EVENTS = (
    *("ANALYSIS_DETAILS", "DIAGNOSTIC_EVENT", "CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS"),
    "CUDA_GPU_MEMORY_POOL_EVENTS",
)
"""Tables with a time in them that tell nothing to be drawn: how graphs were built, and the like."""

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
    """The process in a globalTid or globalPid: its second three bytes."""
    return np.where(ids == MISSING, MISSING, (ids // _PART) % _PART)


def thread_of(ids: Ints) -> Ints:
    """The thread in a globalTid: its last three bytes."""
    return np.where(ids == MISSING, MISSING, ids % _PART)


def names(reading: Reading, strings: dict[int, str]) -> Names:
    """What processes and threads are called; a thread with several names by the foremost."""
    held = reading.table("PROCESSES", ["globalPid", "pid"], ["name"])
    pid = np.where(held["pid"] == MISSING, process_of(held["globalPid"]), held["pid"])
    processes = {str(p): n for p, n in zip(pid.tolist(), held.texts["name"], strict=True) if n}
    called = reading.table("ThreadNames", ["nameId", "priority", "globalTid"])
    order = np.argsort(called["priority"], kind="stable")
    ids = (process_of(called["globalTid"]), thread_of(called["globalTid"]), called["nameId"])
    threads = {
        (str(process), str(thread)): strings[name]
        for process, thread, name in zip(*(one[order].tolist() for one in ids), strict=True)
        if name in strings
    }
    return Names(processes, threads)


def memory_kinds(reading: Reading) -> dict[int, str]:
    """Names of the kinds of memory, as this export numbers them."""
    written = reading.database.texts_by_id("ENUM_CUDA_MEM_KIND", "id", "label")
    return written or dict(enumerate(MEMORY_KINDS))


def epoch_ns(reading: Reading) -> int:
    """When the session began, ns since 1970; 0 where it is not said."""
    began = reading.table("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])["utcEpochNs"]
    return int(began[0]) if len(began) and began[0] > 0 else 0


def gpu_numbers(reading: Reading, process: Ints, device: Ints) -> Ints:
    """The GPUs of TARGET_INFO_GPU, of what each process numbers by itself (CUDA_VISIBLE_DEVICES).

    Where the export does not tell, the process's own number.
    """
    held = reading.table(CUDA_DEVICES, ["gpuId", "cudaId", "pid"])
    if not len(held) or not len(device):
        return device
    told = pd.DataFrame(held.ints).query("gpuId >= 0").drop_duplicates(["pid", "cudaId"])
    wanted = pd.DataFrame({"pid": process, "cudaId": device})
    exact = wanted.merge(told, how="left", on=["pid", "cudaId"])["gpuId"]
    numbers = told.groupby("cudaId")["gpuId"]
    agreed = wanted["cudaId"].map(numbers.first()[numbers.nunique() == 1])
    return exact.fillna(agreed).fillna(wanted["cudaId"]).to_numpy(np.int64)


def metadata(reading: Reading) -> dict[str, Any]:
    """``devices``, ``deviceProperties`` (Kineto's words), ``host``, and who recorded it."""
    properties = _gpus(reading)
    devices = [
        {"index": one["id"], "name": one["name"], "total_memory_bytes": one.get("totalGlobalMem")}
        for one in properties
    ]
    told = _pairs(reading, "TARGET_INFO_SYSTEM_ENV") | _pairs(reading, "META_DATA_EXPORT")
    host = {"host": told["Hostname"]} if told.get("Hostname") else {}
    versions = {key: value for key, value in told.items() if re.match(r"EXPORT_\w*VERSION", key)}
    recorder = {"recorder": "Nsight Systems", "export": versions}
    return {"devices": devices, "deviceProperties": properties} | host | recorder


def warnings(reading: Reading) -> list[str]:
    """What Nsight Systems itself warned of, each sentence once."""
    held = reading.table("DIAGNOSTIC_EVENT", ["severity"], ["text"])
    levels = reading.database.texts_by_id("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "id", "label")
    serious = {level for level, word in levels.items() if _SERIOUS.search(word)}
    rows = zip(held["severity"].tolist(), held.texts["text"].tolist(), strict=True)
    said = list(dict.fromkeys(text for level, text in rows if level in serious and text))
    more = len(said) - MOST_WARNINGS
    rest = [f"Nsight Systems warned of {more:,} things more"] if more > 0 else []
    return [
        f"Nsight Systems: {shorten(text, LONGEST_WARNING)}" for text in said[:MOST_WARNINGS]
    ] + rest


def _gpus(reading: Reading) -> list[dict[str, Any]]:
    """By the numbers that `gpu_numbers` gives; exports without them have CUDA's, if anything.

    Only those with CUDA: exports list whatever draws the screen as well, as of capability 0.0.
    """
    columns = list(DEVICE_PROPERTIES.values())
    every = reading.table("TARGET_INFO_GPU", ["id", "cuDevice", *columns], ["name"])
    held = every.chosen(every["computeMajor"] != 0)
    cuda = held["cuDevice"]
    numbered = len(np.unique(cuda)) == len(cuda) and bool(np.all(cuda >= 0))
    by_cuda = numbered and not reading.database.count(CUDA_DEVICES)
    ids = cuda if by_cuda else held["id"]
    found = []
    for row, (number, name) in enumerate(zip(ids.tolist(), held.texts["name"], strict=True)):
        told = {key: int(held[column][row]) for key, column in DEVICE_PROPERTIES.items()}
        known = {key: value for key, value in told.items() if value != MISSING}
        found.append({"id": number, "name": name or ""} | known)
    return sorted(found, key=lambda one: int(one["id"]))


def _pairs(reading: Reading, table: str) -> dict[str, str]:
    held = reading.table(table, [], ["name", "value"])
    pairs = zip(held.texts["name"].tolist(), held.texts["value"].tolist(), strict=True)
    return {name: value for name, value in pairs if name and value}
