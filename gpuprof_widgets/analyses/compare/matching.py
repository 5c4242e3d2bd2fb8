"""Which thing of one run is which of the other: by name, then by a name without its numbers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.owners import LineSource
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

_BUILT_IN = re.compile(
    r"<(?:built-in )?(?:method|function) '?(?P<name>[\w.]+)'?"
    r"(?: of '?(?P<owner>[\w.]+)'? objects?)?>"
)
"""As cProfile writes them (``<method 'sum' of 'torch._C.TensorBase' objects>``), and as torch."""


@dataclass(frozen=True)
class Pairs:
    """The things of both runs: ``names`` has one row each, ``a`` and ``b`` each key's row there."""

    names: pd.DataFrame
    a: Ints
    b: Ints


def without_numbers(name: str) -> str:
    """The name without what changes from run to run: ``step#3`` is ``step#*``."""
    for pattern, instead in _NUMBERS:
        name = pattern.sub(instead, name)
    return name


def without_folders(name: str) -> str:
    """A Python frame without the folders of its file."""
    file, separator, function = name.partition("): ")
    return file.replace("\\", "/").rsplit("/", 1)[-1] + separator + function


def without_kind(name: str) -> str:
    """A built-in function as VizTracer writes it, ``time.sleep``, whoever recorded it."""
    found = _BUILT_IN.fullmatch(name)
    return name if found is None else ".".join(filter(None, (found["owner"], found["name"])))


def without_owner(name: str) -> str:
    """A built-in function by its own name: ``sleep``; a Python function as it is."""
    return name if "): " in name else without_kind(name).rsplit(".", 1)[-1]


def without_types(name: str) -> str:
    """A C++ function without template arguments and parameters, numbers as in `without_numbers`."""
    if ("<" in name and "::" in name) or name.startswith("void "):
        name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
        name = re.split(r"[<(]", name, maxsplit=1)[0] or name
    return without_numbers(name)


NORMALISED: tuple[Callable[[str], str], ...] = (without_numbers, without_types)
"""Tried in this order on what has no counterpart of the same name."""


def by_name(a: pd.DataFrame, b: pd.DataFrame) -> Pairs:
    """Pairs of equal keys, then of what is equal once its ``name`` is normalised.

    All of one run that come to the same name are one row. The other columns have to be equal.
    ``names``: those columns, ``matched``, and the names that each run has, on a line each, as
    ``name_a`` and ``name_b``; "" where it has none.
    """
    found = _Pairing(_tuples(a), _tuples(b))
    found.join(str, EXACT)
    for normalise in NORMALISED:
        found.join(normalise, SIMILAR)
    return found.pairs(list(a.columns))


def by_function(a: pd.DataFrame, b: pd.DataFrame, *, recorders_differ: bool = False) -> Pairs:
    """Pairs of Python functions, whose ``name`` is a frame's: ``src/train.py(12): step``.

    Of the same line, then of the same file, then of a file of the same name: code moves within its
    file, and a copy of it may be elsewhere. What comes to the same name is one row, as in
    `by_name`. Where ``recorders_differ`` so do the names of built-in functions: those are paired
    by `without_kind`, and last by the function's name alone, each only where there is one of it.
    """
    found = _Pairing(_tuples(a), _tuples(b))
    found.join(str, EXACT)
    for normalise in (without_numbers, lambda name: without_numbers(without_folders(name))):
        found.join(normalise, SIMILAR)
    for normalise in (without_kind, without_owner) if recorders_differ else ():
        found.join(normalise, SIMILAR, single=True)
    return found.pairs(list(a.columns))


def by_text(
    a: pd.DataFrame, b: pd.DataFrame, of_a: list[LineSource], of_b: list[LineSource]
) -> Pairs:
    """Pairs of lines (``cell``, ``line``, ``code``) of equal text in the same place, as in diff.

    Cells are paired by how much of their text is equal: their numbers say nothing. ``names``:
    ``cell``, ``code``, ``line_a`` and ``line_b`` (-1 where the run has no such line).
    """
    same = _same_lines(_texts(a, of_a), _texts(b, of_b))
    keys_a, keys_b = _tuples(a[["cell", "line"]]), _tuples(b[["cell", "line"]])
    place = {key: row for row, key in enumerate(keys_a)}
    rows = [(str(c), str(t), int(n), -1) for c, n, t in _tuples(a[["cell", "line", "code"]])]
    of_b_rows = []
    matched = [ALONE] * len(rows)
    for key, code in zip(keys_b, b["code"], strict=True):
        row = place.get(same.get(key, ("", -1)))
        if row is None:
            row = len(rows)
            rows.append((str(key[0]), str(code), -1, int(key[1])))
            matched.append(ALONE)
        else:
            rows[row] = (str(key[0]), str(code), rows[row][2], int(key[1]))
            matched[row] = EXACT
        of_b_rows.append(row)
    names = pd.DataFrame(rows, columns=["cell", "code", "line_a", "line_b"])
    return Pairs(
        names.assign(matched=_texts_of(matched)),
        np.arange(len(a), dtype=np.int64),
        np.array(of_b_rows, np.int64),
    )


Line = tuple[str, int]


def _texts(keys: pd.DataFrame, sources: list[LineSource]) -> dict[str, list[tuple[int, str]]]:
    """Per cell its numbered lines: the whole text where the record has it, else what ran."""
    texts = {
        source.name: [
            (source.first + place, line.strip()) for place, line in enumerate(source.text)
        ]
        for source in sources
    }
    for cell, group in keys.groupby("cell", sort=False):
        ran = sorted(zip(group["line"], group["code"], strict=True))
        texts.setdefault(str(cell), [(int(line), str(code).strip()) for line, code in ran])
    return texts


def _same_lines(
    a: dict[str, list[tuple[int, str]]], b: dict[str, list[tuple[int, str]]]
) -> dict[Key, Key]:
    """Lines of b and those of a that they are."""
    same: dict[Key, Key] = {}
    free = dict(a)
    for cell in b:
        likeness = {other: _likeness(free[other], b[cell], other == cell) for other in free}
        best = max(likeness, key=lambda other: likeness[other], default=None)
        if best is None or likeness[best][0] == 0:
            continue
        lines_a, lines_b = free.pop(best), b[cell]
        for one, other in _equal(lines_a, lines_b):
            same[(cell, lines_b[other][0])] = (best, lines_a[one][0])
    return same


def _likeness(
    a: list[tuple[int, str]], b: list[tuple[int, str]], same_name: bool
) -> tuple[int, bool]:
    return len([one for one, _ in _equal(a, b) if a[one][1]]), same_name


def _equal(a: list[tuple[int, str]], b: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """Places of equal lines in both texts, as diff finds them."""
    texts = [text for _, text in a], [text for _, text in b]
    matcher = difflib.SequenceMatcher(None, *texts, autojunk=False)
    return [
        (block.a + number, block.b + number)
        for block in matcher.get_matching_blocks()
        for number in range(block.size)
    ]


def _tuples(keys: pd.DataFrame) -> list[Key]:
    return list(keys.itertuples(index=False, name=None))


class _Pairing:
    """Keys of both runs that have no counterpart yet, and the rows of those that have."""

    def __init__(self, a: Sequence[Key], b: Sequence[Key]) -> None:
        self._keys = (a, b)
        self._row: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._names: list[Key] = []
        self._matched: list[str] = []

    def join(self, normalise: Callable[[str], str], how: str, *, single: bool = False) -> None:
        """Pair what has the same name once normalised; with ``single`` what alone has it in both.

        The name is a key's first part; the others have to be equal.
        """
        aliases = [self._aliases(side, normalise) for side in (0, 1)]
        for name, own in aliases[1].items():
            others = aliases[0].get(name, [])
            if others and not (single and max(len(own), len(others)) > 1):
                self._add(self._keys[1][own[0]] if len(own) == 1 else name, how)
                for side in (0, 1):
                    self._row[side].update(dict.fromkeys(aliases[side][name], len(self._names) - 1))

    def _aliases(self, side: int, normalise: Callable[[str], str]) -> dict[Key, list[int]]:
        found: dict[Key, list[int]] = {}
        for place, (name, *rest) in enumerate(self._keys[side]):
            if place not in self._row[side]:
                found.setdefault((normalise(str(name)), *rest), []).append(place)
        return found

    def _add(self, name: Key, how: str) -> None:
        self._names.append(name)
        self._matched.append(how)

    def pairs(self, columns: list[str]) -> Pairs:
        """Everything, with what is in one run only as rows of its own."""
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
        own = [self._own_names(side) for side in (0, 1)]
        names = names.assign(matched=_texts_of(self._matched))
        return Pairs(names.assign(name_a=own[0], name_b=own[1]), *rows)

    def _own_names(self, side: int) -> pd.Series:
        """Per row what this run calls it."""
        found: list[list[str]] = [[] for _ in self._names]
        for place, row in self._row[side].items():
            found[row].append(str(self._keys[side][place][0]))
        return _texts_of(["\n".join(names) for names in found])


def _texts_of(values: list[str]) -> pd.Series:
    return pd.Series(values, dtype=object)


_CELL = re.compile(r"Cell \[(\d+)\]")
_MODULE = "<module>"


def with_same_cells(a: Record, b: Record) -> tuple[Record, Record]:
    """Both runs with one name for what is the same in them but for the number of its cell.

    That is the region of the run, the cell that was run, and cells that define functions of the
    same names: ``Cell [3]`` of a and ``Cell [4]`` of b are ``Cell [3 → 4]`` in both. Within a run
    each cell keeps a name of its own.
    """
    label = _same_region(a, b)
    cells = _same_cells(a, b)
    if not label and not cells:
        return a, b
    to = {pair: _both(*pair) for pair in cells.items()}
    return (
        _renamed(a, label, {mine: both for (mine, _), both in to.items()}),
        _renamed(b, label, {theirs: both for (_, theirs), both in to.items()}),
    )


def _both(a: str, b: str) -> str:
    """``Cell [3 → 4]`` and ``Cell [3 → 4], line 2``; of names that have more apart, both."""
    of_a, of_b = (_CELL.match(name) for name in (a, b))
    if of_a is None or of_b is None or a[of_a.end() :] != b[of_b.end() :]:
        return f"{a} → {b}"
    return f"Cell [{of_a[1]} → {of_b[1]}]{a[of_a.end() :]}"


def _same_region(a: Record, b: Record) -> str:
    """What both call the region of the run, where they differ in that; else ""."""
    labels = [str(record.metadata.get("label") or "") for record in (a, b)]
    regions = [_regions(record) for record in (a, b)]
    known = all(label in names for label, names in zip(labels, regions, strict=True))
    both = _both(*labels)
    # A label that is also a region within the other run would take that region's place.
    taken = labels[0] in regions[1] or labels[1] in regions[0] or both in regions[0] | regions[1]
    return both if known and not taken else ""


def _regions(record: Record) -> set[str]:
    slices = record.trace.slices
    annotations = slices.loc[slices["category"] == "user_annotation", "name"]
    return {str(name) for name in annotations.unique()}


def _same_cells(a: Record, b: Record) -> dict[str, str]:
    """Cells of a and those of b that they are, of another number; the cells that ran first."""
    of_a, of_b = _cells(a), _cells(b)
    pairs = {}
    own_a, own_b = (f"Cell [{run.metadata.get('execution_count')}]" for run in (a, b))
    if own_a in of_a and own_b in of_b:
        pairs[own_a] = own_b
    left_b = [cell for cell in of_b if cell not in of_a and cell not in pairs.values()]
    for cell in (cell for cell in of_a if cell not in of_b and cell not in pairs):
        best = max(left_b, key=lambda other: len(of_b[other] & of_a[cell]), default=None)
        if best is not None and of_b[best] & of_a[cell]:
            left_b.remove(best)
            pairs[cell] = best
    return {mine: theirs for mine, theirs in pairs.items() if mine != theirs}


def _cells(record: Record) -> dict[str, set[str]]:
    """The cells of which Python functions ran, each with their names."""
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
    """The run with that label, if any, and with other names for these cells."""
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
