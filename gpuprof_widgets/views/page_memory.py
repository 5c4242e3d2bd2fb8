"""Memory as the page needs it: what each device held by category over time, and the big blocks.

Every change of a device's memory is one number of one category; the page adds them up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.memory import allocations, memory_curve
from gpuprof_widgets.analyses.memory_blocks import UNKNOWN
from gpuprof_widgets.analyses.memory_categories import BEFORE, CATEGORIES
from gpuprof_widgets.trace.model import Record

Ints = npt.NDArray[np.int64]

MOST_CHANGES = 10_000
"""Changes per device that the page gets one by one."""
SLOTS = 2_500
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
    kept = _shown(ts, stack.sum(axis=1), start, record.trace.end_ns)
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


def _shown(ts: Ints, total: Ints, start: int, end: int) -> npt.NDArray[np.bool_]:
    """Which moments the page gets: all, or of each part of the trace the fullest and the last."""
    if len(ts) <= MOST_CHANGES:
        return np.ones(len(ts), bool)
    slot = (ts - start) * SLOTS // max(end - start + 1, 1)
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
