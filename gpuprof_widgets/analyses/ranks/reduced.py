"""One rank's record reduced to a few tables, small enough to hold those of all ranks.

`with_lead` adds to each collective what the rank did before it: computed, waited for input, or
neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.breakdown import COLUMNS as BREAKDOWN_COLUMNS
from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.collectives import collective_calls, compute_intervals, world_size_of
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.regions import rank_of, steps
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import ADDRESS, FUNCTION_KEY
from gpuprof_widgets.trace.schema import LAUNCH_CATEGORIES, NONE

FUNCTION_TIMES = ("self_ns", "total_ns")
WORKING = "total_python_ns"
"""Time in a function and its callees, less what they waited for the GPU."""

WHOLE = -1
"""Number of the step that stands for a record without steps."""


@dataclass(frozen=True, eq=False)
class ReducedRank:
    """One rank (or, before they are joined, one of its files); times are ns since the epoch.

    ``rank``, ``world_size``: -1 if the record does not have them. ``sources``: names of its files.
    ``processes``: numbers of its processes on the CPU.
    ``parts``: begin and end of each file's trace. ``breakdown``: of each step and, as step -1, of
    the whole. ``steps``: ``step``, ``start_ns``, ``end_ns``, ``dur_ns``, ``gpu_busy_ns``,
    ``compute_ns``. ``collectives``: the rows of `collective_calls` `with_lead`. ``functions``:
    ``file``, ``line``, ``name``, ``self_ns``, ``total_ns``, ``total_python_ns`` of `python_time`.
    ``lacks``: why there are no collectives. ``notes``: parts of the record that could not be read.
    """

    rank: int
    world_size: int
    host: str
    sources: tuple[str, ...]
    parts: tuple[tuple[int, int], ...]
    slices: int
    breakdown: pd.DataFrame
    steps: pd.DataFrame
    collectives: pd.DataFrame
    functions: pd.DataFrame
    lacks: str = ""
    notes: tuple[str, ...] = ()
    processes: frozenset[str] = frozenset()

    @property
    def has_calls_alone(self) -> bool:
        """Whether it has no timeline: cProfile's files have durations, but no times."""
        return not self.slices and len(self.functions) > 0

    @property
    def start_ns(self) -> int:
        """The begin of its first trace."""
        return min(start for start, _ in self.parts)

    @property
    def end_ns(self) -> int:
        """The end of its last trace."""
        return max(end for _, end in self.parts)


def reduced(record: Record, *, source: str = "") -> ReducedRank:
    """Return the tables of a record that the comparison of ranks needs; then drop the record."""
    trace = record.trace
    calls = collective_calls(record)
    computing = compute_intervals(record)
    return ReducedRank(
        rank=_rank(record),
        world_size=world_size_of(record.metadata),
        host=str(record.metadata.get("host") or ""),
        sources=(source,),
        parts=((trace.epoch_ns + trace.start_ns, trace.epoch_ns + trace.end_ns),),
        slices=len(trace),
        breakdown=_breakdown(record),
        steps=_steps(record, computing),
        collectives=_on_the_clock(with_lead(record, calls), trace),
        functions=_functions(record),
        lacks=why_empty(calls),
        notes=tuple(map(str, record.metadata.get("notes") or ())),
        processes=frozenset(trace.tracks["process"][trace.tracks["kind"] == "cpu"]),
    )


def _rank(record: Record) -> int:
    of_tracks = rank_of(record.trace)
    return int(record.metadata.get("rank", NONE)) if of_tracks < 0 else of_tracks


def _breakdown(record: Record) -> pd.DataFrame:
    tables = [breakdown(record), breakdown(record, by="step")]
    full = [table for table in tables if len(table)]
    if not full:
        return pd.DataFrame(columns=BREAKDOWN_COLUMNS)
    return pd.concat(full, ignore_index=True).assign(rank=_rank(record))


def _steps(record: Record, computing: Intervals) -> pd.DataFrame:
    trace = record.trace
    table = steps(record)[["step", "start_ns", "end_ns", "dur_ns", "gpu_busy_ns"]]
    if not len(table):
        whole = (WHOLE, trace.start_ns, trace.end_ns, trace.span_ns, NONE)
        table = pd.DataFrame([whole], columns=list(table))
    span = table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
    table = table.assign(compute_ns=intervals.overlap(span, computing))
    return _on_the_clock(table, trace)


def _functions(record: Record) -> pd.DataFrame:
    """Return the functions, by names that are the same in every process."""
    table = python_time(record)
    names = [ADDRESS.sub("", str(name)) for name in table["name"]]
    return _same_functions_once(table.assign(name=names))


def _same_functions_once(table: pd.DataFrame) -> pd.DataFrame:
    times = [*FUNCTION_TIMES, WORKING]
    return table.groupby(FUNCTION_KEY, sort=False, as_index=False)[times].sum()


def _on_the_clock(table: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    """Return the table with starts and ends since the epoch."""
    start, end = (table[key].astype(np.int64) + trace.epoch_ns for key in ("start_ns", "end_ns"))
    return table.assign(start_ns=start, end_ns=end)


def joined(parts: Sequence[ReducedRank]) -> ReducedRank:
    """Join several files of one rank in order of time; files of Python calls alone come last."""
    if len(parts) == 1:
        return parts[0]
    timed = [part for part in parts if not part.has_calls_alone]
    untimed = [part for part in parts if part.has_calls_alone]
    ordered = sorted(timed or untimed, key=lambda part: part.start_ns)
    every = [*ordered, *untimed] if timed else ordered
    keys = ["rank", "device", "step", "state", "class"]
    breakdowns = pd.concat([part.breakdown for part in ordered], ignore_index=True)
    breakdowns = breakdowns.groupby(keys, sort=False, as_index=False)[["time_ns", "span_ns"]].sum()
    return replace(
        ordered[0],
        sources=tuple(source for part in every for source in part.sources),
        parts=tuple(span for part in ordered for span in part.parts),
        slices=sum(part.slices for part in ordered),
        breakdown=breakdowns.assign(
            share=breakdowns["time_ns"] / breakdowns["span_ns"].clip(lower=1)
        )[list(BREAKDOWN_COLUMNS)],
        steps=pd.concat([part.steps for part in ordered], ignore_index=True),
        collectives=pd.concat([part.collectives for part in ordered], ignore_index=True),
        functions=_same_functions_once(pd.concat([part.functions for part in every])),
        lacks=next((part.lacks for part in ordered if not part.lacks), ordered[0].lacks),
        notes=tuple(note for part in every for note in part.notes),
    )


def with_lead(record: Record, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives with columns on the lead: the time before each on its device.

    The lead begins at the end of the collective before, or with the trace. Columns (ns):
    ``lead_ns`` (its length), ``lead_compute_ns`` (while anything was computed), ``lead_input_ns``
    (of the rest, the waits for the input pipeline); ``lead_name`` and ``lead_name_ns``: the op or
    runtime call that was innermost on the CPU for the longest stretch, and that stretch.
    """
    start = calls["start_ns"].to_numpy(np.int64)
    begin = np.minimum(_ends_before(record.trace, calls), start)
    computing = compute_intervals(record)
    loads = waits(record)
    loads = loads[loads["kind"] == "dataloader"]
    loading = intervals.union(loads["start_ns"], loads["start_ns"] + loads["dur_ns"])
    loading = intervals.difference(loading, computing)
    name, at_a_stretch = _longest_stretch(record.trace, begin, start)
    return calls.assign(
        lead_ns=start - begin,
        lead_compute_ns=intervals.overlap((begin, start), computing),
        lead_input_ns=intervals.overlap((begin, start), loading),
        lead_name=pd.Series(name, index=calls.index, dtype=object),
        lead_name_ns=at_a_stretch,
    )


def _ends_before(trace: Trace, calls: pd.DataFrame) -> Ints:
    """Return per collective the end of all before it on its device."""
    ends, device = calls["end_ns"].to_numpy(np.int64), calls["device"].to_numpy(np.int64)
    before = np.full(len(calls), trace.start_ns, np.int64)
    for number in np.unique(device):
        here = np.flatnonzero(device == number)
        latest = np.maximum.accumulate(ends[here])
        before[here[1:]] = np.maximum(latest[:-1], trace.start_ns)
    return before


def _longest_stretch(trace: Trace, begin: Ints, end: Ints) -> tuple[list[str], Ints]:
    """Return per range the op or call with the longest innermost stretch on a thread, and its ns.

    "" and 0 where there is none.
    """
    counts = trace.index.in_category("cpu_op", *LAUNCH_CATEGORIES)
    longest_name, longest = [""] * len(begin), np.zeros(len(begin), np.int64)
    for track in np.flatnonzero((trace.tracks["kind"] == "cpu").to_numpy()):
        parts = trace.index.segments(int(track))
        first = np.searchsorted(parts.end, begin, side="right")
        last = np.searchsorted(parts.start, end, side="left")
        for number, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            inside = np.minimum(parts.end[low:high], end[number])
            inside = inside - np.maximum(parts.start[low:high], begin[number])
            inside = np.where(take(counts, parts.row[low:high], missing=False), inside, 0)
            if len(inside) and inside.max() > longest[number]:
                at = int(inside.argmax())
                longest[number] = inside[at]
                longest_name[number] = trace.index.names[trace.index.name[parts.row[low + at]]]
    return longest_name, longest
