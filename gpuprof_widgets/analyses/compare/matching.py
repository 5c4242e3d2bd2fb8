"""What is the same in two runs though its name differs: ops, functions, the cell, and the runs.

`by_name` and `by_function` match by name, then by a name without numbers and types. A cell has
another number whenever it runs: `with_same_cell` gives it one name in both runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace.model import Record

Ints = npt.NDArray[np.int64]
Key = tuple[Any, ...]
Normalise = Callable[[str], str]
EXACT, SIMILAR, ALONE = "name", "similar", ""
"""Values of ``matched``: the same name, the same name but for numbers and types, no counterpart."""

_NUMBERS = (
    (re.compile(r"(?<![0-9a-zA-Z])(?=[0-9a-f]*[0-9])[0-9a-f]{8,}(?![0-9a-zA-Z])"), "*"),
    (re.compile(r"0x[0-9a-fA-F]+"), "*"),
    (re.compile(r"(?<=[#_])\d+(?![0-9a-zA-Z])"), "*"),
    (re.compile(r"(?<=Cell \[)\d+(?=\])"), "*"),
    (re.compile(r"\(\d+\)(?=: )"), ""),
)
"""Hashes, addresses, counters at the end of a word, and numbers of cells and of lines."""

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
    equal. ``names``: the columns of the keys, ``matched``, and each run's names, a line each, as
    ``name_a`` and ``name_b``; "" where a run has none.
    """
    return _paired(a, b, (without_numbers, without_types))


def by_function(a: pd.DataFrame, b: pd.DataFrame) -> Pairs:
    """Pair Python functions, whose ``name`` is a frame's: ``src/train.py(12): step``.

    They are paired by line, then by file, then by the file's bare name: code moves within its file,
    and a copy of it may be elsewhere. Equal names become one row, as in `by_name`.
    """
    return _paired(a, b, (without_numbers, lambda name: without_numbers(without_folders(name))))


def _paired(a: pd.DataFrame, b: pd.DataFrame, normalised: tuple[Normalise, ...]) -> Pairs:
    keys: list[list[Key]] = [list(run.itertuples(index=False, name=None)) for run in (a, b)]
    row_of: list[dict[int, int]] = [{}, {}]
    rows: list[tuple[Any, ...]] = []
    exactly: Normalise = str
    for normalise in (exactly, *normalised):
        aliases = [_free(keys[side], row_of[side], normalise) for side in (0, 1)]
        for alias, places_b in aliases[1].items():
            places = (aliases[0].get(alias, []), places_b)
            if places[0]:
                for side in (0, 1):
                    row_of[side].update(dict.fromkeys(places[side], len(rows)))
                name = keys[1][places_b[0]] if len(places_b) == 1 else alias
                rows.append((*name, EXACT if normalise is exactly else SIMILAR))
    for side in (0, 1):
        for place, key in enumerate(keys[side]):
            if place not in row_of[side]:
                row_of[side][place] = len(rows)
                rows.append((*key, ALONE))
    names = pd.DataFrame(rows, columns=[*a.columns, "matched"], dtype=object)
    for side, column in enumerate(("name_a", "name_b")):
        texts: list[list[str]] = [[] for _ in rows]
        for place, row in row_of[side].items():
            texts[row].append(str(keys[side][place][0]))
        names[column] = pd.Series(["\n".join(lines) for lines in texts], dtype=object)
    of_a, of_b = (
        np.array([row_of[side][place] for place in range(len(keys[side]))], np.int64)
        for side in (0, 1)
    )
    return Pairs(names, of_a, of_b)


def _free(keys: list[Key], row_of: dict[int, int], normalise: Normalise) -> dict[Key, list[int]]:
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
