"""cProfile's statistics as `Calls`, and back as the file that pstats and snakeviz open.

cProfile counts in seconds (float64); `Calls` has them rounded to whole nanoseconds, which is the
resolution of its clock. Written back, each time is that number of nanoseconds in seconds.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import empty_trace
from gpuprof_widgets.trace.files import write_whole
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.plain_marshal import plain_statistics

Function = tuple[str, int, str]
"""File, first line and name, as cProfile keys its functions."""

Numbers = tuple[int, int, float, float]
"""Primitive calls, calls, seconds inside, seconds inside and below."""

Stats = Mapping[Function, tuple[int, int, float, float, Mapping[Function, Numbers]]]

NUMBER_COLUMNS = ("primitive_calls", "calls", "self_ns", "total_ns")
MOST = 2**62
"""Calls, and ns, that fit an int64 and sums of a few."""
_MARSHAL_DICT = (b"{", b"\xfb")
_MARSHAL_KEYS = (b"(", b"\xa8", b")", b"\xa9", b"0")


def calls_of_stats(stats: Stats) -> Calls:
    """`Calls` from cProfile's ``stats`` (after ``create_stats()``), in the order of its keys."""
    names = list(dict.fromkeys([*stats, *(c for entry in stats.values() for c in entry[4])]))
    row = {name: number for number, name in enumerate(names)}
    own = [stats[name][:4] if name in stats else (0, 0, 0.0, 0.0) for name in names]
    functions = pd.DataFrame(
        {
            "file": pd.Series([name[0] for name in names], dtype=object),
            "line": np.array([name[1] for name in names], dtype=np.int64),
            "name": pd.Series([name[2] for name in names], dtype=object),
            **_columns(own),
        }
    )
    edges = [
        (row[caller], row[callee], numbers)
        for callee, entry in stats.items()
        for caller, numbers in entry[4].items()
    ]
    edge_table = pd.DataFrame(
        {
            "caller": np.array([edge[0] for edge in edges], dtype=np.int32),
            "callee": np.array([edge[1] for edge in edges], dtype=np.int32),
            **_columns([_swapped(edge[2]) for edge in edges]),
        }
    )
    return Calls(_ordered(functions), _ordered(edge_table))


def stats_of_calls(calls: Calls) -> dict[Function, Any]:
    """The ``stats`` of cProfile from `Calls`: what ``marshal.dump`` writes for pstats."""
    table = calls.functions
    names = list(zip(table["file"], table["line"].tolist(), table["name"], strict=True))
    callers: list[dict[Function, Numbers]] = [{} for _ in names]
    edges = zip(
        calls.edges["caller"].tolist(),
        calls.edges["callee"].tolist(),
        _numbers(calls.edges),
        strict=True,
    )
    for caller, callee, numbers in edges:
        callers[callee][names[caller]] = _swapped(numbers)
    own = _numbers(table)
    return {name: (*numbers, by) for name, numbers, by in zip(names, own, callers, strict=True)}


def _swapped(numbers: Any) -> Numbers:
    """The numbers of a caller, which cProfile writes with all calls before the primitive ones."""
    first, second, own, total = numbers
    return second, first, own, total


def dump_pstats(calls: Calls) -> bytes:
    """The bytes of a file that ``pstats.Stats(path)`` and snakeviz open."""
    return marshal.dumps(stats_of_calls(calls))


def save_pstats(calls: Calls, path: str | os.PathLike[str]) -> Path:
    """Write a file that pstats and snakeviz open, whole or not at all; returns its path."""
    data = dump_pstats(calls)
    return write_whole(path, lambda file: file.write(data))


def is_pstats(data: bytes) -> bool:
    """Whether these bytes start as a marshalled dict whose keys are tuples."""
    return data[:1] in _MARSHAL_DICT and data[1:2] in _MARSHAL_KEYS


def parse_pstats(data: bytes, path: Path) -> Record:
    """The record of a file of cProfile: calls, and a trace without slices."""
    calls, notes = _calls_and_notes(data, path)
    return Record(
        empty_trace(), calls, {"source": str(path), "recorded_by": "cProfile", "notes": notes}
    )


def load_calls(data: bytes, path: Path) -> Calls:
    """`Calls` from the bytes of a pstats file; ``path`` is named in errors."""
    return _calls_and_notes(data, path)[0]


def _calls_and_notes(data: bytes, path: Path) -> tuple[Calls, list[str]]:
    """The calls, and what of them is not plausible and was left out."""
    stats = plain_statistics(data, path)
    if not isinstance(stats, dict):
        raise TraceError(
            f"{path}: starts as a file of cProfile, but holds a {type(stats).__name__} where a "
            "dict of functions was expected; write it again with cProfile's dump_stats."
        )
    kept = {name: entry for name, entry in stats.items() if _has_line(name) and _is_entry(entry)}
    total = sum(len(entry[4]) for entry in kept.values())
    if total > len(data):
        raise TraceError(
            f"{path}: {total:,} pairs of caller and callee in a file of {len(data):,} bytes: its "
            "functions share their callers, which cProfile does not write. It was made to do harm."
        )
    edges = {name: _plausible(entry[4]) for name, entry in kept.items()}
    if stats and not kept:
        raise TraceError(
            f"{path}: starts as a file of cProfile, but none of its {len(stats):,} functions has "
            "calls, times and callers; write it again with cProfile's dump_stats."
        )
    calls = calls_of_stats({name: (*entry[:4], edges[name]) for name, entry in kept.items()})
    wrong = (
        (len(stats) - len(kept), f"of {len(stats):,} functions"),
        (total - sum(map(len, edges.values())), f"of {total:,} pairs of caller and callee"),
    )
    what = "have no valid line, calls or times and were left out"
    return calls, [f"{count:,} {of} {what}" for count, of in wrong if count]


def _is_entry(entry: Any) -> bool:
    """Whether this is what cProfile has of a function: numbers, and a dict of its callers."""
    return (
        type(entry) is tuple
        and len(entry) == 5
        and isinstance(entry[4], dict)
        and _are_numbers(entry[:4])
    )


def _has_line(function: Function) -> bool:
    return abs(function[1]) < MOST


def _plausible(callers: Mapping[Function, Any]) -> dict[Function, Numbers]:
    return {
        caller: numbers
        for caller, numbers in callers.items()
        if _has_line(caller)
        and type(numbers) is tuple
        and len(numbers) == 4
        and _are_numbers(numbers)
    }


def _are_numbers(numbers: tuple[Any, ...]) -> bool:
    """Two counts and two times in seconds; a clock that was set back makes times negative."""
    counts, times = numbers[:2], numbers[2:]
    return all(type(n) is int and 0 <= n < MOST for n in counts) and all(
        type(t) in (int, float) and abs(t) < MOST / 1e9 for t in times
    )


def _columns(numbers: list[Any]) -> dict[str, Any]:
    columns = list(zip(*numbers, strict=True)) or [()] * 4
    seconds = [np.array(column, dtype=np.float64) for column in columns[2:]]
    return {
        "primitive_calls": np.array(columns[0], dtype=np.int64),
        "calls": np.array(columns[1], dtype=np.int64),
        "self_ns": np.rint(seconds[0] * 1e9).astype(np.int64),
        "total_ns": np.rint(seconds[1] * 1e9).astype(np.int64),
    }


def _numbers(table: pd.DataFrame) -> list[Numbers]:
    primitive, calls, own, total = (table[name].to_numpy() for name in NUMBER_COLUMNS)
    return list(
        zip(
            primitive.tolist(),
            calls.tolist(),
            (own / 1e9).tolist(),
            (total / 1e9).tolist(),
            strict=True,
        )
    )


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Columns in the order in which `Calls` describes them."""
    first = [name for name in table.columns if name not in NUMBER_COLUMNS]
    return table[[*first, "calls", "primitive_calls", "self_ns", "total_ns"]]
