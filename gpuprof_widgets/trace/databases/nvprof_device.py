"""What an nvprof file says of its GPUs: their properties, and their power and temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.counters import counter_table
from gpuprof_widgets.trace.databases.readings import Reading
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING

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
