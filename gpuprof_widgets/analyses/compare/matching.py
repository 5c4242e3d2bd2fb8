"""Match the ops, functions and cells of two runs.

`by_name` and `by_function` match by name, then by a name without numbers and types. A cell has
another number whenever it runs: `with_same_cells` gives cells that match one name in both runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.pstats import function_place

Ints = npt.NDArray[np.int64]
Key = tuple[Any, ...]
EXACT, SIMILAR, ALONE = "name", "similar", ""
"""Values of ``matched``: the same name, the same name but for numbers and types, no counterpart."""

_NUMBERS = (
    (re.compile(r"(?<![0-9a-zA-Z])(?=[0-9a-f]*[0-9])[0-9a-f]{8,}(?![0-9a-zA-Z])"), "*"),
    (re.compile(r"0x[0-9a-fA-F]+"), "*"),
    (re.compile(r"(?<=[#_])\d+(?![0-9a-zA-Z])"), "*"),
    (re.compile(r"\(\d+\)(?=: )"), ""),
)
"""Hashes, addresses, counters at the end of a word, and line numbers of Python frames."""

_CELL = re.compile(r"Cell \[(\d+)\]")
_MODULE = "<module>"

_BUILT_IN = re.compile(
    r"<(?:built-in )?(?:method|function) '?(?P<name>[\w.]+)'?"
    r"(?: of '?(?P<owner>[\w.]+)'? objects?)?>"
)
"""Built-in functions in cProfile's (``<method 'sum' of 'torch._C.TensorBase' objects>``) and
torch's spelling."""


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


def without_kind(name: str) -> str:
    """Return a built-in function as VizTracer writes it, ``time.sleep``, whoever recorded it."""
    match = _BUILT_IN.fullmatch(name)
    return name if match is None else ".".join(filter(None, (match["owner"], match["name"])))


def without_owner(name: str) -> str:
    """Return the bare name of a built-in function: ``sleep``; a Python function unchanged."""
    return name if "): " in name else without_kind(name).rsplit(".", 1)[-1]


def without_types(name: str) -> str:
    """Return a C++ function without template arguments and parameters, and without numbers."""
    if ("<" in name and "::" in name) or name.startswith("void "):
        name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
        name = re.split(r"[<(]", name, maxsplit=1)[0] or name
    return without_numbers(name)


NORMALISED: tuple[Callable[[str], str], ...] = (without_numbers, without_types)
"""Tried in this order on keys without a counterpart of the same name."""


def by_name(a: pd.DataFrame, b: pd.DataFrame) -> Pairs:
    """Pair equal keys, then keys that are equal once their ``name`` is normalised.

    Keys of one run with the same normalised name become one row. The other columns have to be
    equal. ``names``: the columns of the keys, ``matched``, and each run's names, a line each, as
    ``name_a`` and ``name_b``; "" where a run has none.
    """
    pairing = _Pairing(_tuples(a), _tuples(b))
    pairing.join(str, EXACT)
    for normalise in NORMALISED:
        pairing.join(normalise, SIMILAR)
    return pairing.pairs(list(a.columns))


def by_function(a: pd.DataFrame, b: pd.DataFrame, *, recorders_differ: bool = False) -> Pairs:
    """Pair Python functions, whose ``name`` is a frame's: ``src/train.py(12): step``.

    They are paired by line, then by file, then by the file's bare name: code moves within its file,
    and a copy of it may be elsewhere. Equal names become one row, as in `by_name`. Recorders name
    built-in functions differently: if ``recorders_differ`` these are paired by `without_kind`, and
    last by the function's name alone, each only where both runs have one of it.
    """
    pairing = _Pairing(_tuples(a), _tuples(b))
    pairing.join(str, EXACT)
    for normalise in (without_numbers, lambda name: without_numbers(without_folders(name))):
        pairing.join(normalise, SIMILAR)
    for normalise in (without_kind, without_owner) if recorders_differ else ():
        pairing.join(normalise, SIMILAR, single=True)
    return pairing.pairs(list(a.columns))


def _tuples(keys: pd.DataFrame) -> list[Key]:
    return list(keys.itertuples(index=False, name=None))


class _Pairing:
    """The rows of paired keys so far, and the keys of both runs without a counterpart yet."""

    def __init__(self, a: Sequence[Key], b: Sequence[Key]) -> None:
        self._keys = (a, b)
        self._row: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._names: list[Key] = []
        self._matched: list[str] = []

    def join(self, normalise: Callable[[str], str], how: str, *, single: bool = False) -> None:
        """Pair keys with the same normalised name; with ``single`` only if one key has it per run.

        The name is a key's first part; the other parts have to be equal.
        """
        aliases = [self._aliases(side, normalise) for side in (0, 1)]
        for name, places_b in aliases[1].items():
            places_a = aliases[0].get(name, [])
            if places_a and not (single and max(len(places_b), len(places_a)) > 1):
                self._add(self._keys[1][places_b[0]] if len(places_b) == 1 else name, how)
                for side in (0, 1):
                    self._row[side].update(dict.fromkeys(aliases[side][name], len(self._names) - 1))

    def _aliases(self, side: int, normalise: Callable[[str], str]) -> dict[Key, list[int]]:
        aliases: dict[Key, list[int]] = {}
        for place, (name, *rest) in enumerate(self._keys[side]):
            if place not in self._row[side]:
                aliases.setdefault((normalise(str(name)), *rest), []).append(place)
        return aliases

    def _add(self, name: Key, how: str) -> None:
        self._names.append(name)
        self._matched.append(how)

    def pairs(self, columns: list[str]) -> Pairs:
        """Return all keys; those of one run only have rows of their own."""
        for side in (0, 1):
            for place, key in enumerate(self._keys[side]):
                if place not in self._row[side]:
                    self._row[side][place] = len(self._names)
                    self._add(key, ALONE)
        names = pd.DataFrame(self._names, columns=columns, dtype=object)
        rows = [
            np.array([self._row[side][place] for place in range(len(self._keys[side]))], np.int64)
            for side in (0, 1)
        ]
        names = names.assign(
            matched=_texts_of(self._matched),
            name_a=self._names_in_run(0),
            name_b=self._names_in_run(1),
        )
        return Pairs(names, *rows)

    def _names_in_run(self, side: int) -> pd.Series:
        """Return the names of each row's keys in this run, a line each."""
        names: list[list[str]] = [[] for _ in self._names]
        for place, row in self._row[side].items():
            names[row].append(str(self._keys[side][place][0]))
        return _texts_of(["\n".join(lines) for lines in names])


def _texts_of(values: list[str]) -> pd.Series:
    return pd.Series(values, dtype=object)


def with_same_cells(a: Record, b: Record) -> tuple[Record, Record]:
    """Return both runs with one name for names that differ only in the number of their cell.

    These are the region of the run, the cell that was run, and cells that define functions of the
    same names: ``Cell [3]`` of a and ``Cell [4]`` of b become ``Cell [3 → 4]`` in both. Within a
    run the names of cells stay distinct.
    """
    label = _same_region(a, b)
    cells = _same_cells(a, b)
    if not label and not cells:
        return a, b
    names = {pair: _both(*pair) for pair in cells.items()}
    return (
        _renamed(a, label, {cell_a: both for (cell_a, _), both in names.items()}),
        _renamed(b, label, {cell_b: both for (_, cell_b), both in names.items()}),
    )


def _both(a: str, b: str) -> str:
    """Return ``Cell [3 → 4]`` or ``Cell [3 → 4], line 2``; other names stand side by side."""
    cell_a, cell_b = (_CELL.match(name) for name in (a, b))
    if cell_a is None or cell_b is None or a[cell_a.end() :] != b[cell_b.end() :]:
        return f"{a} → {b}"
    return f"Cell [{cell_a[1]} → {cell_b[1]}]{a[cell_a.end() :]}"


def _same_region(a: Record, b: Record) -> str:
    """Return a common name for the region of the run if the runs name it differently, else ""."""
    labels = [str(record.metadata.get("label") or "") for record in (a, b)]
    regions = [_regions(record) for record in (a, b)]
    known = all(label in names for label, names in zip(labels, regions, strict=True))
    both = _both(*labels)
    # A label that is also the name of a region in the other run must not replace that region.
    taken = labels[0] in regions[1] or labels[1] in regions[0] or both in regions[0] | regions[1]
    return both if known and not taken else ""


def _regions(record: Record) -> set[str]:
    slices = record.trace.slices
    annotations = slices.loc[slices["category"] == "user_annotation", "name"]
    return {str(name) for name in annotations.unique()}


def _same_cells(a: Record, b: Record) -> dict[str, str]:
    """Return the cell of b for each cell of a that has another number there.

    The profiled cells are a pair; other cells are paired by the functions that they define.
    """
    cells_a, cells_b = _cells(a), _cells(b)
    pairs = {}
    run_a, run_b = (f"Cell [{run.metadata.get('execution_count')}]" for run in (a, b))
    if run_a in cells_a and run_b in cells_b:
        pairs[run_a] = run_b
    left_b = [cell for cell in cells_b if cell not in cells_a and cell not in pairs.values()]
    for cell in (cell for cell in cells_a if cell not in cells_b and cell not in pairs):
        best = max(left_b, key=lambda name: len(cells_b[name] & cells_a[cell]), default=None)
        if best is not None and cells_b[best] & cells_a[cell]:
            left_b.remove(best)
            pairs[cell] = best
    return {cell_a: cell_b for cell_a, cell_b in pairs.items() if cell_a != cell_b}


def _cells(record: Record) -> dict[str, set[str]]:
    """Return the cells whose functions ran, each with the names of the functions."""
    cells: dict[str, set[str]] = {}
    for file, name in _functions(record):
        if _CELL.fullmatch(file):
            cells.setdefault(file, set()).update({name} - {_MODULE})
    return cells


def _functions(record: Record) -> Iterator[tuple[str, str]]:
    slices = record.trace.slices
    for frame in slices.loc[slices["category"] == "python_function", "name"].unique():
        file, _, name = function_place(str(frame))
        yield file, name
    if record.calls is not None:
        functions = record.calls.functions
        yield from zip(functions["file"].astype(str), functions["name"].astype(str), strict=True)


def _renamed(record: Record, label: str, cells: Mapping[str, str]) -> Record:
    """Return the run with this label, unless it is "", and with new names for these cells."""
    slices = record.trace.slices
    names = slices["name"].cat
    old = record.metadata.get("label") if label else None
    new = [label if name == old else _in_cells(str(name), cells) for name in names.categories]
    metadata = {**record.metadata, "label": label} if label else record.metadata
    calls = record.calls
    if calls is not None:
        files = [cells.get(file, file) for file in calls.functions["file"]]
        renamed = pd.Series(files, index=calls.functions.index, dtype=object)
        calls = replace(calls, functions=calls.functions.assign(file=renamed))
    trace = replace(record.trace, slices=slices.assign(name=names.rename_categories(new)))
    return replace(record, trace=trace, calls=calls, metadata=metadata)


def _in_cells(frame: str, cells: Mapping[str, str]) -> str:
    cell, bracket, rest = frame.partition("](")
    both = cells.get(f"{cell}]") if bracket else None
    return f"{both}({rest}" if both else frame
