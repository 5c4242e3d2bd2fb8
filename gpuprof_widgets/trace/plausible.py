"""Events whose times cannot be: left out, so that one of them does not make a trace last for years.

Profilers write 0 for what they did not measure, and broken clocks anything. An event is left out

- when it starts more than `LONGEST_NS` from where most events do;
- when its start and its duration are 0, and all others start later by more than all of them take.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.dialects.dialect import Parts
from gpuprof_widgets.trace.dialects.rows import kept_flows, taken
from gpuprof_widgets.trace.events import Events
from gpuprof_widgets.trace.gather import LONGEST_NS

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def with_plausible_times(parts: Parts) -> Parts:
    """The parts without events and counter readings whose times cannot be; notes count them."""
    events, readings = parts.events, parts.counters["ts"].to_numpy()
    near = _near(events.ts) & (events.dur < LONGEST_NS)
    unmeasured = near & (events.ts == 0) & (events.dur == 0)
    start, end = _bounds(events, near & ~unmeasured)
    if start <= end - start:
        unmeasured[:] = False
    kept = near & ~unmeasured
    at_zero = (readings == 0) & (start > end - start)
    readable = (np.abs(readings - start) < LONGEST_NS) & ~at_zero if kept.any() else readings >= 0
    if kept.all() and readable.all():
        return parts
    rows = np.flatnonzero(kept)
    left_out = [
        (~near, len(events), "events are more than 104 days away from most, or take as long"),
        (unmeasured, len(events), "events have ts 0 and dur 0, long before all others"),
        (~readable, len(readings), "counter readings are long before or after all events"),
    ]
    return replace(
        parts,
        events=taken(events, rows),
        flows=kept_flows(parts.flows, rows, len(events)),
        moments=np.flatnonzero(np.isin(rows, parts.moments)),
        threadless=np.flatnonzero(np.isin(rows, parts.threadless)),
        counters=parts.counters[readable].reset_index(drop=True),
        notes=[
            *parts.notes,
            *(
                f"{int(mask.sum()):,} of {count:,} {what}, and were left out"
                for mask, count, what in left_out
                if mask.any()
            ),
        ],
    )


def _near(ts: Ints) -> Mask:
    """Which of these times (ns) are where most of them are."""
    if not len(ts) or ts.max() - ts.min() < LONGEST_NS:
        return np.ones(len(ts), dtype=bool)
    middle = int(np.partition(ts, len(ts) // 2)[len(ts) // 2])
    return np.abs(ts - middle) < LONGEST_NS


def _bounds(events: Events, rows: Mask) -> tuple[int, int]:
    if not rows.any():
        return 0, 0
    return int(events.ts[rows].min()), int((events.ts + events.dur)[rows].max())
