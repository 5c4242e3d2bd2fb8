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
from gpuprof_widgets.analyses.gpu_work import open_within
from gpuprof_widgets.analyses.lines import cell_lines, slice_self_times
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.reasons import IN_NO_MODULE, recorder_of
from gpuprof_widgets.analyses.regions import names_with_steps_merged, steps
from gpuprof_widgets.analyses.waits import python_lanes
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints, Rows
from gpuprof_widgets.trace.index import take
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
    table, index = steps(record), record.trace.index
    start, end = table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
    began = np.where(index.is_gpu & (index.launcher >= 0), index.ts[index.launcher], index.ts)
    at = np.searchsorted(start, began, side="right") - 1
    return np.where((at >= 0) & (began < take(end, at)), at, NONE)


def ops(record: Record, measure: str) -> Measured:
    """Return self times of ops, annotations and runtime calls; GPU time also if no op launched it.

    Calls count in the step of the op, GPU time in the step of its launch, as in `kernels`.
    """
    trace, index, step = record.trace, record.trace.index, step_of(record)
    op_table = rows.op_rows(trace)
    host = op_table.row[op_table.host]
    keys, key = _named(trace, host)
    calls = index.column("count")[op_table.row] * ~op_table.repeat
    if measure == MEASURES[1]:
        return _entries(keys, (key, calls, rows.cpu_self(trace, op_table), step[host]))
    gpu = index.gpu
    op = take(op_table.index, index.column("op")[gpu])
    unowned = pd.DataFrame({"name": [NO_OP], "category": ["kernel"]}).iloc[: int((op < 0).any())]
    launches = np.where(op >= 0, 0, index.column("count")[gpu])
    return _entries(
        pd.concat([keys, unowned], ignore_index=True),
        (key, calls, 0, step[host]),
        (take(key, op, missing=len(keys)), launches, index.dur[gpu], step[gpu]),
    )


def _entries(keys: pd.DataFrame, *parts: tuple[Any, Any, Any, Ints]) -> Measured:
    """Return entries from arrays or single numbers: key, calls, ns and step of each part."""
    columns = zip(*(np.broadcast_arrays(*part) for part in parts), strict=True)
    return Measured(keys, *(np.concatenate(column).astype(np.int64) for column in columns))


def kernels(record: Record) -> Measured:
    """Return times of kernels, copies and memsets, in the step in which they were launched."""
    index, gpu = record.trace.index, record.trace.index.gpu
    keys, key = _named(record.trace, gpu)
    return _entries(keys, (key, index.column("count")[gpu], index.dur[gpu], step_of(record)[gpu]))


def modules(record: Record, measure: str) -> Measured:
    """Return self times of each module, in its forward and its backward pass."""
    trace, step = record.trace, step_of(record)
    owners = owned(trace, "module")
    keys = owners.names.assign(name=[*owners.names["name"][:-1], IN_NO_MODULE])
    place = np.full(len(trace), NONE, np.int64)
    place[owners.row] = owners.key
    if measure == MEASURES[0]:
        row, ns = trace.index.gpu, trace.index.dur[trace.index.gpu]
    else:
        owning = LEVELS["module"](trace)
        row, ns = owning.rows.astype(np.intp), self_times(trace, owning)
    key = take(place, owners.owner[row], missing=len(keys) - 1)
    return _entries(keys, (key, 0, ns, step[row]), (owners.key, owners.calls, 0, step[owners.row]))


def lines(record: Record, measure: str) -> Measured:
    """Return each cell line's self time, or the GPU time that it launched."""
    trace, step = record.trace, step_of(record)
    known = cell_lines(trace)
    line = known.of_slice[known.row]
    begun = np.where(known.resumed, 0, trace.index.column("count")[known.row])
    if measure == MEASURES[1]:
        self_ns = slice_self_times(trace, known.row)
        return _entries(known.lines, (line, begun, self_ns, step[known.row]))
    where = take(known.of_slice, line_of(trace)[trace.index.gpu])
    gpu, where = trace.index.gpu[where >= 0], where[where >= 0]
    launched = (where, 0, trace.index.dur[gpu], step[gpu])
    return _entries(known.lines, (line, begun, 0, step[known.row]), launched)


def functions(record: Record) -> Measured:
    """Return self times of the Python functions (see `python_time`) of the whole run."""
    table = python_time(record)
    places = zip(table["file"], table["line"], table["name"], strict=True)
    names = [n if file == BUILT_IN else f"{file}({line}): {n}" for file, line, n in places]
    keys = pd.DataFrame({"name": pd.Series(names, dtype=object), "category": "cprofile"})
    outside = np.full(len(table), NONE)
    return _entries(keys, (np.arange(len(table)), table["calls"], table["self_ns"], outside))


def python_recorder(record: Record) -> str:
    """Return which tool recorded the Python functions; "" if unknown."""
    if not len(python_lanes(record)):
        return "cProfile"
    return "gpuprof's sampler" if record.metadata.get(SAMPLING) else recorder_of(record)


def classes(record: Record, *, per_step: bool) -> Measured:
    """Return times of the classes of `breakdown`, of all devices together."""
    table = breakdown(record, by="step" if per_step else "device")
    places = {number: place for place, number in enumerate(steps(record)["step"])}
    key = table.groupby(["class", "state"], sort=False, observed=True).ngroup().to_numpy()
    keys = table[["class", "state"]].drop_duplicates(ignore_index=True)
    step = np.array([places.get(step, NONE) for step in table["step"]], np.int64)
    return _entries(keys.astype(object), (key, 0, table["time_ns"], step))


def nothing(run: Measured) -> Measured:
    """Return the run without any entries."""
    none = np.zeros(0, np.int64)
    return Measured(run.keys.iloc[:0], none, none, none, none)


def busy_ns(record: Record) -> int:
    """Return the time in ns in which any GPU was busy."""
    return intervals.length(open_within(record.trace, record.trace.index.gpu))


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
