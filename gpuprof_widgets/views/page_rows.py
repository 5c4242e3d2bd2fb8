"""The slices as the page needs them: texts coded, links as row numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.flops import slice_flops
from gpuprof_widgets.analyses.op_rows import Allocations, allocations
from gpuprof_widgets.analyses.shapes import shape_codes
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, NONE, OP_CATEGORIES, RUNTIME_ENDINGS
from gpuprof_widgets.views.page_lines import slice_kinds

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
