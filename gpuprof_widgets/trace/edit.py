"""Change a finished trace: rename, remove or add slices, or join several traces into one.

Links between slices follow their rows to the new row numbers. Arrays that map old row numbers to
new ones have -1 for rows that are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask
from gpuprof_widgets.trace.assemble import joined_counters
from gpuprof_widgets.trace.events import flow_table, from_codes, joined_texts, text_codes, typed
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import link_ops
from gpuprof_widgets.trace.schema import NONE, SLICE_COLUMNS, TRACK_KINDS
from gpuprof_widgets.trace.tracks import DEVICE_KINDS, with_types

LINKS = ("launch", "op", "forward")
"""Columns of slices that refer to rows, except for ``parent``, which nesting gives."""

_SAME_TRACK = ("kind", "process", "thread", "device", "stream")
"""Columns that are equal where tracks of several traces are the same."""


@dataclass(frozen=True)
class Region:
    """New name, category (of `REGION_CATEGORIES`) and args for the slices of one name."""

    name: str
    category: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NewTrack:
    """A track to add to a trace (see `TRACK_COLUMNS`).

    It goes below the other tracks of its ``lane``; with None it is a lane of its own, at the end.
    """

    kind: str
    label: str
    process: str
    thread: str
    lane: int | None = None


@dataclass(frozen=True)
class NewSlice:
    """A slice to add to a trace: times in ns on its clock, and the row of its track.

    Tracks that are added with it are numbered after those of the trace.
    """

    ts: int
    dur: int
    name: str
    category: str
    track: int
    args: Mapping[str, Any] = field(default_factory=dict)


def with_regions(trace: Trace, regions: Mapping[str, Region]) -> Trace:
    """Turn the CPU slices of these names into regions, and remove their echoes on the GPU."""
    slices = trace.slices
    marked = slices["name"].isin(list(regions)).to_numpy()
    if not marked.any():
        return trace
    echo = marked & (slices["category"] == "gpu_user_annotation").to_numpy()
    if echo.any():
        trace = kept_slices(trace, ~echo)
        slices, marked = trace.slices, marked[~echo]
    rows = np.flatnonzero(marked)
    texts = [str(name) for name in slices["name"].cat.categories]
    names = slices["name"].cat.codes.to_numpy()
    became = [regions[texts[code]] for code in names[rows]]
    renamed = [regions[text].name if text in regions else text for text in texts]
    category = slices["category"].to_numpy(object, copy=True)
    category[rows] = [region.category for region in became]
    slices = slices.assign(
        name=from_codes(names.astype(np.int32), renamed), category=text_codes(category.tolist())
    )
    slices = slices.assign(op=link_ops(slices, slices["launch"].to_numpy()))
    given = [(int(row), region.args) for row, region in zip(rows, became, strict=True)]
    return replace(trace, slices=slices, args=_with_args(trace.args, given))


def with_slices(
    trace: Trace, added: list[NewSlice], new_tracks: list[NewTrack] | None = None
) -> Trace:
    """Add slices, and nest the trace anew; of equal times, the added slice is the outer one.

    The trace's end moves where needed. Times before its start are an error of the caller.
    """
    if not added:
        return trace
    old = trace.slices
    more = _table(added)
    slices = pd.concat([more, old], ignore_index=True)
    for key in ("name", "category"):
        slices[key] = joined_texts([text_codes(list(more[key])), pd.Categorical(old[key])])
    tracks, place = _more_tracks(trace.tracks, new_tracks or [])
    slices["track"] = place[slices["track"].to_numpy()]
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    order = np.lexsort((-dur, ts, slices["track"].to_numpy()))
    row = links.places_in(order)
    moved = _renumbered(trace, slices.iloc[order].reset_index(drop=True), row[len(more) :])
    new_args = [(int(row[number]), new.args) for number, new in enumerate(added)]
    return replace(
        moved,
        tracks=tracks,
        args=_with_args(moved.args, new_args),
        end_ns=max(trace.end_ns, int((ts + dur).max())),
    )


def new_rows(keep: Mask) -> Ints:
    """Return the new number of every old row, -1 for rows that go."""
    return np.where(keep, np.cumsum(keep) - 1, NONE).astype(np.int64)


def moved_links(old: pd.Series, row: Ints) -> Codes:
    """Translate links from old to new row numbers; ``row`` is as `new_rows` returns it."""
    return take(row, old.to_numpy()).astype(np.int32)


def kept_slices(trace: Trace, keep: Mask) -> Trace:
    """Keep these slices alone, nested anew; links to other rows become -1."""
    return _renumbered(trace, trace.slices[keep].reset_index(drop=True), new_rows(keep))


def _renumbered(trace: Trace, slices: pd.DataFrame, row: Ints) -> Trace:
    """Return the trace with these slices, nested anew; its links, flows and args follow ``row``."""
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    parent, depth = links.nest(ts, ts + slices["dur"].to_numpy(), track)
    moved = {name: moved_links(slices[name], row) for name in LINKS}
    return replace(
        trace,
        slices=slices.assign(parent=parent, depth=depth, **moved),
        flows=moved_flows(trace.flows, row),
        args={key: moved_arg(values, row) for key, values in trace.args.items()},
    )


def _table(added: list[NewSlice]) -> pd.DataFrame:
    """Return the new slices as rows of a slices table, without nesting and links."""
    types: dict[str, Any] = {
        name: object if kind == "category" else kind for name, kind in SLICE_COLUMNS.items()
    }
    columns = {
        name: np.array([getattr(new, name, NONE) for new in added], dtype=kind)
        for name, kind in types.items()
    }
    return pd.DataFrame({**columns, "count": np.ones(len(added), dtype=np.int32)})


def moved_flows(flows: pd.DataFrame, row: Ints) -> pd.DataFrame:
    """Return the arrows whose rows both remain, by their new numbers."""
    moved = flows.assign(
        source=moved_links(flows["source"], row), target=moved_links(flows["target"], row)
    )
    return moved[(moved["source"] >= 0) & (moved["target"] >= 0)].reset_index(drop=True)


def moved_arg(values: pd.Series, row: Ints) -> pd.Series:
    """Return the values of the rows that remain, at their new numbers and sorted by these."""
    index = row[values.index.to_numpy()]
    left: pd.Series = values[index >= 0]
    return left.set_axis(pd.Index(index[index >= 0], dtype=np.int64)).sort_index()


def _with_args(
    args: Mapping[str, pd.Series], added: list[tuple[int, Mapping[str, Any]]]
) -> dict[str, pd.Series]:
    """Return the args with those of the added rows; they replace a row's values of the same key."""
    rows: dict[str, dict[int, Any]] = {}
    for row, given in added:
        for key, value in given.items():
            rows.setdefault(key, {})[row] = value
    before = {key: dict(args[key].items()) for key in rows.keys() & args.keys()}
    merged = {key: _arg({**before.get(key, {}), **values}) for key, values in rows.items()}
    return dict(sorted({**args, **merged}.items()))


def _arg(values: Mapping[Any, Any]) -> pd.Series:
    """Return a column of args from the values by row."""
    rows = sorted(values)
    return typed([values[row] for row in rows], np.array(rows, dtype=np.int64))


def _more_tracks(tracks: pd.DataFrame, new: list[NewTrack]) -> tuple[pd.DataFrame, Codes]:
    """Return the tracks with the new ones in their places, and the place of each by its number."""
    if not new:
        return tracks, np.arange(len(tracks), dtype=np.int32)
    lanes = tracks["lane"].tolist()
    rank = int(tracks["rank"].iloc[0]) if len(tracks) else NONE
    below = list(range(len(tracks)))  # the old track below which each one is
    rows = []
    for track in new:
        beside = [number for number, lane in enumerate(lanes[: len(tracks)]) if lane == track.lane]
        below.append(beside[-1] if beside else len(tracks))
        lanes.append(track.lane if beside else max(lanes, default=-1) + 1)
        of_cpu = {"device": NONE, "stream": NONE, "rank": rank}
        rows.append({**vars(track), **of_cpu, "lane": lanes[-1]})
    order = np.argsort(below, kind="stable")
    table = pd.concat([tracks.astype(object), pd.DataFrame(rows)], ignore_index=True)
    place = links.places_in(order).astype(np.int32)
    return with_types(table.iloc[order].reset_index(drop=True)), place


def starts_when_joined(traces: Sequence[Trace]) -> list[int]:
    """Return the start of each trace on the joined clock (ns): where the trace before it ends."""
    spans = [trace.span_ns for trace in traces]
    return [sum(spans[:number]) for number in range(len(spans))]


def joined(traces: Sequence[Trace]) -> Trace:
    """Join the traces, one after another without the time between them, on the first one's clock.

    Tracks of the same process, thread, device and stream become one. Every link stays within its
    trace; nothing is linked anew, because ids (correlations, external ids) may repeat from trace to
    trace.
    """
    if len(traces) == 1:
        return traces[0]
    tracks, numbers = _united_tracks(traces)
    slices, rows = _joined_slices(traces, numbers)
    counters = [
        trace.counters.assign(ts=trace.counters["ts"] - trace.start_ns + start)
        for trace, start in zip(traces, starts_when_joined(traces), strict=True)
    ]
    moved = [moved_flows(trace.flows, row) for trace, row in zip(traces, rows, strict=True)]
    source, target = (
        np.concatenate([flows[end].to_numpy() for flows in moved]) for end in ("source", "target")
    )
    kinds = [str(kind) for flows in moved for kind in flows["kind"]]
    return replace(
        traces[0],
        slices=slices,
        tracks=tracks,
        counters=joined_counters(counters),
        flows=flow_table(source, target, kinds),
        args=_joined_args(traces, rows),
        start_ns=0,
        end_ns=sum(trace.span_ns for trace in traces),
        epoch_ns=traces[0].epoch_ns + traces[0].start_ns,
    )


def _united_tracks(traces: Sequence[Trace]) -> tuple[pd.DataFrame, list[Codes]]:
    """Return a row per track, in display order, and for each trace its tracks' new numbers."""
    keys: list[list[Any]] = []
    first: dict[Any, dict[Any, Any]] = {}
    for trace in traces:
        seen: Counter[Any] = Counter()  # repeats within a trace
        keys.append([])
        for row in trace.tracks.to_dict("records"):
            alike = tuple(row[name] for name in _SAME_TRACK)
            keys[-1].append((*alike, seen[alike]))
            seen[alike] += 1
            first.setdefault(keys[-1][-1], row)
    order = _display_order(first)
    number = {key: index for index, key in enumerate(order)}
    table = pd.DataFrame([first[key] for key in order], columns=traces[0].tracks.columns)
    lanes = list(zip(table["process"], table["thread"], strict=True))
    place = {lane: index for index, lane in enumerate(dict.fromkeys(lanes))}
    table["lane"] = [place[lane] for lane in lanes]
    return with_types(table), [np.array([number[k] for k in ks], dtype=np.int32) for ks in keys]


def _display_order(tracks: dict[Any, dict[Any, Any]]) -> list[Any]:
    """Return the keys of tracks in order: CPU threads, devices, the rest; later traces' last."""
    rows = list(tracks.items())
    process: dict[Any, int] = {}
    lane: dict[Any, int] = {}
    for _, row in rows:
        process.setdefault(row["process"], len(process))
        lane.setdefault((row["process"], row["thread"]), len(lane))

    def place(item: tuple[Any, dict[Any, Any]]) -> tuple[int, ...]:
        row = item[1]
        kind, pair = TRACK_KINDS.index(row["kind"]), (row["process"], row["thread"])
        if row["kind"] in DEVICE_KINDS:
            return (1, row["device"], row["stream"], lane[pair], kind)
        section = 2 if row["kind"] == "other" else 0
        return (section, process[row["process"]], lane[pair], kind, 0)

    return [key for key, _ in sorted(rows, key=place)]


def _joined_slices(
    traces: Sequence[Trace], numbers: list[Codes]
) -> tuple[pd.DataFrame, list[Ints]]:
    """Return the slices in order, and for each trace the new row of each old row."""
    placed = [
        t.slices.assign(ts=t.slices["ts"] - t.start_ns + start, track=number[t.slices["track"]])
        for t, start, number in zip(traces, starts_when_joined(traces), numbers, strict=True)
    ]
    ts, dur, track = (np.concatenate([t[name] for t in placed]) for name in ("ts", "dur", "track"))
    order = np.lexsort((-dur, ts, track))
    rows = np.split(links.places_in(order), np.cumsum([len(table) for table in placed])[:-1])
    tables = [
        table.assign(**{name: moved_links(table[name], row) for name in ("parent", *LINKS)})
        for table, row in zip(placed, rows, strict=True)
    ]
    types: dict[str, Any] = dict(SLICE_COLUMNS)
    values = {
        name: joined_texts([pd.Categorical(table[name]) for table in tables]).take(order)
        if kind == "category"
        else np.concatenate([table[name] for table in tables])[order].astype(kind, copy=False)
        for name, kind in types.items()
    }
    return pd.DataFrame(values), rows


def _joined_args(traces: Sequence[Trace], rows: list[Ints]) -> dict[str, pd.Series]:
    merged: dict[str, dict[int, Any]] = {}
    for trace, row in zip(traces, rows, strict=True):
        for key, values in trace.args.items():
            moved = row[values.index.to_numpy()].tolist()
            merged.setdefault(key, {}).update(zip(moved, values.tolist(), strict=True))
    return {key: _arg(merged[key]) for key in sorted(merged)}
