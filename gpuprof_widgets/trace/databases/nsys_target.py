"""The machine in an export of Nsight Systems: processes, threads, GPUs, clock and warnings."""

from __future__ import annotations

import re
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.databases import activity
from gpuprof_widgets.trace.databases.readings import Reading
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING
from gpuprof_widgets.trace.events import Names

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


def names(reading: Reading, strings: dict[int, str]) -> Names:
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


def memory_kinds(reading: Reading) -> dict[int, str]:
    """Return the names of the kinds of memory, as this export numbers them."""
    labels = reading.database.texts_by_id("ENUM_CUDA_MEM_KIND", "id", "label")
    return labels or DEFAULT_MEMORY_KINDS


def epoch_ns(reading: Reading) -> int:
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


def metadata(reading: Reading) -> dict[str, Any]:
    """Return ``devices``, ``deviceProperties``, ``host``, and which program recorded the file."""
    values = _pairs(reading, "TARGET_INFO_SYSTEM_ENV") | _pairs(reading, "META_DATA_EXPORT")
    host = {"host": values["Hostname"]} if values.get("Hostname") else {}
    versions = {key: value for key, value in values.items() if re.match(r"EXPORT_\w*VERSION", key)}
    recorder = {"recorder": "Nsight Systems", "export": versions}
    return activity.device_metadata(_gpus(reading)) | host | recorder


def warnings(reading: Reading) -> list[str]:
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
