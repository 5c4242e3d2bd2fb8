"""Times of one run in one form, `Measured`, and what is the same in two runs.

`by_name` and `by_function` pair keys by name, then by a name without numbers and types. A cell has
another number whenever it runs: `with_same_cell` gives it one name in both runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses import operators as rows
from gpuprof_widgets.analyses.attribution import LEVELS, owned, self_times
from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.gpu_work import busy_intervals, devices
from gpuprof_widgets.analyses.lines import cell_lines, slice_self_times
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.reasons import IN_NO_MODULE, recorder_of
from gpuprof_widgets.analyses.regions import names_with_steps_merged, steps
from gpuprof_widgets.analyses.waits import python_lanes
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints, Rows
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import BUILT_IN
from gpuprof_widgets.trace.schema import NONE, SAMPLING

NO_OP = "(launched by no recorded op)"
MEASURES = ("device_self", "cpu_self")

_SELF = {"device_self": "GPU self time", "cpu_self": "CPU self time"}
QUANTITIES = {
    "op": _SELF,
    "kernel": {"device_self": "GPU time"},
    "line": {"device_self": "GPU self time", "cpu_self": "wall self time"},
    "module": {key: f"{words} of both passes" for key, words in _SELF.items()},
    "function": {"": "self time"},
}
"""Names of the times of a table, by measure. That of lines includes waits for the GPU."""


@dataclass(frozen=True)
class Measured:
    """Entries of one run: the key of each, how often and how long it ran, and in which step.

    ``keys``: one row per op, kernel, ..., with the columns that name it. Each entry has a ``key``
    (its row there), ``calls``, ``ns`` and ``step`` (the step's position in the run, -1 outside).
    """

    keys: pd.DataFrame
    key: Ints
    calls: Ints
    ns: Ints
    step: Ints


def measure_of(a: Record, b: Record, measure: str | None) -> str:
    """Return ``measure`` if given; else GPU time if both runs have any, else CPU time."""
    if measure is None:
        both = all(len(record.trace.index.gpu) for record in (a, b))
        return MEASURES[0] if both else MEASURES[1]
    if measure not in MEASURES:
        raise OptionError(f"runs are compared by one of {', '.join(MEASURES)}, not by {measure!r}")
    return measure


def step_of(record: Record) -> Ints:
    """Return the position of each slice's step in the run, -1 outside of steps.

    A slice is in the step in which it began; GPU work in the step in which it was launched, even if
    it ran later.
    """
    slices = record.trace.slices
    table = steps(record)
    start, end = table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
    ts = slices["ts"].to_numpy().copy()
    gpu = record.trace.index.gpu
    launcher = record.trace.index.launcher[gpu]
    ts[gpu] = np.where(launcher >= 0, ts[launcher], ts[gpu])
    at = np.searchsorted(start, ts, side="right") - 1
    inside = (at >= 0) & (ts < np.append(end, 0)[at]) if len(start) else np.zeros(len(ts), bool)
    return np.where(inside, at, NONE).astype(np.int64)


def ops(record: Record, measure: str) -> Measured:
    """Return self times of ops, annotations and runtime calls; GPU time also if no op launched it.

    Calls count in the step of the op, GPU time in the step of its launch, as in `kernels`.
    """
    trace, step = record.trace, step_of(record)
    op_table = rows.op_rows(trace)
    host = op_table.row[op_table.host]
    keys, key = _named(trace, host)
    calls = (trace.slices["count"].to_numpy()[op_table.row] * ~op_table.repeat).astype(np.int64)
    if measure == MEASURES[1]:
        return Measured(keys, key, calls, rows.cpu_self(trace, op_table), step[host])
    gpu = trace.index.gpu
    op = np.append(op_table.index, NONE)[trace.slices["op"].to_numpy()[gpu]]
    unowned = pd.DataFrame({"name": [NO_OP], "category": ["kernel"]}).iloc[: int((op < 0).any())]
    count, dur = (trace.slices[column].to_numpy()[gpu] for column in ("count", "dur"))
    return Measured(
        pd.concat([keys, unowned], ignore_index=True),
        np.concatenate([key, np.append(key, len(keys))[op]]),
        np.concatenate([calls, np.where(op >= 0, 0, count)]),
        np.concatenate([np.zeros(len(key), np.int64), dur]),
        np.concatenate([step[host], step[gpu]]),
    )


def kernels(record: Record) -> Measured:
    """Return times of kernels, copies and memsets, in the step in which they were launched."""
    trace = record.trace
    gpu = trace.index.gpu
    keys, key = _named(trace, gpu)
    calls, dur = (trace.slices[column].to_numpy()[gpu] for column in ("count", "dur"))
    return Measured(keys, key, calls.astype(np.int64), dur, step_of(record)[gpu])


def modules(record: Record, measure: str) -> Measured:
    """Return self times of each module, in its forward and its backward pass."""
    trace, step = record.trace, step_of(record)
    owners = owned(trace, "module")
    place = np.full(len(trace) + 1, NONE, np.int64)
    place[owners.row] = owners.key
    keys = owners.names.assign(name=[*owners.names["name"][:-1], IN_NO_MODULE])
    no_module = len(keys) - 1
    if measure == MEASURES[0]:
        row, ns = trace.index.gpu, trace.slices["dur"].to_numpy()[trace.index.gpu]
    else:
        owning = LEVELS["module"](trace)
        row, ns = owning.rows.astype(np.int64), self_times(trace, owning)
    module = owners.owner[row]
    key = np.where(module >= 0, place[module], no_module)
    return Measured(
        keys,
        np.concatenate([key, owners.key]),
        np.concatenate([np.zeros(len(row), np.int64), owners.calls]),
        np.concatenate([ns, np.zeros(len(owners.row), np.int64)]),
        np.concatenate([step[row], step[owners.row]]),
    )


def lines(record: Record, measure: str) -> Measured:
    """Return each cell line's self time, or the GPU time that it launched."""
    trace, step = record.trace, step_of(record)
    known = cell_lines(trace)
    line = known.of_slice[known.row]
    begun = np.where(known.resumed, 0, trace.slices["count"].to_numpy()[known.row])
    keys = known.lines[["cell", "line", "code"]]
    if measure == MEASURES[1]:
        self_ns = slice_self_times(trace, known.row)
        return Measured(keys, line, begun.astype(np.int64), self_ns, step[known.row])
    gpu = trace.index.gpu
    where = np.append(known.of_slice, NONE)[line_of(trace)[gpu]]
    gpu, where = gpu[where >= 0], where[where >= 0]
    return Measured(
        keys,
        np.concatenate([line, where]),
        np.concatenate([begun, np.zeros(len(gpu), np.int64)]).astype(np.int64),
        np.concatenate([np.zeros(len(line), np.int64), trace.slices["dur"].to_numpy()[gpu]]),
        np.concatenate([step[known.row], step[gpu]]),
    )


def functions(record: Record) -> Measured:
    """Return self times of the Python functions (see `python_time`) of the whole run."""
    table = python_time(record)
    places = zip(table["file"], table["line"], table["name"], strict=True)
    names = [n if file == BUILT_IN else f"{file}({line}): {n}" for file, line, n in places]
    return Measured(
        pd.DataFrame({"name": pd.Series(names, dtype=object), "category": "cprofile"}),
        np.arange(len(table), dtype=np.int64),
        table["calls"].to_numpy(np.int64),
        table["self_ns"].to_numpy(np.int64),
        np.full(len(table), NONE, np.int64),
    )


def python_recorder(record: Record) -> str:
    """Return which tool recorded the Python functions; "" if unknown."""
    if not len(python_lanes(record)):
        return "cProfile"
    return "gpuprof's sampler" if record.metadata.get(SAMPLING) else recorder_of(record)


def classes(record: Record, *, per_step: bool) -> Measured:
    """Return times of the classes of `breakdown`, of all devices together."""
    table = breakdown(record, by="step" if per_step else "device")
    places = {number: place for place, number in enumerate(steps(record)["step"])}
    keys = table[["state", "class"]].drop_duplicates(ignore_index=True)
    number = {pair: key for key, pair in enumerate(keys.itertuples(index=False, name=None))}
    pairs = zip(table["state"], table["class"], strict=True)
    return Measured(
        keys.astype(object),
        np.array([number[pair] for pair in pairs], np.int64),
        np.zeros(len(table), np.int64),
        table["time_ns"].to_numpy(np.int64),
        np.array([places.get(step, NONE) for step in table["step"]], np.int64),
    )


def nothing(run: Measured) -> Measured:
    """Return the run without any entries."""
    none = np.zeros(0, np.int64)
    return Measured(run.keys.iloc[:0], none, none, none, none)


def busy_ns(record: Record) -> int:
    """Return the time in ns in which any GPU was busy."""
    busy = [busy_intervals(record.trace, device) for device in devices(record.trace)]
    starts, ends = zip(*busy, strict=True) if busy else ((), ())
    none = np.zeros(0, np.int64)
    union = intervals.union(np.concatenate([none, *starts]), np.concatenate([none, *ends]))
    return int(intervals.length(union))


def _named(trace: Trace, row: Sequence[int] | Rows) -> tuple[pd.DataFrame, Ints]:
    """Return name and category of each kind of slice, and each of these slices' position there."""
    code, names = names_with_steps_merged(trace)
    category = trace.slices["category"].cat
    texts = [str(text) for text in category.categories]
    pair = code[row].astype(np.int64) * len(texts) + category.codes.to_numpy()[row]
    kinds, key = np.unique(pair, return_inverse=True)
    keys = pd.DataFrame(
        {
            "name": pd.Series([names[kind // len(texts)] for kind in kinds], dtype=object),
            "category": pd.Series([texts[kind % len(texts)] for kind in kinds], dtype=object),
        }
    )
    return keys, key.reshape(-1).astype(np.int64)


_NUMBERS = (
    (re.compile(r"(?<![0-9a-zA-Z])(?=[0-9a-f]*[0-9])[0-9a-f]{8,}(?![0-9a-zA-Z])"), "*"),
    (re.compile(r"0x[0-9a-fA-F]+"), "*"),
    (re.compile(r"(?<=[#_])\d+(?![0-9a-zA-Z])"), "*"),
    (re.compile(r"(?<=Cell \[)\d+(?=\])"), "*"),
    (re.compile(r"\(\d+\)(?=: )"), ""),
)
"""Hashes, addresses, counters at the end of a word, and numbers of cells and of lines."""

Key = tuple[Any, ...]

NAMED_BY = ("source", "rank", "torch", "host", "created")
"""Metadata that tells runs of one name apart, the first that differs."""


@dataclass(frozen=True)
class Pairs:
    """Matched keys of both runs: ``names`` has a row per pair or single key.

    ``a`` and ``b``: each key's row there.
    """

    names: pd.DataFrame
    a: Ints
    b: Ints


def without_numbers(name: str) -> str:
    """Return the name without numbers that change from run to run: ``step#3`` is ``step#*``."""
    for pattern, instead in _NUMBERS:
        name = pattern.sub(instead, name)
    return name


def without_folders(name: str) -> str:
    """Return the name of a Python frame without the folders of its file."""
    file, separator, function = name.partition("): ")
    return file.replace("\\", "/").rsplit("/", 1)[-1] + separator + function


def without_types(name: str) -> str:
    """Return a C++ function without template arguments and parameters, and without numbers."""
    if ("<" in name and "::" in name) or name.startswith("void "):
        name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
        name = re.split(r"[<(]", name, maxsplit=1)[0] or name
    return without_numbers(name)


def by_name(a: pd.DataFrame, b: pd.DataFrame) -> Pairs:
    """Pair equal keys, then keys that are equal once their ``name`` is normalised.

    Keys of one run with the same normalised name become one row. The other columns have to be
    equal. ``names``: the columns of the keys, ``matched`` ("name", "similar", or "" without a
    counterpart), and each run's names, a line each, as ``name_a`` and ``name_b``.
    """
    return _paired(a, b, (without_numbers, without_types))


def by_function(a: pd.DataFrame, b: pd.DataFrame) -> Pairs:
    """Pair Python functions, whose ``name`` is a frame's: ``src/train.py(12): step``.

    They are paired by line, then by file, then by the file's bare name: code moves within its file,
    and a copy of it may be elsewhere. Equal names become one row, as in `by_name`.
    """
    return _paired(a, b, (without_numbers, lambda name: without_numbers(without_folders(name))))


def _paired(a: pd.DataFrame, b: pd.DataFrame, normalised: Sequence[Callable[[str], str]]) -> Pairs:
    keys: list[list[Key]] = [list(run.itertuples(index=False, name=None)) for run in (a, b)]
    row_of: list[dict[int, int]] = [{}, {}]
    rows: list[tuple[Any, ...]] = []
    rules: list[tuple[str, Callable[[str], str]]] = [("name", str)]
    rules += [("similar", rule) for rule in normalised]
    for how, rule in rules:
        free_a, free_b = map(_free, keys, row_of, (rule, rule))
        for alias in [each for each in free_b if each in free_a]:
            for side, places in enumerate((free_a[alias], free_b[alias])):
                row_of[side].update(dict.fromkeys(places, len(rows)))
            first, *others = free_b[alias]
            rows.append((*(alias if others else keys[1][first]), how))
    for of_side, of_run in zip(row_of, keys, strict=True):
        for place, key in enumerate(of_run):
            if place not in of_side:
                of_side[place] = len(rows)
                rows.append((*key, ""))
    names = pd.DataFrame(rows, columns=[*a.columns, "matched"], dtype=object)
    for column, of_side, of_run in zip(("name_a", "name_b"), row_of, keys, strict=True):
        texts: list[list[str]] = [[] for _ in rows]
        for place, row in of_side.items():
            texts[row].append(str(of_run[place][0]))
        names[column] = pd.Series(map("\n".join, texts), dtype=object)
    of_a, of_b = (
        np.array([of_side[place] for place in range(len(of_side))], np.int64) for of_side in row_of
    )
    return Pairs(names, of_a, of_b)


def _free(
    keys: list[Key], row_of: dict[int, int], normalise: Callable[[str], str]
) -> dict[Key, list[int]]:
    """Return the places of the keys without a row, by their normalised names and other parts."""
    places: dict[Key, list[int]] = {}
    for place, (name, *rest) in enumerate(keys):
        if place not in row_of:
            places.setdefault((normalise(str(name)), *rest), []).append(place)
    return places


def run_names(a: Record, b: Record) -> tuple[str, str]:
    """Return the runs' labels or file names, "" where nothing is known of either.

    Where these are equal, they are followed by the first of `NAMED_BY` that differs.
    """
    name_a, name_b = (
        str(
            run.metadata.get("label")
            or re.split(r"[\\/]", str(run.metadata.get("source") or ""))[-1]
        )
        for run in (a, b)
    )
    if name_a == name_b:
        for key in NAMED_BY:
            values = [run.metadata.get(key) for run in (a, b)]
            if None not in values and values[0] != values[1]:
                x, y = (str(v) if key == "source" else f"{key} {v}" for v in values)
                return (f"{name_a}, {x}", f"{name_b}, {y}") if name_a else (x, y)
    return name_a, name_b


def cell_of(run: Record) -> str:
    """Return the name of the cell that was run, "" where no cell was."""
    number = run.metadata.get("execution_count")
    return "" if number is None else f"Cell [{number}]"


def with_same_cell(a: Record, b: Record) -> tuple[Record, Record]:
    """Return both runs with one name for the cell that was run, and for the region of the run.

    ``Cell [3]`` of a and ``Cell [4]`` of b become ``Cell [3 → 4]`` in both, also in the names of
    their functions; the labels ``before`` and ``after`` become ``before → after``.
    """
    cells = cell_of(a), cell_of(b)
    if all(cells) and cells[0] != cells[1]:
        both = f"{cells[0][:-1]} → {cells[1].partition('[')[2]}"
        a, b = _renamed(a, cells[0], both), _renamed(b, cells[1], both)
    labels = [str(run.metadata.get("label") or "") for run in (a, b)]
    others = [set(run.trace.slices["name"].cat.categories) for run in (b, a)]
    # A label that is a name in the other run as well is left: it would no longer match that name.
    is_taken = any(label in names for label, names in zip(labels, others, strict=True))
    if all(labels) and labels[0] != labels[1] and not is_taken:
        both = " → ".join(labels)
        a, b = _renamed(a, labels[0], both), _renamed(b, labels[1], both)
    return a, b


def _renamed(run: Record, old: str, new: str) -> Record:
    """Return the run with another name for a cell and its functions, or for a region."""

    def renamed(name: str) -> str:
        is_its_own = name == old or name.startswith(f"{old}(")
        return new + name.removeprefix(old) if is_its_own else name

    names = run.trace.slices["name"].cat
    slices = run.trace.slices.assign(name=names.rename_categories(lambda name: renamed(str(name))))
    calls = run.calls
    if calls is not None:
        files = calls.functions["file"].map(renamed).astype(object)
        calls = replace(calls, functions=calls.functions.assign(file=files))
    metadata = {**run.metadata, "label": renamed(str(run.metadata.get("label") or ""))}
    return replace(run, trace=replace(run.trace, slices=slices), calls=calls, metadata=metadata)
