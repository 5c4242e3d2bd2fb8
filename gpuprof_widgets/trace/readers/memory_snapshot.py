"""Reader of CUDA memory snapshots: the pickles of ``torch.cuda.memory._dump_snapshot``.

They are read by an unpickler that can call nothing (see `plain_data`). Each device's allocator
becomes a thread with ``[memory]`` instants like those of torch.profiler, so that all views and
analyses of memory work.
``metadata["memory"]`` holds the stacks, ``metadata["memory_segments"]`` the allocator's state at
the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import memory_history as kinds
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.events import Events, Names, text_codes
from gpuprof_widgets.trace.files import without_garbage_collection
from gpuprof_widgets.trace.memory_history import (
    SNAPSHOT_PROCESS,
    Block,
    Content,
    Entry,
    History,
    Stacks,
    content_of,
    history_of,
    number,
    segments_of,
    text,
)
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.plain_data import is_pickle, plain_data
from gpuprof_widgets.trace.schema import (
    GPU_DEVICE_TYPE,
    MEMORY_EVENT,
    NONE,
    OUT_OF_MEMORY_EVENT,
    TORCH_CATEGORY,
)

__all__ = ["is_pickle", "parse_memory_snapshot"]

INSTANT = "cpu_instant_event"
_SETTING = str | int | float | bool

DRIVER_CALLS = {
    "segment_alloc": "cudaMalloc",
    "segment_free": "cudaFree",
    "segment_map": "cuMemMap",
    "segment_unmap": "cuMemUnmap",
}
TORCH_CATEGORIES = {
    "input": "inputs",
    "temporary": "temporaries",
    "activation": "activations",
    "gradient": "gradients",
    "autograd_detail": "autograd detail",
    "parameter": "parameters",
    "optimizer_state": "optimizer state",
    "unknown": "other",
}
"""Categories in snapshots that torch makes of a profile (``torch/cuda/_memory_viz.py``)."""


def parse_memory_snapshot(data: bytes, path: Path) -> Record:
    """Return the record of a snapshot; metadata and errors name ``path``."""
    with without_garbage_collection():
        return _record(content_of(plain_data(data, path), len(data), path), path)


def _record(content: Content, path: Path) -> Record:
    stacks = Stacks()
    segments, blocks, wrong = segments_of(content, stacks)
    histories = _histories(content, blocks, stacks)
    if not sum(map(len, histories)):
        raise TraceError(
            f"{path}: a memory snapshot without a single block or event. Call "
            "torch.cuda.memory._record_memory_history() before the work, and dump it afterwards."
        )
    annotations, loose = annotations_of(content.annotations)
    notes = _notes(content, histories, wrong + content.left_out, loose)
    events = _events(histories, annotations if any(h.has_times for h in histories) else [])
    devices = [history.device for history in histories]
    names = {(SNAPSHOT_PROCESS, str(device)): f"allocator of GPU {device}" for device in devices}
    trace = assemble(events, names=Names({SNAPSHOT_PROCESS: SNAPSHOT_PROCESS}, names))
    metadata = {
        "source": str(path),
        "devices": [{"index": d, "name": None, "total_memory_bytes": None} for d in devices],
        "notes": notes,
        "memory": {
            "exact_bytes": True,
            "before": [
                {
                    "device": f"GPU {block.device}",
                    "address": block.address,
                    "bytes": block.requested,
                    "category": "before the record",
                    "tensor": "",
                    "stack": block.stack,
                }
                for history in histories
                for block in history.before
            ],
            "frames": stacks.frames,
            "stacks": stacks.stacks,
        },
        "memory_segments": segments,
        "allocator_settings": _plain(content.settings),
    }
    return Record(trace, None, metadata)


def _histories(content: Content, blocks: list[Block], stacks: Stacks) -> list[History]:
    by_device: dict[int, list[Block]] = {}
    for block in blocks:
        by_device.setdefault(block.device, []).append(block)
    entries = dict(enumerate(content.histories))
    used = sorted(set(by_device) | {device for device, history in entries.items() if history})
    histories = [history_of(d, entries.get(d, []), by_device.get(d, []), stacks) for d in used]
    # Devices without times begin with the others.
    starts = [int(history.ts[0]) for history in histories if history.has_times]
    for history in histories:
        if starts and not history.has_times:
            history.ts[:] += min(starts)
    return histories


def _plain(settings: dict[Any, Any]) -> dict[str, Any]:
    """Return the allocator's settings that are plain values, or dicts of such."""
    plain = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            value = {
                k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, _SETTING)
            }
        if isinstance(key, str) and isinstance(value, _SETTING | dict):
            plain[key] = value
    return plain


def _notes(content: Content, histories: list[History], wrong: int, loose: int) -> list[str]:
    total = sum(map(len, content.histories))
    left_out = sum(history.left_out for history in histories)
    gone = sum(history.gone for history in histories)
    actions = Counter(text(e, "action") for history in content.histories for e in history)
    unknown = [repr(word[:40]) for word, _ in actions.most_common() if word not in kinds.KNOWN]
    frequent = f" (actions: {', '.join(unknown[:4])})" if unknown else ""
    counted = [
        (
            left_out,
            f"of {total:,} entries of the history have no known action, address or size "
            f"and were left out{frequent}",
        ),
        (wrong, "segments, blocks or entries are not well-formed and were left out"),
        (loose, "annotations have only a start or an end and were left out"),
        (gone, "blocks were released, but the history does not say when"),
    ]
    notes = [f"{count:,} {words}" for count, words in counted if count]
    if not total:
        notes.append(
            "the snapshot has no history, only what was there when it was taken: to get one, call "
            "torch.cuda.memory._record_memory_history() before the work"
        )
    elif not any(history.has_times for history in histories):
        notes.append("the history has no times (torch 2.0): entries stand 1 µs apart, in order")
    return notes


def _events(histories: list[History], annotations: list[Annotation]) -> Events:
    tables = [_slices(history) for history in histories]
    devices = [history.device for history in histories]
    device = np.repeat(devices, list(map(len, tables)))
    table = pd.concat(tables, ignore_index=True)
    marks = [mark for mark in annotations if mark.device in devices]
    dur = np.zeros(len(table), np.int64)
    return Events(
        ts=np.append(table["ts"], np.array([mark.ts for mark in marks], np.int64)),
        dur=np.append(dur, np.array([mark.dur for mark in marks], np.int64)),
        name=text_codes([*table["name"], *(mark.name for mark in marks)]),
        category=text_codes([*table["category"], *["user_annotation"] * len(marks)]),
        process=text_codes([SNAPSHOT_PROCESS] * (len(table) + len(marks))),
        thread=text_codes([*map(str, device), *(str(mark.device) for mark in marks)]),
        args=_args(table, device),
    )


def _slices(history: History) -> pd.DataFrame:
    """Return the entries that become slices: allocations, releases, driver calls, failures."""
    action = np.array(history.action, object)
    words = {kinds.OUT_OF_MEMORY: OUT_OF_MEMORY_EVENT, "snapshot": "snapshot", **DRIVER_CALLS}
    moves = history.change != 0
    name = [MEMORY_EVENT if m else words.get(a, "") for a, m in zip(action, moves, strict=True)]
    released = np.isin(action, (*kinds.RELEASED, kinds.ASKED_FOR_RELEASE))
    table = pd.DataFrame(
        {
            "ts": history.ts,
            "name": pd.Series(name, dtype=object),
            "category": np.where(np.isin(action, list(DRIVER_CALLS)), "cuda_runtime", INSTANT),
            "Bytes": np.where(released, history.change, history.size),
            "Addr": history.address,
            "Total Allocated": history.allocated,
            "Total Reserved": history.reserved,
            "stream": history.stream,
            "Stack": history.stack,
            "Device Free": np.where(action == kinds.OUT_OF_MEMORY, history.free, NONE),
            TORCH_CATEGORY: pd.Series(
                [TORCH_CATEGORIES.get(word, "") for word in history.category], dtype=object
            ),
        }
    )
    return table[table["name"] != ""]


def _args(table: pd.DataFrame, device: Ints) -> dict[str, pd.Series]:
    """Return the args that torch.profiler gives its memory events, and the number of the stack."""
    sized = (table["category"] == INSTANT) & (table["name"] != "snapshot")
    rows = {
        "Addr": table["name"] == MEMORY_EVENT,
        "Bytes": table["name"] != "snapshot",
        "Device Free": table["Device Free"] != NONE,
        "Stack": table["Stack"] != NONE,
        "stream": table["name"] != "snapshot",
        TORCH_CATEGORY: table[TORCH_CATEGORY] != "",
    }
    keys = [key for key in table.columns if key not in ("ts", "name", "category")]
    args = {key: table.loc[rows.get(key, sized), key] for key in keys}
    args |= {
        "Device Type": pd.Series(GPU_DEVICE_TYPE, table.index[sized], dtype=np.int64),
        "Device Id": pd.Series(device.astype(np.int64), table.index)[sized],
        "Ev Idx": pd.Series(table.index.to_numpy(np.int64), table.index)[sized],
    }
    return {key: values for key, values in args.items() if len(values)}


@dataclass(frozen=True)
class Annotation:
    """A region: name, device, start and length in ns."""

    name: str
    device: int
    ts: int
    dur: int


def annotations_of(entries: list[Entry]) -> tuple[list[Annotation], int]:
    """Return the regions, and how many entries have only one end.

    Of regions with the same name, the last one to start ends first.

    Written by ``_initRecordAnnotations`` in ``torch/csrc/cuda/memory_snapshot.cpp``: ``name``,
    ``stage`` ("START" or "END"), ``device``, ``time_us``.
    """
    opened: dict[tuple[str, int], list[int]] = {}
    annotations, loose = [], 0
    for entry in entries:
        key = text(entry, "name"), number(entry, "device") or 0
        moment = number(entry, "time_us")
        if moment is None or moment >= 2**63 // 1000:
            loose += 1
        elif text(entry, "stage") == "START":
            opened.setdefault(key, []).append(moment)
        elif opened.get(key):
            start = opened[key].pop()
            annotations.append(Annotation(*key, start * 1000, max(moment - start, 0) * 1000))
        else:
            loose += 1
    return annotations, loose + sum(map(len, opened.values()))
