"""Leave out values that cannot be right: args of other types than profilers write, absurd times.

In a file that was changed or damaged, a number may be anything. One such value would make a whole
column of numbers a column of objects, which analyses cannot read.

Profilers write 0 for times that they did not measure, and broken clocks write anything. Such an
event would make a trace last for years. An event is left out

- if it starts more than `LONGEST_NS` from where most events do;
- if its start and duration are 0, and all others start later than they take together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.dialects.dialect import Parts, kept_flows, taken
from gpuprof_widgets.trace.events import typed
from gpuprof_widgets.trace.gather import LONGEST_NS
from gpuprof_widgets.trace.schema import SAMPLED_LINES

_INT64 = np.iinfo(np.int64)
_WRITTEN_WHOLE = re.compile(r"-?(?:\d{1,18}|0x[0-9a-fA-F]{1,15})")
_DEEPEST = 4
_EXACT = 2**53


@dataclass(frozen=True)
class Kind:
    """The type that a value must have, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    """Whether this is a whole number, also as text: ROCm writes some so, and addresses in hex.

    Whole floats count, because one fraction in a column turns its whole numbers into floats.
    """
    if type(value) is float:
        return value.is_integer() and abs(value) < _EXACT
    if type(value) is int:
        return bool(_INT64.min <= value <= _INT64.max)
    return isinstance(value, str) and _WRITTEN_WHOLE.fullmatch(value) is not None


def _is_extent(value: Any) -> bool:
    """Whether this is a grid or block: three numbers on kernels, text on Triton's ops."""
    if isinstance(value, str):
        return True
    return isinstance(value, list) and len(value) == 3 and all(map(_is_size, value))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _INT64.max


def _is_shape(value: Any, depth: int = _DEEPEST) -> bool:
    """Whether this is the shape of an input: a list of shapes for tensor lists, empty for none."""
    if not isinstance(value, list) or not depth:
        return False
    if all(type(item) is int for item in value):
        return all(_INT64.min <= size <= _INT64.max for size in value)
    return all(_is_shape(item, depth - 1) for item in value)


def _are_lines(value: Any) -> bool:
    """Whether this is `SAMPLED_LINES`: pairs of sizes, the first one's time 0, times growing."""
    if not isinstance(value, list) or not value:
        return False
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return False
    times = [pair[0] for pair in value]
    are_sizes = all(_is_size(number) for pair in value for number in pair)
    return are_sizes and times[0] == 0 and times == sorted(times)


WHOLE = Kind("whole numbers", _is_whole)
NUMBER = Kind("numbers", lambda v: type(v) in (int, float) and abs(v) <= _INT64.max)
TEXT = Kind("text", lambda value: isinstance(value, str))
EXTENT = Kind("three sizes", _is_extent)
TEXTS = Kind("lists of text", lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v))
SHAPES = Kind("shapes", lambda v: isinstance(v, list) and all(map(_is_shape, v)))
LINES = Kind("lines with their times", _are_lines)

KINDS = {
    **dict.fromkeys(("correlation", "External id", "external id", "Record function id"), WHOLE),
    **dict.fromkeys(("Sequence number", "Fwd thread id", "stream", "device", "context"), WHOLE),
    **dict.fromkeys(("Bytes", "Addr", "Total Allocated", "Total Reserved", "bytes"), WHOLE),
    **dict.fromkeys(("Device Type", "Device Id", "Ev Idx", "Profiler Event Index"), WHOLE),
    **dict.fromkeys(("registers per thread", "shared memory", "queued"), WHOLE),
    **dict.fromkeys(("wait_on_stream", "wait_on_cuda_event_id"), WHOLE),
    **dict.fromkeys(("wait_on_cuda_event_record_corr_id", "Python id", "Python module id"), WHOLE),
    **dict.fromkeys(("In msg nelems", "Out msg nelems", "Group size", "Seq", "Rank"), WHOLE),
    **dict.fromkeys(("line", "items", "item", "batch", "worker"), WHOLE),
    **dict.fromkeys(("blocks per SM", "warps per SM", "memory bandwidth (GB/s)"), NUMBER),
    "est. achieved occupancy %": NUMBER,
    **dict.fromkeys(("grid", "block"), EXTENT),
    **dict.fromkeys(("Input Dims", "Input dims", "Input Strides"), SHAPES),
    SAMPLED_LINES: LINES,
    **dict.fromkeys(("Input type", "Concrete Inputs"), TEXTS),
    **dict.fromkeys(("Call stack", "Module Hierarchy", "Collective name", "dtype"), TEXT),
    **dict.fromkeys(("Process Group Name", "cell", "class", "root", "cuda_sync_kind"), TEXT),
}
"""Kind of each arg, by the keys that torch's versions, ROCm and this package write."""


def with_usable_args(parts: Parts) -> Parts:
    """Remove values of args that are not of their kind; notes count these."""
    args, notes = usable_args(parts.events.args)
    if not notes:
        return parts
    return replace(parts, events=replace(parts.events, args=args), notes=[*parts.notes, *notes])


def usable_args(args: Mapping[str, pd.Series]) -> tuple[dict[str, pd.Series], list[str]]:
    """Return the args without values that are not of their kind, and notes that count these."""
    usable, notes = {}, []
    for key, values in args.items():
        kind = KINDS.get(key)
        fitting = _fitting(values, kind) if kind else None
        if kind is None or fitting is None:
            usable[key] = values
            continue
        if fitting.any():
            kept = values[fitting]
            whole = kind is WHOLE and kept.dtype == np.float64
            usable[key] = (
                kept.astype(np.int64) if whole else typed(kept.tolist(), kept.index.to_numpy())
            )
        odd = int(np.count_nonzero(~fitting))
        notes.append(
            f"{odd:,} of {len(values):,} values of {key!r} are not {kind.words} and were left out"
        )
    return usable, notes


def _fitting(values: pd.Series, kind: Kind) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Which of the values are of this kind; None if all are.

    Each object is tested once, because equal lists are mostly one object.
    """
    if values.dtype == np.int64 and kind in (WHOLE, NUMBER):
        return None
    if values.dtype == np.float64 and kind is NUMBER:
        fitting = np.abs(values.to_numpy()) <= _INT64.max
        return None if fitting.all() else fitting
    listed = values.tolist()
    distinct = dict(zip(map(id, listed), listed, strict=True))
    odd = {number for number, value in distinct.items() if not kind.fits(value)}
    if not odd:
        return None
    return np.fromiter((id(value) not in odd for value in listed), np.bool_, len(listed))


def with_plausible_times(parts: Parts) -> Parts:
    """Remove events and counter readings with impossible times; notes count them."""
    events, readings = parts.events, parts.counters["ts"].to_numpy()
    near = _near(events.ts) & (events.dur < LONGEST_NS)
    unmeasured = near & (events.ts == 0) & (events.dur == 0)
    rows = near & ~unmeasured
    start = int(events.ts[rows].min()) if rows.any() else 0
    end = int((events.ts + events.dur)[rows].max()) if rows.any() else 0
    if start <= end - start:
        unmeasured[:] = False
    kept = near & ~unmeasured
    at_zero = (readings == 0) & (start > end - start)
    readable = (np.abs(readings - start) < LONGEST_NS) & ~at_zero if kept.any() else readings >= 0
    if kept.all() and readable.all():
        return parts
    rows = np.flatnonzero(kept)
    left_out = (
        (~near, "events are more than 104 days away from most, or take as long"),
        (unmeasured, "events have ts 0 and dur 0, long before all others"),
        (~readable, "counter readings are long before or after all events"),
    )
    notes = [
        f"{int(mask.sum()):,} of {len(mask):,} {reason}, and were left out"
        for mask, reason in left_out
        if mask.any()
    ]
    return replace(
        parts,
        events=taken(events, rows),
        flows=kept_flows(parts.flows, rows, len(events)),
        moments=np.flatnonzero(np.isin(rows, parts.moments)),
        threadless=np.flatnonzero(np.isin(rows, parts.threadless)),
        counters=parts.counters[readable].reset_index(drop=True),
        notes=[*parts.notes, *notes],
    )


def _near(ts: Ints) -> Mask:
    """Which of these times (ns) are less than `LONGEST_NS` from their median."""
    if not len(ts) or ts.max() - ts.min() < LONGEST_NS:
        return np.ones(len(ts), dtype=bool)
    middle = int(np.partition(ts, len(ts) // 2)[len(ts) // 2])
    return np.abs(ts - middle) < LONGEST_NS
