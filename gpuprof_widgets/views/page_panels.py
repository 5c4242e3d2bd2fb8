"""The panels as the page needs them: texts and numbers of the tables, events as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.memory import allocations, memory_curve
from gpuprof_widgets.analyses.memory_blocks import UNKNOWN
from gpuprof_widgets.analyses.memory_categories import BEFORE, CATEGORIES
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.page_rows import with_busiest_tracks
from gpuprof_widgets.views.panels import all_panels
from gpuprof_widgets.views.table import MOST_ROWS, Column, Curve, Panel, Points
from gpuprof_widgets.views.table_renderers import listed, page_table

Ints = npt.NDArray[np.int64]
AnyInts = npt.NDArray[np.signedinteger[Any]]
ArrayEncoding = Literal["plain", "signed", "steps", "float"]

LONGEST = 4_000
"""Events that the page gets of a panel with too many: more than a screen has pixels."""
MOST_CHANGES = 2_000
"""Changes of a curve that the page gets one by one."""
SLOTS = 600
"""Beyond them: the parts of the trace of which the least, the most and the last value are shown."""
MOST_CURVES = 12


@remembered
def panels(record: Record) -> dict[str, Panel]:
    """What every panel shows of a record, by its name; those that have nothing to show are out.

    Of very many tracks the busiest count, as on the page.
    """
    record = with_busiest_tracks(record)
    shown = {name: panel_of(record) for name, panel_of in all_panels().items()}
    return {name: panel for name, panel in shown.items() if panel is not None}


def page_panels(
    shown: Mapping[str, Panel], record: Record, arrays: Arrays, tick_ns: int, *, label: Ints | None
) -> list[dict[str, Any]]:
    """The header's ``panels``: what is shown of a record, in the order of their tabs.

    Positions point into ``arrays``.

    Times are ticks. ``values`` has a list per column. ``events`` that are slices stand in the order
    of their groups: ``count`` per group. All others stand in the order of time: ``group`` of each,
    ``start`` after the end of the one before (so little where they tile the time) and ``dur``.
    ``row``, unless the page's rows are not the slices; ``of``: what the columns aggregate;
    ``cut``: of the events only the longest are there. Stretches of innermost slices do not come
    along where the page has the slices: ``frames`` is the row of each label + 1, ``tracks`` where
    they are.

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
    found = None if label is None else _page_frames(panel, length, record, label, arrays)
    events, note = (None, "") if found else _events(panel, length)
    if note:
        columns = tuple(map(_of_the_run, shown.columns))
        shown = replace(shown, columns=columns, notes=(*shown.notes, note))
    return {
        "name": name,
        **page_table(shown),
        "cut": bool(note),
        "events": found
        or _page_events(events, length, shown.columns, record, arrays, tick_ns, label is not None),
        "curves": [_page_curve(curve, record, arrays) for curve in panel.curves[:MOST_CURVES]],
        "points": asdict(panel.points) if _has_points(panel.points, shown.columns) else None,
        "bars": None if panel.bars is None else asdict(panel.bars),
    }


def _has_points(points: Points | None, columns: tuple[Column, ...]) -> TypeGuard[Points]:
    keys = {column.key for column in columns}
    return points is not None and {points.x, points.y} <= keys


def _of_the_run(column: Column) -> Column:
    return Column(column.key, column.label, column.unit)


def _events(panel: Panel, length: int) -> tuple[pd.DataFrame | None, str]:
    """The events of the listed rows, and what was left out of them."""
    if panel.events is None or not len(panel.events):
        return None, ""
    events = panel.events[panel.events["group"] < length]
    left_out = len(events) - min(LONGEST, panel.most_events)
    if len(events) <= panel.most_events:
        return events, ""
    dur = events["end_ns"] - events["start_ns"]
    longest = dur.sort_values(ascending=False, kind="stable").index[:-left_out]
    note = (
        f"The {left_out:,} shortest events are left out, "
        "so that all numbers are those of the whole run."
    )
    return events.loc[longest], note


def _page_frames(
    panel: Panel, length: int, record: Record, label: Ints, arrays: Arrays
) -> dict[str, Any] | None:
    """Which slices the listed functions are, by label and track; the page cuts their time up."""
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
    page["of"] = {key: _of(events[key], arrays) for key in _aggregated(columns, events)}
    return page


def _are_slices(record: Record, events: pd.DataFrame) -> bool:
    """Whether all these times are those of the slices: the page has them already."""
    slices = record.trace.slices
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    row, start, end = (events[key].to_numpy(np.int64) for key in ("row", "start_ns", "end_ns"))
    return bool((row >= 0).all() and (ts[row] == start).all() and (ts[row] + dur[row] == end).all())


def _aggregated(columns: tuple[Column, ...], events: pd.DataFrame) -> list[str]:
    """The columns of the events that the table's columns are computed from."""
    wanted = {c.of for c in columns if c.of and c.aggregate not in ("", "share", "ratio")}
    return [key for key in events.columns if key in wanted]


def _of(values: pd.Series[Any], arrays: Arrays) -> int:
    if pd.api.types.is_integer_dtype(values.dtype):
        return arrays.add(values.to_numpy(np.int64), "signed")
    return arrays.add(values.to_numpy(np.float64), "float")


def _page_curve(curve: Curve, record: Record, arrays: Arrays) -> dict[str, Any]:
    changes = curve.changes.sort_values("ts_ns", kind="stable")
    ts = changes["ts_ns"].to_numpy(np.int64)
    value = changes["value"].to_numpy(np.float64)
    kept = _shown(ts, value, record.trace.start_ns, record.trace.end_ns)
    return {
        "name": curve.name,
        "unit": curve.unit,
        "ts": arrays.add(ts[kept], "steps"),
        "value": arrays.add(value[kept], "float"),
        "exact": bool(kept.all()),
    }


def _shown(ts: Ints, value: npt.NDArray[np.float64], start: int, end: int) -> npt.NDArray[np.bool_]:
    """Which changes the page gets: all, or of each part of the trace three that bound the rest."""
    if len(ts) <= MOST_CHANGES:
        return np.ones(len(ts), bool)
    slot = (ts - start) * SLOTS // max(end - start + 1, 1)
    kept = np.append(slot[1:] != slot[:-1], True)
    for key in (value, -value):
        order = np.lexsort((key, slot))
        kept[order[np.append(True, slot[order][1:] != slot[order][:-1])]] = True
    kept[0] = True
    return kept


class Arrays:
    """What the page decodes to `arrays`, in the order in which it was added.

    "plain": unsigned integers; "signed": sign-folded ones; "steps": sign-folded differences to the
    one before; all as byte planes. "float": float64 as it is, eight bytes of each value together.
    """

    def __init__(self) -> None:
        self.layout: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    def add(self, values: npt.NDArray[Any], encoding: ArrayEncoding) -> int:
        """The position of these values among the arrays; integers where it is not "float"."""
        if encoding == "float":
            width, data = 8, values.astype("<f8").tobytes()
        else:
            width, data = byte_planes(_stored(values, encoding))
        self.layout.append({"length": len(values), "width": width, "encoding": encoding})
        self._parts.append(data)
        return len(self.layout) - 1

    @property
    def data(self) -> bytes:
        """All of them, one after the other."""
        return b"".join(self._parts)


def _stored(values: AnyInts, encoding: ArrayEncoding) -> AnyInts:
    if encoding == "plain":
        return values
    return fold_sign(np.diff(values, prepend=0) if encoding == "steps" else values)


def fold_sign(values: AnyInts) -> AnyInts:
    """0, -1, 1, -2, 2, ... become 0, 1, 2, 3, 4, ..."""
    return np.where(values < 0, -2 * values - 1, 2 * values)


def byte_planes(values: AnyInts) -> tuple[int, bytes]:
    """Bytes per value, and the values as byte planes: all lowest bytes first."""
    width = max((int(values.max(initial=0)).bit_length() + 7) // 8, 1)
    octets = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    return width, octets[:, :width].T.tobytes()


PAGE_MEMORY_MOST_CHANGES = 10_000
"""Changes per device that the page gets one by one."""
PAGE_MEMORY_SLOTS = 2_500
"""Beyond them: the parts of the trace of which the fullest moment and the last one are shown."""
MOST_BLOCKS = 1_500
"""Blocks per device, the biggest, that the page knows by name."""


def page_memory(record: Record, *, rows_kept: bool) -> dict[str, Any] | None:
    """The header's ``memory``; None where no allocation was recorded.

    ``devices``: ``name``, ``ts`` (ns, as differences), ``category`` (index) and ``bytes`` of each
    change; what was there at first comes with the trace's start; ``reserved_ts`` and ``reserved``
    alike; ``exact``: whether all changes are there. ``blocks``: columns of `MOST_BLOCKS` of the
    biggest of each device, names as indices into ``names``; rows are -1 unless ``rows_kept``.
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
    totals, own = curve[curve["device"] == name], table[table["device"] == name]
    start = record.trace.start_ns
    ts, stack = _stacks(totals, own, start)
    kept = _page_memory_shown(ts, stack.sum(axis=1), start, record.trace.end_ns)
    ts, stack = ts[kept], stack[kept]
    change = np.diff(stack, axis=0, prepend=np.zeros((1, len(CATEGORIES)), np.int64))
    moment, category = np.nonzero(change)
    reserved = totals[totals["reserved_bytes"] != UNKNOWN]
    grown = np.flatnonzero(np.diff(reserved["reserved_bytes"].to_numpy(np.int64), prepend=UNKNOWN))
    return {
        "name": name,
        "ts": _steps(ts[moment]),
        "category": category.tolist(),
        "bytes": change[moment, category].tolist(),
        "reserved_ts": _steps(reserved["ts_ns"].to_numpy(np.int64)[grown]),
        "reserved": reserved["reserved_bytes"].to_numpy(np.int64)[grown].tolist(),
        "exact": bool(kept.all()),
    }


def _steps(values: Ints) -> list[int]:
    steps: list[int] = np.diff(values, prepend=0).tolist()
    return steps


def _stacks(totals: pd.DataFrame, own: pd.DataFrame, start: int) -> tuple[Ints, Ints]:
    """Moments, the trace's start first, and the bytes of each category from each moment on.

    What the blocks do not explain of torch's totals was there before the record.
    """
    number = {category: index for index, category in enumerate(CATEGORIES)}
    code = own["category"].map(number).to_numpy(np.int64)
    size = own["bytes"].to_numpy(np.int64)
    begin, end = own["start_ns"].to_numpy(np.int64), own["end_ns"].to_numpy(np.int64)
    ts = np.append(start, np.unique(totals["ts_ns"].to_numpy(np.int64)))
    stack = np.zeros((len(ts), len(CATEGORIES)), np.int64)
    np.add.at(stack, (np.where(begin < 0, 0, _last(ts, begin)), code), size)
    ended = end >= 0
    np.subtract.at(stack, (_last(ts, end[ended]), code[ended]), size[ended])
    stack = stack.cumsum(axis=0)
    after = totals.groupby("ts_ns")["allocated_bytes"].last().to_numpy(np.int64)
    first = int(totals["allocated_bytes"].iloc[0] - _first_change(totals, own))
    unexplained = np.append(first, after) - stack.sum(axis=1)
    stack[:, number[BEFORE]] += unexplained
    return ts, stack


def _last(ts: Ints, times: Ints) -> Ints:
    return np.searchsorted(ts, times, side="right") - 1


def _first_change(totals: pd.DataFrame, own: pd.DataFrame) -> int:
    """Bytes by which the first event changed the total."""
    first = own[(own["row"] >= 0) | (own["release"] >= 0)].iloc[0]
    return int(first["bytes"] if first["row"] >= 0 else -first["bytes"])


def _page_memory_shown(ts: Ints, total: Ints, start: int, end: int) -> npt.NDArray[np.bool_]:
    """Which moments the page gets: all, or of each part of the trace the fullest and the last."""
    if len(ts) <= PAGE_MEMORY_MOST_CHANGES:
        return np.ones(len(ts), bool)
    slot = (ts - start) * PAGE_MEMORY_SLOTS // max(end - start + 1, 1)
    kept = np.append(slot[1:] != slot[:-1], True)
    order = np.lexsort((-total, slot))
    kept[order[np.append(True, slot[order][1:] != slot[order][:-1])]] = True
    kept[0] = True
    return kept


def _blocks(table: pd.DataFrame, devices: list[str], *, rows_kept: bool) -> dict[str, Any]:
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
