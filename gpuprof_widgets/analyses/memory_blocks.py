"""Blocks of memory: each allocation joined with the release of the same address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.op_calls import frame_of
from gpuprof_widgets.analyses.operators import CPU_DEVICE_TYPE
from gpuprof_widgets.analyses.owners import (
    forward_of,
    module_frame_around,
    module_frames,
    region_behind,
)
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import EVALUATE
from gpuprof_widgets.trace.schema import MEMORY_EVENT, NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

UNKNOWN = -1
"""A total, in bytes, that the trace does not tell."""


@dataclass(frozen=True)
class MemoryEvents:
    """The ``[memory]`` instants in order of time.

    ``size``: bytes, negative where they were released; ``allocated`` and ``reserved``: the device's
    totals after the event, `UNKNOWN` where torch did not write them; ``address``: `UNKNOWN` in
    traces of torch 1.8.
    """

    row: npt.NDArray[np.intp]
    ts: Ints
    device: npt.NDArray[np.object_]
    size: Ints
    address: Ints
    allocated: Ints
    reserved: Ints

    def __len__(self) -> int:
        return len(self.row)

    def of(self, device: str) -> MemoryEvents:
        """Those of one device, "CPU" or "GPU 0"."""
        here = self.device == device
        return MemoryEvents(**{name: values[here] for name, values in vars(self).items()})

    @property
    def devices(self) -> list[str]:
        """The devices, accelerators first."""
        found = sorted(set(self.device), key=lambda name: (len(name), name))
        return [*(name for name in found if name != "CPU"), *(n for n in found if n == "CPU")]


def memory_events(trace: Trace) -> MemoryEvents:
    """Every allocation and release; of one moment in the order in which torch wrote them."""
    row = np.flatnonzero(trace.index.named(frozenset({MEMORY_EVENT})))
    size = _arg(trace, "Bytes", row, 0)
    row, size = row[size != 0], size[size != 0]
    ts = trace.slices["ts"].to_numpy()[row]
    order = np.lexsort((row, _arg(trace, "Ev Idx", row, 0), ts))
    row, size, ts = row[order], size[order], ts[order]
    kind = _arg(trace, "Device Type", row, CPU_DEVICE_TYPE)
    number = _arg(trace, "Device Id", row, NONE)
    pairs = zip(kind.tolist(), number.tolist(), strict=True)
    names = ["CPU" if kind == CPU_DEVICE_TYPE else f"GPU {number}" for kind, number in pairs]
    device = np.array(names, dtype=object)
    return MemoryEvents(
        row=row,
        ts=ts,
        device=device,
        size=size,
        address=_arg(trace, "Addr", row, UNKNOWN),
        allocated=_allocated(trace, row, device, size),
        reserved=_known(_arg(trace, "Total Reserved", row, 0), device),
    )


def _arg(trace: Trace, key: str, rows: npt.NDArray[np.intp], missing: int) -> Ints:
    if key not in trace.args:
        return np.full(len(rows), missing, np.int64)
    values = trace.args[key].reindex(rows, fill_value=missing)
    return np.asarray(pd.to_numeric(values, errors="coerce").fillna(missing), np.int64)


def _allocated(
    trace: Trace, row: npt.NDArray[np.intp], device: npt.NDArray[np.object_], size: Ints
) -> Ints:
    """The totals that torch wrote; where it wrote none, the sum of the sizes so far."""
    if "Total Allocated" in trace.args:
        return _arg(trace, "Total Allocated", row, 0)
    total = np.zeros(len(row), np.int64)
    for name in set(device):
        here = device == name
        total[here] = np.cumsum(size[here])
    return total


def _known(total: Ints, device: npt.NDArray[np.object_]) -> Ints:
    """The totals; torch writes 0 throughout for what a device does not tell.

    Memory of the CPU is not reserved: what stands there in between is no total of anything.
    """
    known = total.copy()
    for name in set(device):
        here = device == name
        if name == "CPU" or not total[here].any():
            known[here] = UNKNOWN
    return known


@dataclass(frozen=True)
class Blocks:
    """Pieces of memory that lived during the record, as positions in `MemoryEvents`.

    ``begin`` is -1 for memory from before the record, ``end`` for memory that was not released in
    it. A block may have been released unseen, between two recorded windows or in a thread that was
    not recorded: ``released`` is false then, and ``end`` is where it shows at the latest. That is
    where its address is allocated again, or where the device holds less than all blocks that were
    not released (of these the oldest are taken to be gone).
    """

    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    released: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.begin)


def blocks(events: MemoryEvents) -> Blocks:
    """Allocations with the next release of their address, in order of their first event.

    Without addresses (torch 1.8) a release ends the latest living block of its device and size.
    """
    if len(events) and (events.address == UNKNOWN).all():
        return _by_size(events)
    _, device = np.unique(events.device.astype(str), return_inverse=True)
    order = np.lexsort((np.arange(len(events)), events.address, device))
    key = np.stack([device.reshape(-1)[order], events.address[order]])
    follows = np.append(False, (key[:, 1:] == key[:, :-1]).all(axis=0))[: len(events)]
    grows = events.size[order] > 0
    after_one = follows & np.append(False, grows[:-1])[: len(events)]
    begin = np.flatnonzero(grows)
    following = np.minimum(begin + 1, len(events) - 1)
    has_end = (begin + 1 < len(events)) & follows[following]
    end = np.where(has_end, order[following], NONE)
    stray = order[np.flatnonzero(~grows & ~after_one)]
    found = _in_order(order[begin], end, has_end & ~grows[following], stray)
    return _without_the_impossible(events, found)


def _by_size(events: MemoryEvents) -> Blocks:
    """Last in, first out: what a size cannot tell, the order of most programs does."""
    living: dict[tuple[str, int], list[int]] = {}
    end: dict[int, int] = {}
    stray = []
    for position, (device, size) in enumerate(zip(events.device, events.size, strict=True)):
        waiting = living.setdefault((device, abs(int(size))), [])
        if size > 0:
            waiting.append(position)
            end[position] = NONE
        elif waiting:
            end[waiting.pop()] = position
        else:
            stray.append(position)
    ends = np.array(list(end.values()), np.int64)
    return _in_order(np.array(list(end), np.int64), ends, ends >= 0, np.array(stray, np.int64))


def _in_order(
    begin: npt.NDArray[np.integer[Any]],
    end: npt.NDArray[np.integer[Any]],
    released: npt.NDArray[np.bool_],
    stray: npt.NDArray[np.integer[Any]],
) -> Blocks:
    """The blocks and, as blocks without a begin, the releases of memory from before the record."""
    begins = np.concatenate([begin, np.full(len(stray), NONE)]).astype(np.int64)
    ends = np.concatenate([end, stray]).astype(np.int64)
    freed = np.concatenate([released, np.ones(len(stray), bool)])
    order = np.argsort(np.where(begins >= 0, begins, ends), kind="stable")
    return Blocks(begins[order], ends[order], freed[order])


def _without_the_impossible(events: MemoryEvents, found: Blocks) -> Blocks:
    """The blocks, those ended of which the totals leave no room."""
    end = found.end.copy()
    for device in set(events.device):
        here = np.flatnonzero(events.device == device)
        own = np.flatnonzero((found.begin >= 0) & (end < 0))
        own = own[events.device[found.begin[own]] == device]
        size = events.size[here]
        room = events.allocated[here] - np.cumsum(size)
        room -= min(_released_of_before(events, found, here), int(room[0]))
        owed = np.maximum.accumulate(-room)
        freed = events.size[found.begin[own]]
        short = np.searchsorted(owed, np.cumsum(freed) - freed, side="right")  # the oldest first
        when = np.append(here, NONE)[short]
        ended = np.logical_and.accumulate(found.begin[own] < when)
        end[own[ended]] = when[ended]
    return Blocks(found.begin, end, found.released)


def _released_of_before(events: MemoryEvents, found: Blocks, here: npt.NDArray[np.intp]) -> int:
    """Bytes from before the record that a device released in it; ``here``: its events."""
    stray = found.end[(found.begin < 0) & np.isin(found.end, here)]
    return -int(events.size[stray].sum())


def totals(events: MemoryEvents, found: Blocks) -> Ints:
    """What each device held after each event: the totals, and never less than its blocks.

    Torch counts the CPU's memory from the first record of memory on, and traces without totals (and
    windows of them) are summed up from 0: by then there was at least what is released later without
    having been allocated. All of a device's totals are raised by the same.
    """
    held = events.allocated.copy()
    for device in set(events.device):
        here = np.flatnonzero(events.device == device)
        alive = np.zeros(len(events), np.int64)
        own = np.isin(found.begin, here)
        alive[found.begin[own]] = events.size[found.begin[own]]
        ended = own & (found.end >= 0)
        np.subtract.at(alive, found.end[ended], events.size[found.begin[ended]])
        stray = (found.begin < 0) & np.isin(found.end, here)
        np.add.at(alive, found.end[stray], events.size[found.end[stray]])
        alive[here] = np.cumsum(alive[here]) + _released_of_before(events, found, here)
        held[here] += max(int((alive[here] - held[here]).max()), 0)
    return held


BACKWARD_NODE = re.compile(re.escape(EVALUATE) + ".*")


def owning_ops(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The op that Python or autograd called: the outermost around each slice, -1 for none.

    In the backward pass that is the node (`AddmmBackward0`), not the engine's region around it.
    """
    if not len(rows):
        return np.empty(0, np.int32)
    parent = trace.slices["parent"].to_numpy()
    is_node = trace.index.matching(BACKWARD_NODE)
    is_op = trace.index.is_op & ~is_node
    around = parent[rows]
    op, node = (
        np.append(links.outermost(parent, wanted), np.int32(NONE))[around]
        for wanted in (is_op, is_node)
    )
    found: Rows = np.where(op >= 0, op, node)
    return found


def owning_modules(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The module instance behind each slice, in the backward pass that of the forward op."""
    regions = region_behind(trace, "module")[rows]
    if (regions >= 0).any() or not module_frames(trace).any():
        return regions
    return _module_frames(trace)[rows]


def owning_lines(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The cell line behind each slice, in the backward pass that of the forward op."""
    return region_behind(trace, "cell_line")[rows]


def _module_frames(trace: Trace) -> Rows:
    """The innermost ``nn.Module`` frame behind each slice, where stacks were recorded."""
    forward = forward_of(trace)
    source = np.where(forward >= 0, forward, np.arange(len(trace)))
    return module_frame_around(trace, frame_of(trace)[source])
