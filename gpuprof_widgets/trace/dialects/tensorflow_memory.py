"""The tensors of a TensorFlow Timeline (``show_memory=True``) as torch's allocations.

Each output of a node is an object (phases N, O and D of the format): created when the node began,
with a snapshot that describes it, deleted after its last use that the Timeline saw. Its size is the
``requested_bytes`` in the text of the snapshot, as in TensorFlow's own counters of its allocators.
Of the tensors that a loop makes again and again under one name only the last is deleted: as in
those counters, the others are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof_widgets.trace.event_json import Event
from gpuprof_widgets.trace.events import Events, Names, text_codes, typed
from gpuprof_widgets.trace.gather import Gathered, id_text, times
from gpuprof_widgets.trace.schema import MEMORY_EVENT, NONE

CATEGORY = "Tensor"
BYTES = re.compile(r"requested_bytes: (\d{1,18})")
ALLOCATOR = re.compile(r"allocator_name: (\S+)")
GPU_ALLOCATOR = re.compile(r"gpu_(?:(\d+)_)?bfc", re.IGNORECASE)
CPU_DEVICE_TYPE, GPU_DEVICE_TYPE = 0, 1
"""torch's numbers of device types, as far as they are needed here."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor's name and size, where and when (ns) it was made, and when its last use ended."""

    name: str
    process: str
    thread: str
    made: int
    released: int
    size: int
    allocator: str


def tensors(file: Gathered, names: Names) -> tuple[Events, list[str]]:
    """Two ``[memory]`` instants per tensor, and what could not be told of others, as notes."""
    found = _tensors(file)
    made = sum(event.cat == CATEGORY for event in file.others["N"])
    left = made - len(found)
    note = f"{left:,} of {made:,} tensors have no size or no end, and no part in the memory views"
    return _instants(found, _compute_of(names)), [note] if left else []


def _tensors(file: Gathered) -> list[_Tensor]:
    """Those with a size and an end, in the order in which the file deletes them."""
    made, described, deleted = (_timed(file.others[phase]) for phase in "NOD")
    begun = {_key(event): (event, ts) for event, ts in made}
    text = {_key(event): _description(event) for event, _ in described}
    found = []
    for event, released in deleted:
        first, ts = begun.get(_key(event), (event, None))
        size = BYTES.search(text.get(_key(event), ""))
        if ts is not None and size:
            allocator = ALLOCATOR.search(text[_key(event)])
            told = allocator[1] if allocator else ""
            place = id_text(first.pid), id_text(first.tid)
            found.append(_Tensor(event.name, *place, ts, released, int(size[1]), told))
    return found


def _timed(events: Sequence[Event]) -> list[tuple[Event, int]]:
    tensors = [event for event in events if event.cat == CATEGORY]
    ts, _, valid = times(tensors)
    pairs = zip(tensors, ts.tolist(), valid.tolist(), strict=True)
    return [(event, at) for event, at, good in pairs if good]


def _key(event: Event) -> tuple[Any, ...]:
    return event.pid, event.id, event.name


def _description(event: Event) -> str:
    snapshot = (event.args or {}).get("snapshot")
    return str(snapshot.get("tensor_description")) if isinstance(snapshot, dict) else ""


def _compute_of(names: Names) -> Mapping[str, str]:
    """The process of a device's ops, by the process of its tensors."""
    by_name = {name.strip(): process for process, name in names.processes.items()}
    return {
        process: by_name.get(f"{name.strip().removesuffix('Tensors')}Compute", process)
        for process, name in names.processes.items()
    }


def _instants(found: Sequence[_Tensor], compute: Mapping[str, str]) -> Events:
    """An allocation on the lane of the op that made it, a release on the lane of the tensors.

    Of one moment the releases come first, as in TensorFlow's counters.
    """
    released = np.repeat([False, True], len(found))
    each = np.tile(np.arange(len(found)), 2)
    ts = np.array([*(one.made for one in found), *(one.released for one in found)], dtype=np.int64)
    order = np.lexsort((~released, ts))
    of = [(found[number], out) for number, out in zip(each[order], released[order], strict=True)]
    values: dict[str, list[Any]] = {
        "Bytes": [-one.size if out else one.size for one, out in of],
        "Addr": each[order].tolist(),
        "Ev Idx": list(range(len(of))),
        "Device Type": [_device(one.allocator)[0] for one, _ in of],
        "Device Id": [_device(one.allocator)[1] for one, _ in of],
        "tensor": [one.name for one, _ in of],
    }
    return Events(
        ts=ts[order],
        dur=np.zeros(len(of), dtype=np.int64),
        name=text_codes([MEMORY_EVENT] * len(of)),
        category=text_codes(["cpu_instant_event"] * len(of)),
        process=text_codes(
            [one.process if out else compute.get(one.process, one.process) for one, out in of]
        ),
        thread=text_codes(["0" if out else one.thread for one, out in of]),
        args={key: typed(column, np.arange(len(of))) for key, column in values.items() if of},
    )


def _device(allocator: str) -> tuple[int, int]:
    """The type of device and its number (-1 for the CPU), as torch writes them."""
    gpu = GPU_ALLOCATOR.fullmatch(allocator)
    return (GPU_DEVICE_TYPE, int(gpu[1] or 0)) if gpu else (CPU_DEVICE_TYPE, NONE)
