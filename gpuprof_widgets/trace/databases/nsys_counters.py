"""Counters of an export of Nsight Systems: memory taken from the driver, and the GPU's metrics."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.counters import counter_table
from gpuprof_widgets.trace.databases.nsys_target import gpu_numbers, memory_kinds, process_of
from gpuprof_widgets.trace.databases.readings import Reading
from gpuprof_widgets.trace.databases.sqlite_tables import Ints

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
