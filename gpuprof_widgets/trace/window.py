"""Time ranges and clocks: cut a record to a window, shift its times, show selected ranges.

A window is cut at its edges; its slices keep their nesting and are not nested anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar, overload

import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.edit import (
    LINKS,
    NewSlice,
    NewTrack,
    moved_arg,
    moved_flows,
    moved_links,
    new_rows,
    with_slices,
)
from gpuprof_widgets.trace.events import typed
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.links import nearest_ancestor
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import (
    calling_annotations,
    calling_lines,
    is_gpu,
    open_on_other_track,
    run_region,
)
from gpuprof_widgets.trace.remarks import FOCUS, REMARKS, remarks, without_places
from gpuprof_widgets.trace.schema import NONE, UNCUT_ARGS, WINDOW

AnyRecord = TypeVar("AnyRecord", bound=Record)

CATEGORY = "selected_range"
_TRACK = NewTrack(
    "annotation", "selected ranges", process="selected ranges", thread="selected ranges"
)


@overload
def window(subject: Trace, t0: int, t1: int) -> Trace: ...
@overload
def window(subject: AnyRecord, t0: int, t1: int) -> AnyRecord: ...
def window(subject: Trace | AnyRecord, t0: int, t1: int) -> Trace | AnyRecord:
    """Return the part of a trace or record in [t0, t1) ns; bounds are clipped to the trace.

    Slices are cut at the edges. The owners of slices inside the range stay, even if they are
    outside it: they get dur 0 and count 0. Owners are the launches and ops of GPU slices, the
    forward ops of backward ops, the cell line and the annotation that called the backward pass,
    their Python frames, the region of the run, and all ancestors of these. Windows that tile the
    trace add up to it; the last one includes the moment of its end. The metadata of a record name
    the window, unless it is the whole. Raises an `OptionError` for bounds that are not a range.
    """
    if isinstance(subject, Trace):
        return _window(subject, t0, t1)
    whole = subject.trace
    trace = _window(whole, t0, t1, run_region(subject))
    if (trace.start_ns, trace.end_ns) == (whole.start_ns, whole.end_ns):
        return replace(subject, trace=trace)
    metadata = without_places(subject.metadata, FOCUS, REMARKS)
    if notes := remarks(replace(subject, trace=trace)):
        metadata[REMARKS] = notes
    metadata[WINDOW] = [trace.start_ns, trace.end_ns]
    return replace(subject, trace=trace, metadata=metadata)


def _window(trace: Trace, t0: int, t1: int, region: int = NONE) -> Trace:
    t0, t1 = _clipped(trace, t0, t1)
    inside = _inside(trace, t0, t1)
    kept = inside | _owners(trace, inside, region if inside.any() else NONE)
    row = new_rows(kept)
    slices = _cut(trace.slices, kept, row, inside, t0, t1)
    flows = moved_flows(trace.flows, row)
    args = {key: moved_arg(values, row) for key, values in trace.args.items()}
    args = {
        key: typed(values.tolist(), values.index.to_numpy()) if values.dtype == object else values
        for key, values in args.items()
        if len(values)
    }
    return replace(
        trace,
        slices=slices,
        counters=_counters(trace, t0, t1),
        flows=flows.assign(kind=flows["kind"].cat.remove_unused_categories()),
        args=dict(sorted((args | _uncut_args(trace, slices, kept)).items())),
        start_ns=t0,
        end_ns=t1,
    )


def _clipped(trace: Trace, t0: int, t1: int) -> tuple[int, int]:
    try:
        if t0 <= t1:
            first, last = (int(min(max(t, trace.start_ns), trace.end_ns)) for t in (t0, t1))
            return first, last
    except (TypeError, ValueError):
        raise OptionError(f"a time range is two numbers of ns, not {t0!r} and {t1!r}") from None
    raise OptionError(f"a time range has to start before it ends, not [{t0}, {t1}) ns")


def _uncut_args(trace: Trace, cut: pd.DataFrame, kept: Mask) -> dict[str, pd.Series]:
    """Return, as args, the former start and length of the slices that any window has cut."""
    ts, end = (times[kept] for times in trace.index.uncut)
    rows = np.flatnonzero((cut["ts"].to_numpy() != ts) | (cut["dur"].to_numpy() != end - ts))
    if not len(rows):
        return {}
    columns = zip(UNCUT_ARGS, (ts, end - ts), strict=True)
    return {key: pd.Series(values[rows], index=rows) for key, values in columns}


def _inside(trace: Trace, t0: int, t1: int) -> Mask:
    """Which slices overlap the range; a slice without length counts where its moment lies."""
    ts, dur = trace.slices["ts"].to_numpy(), trace.slices["dur"].to_numpy()
    moment = (ts >= t0) & ((ts < t1) | ((ts == t1) & (t1 == trace.end_ns)))
    overlap = np.maximum(ts, t0) < np.minimum(ts + dur, t1)
    inside: Mask = np.where(dur > 0, overlap, moment) & (trace.slices["count"].to_numpy() > 0)
    return inside


def _owners(trace: Trace, inside: Mask, region: int) -> Mask:
    """Which slices are the region, own slices inside or such owners, or are their ancestors."""
    slices = trace.slices
    gpu = slices[inside & is_gpu(slices["category"])]
    began, ended = trace.index.uncut
    callers = (calling_lines(trace), calling_annotations(trace))
    forward = slices["forward"].to_numpy()
    other_track = open_on_other_track(trace, began, ended)
    links = (slices["parent"].to_numpy(), forward, other_track, *callers)
    owners = np.zeros(len(slices), dtype=bool)
    launchers = (gpu["launch"].to_numpy(), gpu["op"].to_numpy())
    called_by = (caller[inside] for caller in callers)
    rows = np.unique(np.concatenate([*launchers, forward[inside], *called_by, [region]]))
    while len(rows := rows[rows >= 0]):
        rows = rows[~owners[rows]]
        owners[rows] = True
        rows = np.unique(np.concatenate([link[rows] for link in links]))
    return owners


def _cut(
    slices: pd.DataFrame, kept: Mask, row: Ints, inside: Mask, t0: int, t1: int
) -> pd.DataFrame:
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    start, end = np.clip(ts, t0, t1), np.clip(ts + dur, t0, t1)
    # A child may outlast its parent: then its parent is the nearest ancestor that is kept.
    parent = nearest_ancestor(slices["parent"].to_numpy(), kept)
    cut = slices.assign(
        ts=start,
        dur=np.where(inside, end - start, 0),
        count=np.where(inside, slices["count"].to_numpy(), 0).astype(np.int32),
        parent=take(row, parent).astype(np.int32),
        **{link: moved_links(slices[link], row) for link in LINKS},
    )[kept].reset_index(drop=True)
    return cut.assign(
        name=cut["name"].cat.remove_unused_categories(),
        category=cut["category"].cat.remove_unused_categories(),
    )


def _counters(trace: Trace, t0: int, t1: int) -> pd.DataFrame:
    """Return the readings in the range, and at its start the last reading before it."""
    counters = trace.counters
    ts = counters["ts"].to_numpy()
    inside = (ts >= t0) & ((ts < t1) | ((ts == t1) & (t1 == trace.end_ns)))
    name = counters["name"].cat.codes.to_numpy()
    before = np.flatnonzero((ts <= t0) & ~inside)
    last = before[np.append(name[before][1:] != name[before][:-1], True)[: len(before)]]
    rows = np.sort(np.concatenate([last, np.flatnonzero(inside)]))
    cut = counters.iloc[rows].reset_index(drop=True)
    return cut.assign(
        ts=np.maximum(cut["ts"].to_numpy(), t0), name=cut["name"].cat.remove_unused_categories()
    )


def shifted(record: Record, by_ns: int) -> Record:
    """Return the record with ``by_ns`` added to all times of its trace and of the reader's notes.

    Other times of its metadata stay, and the place at which its reports open is left out.
    """
    if not by_ns:
        return record
    metadata = without_places(record.metadata, FOCUS, REMARKS)
    if notes := remarks(record):
        metadata[REMARKS] = [
            {**note, "start_ns": note["start_ns"] + by_ns, "end_ns": note["end_ns"] + by_ns}
            for note in notes
        ]
    trace, started = record.trace, UNCUT_ARGS[0]
    uncut = {started: trace.args[started] + by_ns} if started in trace.args else {}
    later = replace(
        trace,
        slices=trace.slices.assign(ts=trace.slices["ts"] + by_ns),
        counters=trace.counters.assign(ts=trace.counters["ts"] + by_ns),
        args={**trace.args, **uncut},
        start_ns=trace.start_ns + by_ns,
        end_ns=trace.end_ns + by_ns,
        epoch_ns=trace.epoch_ns - by_ns,
    )
    return replace(record, trace=later, metadata=metadata)


def with_ranges(trace: Trace, ranges: Mapping[str, tuple[int, int]]) -> Trace:
    """Add these ranges, by name (ns on the trace's clock), as slices on a track of their own.

    Raises an `OptionError` for a range outside of the trace.
    """
    for name, (start, end) in ranges.items():
        if not trace.start_ns <= start < end <= trace.end_ns:
            raise OptionError(
                f"the range {name!r} from {start:,} to {end:,} ns is not within the trace, which "
                f"is from {trace.start_ns:,} to {trace.end_ns:,} ns"
            )
    if not ranges:
        return trace
    added = [
        NewSlice(start, end - start, name, CATEGORY, track=len(trace.tracks))
        for name, (start, end) in ranges.items()
    ]
    return with_slices(trace, added, [_TRACK])
