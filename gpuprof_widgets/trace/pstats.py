"""Python calls: cProfile's statistics, pstats files, and the Python frames of a trace.

cProfile counts in seconds (float64); `Calls` holds whole nanoseconds, which is the resolution of
its clock. `stats_of_calls` writes these nanoseconds as seconds again. Files are read without
`marshal` (see `plain_data`). The calls of several processes or files can be added up, and the
``python_function`` slices of a trace give the same table as cProfile.
"""

from __future__ import annotations

import marshal
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.assemble import empty_trace
from gpuprof_widgets.trace.files import write_whole
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.plain_data import plain_statistics

Function = tuple[str, int, str]
"""File, first line and name: cProfile's key of a function."""

Numbers = tuple[int, int, float, float]
"""Primitive calls, calls, seconds in the function itself, seconds including its callees."""

Stats = Mapping[Function, tuple[int, int, float, float, Mapping[Function, Numbers]]]

FUNCTION_KEY = ["file", "line", "name"]
"""Columns that tell one function from another."""
NUMBER_COLUMNS = ["calls", "primitive_calls", "self_ns", "total_ns"]
LARGEST = 2**62
"""Counts and ns below it fit an int64, and so do sums of a few."""
_MARSHAL_DICT = (b"{", b"\xfb")
_MARSHAL_KEYS = (b"(", b"\xa8", b")", b"\xa9", b"0")


def calls_of_stats(stats: Stats) -> Calls:
    """Return cProfile's ``stats`` (after ``create_stats()``) as `Calls`, in the same order."""
    names = list(dict.fromkeys([*stats, *(c for entry in stats.values() for c in entry[4])]))
    row = {name: number for number, name in enumerate(names)}
    totals = [stats[name][:4] if name in stats else (0, 0, 0.0, 0.0) for name in names]
    functions = pd.DataFrame(
        {
            "file": pd.Series([name[0] for name in names], dtype=object),
            "line": np.array([name[1] for name in names], dtype=np.int64),
            "name": pd.Series([name[2] for name in names], dtype=object),
            **_columns(totals),
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
    return Calls(functions, edge_table)


def stats_of_calls(calls: Calls) -> dict[Function, Any]:
    """Return `Calls` as cProfile's ``stats``, which ``marshal.dump`` writes for pstats."""
    table = calls.functions
    names = list(zip(table["file"], table["line"].tolist(), table["name"], strict=True))
    totals = _numbers(table)
    callers: list[dict[Function, Numbers]] = [{} for _ in names]
    ends = (calls.edges[end].tolist() for end in ("caller", "callee"))
    for caller, callee, numbers in zip(*ends, _numbers(calls.edges), strict=True):
        callers[callee][names[caller]] = _swapped(numbers)
    return {name: (*numbers, by) for name, numbers, by in zip(names, totals, callers, strict=True)}


def _swapped(numbers: Any) -> Numbers:
    """Swap the two counts: for a caller, cProfile writes all calls before the primitive ones."""
    first, second, self_time, total_time = numbers
    return second, first, self_time, total_time


def _columns(numbers: list[Any]) -> dict[str, Any]:
    """Return these `Numbers` as the columns of `Calls`."""
    columns = list(zip(*numbers, strict=True)) or [()] * 4
    seconds = [np.array(column, dtype=np.float64) for column in columns[2:]]
    return {
        "calls": np.array(columns[1], dtype=np.int64),
        "primitive_calls": np.array(columns[0], dtype=np.int64),
        "self_ns": np.rint(seconds[0] * 1e9).astype(np.int64),
        "total_ns": np.rint(seconds[1] * 1e9).astype(np.int64),
    }


def _numbers(table: pd.DataFrame) -> list[Numbers]:
    """Return the rows of a table of `Calls` as cProfile's `Numbers`."""
    calls, primitive, self_ns, total_ns = (table[name].to_numpy() for name in NUMBER_COLUMNS)
    columns = (primitive, calls, self_ns / 1e9, total_ns / 1e9)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def dump_pstats(calls: Calls) -> bytes:
    """Return the bytes of a file that ``pstats.Stats(path)`` and snakeviz open."""
    return marshal.dumps(stats_of_calls(calls))


def save_pstats(calls: Calls, path: str | os.PathLike[str]) -> Path:
    """Write a file that pstats and snakeviz open, whole or not at all; return its path."""
    data = dump_pstats(calls)
    return write_whole(path, lambda file: file.write(data))


def is_pstats(data: bytes) -> bool:
    """Whether these bytes start as a marshalled dict whose keys are tuples."""
    return data[:1] in _MARSHAL_DICT and data[1:2] in _MARSHAL_KEYS


def parse_pstats(data: bytes, path: Path) -> Record:
    """Return the record of a cProfile file: its calls, and a trace without slices."""
    calls, notes = _calls_and_notes(data, path)
    return Record(
        empty_trace(), calls, {"source": str(path), "recorded_by": "cProfile", "notes": notes}
    )


def load_calls(data: bytes, path: Path) -> Calls:
    """Return the calls in the bytes of a pstats file; errors name ``path``."""
    return _calls_and_notes(data, path)[0]


def _calls_and_notes(data: bytes, path: Path) -> tuple[Calls, list[str]]:
    """Return the plausible calls of a pstats file, and notes that count the entries left out."""
    stats = plain_statistics(data, path)
    if not isinstance(stats, dict):
        raise TraceError(
            f"{path}: starts as a file of cProfile, but holds a {type(stats).__name__} where a "
            "dict of functions was expected; write it again with cProfile's dump_stats."
        )
    kept = {
        name: entry
        for name, entry in stats.items()
        if _are_numbers(name, entry, 5) and isinstance(entry[4], dict)
    }
    total = sum(len(entry[4]) for entry in kept.values())
    if total > len(data):
        raise TraceError(
            f"{path}: {total:,} pairs of caller and callee in a file of {len(data):,} bytes: its "
            "functions share their callers, which cProfile does not write. It was made to do harm."
        )
    edges = {
        name: {by: numbers for by, numbers in entry[4].items() if _are_numbers(by, numbers, 4)}
        for name, entry in kept.items()
    }
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
    reason = "have no valid line, calls or times and were left out"
    return calls, [f"{count:,} {of} {reason}" for count, of in wrong if count]


def _are_numbers(function: Function, entry: Any, length: int) -> bool:
    """Whether a function has a valid line, and begins with two counts and two times in s.

    Times are negative where a clock was set back.
    """
    if abs(function[1]) >= LARGEST or type(entry) is not tuple or len(entry) != length:
        return False
    return all(type(n) is int and 0 <= n < LARGEST for n in entry[:2]) and all(
        type(t) in (int, float) and abs(t) < LARGEST / 1e9 for t in entry[2:4]
    )


_ENDING = re.compile(r"(\.(prof|pstats|profile|cprof|gz|zst|xz))+$")
_SAVED_AS = "cell"
"""The name of the main process's calls in a saved profile."""


def added_up(several: Sequence[Calls]) -> Calls:
    """Return the sum of the calls of several processes; file, line and name identify a function."""
    if len(several) == 1:
        return several[0]
    every = pd.concat([calls.functions for calls in several], ignore_index=True)
    groups = every.groupby(FUNCTION_KEY, sort=False, as_index=False)
    number = groups.ngroup().to_numpy()
    functions = groups[NUMBER_COLUMNS].sum().astype({"file": object, "name": object})
    edges, first = [], 0
    for calls in several:
        place = number[first : first + len(calls.functions)]
        first += len(calls.functions)
        ends = {end: place[calls.edges[end].to_numpy()] for end in ("caller", "callee")}
        edges.append(calls.edges.assign(**ends))
    pairs = pd.concat(edges, ignore_index=True).groupby(["caller", "callee"], as_index=False)
    ends_as = {"caller": np.int32, "callee": np.int32}
    return Calls(functions, pairs[NUMBER_COLUMNS].sum().astype(ends_as))


def only_calls(record: Record) -> bool:
    """Whether a record is that of a cProfile file: calls, and no trace."""
    return record.calls is not None and not len(record.trace) and not record.calls_of_workers


def summed_record(records: Mapping[str, Record], source: str) -> Record:
    """Add up the records of cProfile files, by file name; ``calls_of_workers`` keeps each file."""
    calls = [record.calls for record in records.values() if record.calls is not None]
    first = next(iter(records.values()))
    notes = [
        f"{name}: {note}"
        for name, record in records.items()
        for note in record.metadata.get("notes") or []
    ]
    files = ", ".join(list(records)[:6]) + (f" and {len(calls) - 6} more" if len(calls) > 6 else "")
    added = f"{len(calls)} files of cProfile ({files}) were added up"
    return Record(
        first.trace,
        added_up(calls),
        {"source": source, "notes": [*notes, f"{added}; calls_of_workers has each of them"]},
        dict(zip(_labels(records), calls, strict=True)),
    )


def _labels(names: Iterable[str]) -> list[str]:
    """Return the file names without endings, distinct and valid as names in a saved profile."""
    labels: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.@+-]+", "_", _ENDING.sub("", name)).lstrip("._") or "file"
        label, number = plain, 2
        while label in (*labels, _SAVED_AS):
            label, number = f"{plain}_{number}", number + 1
        labels.append(label)
    return labels


PYTHON_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$", re.DOTALL)
"""A frame's name in a trace, as torch.profiler writes it."""
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Addresses in names of built-in functions, which differ from process to process."""

BUILT_IN = "~"
"""cProfile's file of built-in functions."""


def calls_from_slices(trace: Trace, label: str) -> Calls:
    """Count the ``python_function`` slices as cProfile would have counted the calls.

    ``label`` names the run's region. As in cProfile, only its thread counts, and a recursive call
    adds neither to ``total_ns`` nor to ``primitive_calls``.
    """
    slices = trace.slices
    counted = (slices["category"] == "python_function") & (slices["count"] > 0)
    region = np.flatnonzero((slices["category"] == "user_annotation") & (slices["name"] == label))
    lane = trace.tracks["lane"].to_numpy()[slices["track"].to_numpy()]
    frames = slices[counted & (lane == lane[region[0]])] if len(region) else slices[counted]
    row = np.full(len(slices), -1, dtype=np.int64)
    row[frames.index] = np.arange(len(frames))
    parent = take(row, frames["parent"].to_numpy())
    function, places = _functions(frames["name"])
    ts, dur = frames["ts"].to_numpy(), frames["dur"].to_numpy()
    self_ns = links.self_times(ts, ts + dur, parent)
    inner = parent >= 0
    caller, callee = function[parent[inner]], function[inner]
    edge = np.full(len(frames), -1, dtype=np.int64)
    edge[inner], pairs = pd.factorize(caller * len(places) + callee)
    return Calls(
        functions=places.join(_sums(function, len(places), parent, self_ns, dur)),
        edges=pd.DataFrame(
            {"caller": pairs // max(len(places), 1), "callee": pairs % max(len(places), 1)}
        ).join(_sums(edge, len(pairs), parent, self_ns, dur)),
    )


def _functions(names: pd.Series) -> tuple[Ints, pd.DataFrame]:
    """Return the function row of each frame, and a table of functions: file, line, name."""
    frame_name, distinct = pd.factorize(names)
    places = [function_place(name) for name in distinct]
    function_of_name, functions = pd.factorize(pd.Index(places, dtype=object, tupleize_cols=False))
    table = pd.DataFrame(list(functions), columns=FUNCTION_KEY)
    return function_of_name[frame_name].astype(np.int64), table.astype({"line": np.int64})


def _sums(code: Ints, rows: int, parent: Ints, self_times: Ints, dur: Ints) -> pd.DataFrame:
    """Sum calls and times of the frames by code, for codes below ``rows``; -1 does not count."""
    counted = code >= 0
    outermost = counted & ~links.below_its_like(parent, code + 1)
    total = np.zeros(rows, dtype=np.int64)
    np.add.at(total, code[outermost], dur[outermost])
    self_ns = np.zeros(rows, dtype=np.int64)
    np.add.at(self_ns, code[counted], self_times[counted])
    return pd.DataFrame(
        {
            "calls": np.bincount(code[counted], minlength=rows),
            "primitive_calls": np.bincount(code[outermost], minlength=rows),
            "self_ns": self_ns,
            "total_ns": total,
        }
    )


def functions_of_frames(trace: Trace) -> tuple[pd.DataFrame, Ints]:
    """Return a table of the frames' functions (file, line, name), and each slice's row in it.

    The row is -1 for slices that are no Python frames.
    """
    frames = np.flatnonzero((trace.slices["category"] == "python_function").to_numpy())
    of_frame, table = _functions(trace.slices["name"].iloc[frames])
    function = np.full(len(trace), -1, np.int64)
    function[frames] = of_frame
    return table, function


def frame_name(name: str, file: str, line: int) -> str:
    """Return a frame as torch.profiler writes it: ``train.py(12): step``, or a name alone."""
    return f"{file}({line}): {name}" if file else name


def function_place(name: str) -> tuple[str, int, str]:
    """Return file, line and name of a frame that torch names like ``train.py(12): step``.

    Built-in functions get cProfile's file ``~`` and lose their address, so that their calls add up.
    """
    place = PYTHON_FRAME.match(name)
    if place:
        return place["file"], int(place["line"]), place["name"]
    return BUILT_IN, 0, ADDRESS.sub("", name)


def with_cell_labels(trace: Trace, cell_labels: Mapping[str, str]) -> Trace:
    """Name the frames of the notebook's cells after their cell: ``Cell [3](12): step``."""
    names = trace.slices["name"].cat
    renamed = {}
    for name in names.categories:
        if place := PYTHON_FRAME.match(name):
            # torch leaves out the part of the path that is on sys.path, or the root's slash.
            ours = (label for file, label in cell_labels.items() if file.endswith(place["file"]))
            if label := next(ours, ""):
                renamed[name] = f"{label}({place['line']}): {place['name']}"
    return replace(trace, slices=trace.slices.assign(name=names.rename_categories(renamed)))
