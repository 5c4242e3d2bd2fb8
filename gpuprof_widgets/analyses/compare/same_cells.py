"""Cells of a notebook have another number whenever they run: the same ones of two runs, as one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pandas as pd

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.python_frames import place

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
        file, _, name = place(str(frame))
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
