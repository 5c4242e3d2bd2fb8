"""Which ``[memory]`` instant allocated what was seen at an address, and notes on those instants."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuprof_widgets.trace.events import typed
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import MEMORY_EVENT

CPU = 0  # torch's DeviceType


class MemoryPlaces:
    """The allocations and releases of a trace by device and address, in order of time."""

    def __init__(self, trace: Trace) -> None:
        self._epoch = trace.epoch_ns
        self._times: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._events: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        rows = np.flatnonzero((trace.slices["name"] == MEMORY_EVENT).to_numpy(dtype=bool))
        ts = trace.slices["ts"].to_numpy()
        rows = rows[np.argsort(ts[rows], kind="stable")]
        keys = ("Addr", "Bytes", "Device Type", "Device Id")
        if any(key not in trace.args for key in keys):
            return
        columns = [trace.args[key].reindex(rows).tolist() for key in keys]
        for row, time, *values in zip(rows.tolist(), ts[rows].tolist(), *columns, strict=True):
            address, size, kind, number = values
            device = "CPU" if kind == CPU else f"GPU {number}"
            self._times[device, address].append(time)
            self._events[device, address].append((row, size))

    def alive(self, device: str, address: int, moment: int | None) -> int | None:
        """Row that allocated what lives there at a moment (ns since 1970); else None.

        Of what was there before the record (``None``) the row of its release.
        """
        events = self._events.get((device, address))
        if not events:
            return None
        if moment is None:
            return events[0][0] if events[0][1] < 0 else None
        last = bisect_right(self._times[device, address], moment - self._epoch) - 1
        return events[last][0] if last >= 0 and events[last][1] > 0 else None

    def allocated(self, device: str, address: int, moment: int) -> int | None:
        """Row of the allocation at an address that is nearest to a moment (ns since 1970)."""
        events = self._events.get((device, address), [])
        times = self._times.get((device, address), [])
        grown = [
            (abs(time - (moment - self._epoch)), row)
            for time, (row, size) in zip(times, events, strict=True)
            if size > 0
        ]
        return min(grown)[1] if grown else None


def with_args(trace: Trace, key: str, values: Mapping[int, str]) -> Trace:
    """The trace whose slices of these rows carry these texts under a key of args."""
    if not values:
        return trace
    rows = sorted(values)
    column = typed([values[row] for row in rows], np.array(rows, dtype=np.int64))
    return replace(trace, args=dict(sorted({**trace.args, key: column}.items())))
