"""A profile with something for every format that it can be written in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuprof_widgets.profiles import Profile
from tests.traces import calls_of, copy, kernel, memory, op, python, runtime, trace_of

METADATA: dict[str, Any] = {
    "label": 'cell "3" – µs',
    "devices": [
        {
            "index": 0,
            "name": "NVIDIA H200",
            "total_memory_bytes": 1 << 37,
            "multiprocessors": 132,
            "compute_capability": "9.0",
        }
    ],
    "rank": 3,
    "world_size": 8,
    "notes": ["one"],
}


def a_profile() -> Profile:
    """A profile with something for every format."""
    record = trace_of(
        python("train.py(3): step", ts=0, dur=60),
        op("aten::mm", ts=0, dur=9, shapes=[[2, 3], [3, 4]], sequence=4),
        runtime("cudaLaunchKernel", ts=2, dur=3),
        memory(512, ts=3, allocated=512, reserved=1024, device=0),
        kernel("gemm<float>", ts=10, dur=5, launched_by=2),
        copy(ts=20, dur=5, bytes=64),
        calls=calls_of((None, "main", 1, 100), ("main", "step", 3, 250)),
        **METADATA,
    )
    return Profile(record.trace, record.calls, record.metadata)


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def as_ns(number: float) -> int:
    return round(number * 1000)
