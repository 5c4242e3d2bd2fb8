"""What the page needs to know of the cell's lines beside their slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.line_sources import LineSource, line_sources
from gpuprof_widgets.analyses.lines import cell_lines, line_keys
from gpuprof_widgets.analyses.waits import SYNCHRONISING, is_synchronising
from gpuprof_widgets.trace.model import Record, Trace

Ints = npt.NDArray[np.int64]

ORDINARY, WAITS, WAITS_FOR_ITS_COPY, FIRST_LINE = 0, 1, 2, 3
"""Kinds of slices; those of cell lines follow: two for each line, the second for later pieces."""


def slice_kinds(trace: Trace) -> Ints:
    """Per slice what its name and category do not tell: which line it is, whether it waits.

    Slices of several kinds have labels of their own, so that a kind costs nothing per slice.
    """
    kinds = np.full(len(trace), ORDINARY, np.int64)
    known = cell_lines(trace)
    if len(known.row):
        waiting, by_name = is_synchronising(trace), trace.index.matching(SYNCHRONISING)
        kinds[waiting] = np.where(by_name[waiting], WAITS, WAITS_FOR_ITS_COPY)
        kinds[known.row] = FIRST_LINE + 2 * known.of_slice[known.row] + known.resumed
    return kinds


def page_lines(record: Record, label_kinds: list[int]) -> dict[str, Any] | None:
    """The lines for the page's header, by label; None where none were recorded."""
    known = cell_lines(record.trace)
    if not len(known.row):
        return None
    keys = line_keys(known, record)
    cells = list(dict.fromkeys(keys["cell"]))
    place = {key: at for at, key in enumerate(zip(keys["cell"], keys["line"], strict=True))}
    ran = [place[key] for key in zip(known.lines["cell"], known.lines["line"], strict=True)]
    sources = {source.name: source for source in line_sources(record)}
    return {
        "cells": [_cell(cell, sources.get(cell)) for cell in cells],
        "lines": [
            [cells.index(cell), int(line), code]
            for cell, line, code in keys.itertuples(index=False)
        ],
        "labels": [
            [label, ran[(kind - FIRST_LINE) // 2], (kind - FIRST_LINE) % 2]
            for label, kind in enumerate(label_kinds)
            if kind >= FIRST_LINE
        ],
        "waits": [label for label, kind in enumerate(label_kinds) if kind == WAITS],
        "copy_waits": [
            label for label, kind in enumerate(label_kinds) if kind == WAITS_FOR_ITS_COPY
        ],
    }


def _cell(name: str, source: LineSource | None) -> dict[str, Any]:
    """A cell whose text is not known has its lines' code only."""
    if source is None:
        return {"name": name, "first": 1, "text": []}
    return {"name": name, "first": source.first, "text": list(source.text)}
