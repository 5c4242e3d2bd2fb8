"""What a rank did before it came to a collective: computed, waited for input, or neither."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.collective_calls import compute_intervals
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import LAUNCH_CATEGORIES

Ints = npt.NDArray[np.int64]


def with_lead(record: Record, calls: pd.DataFrame) -> pd.DataFrame:
    """The collectives with what was before each, since the one before it on its device had ended.

    More columns (ns): ``lead_ns`` (from there, or from the trace's begin, until its start), how
    much of that anything was computed (``lead_compute_ns``) and, of the rest, the input pipeline
    was waited for (``lead_input_ns``); ``lead_name``, the op or call of the CPU that was the
    innermost one longest at a stretch in it, and for how long (``lead_name_ns``).
    """
    start = calls["start_ns"].to_numpy(np.int64)
    begin = np.minimum(_ends_before(record.trace, calls), start)
    computing = compute_intervals(record)
    loading = intervals.difference(_input_waits(record), computing)
    name, at_a_stretch = _longest_stretch(record.trace, begin, start)
    return calls.assign(
        lead_ns=start - begin,
        lead_compute_ns=intervals.overlap((begin, start), computing),
        lead_input_ns=intervals.overlap((begin, start), loading),
        lead_name=pd.Series(name, index=calls.index, dtype=object),
        lead_name_ns=at_a_stretch,
    )


def _ends_before(trace: Trace, calls: pd.DataFrame) -> Ints:
    """Per collective when those before it on its device had ended."""
    ends, device = calls["end_ns"].to_numpy(np.int64), calls["device"].to_numpy(np.int64)
    before = np.full(len(calls), trace.start_ns, np.int64)
    for one in np.unique(device):
        here = np.flatnonzero(device == one)
        latest = np.maximum.accumulate(ends[here])
        before[here[1:]] = np.maximum(latest[:-1], trace.start_ns)
    return before


def _input_waits(record: Record) -> Intervals:
    table = waits(record)
    table = table[table["kind"] == "dataloader"]
    start = table["start_ns"].to_numpy(np.int64)
    return intervals.union(start, start + table["dur_ns"].to_numpy(np.int64))


def _longest_stretch(trace: Trace, begin: Ints, end: Ints) -> tuple[list[str], Ints]:
    """Per range the op or call that was innermost longest at a stretch on any thread, and how long.

    "" and 0 where there was none.
    """
    counts = np.append(trace.index.in_category("cpu_op", *LAUNCH_CATEGORIES), False)
    names = trace.slices["name"].to_numpy(object)
    found, longest = [""] * len(begin), np.zeros(len(begin), np.int64)
    for track in np.flatnonzero((trace.tracks["kind"] == "cpu").to_numpy()):
        parts = trace.index.segments(int(track))
        first = np.searchsorted(parts.end, begin, side="right")
        last = np.searchsorted(parts.start, end, side="left")
        for number, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            inside = np.minimum(parts.end[low:high], end[number])
            inside = inside - np.maximum(parts.start[low:high], begin[number])
            inside = np.where(counts[parts.row[low:high]], inside, 0)
            if len(inside) and inside.max() > longest[number]:
                at = int(inside.argmax())
                longest[number] = inside[at]
                found[number] = str(names[parts.row[low + at]])
    return found, longest
