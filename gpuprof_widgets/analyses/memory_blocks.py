"""Blocks of memory: each allocation joined with its release, and the op, module and line behind."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.op_calls import frame_of
from gpuprof_widgets.analyses.operators import arg_numbers
from gpuprof_widgets.analyses.owners import (
    forward_of,
    module_frame_around,
    module_frames,
    region_behind,
)
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import EVALUATE
from gpuprof_widgets.trace.schema import CPU_DEVICE_TYPE, MEMORY_EVENT, NONE

UNKNOWN = -1
"""A total in bytes, or an address, that the trace does not tell."""

BACKWARD_NODE = re.compile(re.escape(EVALUATE) + ".*")
"""The engine's region around a node of the backward pass."""


@dataclass(frozen=True)
class MemoryEvents:
    """The ``[memory]`` instants in order of time.

    ``size``: bytes, negative if released; ``allocated`` and ``reserved``: totals of the device
    after the event, as torch wrote them. Without any, ``allocated`` is the sum of the sizes so far,
    and ``reserved`` is `UNKNOWN`. ``address``: `UNKNOWN` in traces of torch 1.8.
    """

    row: Rows
    ts: Ints
    device: npt.NDArray[np.object_]
    size: Ints
    address: Ints
    allocated: Ints
    reserved: Ints

    def __len__(self) -> int:
        return len(self.row)

    def of(self, device: str) -> MemoryEvents:
        """Return the events of one device, "CPU" or "GPU 0"."""
        here = self.device == device
        return MemoryEvents(**{name: values[here] for name, values in vars(self).items()})

    @property
    def devices(self) -> list[str]:
        """The devices, accelerators first."""
        names = sorted(set(self.device), key=lambda name: (len(name), name))
        return [*(name for name in names if name != "CPU"), *(n for n in names if n == "CPU")]


def memory_events(trace: Trace) -> MemoryEvents:
    """Return all allocations and releases by time, then in the order in which torch wrote them."""
    row = np.flatnonzero(trace.index.named(frozenset({MEMORY_EVENT})))
    size = arg_numbers(trace, "Bytes", row, 0)
    row, size = row[size != 0], size[size != 0]
    ts = trace.slices["ts"].to_numpy()[row]
    order = np.lexsort((row, arg_numbers(trace, "Ev Idx", row, 0), ts))
    row, size, ts = row[order], size[order], ts[order]
    kind = arg_numbers(trace, "Device Type", row, CPU_DEVICE_TYPE)
    number = arg_numbers(trace, "Device Id", row, NONE)
    pairs = zip(kind.tolist(), number.tolist(), strict=True)
    names = ["CPU" if kind == CPU_DEVICE_TYPE else f"GPU {number}" for kind, number in pairs]
    device = np.array(names, dtype=object)
    allocated, reserved = (
        arg_numbers(trace, f"Total {kind}", row, 0).copy() for kind in ("Allocated", "Reserved")
    )
    for name in set(names):
        here = device == name
        if "Total Allocated" not in trace.args:
            allocated[here] = np.cumsum(size[here])
        # The CPU reserves no memory; numbers that torch writes there mean nothing.
        if name == "CPU" or not reserved[here].any():
            reserved[here] = UNKNOWN
    address = arg_numbers(trace, "Addr", row, UNKNOWN)
    return MemoryEvents(row, ts, device, size, address, allocated, reserved)


@dataclass(frozen=True)
class Blocks:
    """Pieces of memory that lived during the record, as positions in `MemoryEvents`.

    ``begin`` is -1 for memory from before the record, ``end`` is -1 for memory that the record does
    not release. A release may be missing, between two recorded windows or in a thread that was not
    recorded. ``released`` is false then, and ``end`` is the first event that proves it: its address
    is allocated again, or the device holds less than all living blocks (the oldest are taken to be
    gone).
    """

    begin: Ints
    end: Ints
    released: Mask

    def __len__(self) -> int:
        return len(self.begin)


def blocks(events: MemoryEvents) -> Blocks:
    """Join each allocation with the next release of its address, in order of the first event.

    Without addresses (torch 1.8), a release ends the latest living block of its device and size.
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
    pieces = _in_order(order[begin], end, has_end & ~grows[following], stray)
    return _ended_by_totals(events, pieces)


def _by_size(events: MemoryEvents) -> Blocks:
    """Join by size, last in, first out, because most programs release in that order."""
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


def _in_order(begin: Ints, end: Ints, released: Mask, stray: Ints) -> Blocks:
    """Return the blocks, and releases of memory from before the record as blocks without begin."""
    begins = np.concatenate([begin, np.full(len(stray), NONE)]).astype(np.int64)
    ends = np.concatenate([end, stray]).astype(np.int64)
    freed = np.concatenate([released, np.ones(len(stray), bool)])
    order = np.argsort(np.where(begins >= 0, begins, ends), kind="stable")
    return Blocks(begins[order], ends[order], freed[order])


def _ended_by_totals(events: MemoryEvents, pieces: Blocks) -> Blocks:
    """Return the blocks, the oldest of them ended where the totals leave no room for all."""
    end = pieces.end.copy()
    for device in set(events.device):
        here = np.flatnonzero(events.device == device)
        living = np.flatnonzero((pieces.begin >= 0) & (end < 0))
        living = living[events.device[pieces.begin[living]] == device]
        size = events.size[here]
        room = events.allocated[here] - np.cumsum(size)
        room -= min(released_from_before(events, pieces, here), int(room[0]))
        owed = np.maximum.accumulate(-room)
        freed = events.size[pieces.begin[living]]
        short = np.searchsorted(owed, np.cumsum(freed) - freed, side="right")  # the oldest first
        when = np.append(here, NONE)[short]
        ended = np.logical_and.accumulate(pieces.begin[living] < when)
        end[living[ended]] = when[ended]
    return Blocks(pieces.begin, end, pieces.released)


def released_from_before(events: MemoryEvents, pieces: Blocks, here: Rows) -> int:
    """Return the bytes from before the record that a device, with these events, released in it."""
    stray = pieces.end[(pieces.begin < 0) & np.isin(pieces.end, here)]
    return -int(events.size[stray].sum())


def totals(events: MemoryEvents, pieces: Blocks) -> Ints:
    """Return what each device held after each event: its totals, but at least its living blocks.

    Totals of the CPU, and those summed up from sizes, start from 0, although memory was there that
    is released later. All totals of a device are raised by the same amount.
    """
    held = events.allocated.copy()
    for device in set(events.device):
        here = np.flatnonzero(events.device == device)
        alive = np.zeros(len(events), np.int64)
        allocated = np.isin(pieces.begin, here)
        alive[pieces.begin[allocated]] = events.size[pieces.begin[allocated]]
        ended = allocated & (pieces.end >= 0)
        np.subtract.at(alive, pieces.end[ended], events.size[pieces.begin[ended]])
        stray = (pieces.begin < 0) & np.isin(pieces.end, here)
        np.add.at(alive, pieces.end[stray], events.size[pieces.end[stray]])
        alive[here] = np.cumsum(alive[here]) + released_from_before(events, pieces, here)
        held[here] += max(int((alive[here] - held[here]).max()), 0)
    return held


def owning_ops(trace: Trace, rows: Rows) -> Codes:
    """Return the outermost op around each slice, which Python or autograd called; -1 for none.

    In the backward pass that is the node (`AddmmBackward0`), not the engine's region around it.
    """
    if not len(rows):
        return np.empty(0, np.int32)
    is_node = trace.index.matching(BACKWARD_NODE)
    around = trace.index.parent[rows]
    op, node = (
        take(links.outermost(trace.index.parent, wanted), around)
        for wanted in (trace.index.is_op & ~is_node, is_node)
    )
    return np.where(op >= 0, op, node)


def owning_modules(trace: Trace, rows: Rows) -> Codes:
    """Return the module behind each slice, in the backward pass that of the forward op."""
    regions = region_behind(trace, "module")[rows]
    if (regions >= 0).any() or not module_frames(trace).any():
        return regions
    forward = forward_of(trace)
    source = np.where(forward >= 0, forward, np.arange(len(trace)))
    return module_frame_around(trace, frame_of(trace)[source])[rows]


def owning_lines(trace: Trace, rows: Rows) -> Codes:
    """Return the cell line behind each slice, in the backward pass that of the forward op."""
    return region_behind(trace, "cell_line")[rows]
