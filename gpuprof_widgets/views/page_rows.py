"""The slices as the page needs them, with their texts coded; and the lines and modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.flops import slice_flops
from gpuprof_widgets.analyses.line_sources import LineSource, line_sources
from gpuprof_widgets.analyses.lines import cell_lines, line_keys
from gpuprof_widgets.analyses.op_rows import Allocations, allocations
from gpuprof_widgets.analyses.shapes import shape_codes
from gpuprof_widgets.analyses.waits import SYNCHRONISING, is_synchronising
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, NONE, OP_CATEGORIES, RUNTIME_ENDINGS

Ints = npt.NDArray[np.signedinteger[Any]]
Mask = npt.NDArray[np.bool_]

COPY_SIZE = "bytes"
"""Arg that holds a copy's size."""


@dataclass(frozen=True)
class PageRows:
    """One row per slice, in the order of the slices; times in ns, ``began`` and ``ended`` before
    a window cut them.

    ``label`` points into ``label_pairs``, pairs of indices into ``names`` and ``categories``, and
    into ``label_kinds`` (see `slice_kinds`).
    ``owner`` is a GPU slice's launch or, where the trace has none, its op; links are -1 for none.
    ``bytes`` are those of a copy or an allocation (negative: released), ``device_bytes`` those of
    them that were allocated on a device; ``flops`` are the op's own.
    """

    ts: Ints
    dur: Ints
    track: Ints
    label: Ints
    began: Ints
    ended: Ints
    parent: Ints
    depth: Ints
    owner: Ints
    op: Ints
    forward: Ints
    count: Ints
    shape: Ints
    bytes: Ints
    device_bytes: Ints
    flops: Ints
    names: list[str]
    categories: list[str]
    label_pairs: list[tuple[int, int]]
    label_kinds: list[int]
    shapes: list[str]

    def __len__(self) -> int:
        return len(self.ts)

    def in_categories(self, wanted: tuple[str, ...]) -> Mask:
        """Which rows have one of these categories."""
        return self._category_mask([category in wanted for category in self.categories])

    def launches(self) -> Mask:
        """Which rows are calls of a device's runtime or driver."""
        return self._category_mask([c.endswith(RUNTIME_ENDINGS) for c in self.categories])

    def _category_mask(self, wanted: list[bool]) -> Mask:
        by_label = np.array([wanted[category] for _, category in self.label_pairs], bool)
        return by_label[self.label] if len(self) else np.zeros(0, bool)

    def nests(self, ts: Ints, end: Ints) -> bool:
        """Whether nesting by these times gives the parents: coarse ticks and windows hide some."""
        parent, _ = links.nest(ts, end, self.track)
        return bool(np.array_equal(parent, self.parent))

    def op_follows(self) -> bool:
        """Whether the ops of launches and GPU slices follow from nesting around the launch."""
        is_op = self.in_categories(OP_CATEGORIES)
        around = links.nearest_ancestor(self.parent, is_op)
        of_owner = np.where(is_op[self.owner], self.owner, around[self.owner])
        of_launch = np.where(self.launches(), around, NONE)
        return bool(np.array_equal(np.where(self.owner >= 0, of_owner, of_launch), self.op))


def page_rows(trace: Trace) -> PageRows:
    """The slices of a trace with their texts coded."""
    slices = trace.slices
    label, pairs, kinds, names, categories = _labels(trace)
    shape, shapes = shape_codes(trace)
    launch, op = slices["launch"].to_numpy(), slices["op"].to_numpy()
    began, ended = trace.index.uncut
    is_gpu = slices["category"].isin(GPU_CATEGORIES).to_numpy()
    count, memory = slices["count"].to_numpy(), allocations(trace)
    return PageRows(
        ts=slices["ts"].to_numpy(),
        dur=slices["dur"].to_numpy(),
        track=slices["track"].to_numpy(),
        label=label,
        began=began,
        ended=ended,
        parent=slices["parent"].to_numpy(),
        depth=slices["depth"].to_numpy(),
        owner=np.where(is_gpu, np.where(launch >= 0, launch, op), NONE),
        op=op,
        forward=slices["forward"].to_numpy(),
        count=count,
        shape=shape,
        bytes=_sizes(trace, memory),
        device_bytes=_at(memory.row, np.where(memory.on_cpu, 0, memory.size), len(trace)),
        flops=slice_flops(trace) * (count > 0),
        names=names,
        categories=categories,
        label_pairs=pairs,
        label_kinds=kinds,
        shapes=shapes,
    )


def _labels(
    trace: Trace,
) -> tuple[Ints, list[tuple[int, int]], list[int], list[str], list[str]]:
    """Per slice its (name, category, kind), the pairs and kinds of these, and the texts needed."""
    name, category = trace.slices["name"].cat, trace.slices["category"].cat
    kind = slice_kinds(trace)
    width, height = max(len(category.categories), 1), int(kind.max(initial=0)) + 1
    codes = name.codes.to_numpy().astype(np.int64) * width + category.codes.to_numpy()
    used, label = np.unique(codes * height + kind, return_inverse=True)
    pair, kinds = np.divmod(used, height)
    name_codes, name_index = np.unique(pair // width, return_inverse=True)
    category_codes, category_index = np.unique(pair % width, return_inverse=True)
    pairs = list(zip(name_index.tolist(), category_index.tolist(), strict=True))
    names = [str(name.categories[code]) for code in name_codes]
    categories = [str(category.categories[code]) for code in category_codes]
    return label.reshape(-1), pairs, kinds.tolist(), names, categories


def _sizes(trace: Trace, memory: Allocations) -> Ints:
    sizes = _at(memory.row, memory.size, len(trace))
    copied = trace.args.get(COPY_SIZE)
    if copied is not None and copied.dtype == np.int64:
        sizes[copied.index.to_numpy()] = copied.to_numpy()
    return sizes


def _at(rows: npt.NDArray[np.intp], values: Ints, length: int) -> Ints:
    """A column that is zero but for these rows."""
    column = np.zeros(length, np.int64)
    column[rows] = values
    return column


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


def module_classes(trace: Trace) -> dict[str, str]:
    """The class of each module by its name; where several modules share a name, their classes."""
    known = trace.args.get("class")
    if known is None:
        return {}
    of_module = trace.index.in_category("module", "module_backward")
    known = known[of_module[known.index.to_numpy()]]
    names = trace.slices["name"].to_numpy(object)[known.index.to_numpy()]
    pairs = np.unique(np.stack([names.astype(str), known.to_numpy(object).astype(str)]), axis=1)
    classes: dict[str, str] = {}
    for name, kind in pairs.T.tolist():
        classes[name] = f"{classes[name]}, {kind}" if name in classes else kind
    return classes
