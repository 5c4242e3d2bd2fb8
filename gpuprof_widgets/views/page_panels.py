"""The panels and the memory view as the page needs them.

A panel's table travels as texts and numbers in the header, its events and curves as `Arrays`, which
are packed like the columns of the slices. Every change of a device's memory is one number of one
category; the page adds them up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.memory import allocations, memory_curve
from gpuprof_widgets.analyses.memory_blocks import UNKNOWN
from gpuprof_widgets.analyses.memory_categories import BEFORE, CATEGORIES
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.arrays import AnyInts, Ints
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.page_rows import with_busiest_tracks
from gpuprof_widgets.views.panels import all_panels
from gpuprof_widgets.views.table import MOST_ROWS, Column, Curve, Panel
from gpuprof_widgets.views.table_renderers import listed, page_table

ArrayEncoding = Literal["plain", "signed", "steps", "float"]

LONGEST = 4_000
"""Events that the page gets of a panel with too many: more than a screen has pixels."""
MOST_CHANGES = 2_000
"""Changes of a curve that the page gets one by one."""
SLOTS = 600
"""Beyond them: the parts of the trace of which the least, the most and the last value are shown."""
MOST_CURVES = 12

MOST_MEMORY_CHANGES = 10_000
"""Changes of memory per device that the page gets one by one."""
MEMORY_SLOTS = 2_500
"""Beyond them: the parts of the trace of which the fullest moment and the last one are shown."""
MOST_BLOCKS = 1_500
"""Blocks per device, the biggest, that the page knows by name."""


@remembered
def panels(record: Record) -> dict[str, Panel]:
    """Return the panels that have something to show of a record, by name.

    Of very many tracks only the busiest count, as on the page.
    """
    record = with_busiest_tracks(record)
    shown = {name: panel_of(record) for name, panel_of in all_panels().items()}
    return {name: panel for name, panel in shown.items() if panel is not None}


def page_panels(
    shown: Mapping[str, Panel], record: Record, arrays: Arrays, tick_ns: int, *, label: Ints | None
) -> list[dict[str, Any]]:
    """Return the header's ``panels``, in the order of their tabs; positions point into ``arrays``.

    ``values`` has a list per column. ``events``, with times in ticks: those that are slices stand
    in the order of their groups, with ``count`` per group; all others in the order of time, with
    ``group``, ``start`` (after the end of the event before: a small number where events tile the
    time) and ``dur``. ``row`` is the slice, where the page's rows are the slices; ``of`` has the
    values that columns aggregate; ``cut`` says that only the longest events are there.

    Stretches of innermost slices do not come along where the page has the slices: ``frames`` is the
    table's row + 1 of each label, on these ``tracks``.

    ``label``: that of every slice on the page; None where its rows are not the slices.
    """
    return [
        _page_panel(name, panel, record, arrays, tick_ns, label) for name, panel in shown.items()
    ]


def _page_panel(
    name: str, panel: Panel, record: Record, arrays: Arrays, tick_ns: int, label: Ints | None
) -> dict[str, Any]:
    shown = listed(panel, MOST_ROWS)
    length = len(shown.rows)
    frames = None if label is None else _page_frames(panel, length, record, label, arrays)
    events, note = (None, "") if frames else _events(panel, length)
    if note:
        columns = tuple(Column(column.key, column.label, column.unit) for column in shown.columns)
        shown = replace(shown, columns=columns, notes=(*shown.notes, note))
    points, keys = panel.points, {column.key for column in shown.columns}
    return {
        "name": name,
        **page_table(shown),
        "cut": bool(note),
        "events": frames
        or _page_events(events, length, shown.columns, record, arrays, tick_ns, label is not None),
        "curves": [_page_curve(curve, record, arrays) for curve in panel.curves[:MOST_CURVES]],
        "points": asdict(points) if points and {points.x, points.y} <= keys else None,
        "bars": None if panel.bars is None else asdict(panel.bars),
    }


def _events(panel: Panel, length: int) -> tuple[pd.DataFrame | None, str]:
    """Return the events of the listed rows, and a note if some were left out."""
    if panel.events is None or not len(panel.events):
        return None, ""
    listed = np.flatnonzero(panel.events["group"] < length)
    if len(listed) <= panel.most_events:
        return panel.events.iloc[listed], ""
    start, end = (panel.events[f"{edge}_ns"].to_numpy()[listed] for edge in ("start", "end"))
    longest = _longest(end - start, min(LONGEST, panel.most_events))
    left_out = len(listed) - len(longest)
    note = (
        f"The {left_out:,} shortest events are left out, so the numbers stay those of the whole "
        "trace when a range is brushed."
    )
    return panel.events.iloc[listed[longest]], note


def _longest(dur: AnyInts, most: int) -> npt.NDArray[np.intp]:
    """Return the positions of the longest events, of equally long ones the first."""
    shortest = np.partition(dur, -most)[-most]  # to sort the millions of a path takes seconds
    longer, as_long = np.flatnonzero(dur > shortest), np.flatnonzero(dur == shortest)
    return np.sort(np.append(longer, as_long[: most - len(longer)]))


def _page_frames(
    panel: Panel, length: int, record: Record, label: Ints, arrays: Arrays
) -> dict[str, Any] | None:
    """Return which slices the listed functions are, by label and track; the page does the rest."""
    if panel.frames is None:
        return None
    counted = panel.frames >= 0
    row = np.zeros(int(label.max(initial=-1)) + 1, np.int64)
    row[label[counted]] = panel.frames[counted] + 1
    tracks = np.unique(record.trace.slices["track"].to_numpy()[counted])
    return {
        "frames": arrays.add(np.where(row <= length, row, 0), "plain"),
        "tracks": tracks.tolist(),
        "of": {},
    }


def _page_events(
    events: pd.DataFrame | None,
    length: int,
    columns: tuple[Column, ...],
    record: Record,
    arrays: Arrays,
    tick_ns: int,
    rows_kept: bool,
) -> dict[str, Any] | None:
    if events is None:
        return None
    are_slices = rows_kept and _are_slices(record, events)
    by_time = ["start_ns", "end_ns"]
    events = events.sort_values(["group", *by_time] if are_slices else by_time, kind="stable")
    row = events["row"].to_numpy(np.int64)
    group = events["group"].to_numpy(np.int64)
    page: dict[str, Any] = {}
    if are_slices:
        page["count"] = arrays.add(np.bincount(group, minlength=length), "plain")
    else:
        start, end = (
            (events[edge].to_numpy(np.int64) + tick_ns // 2) // tick_ns for edge in by_time
        )
        page["group"] = arrays.add(group, "plain")
        page["start"] = arrays.add(start - np.append(0, end[:-1]), "signed")
        page["dur"] = arrays.add(end - start, "plain")
    if rows_kept and (row >= 0).any():
        page["row"] = arrays.add(row, "steps")
    if "track" in events:
        page["track"] = arrays.add(events["track"].to_numpy(np.int64) + 1, "plain")
    aggregated = {c.of for c in columns if c.of and c.aggregate not in ("", "share", "ratio")}
    page["of"] = {}
    for key in [key for key in events if key in aggregated]:
        is_whole = pd.api.types.is_integer_dtype(events[key].dtype)
        values = events[key].to_numpy(np.int64 if is_whole else np.float64)
        page["of"][key] = arrays.add(values, "signed" if is_whole else "float")
    return page


def _are_slices(record: Record, events: pd.DataFrame) -> bool:
    """Whether the events are whole slices, whose times the page has already."""
    slices = record.trace.slices
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    row, start, end = (events[key].to_numpy(np.int64) for key in ("row", "start_ns", "end_ns"))
    return bool((row >= 0).all() and (ts[row] == start).all() and (ts[row] + dur[row] == end).all())


def _page_curve(curve: Curve, record: Record, arrays: Arrays) -> dict[str, Any]:
    changes = curve.changes.sort_values("ts_ns", kind="stable")
    ts = changes["ts_ns"].to_numpy(np.int64)
    value = changes["value"].to_numpy(np.float64)
    kept = _kept_changes(record, ts, (value, -value), most=MOST_CHANGES, slots=SLOTS)
    return {
        "name": curve.name,
        "unit": curve.unit,
        "ts": arrays.add(ts[kept], "steps"),
        "value": arrays.add(value[kept], "float"),
        "exact": bool(kept.all()),
    }


def _kept_changes(
    record: Record, ts: Ints, keys: Sequence[npt.NDArray[Any]], *, most: int, slots: int
) -> npt.NDArray[np.bool_]:
    """Return which changes the page gets: all up to ``most``, else a few that bound the rest.

    These are, in each of ``slots`` parts of the trace, the last one and the least by each key.
    """
    if len(ts) <= most:
        return np.ones(len(ts), bool)
    start = record.trace.start_ns
    slot = (ts - start) * slots // max(record.trace.end_ns - start + 1, 1)
    kept = np.append(slot[1:] != slot[:-1], True)
    for key in keys:
        order = np.lexsort((key, slot))
        kept[order[np.append(True, slot[order][1:] != slot[order][:-1])]] = True
    kept[0] = True
    return kept


class Arrays:
    """The arrays behind the columns of the payload, in the order in which they were added.

    "plain": unsigned integers; "signed": sign-folded ones; "steps": sign-folded differences to the
    value before; all as byte planes. "float": float64, the eight bytes of each value together.
    """

    def __init__(self) -> None:
        self.layout: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    def add(self, values: npt.NDArray[Any], encoding: ArrayEncoding) -> int:
        """Add values, integers unless "float", and return their position among the arrays."""
        if encoding == "float":
            width, data = 8, values.astype("<f8").tobytes()
        else:
            steps = np.diff(values, prepend=0) if encoding == "steps" else values
            width, data = byte_planes(steps if encoding == "plain" else fold_sign(steps))
        self.layout.append({"length": len(values), "width": width, "encoding": encoding})
        self._parts.append(data)
        return len(self.layout) - 1

    @property
    def data(self) -> bytes:
        """The bytes of all arrays, one after the other."""
        return b"".join(self._parts)


def fold_sign(values: AnyInts) -> AnyInts:
    """Map 0, -1, 1, -2, 2, ... to 0, 1, 2, 3, 4, ..."""
    return np.where(values < 0, -2 * values - 1, 2 * values)


def byte_planes(values: AnyInts) -> tuple[int, bytes]:
    """Return bytes per value, and the values as byte planes: all lowest bytes first."""
    width = max((int(values.max(initial=0)).bit_length() + 7) // 8, 1)
    octets = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    return width, octets[:, :width].T.tobytes()


def page_memory(record: Record, *, rows_kept: bool) -> dict[str, Any] | None:
    """Return the header's ``memory``; None where no allocation was recorded.

    ``devices``: ``name``, ``ts`` (ns, as differences), ``category`` (index) and ``bytes`` of each
    change; memory held before the trace counts as a change at its start; ``reserved_ts`` and
    ``reserved`` alike; ``exact``: whether all changes are there. ``blocks``: columns of each
    device's `MOST_BLOCKS` biggest, names as indices into ``names``; rows are -1 unless
    ``rows_kept``.
    """
    table, curve = allocations(record), memory_curve(record)
    if not len(table):
        return None
    devices = list(dict.fromkeys(curve["device"]))
    return {
        "categories": list(CATEGORIES),
        "devices": [_device(record, name, curve, table) for name in devices],
        "blocks": _blocks(table, devices, rows_kept=rows_kept),
    }


def _device(record: Record, name: str, curve: pd.DataFrame, table: pd.DataFrame) -> dict[str, Any]:
    totals, blocks = curve[curve["device"] == name], table[table["device"] == name]
    ts, stack = _stacks(totals, blocks, record.trace.start_ns)
    fullest = -stack.sum(axis=1)
    kept = _kept_changes(record, ts, (fullest,), most=MOST_MEMORY_CHANGES, slots=MEMORY_SLOTS)
    ts, stack = ts[kept], stack[kept]
    change = np.diff(stack, axis=0, prepend=np.zeros((1, len(CATEGORIES)), np.int64))
    moment, category = np.nonzero(change)
    reserved = totals.loc[totals["reserved_bytes"] != UNKNOWN, ["ts_ns", "reserved_bytes"]]
    reserved_ts, size = reserved.to_numpy(np.int64).T
    grown = np.flatnonzero(np.diff(size, prepend=UNKNOWN))
    return {
        "name": name,
        "ts": np.diff(ts[moment], prepend=0).tolist(),
        "category": category.tolist(),
        "bytes": change[moment, category].tolist(),
        "reserved_ts": np.diff(reserved_ts[grown], prepend=0).tolist(),
        "reserved": size[grown].tolist(),
        "exact": bool(kept.all()),
    }


def _stacks(totals: pd.DataFrame, blocks: pd.DataFrame, start: int) -> tuple[Ints, Ints]:
    """Return moments, the trace's start first, and the bytes of each category from then on.

    Bytes of torch's totals that the blocks do not explain were there before the record.
    """
    number = {category: index for index, category in enumerate(CATEGORIES)}
    code = blocks["category"].map(number).to_numpy(np.int64)
    size = blocks["bytes"].to_numpy(np.int64)
    begin, end = blocks["start_ns"].to_numpy(np.int64), blocks["end_ns"].to_numpy(np.int64)
    ts = np.append(start, np.unique(totals["ts_ns"].to_numpy(np.int64)))
    stack = np.zeros((len(ts), len(CATEGORIES)), np.int64)
    np.add.at(stack, (np.where(begin < 0, 0, _last(ts, begin)), code), size)
    ended = end >= 0
    np.subtract.at(stack, (_last(ts, end[ended]), code[ended]), size[ended])
    stack = stack.cumsum(axis=0)
    after = totals.groupby("ts_ns")["allocated_bytes"].last().to_numpy(np.int64)
    # The first total is that after the first event.
    first = blocks[(blocks["row"] >= 0) | (blocks["release"] >= 0)].iloc[0]
    changed = first["bytes"] if first["row"] >= 0 else -first["bytes"]
    before = int(totals["allocated_bytes"].iloc[0] - changed)
    unexplained = np.append(before, after) - stack.sum(axis=1)
    stack[:, number[BEFORE]] += unexplained
    return ts, stack


def _last(ts: Ints, times: Ints) -> Ints:
    """Return the position of the last moment up to each of these times."""
    return np.searchsorted(ts, times, side="right") - 1


def _blocks(table: pd.DataFrame, devices: list[str], *, rows_kept: bool) -> dict[str, Any]:
    """Return the columns of each device's biggest blocks."""
    biggest = table.sort_values("bytes", ascending=False, kind="stable")
    biggest = biggest.groupby("device").head(MOST_BLOCKS).sort_index()
    texts = [biggest[f"{name}_name"] for name in ("op", "module", "line")] + [biggest["tensor"]]
    codes, names = pd.factorize(pd.concat(texts, ignore_index=True))
    op, module, line, tensor = codes.reshape(4, -1).tolist()
    start, end = (biggest[f"{edge}_ns"].to_numpy(np.int64) for edge in ("start", "end"))
    links = {name: biggest[name].to_numpy(np.int64) for name in ("op", "row", "release")}
    return {
        "device": biggest["device"].map({name: i for i, name in enumerate(devices)}).tolist(),
        "start": start.tolist(),
        "dur": np.where(end < 0, -1, end - np.maximum(start, 0)).tolist(),
        "bytes": biggest["bytes"].tolist(),
        "category": biggest["category"].map(list(CATEGORIES).index).tolist(),
        "op_name": op,
        "module_name": module,
        "line_name": line,
        "tensor": tensor,
        "names": [str(name) for name in names],
        **{name: (rows if rows_kept else rows * 0 - 1).tolist() for name, rows in links.items()},
        "left_out": len(table) - len(biggest),
    }
