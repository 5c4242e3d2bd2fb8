"""The lists of a snapshot, checked: what is no list, dict or number of the right kind is counted.

The structure is documented in ``torch/cuda/memory.py`` (``_snapshot``) and written by
``torch/csrc/cuda/Module.cpp`` (``THCPModule_memorySnapshot``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError

LARGEST = 2**62
"""Addresses and sizes stay below it, so that their sums do."""
MOST_DEVICES = 4096

Entry = dict[str, Any]


@dataclass(frozen=True)
class Content:
    """``histories``: per device its trace entries; ``segments``: of all devices.

    ``left_out``: how many entries, segments and annotations were not dicts.
    """

    histories: tuple[list[Entry], ...]
    segments: list[Entry]
    settings: dict[str, Any]
    annotations: list[Entry]
    left_out: int


def content_of(plain: Any, size: int, path: Path) -> Content:
    """The parts of a snapshot of ``size`` bytes; a `TraceError` says what it is instead."""
    if isinstance(plain, list):  # torch.cuda.memory_snapshot() of 1.13 has no more than segments
        plain = {"segments": plain, "device_traces": []}
    if not isinstance(plain, dict) or not {"segments", "device_traces"} <= set(plain):
        raise TraceError(
            f"{path}: a pickle, but not a memory snapshot: {_described(plain)}, where a dict with "
            "'segments' and 'device_traces' was expected. Write one with "
            "torch.cuda.memory._dump_snapshot."
        )
    traces = [trace for trace in _list(plain["device_traces"]) if isinstance(trace, list)]
    parts = [*traces[:MOST_DEVICES], _list(plain["segments"])]
    parts.append(_list(plain.get("external_annotations", [])))
    if sum(map(len, parts)) > size:
        raise TraceError(
            f"{path}: {sum(map(len, parts)):,} entries in a file of {size:,} bytes: its lists hold "
            "one another, which a memory snapshot does not. Dump the snapshot again."
        )
    *histories, segments, annotations = (list(_dicts(part)) for part in parts)
    kept = sum(map(len, histories)) + len(segments) + len(annotations)
    settings = plain.get("allocator_settings")
    return Content(
        tuple(histories),
        segments,
        settings if isinstance(settings, dict) else {},
        annotations,
        sum(map(len, parts)) - kept,
    )


def number(entry: Entry, key: str) -> int | None:
    """The whole number under a key, None where there is no plausible one."""
    value = entry.get(key)
    return value if type(value) is int and 0 <= value < LARGEST else None


def text(entry: Entry, key: str) -> str:
    """The text under a key, "" where there is none."""
    value = entry.get(key)
    return value if type(value) is str else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(values: list[Any]) -> Iterable[Entry]:
    return (value for value in values if type(value) is dict)


def _described(plain: Any) -> str:
    if not isinstance(plain, dict):
        return f"it holds one {type(plain).__name__}"
    keys = ", ".join(repr(key[:40]) for key in list(plain)[:6])
    return f"it holds a dict with {keys or 'nothing in it'}"
