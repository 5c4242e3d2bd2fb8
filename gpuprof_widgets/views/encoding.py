"""The record as text for the page: compressed columns that its engine decodes (engine/decode.ts).

``base64(gzip(header length as u32le + JSON header + columns + arrays))``. A column is an unsigned
integer per row, stored as byte planes (all lowest bytes first): equal bytes side by side compress
best. The arrays behind them are of any length (`page_panels.Arrays`).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isqrt, log
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.call_tree import call_tree
from gpuprof_widgets.analyses.columns import format_count, format_ns
from gpuprof_widgets.analyses.gpu_work import FAMILIES, families
from gpuprof_widgets.analyses.operators import INSTANTS, LEFT_OUT
from gpuprof_widgets.analyses.python_calls import function_labels, is_user_code
from gpuprof_widgets.exceptions import printable_values
from gpuprof_widgets.trace.arrays import AnyInts
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.pstats import PYTHON_FRAME, function_place
from gpuprof_widgets.trace.schema import NONE, REGION_CATEGORIES
from gpuprof_widgets.views.page_panels import (
    Arrays,
    byte_planes,
    fold_sign,
    page_memory,
    page_panels,
    panels,
)
from gpuprof_widgets.views.page_rows import (
    PageRows,
    hidden_tracks_note,
    merge_short,
    module_classes,
    page_lines,
    page_rows,
    with_busiest_tracks,
    without_shapes,
)
from gpuprof_widgets.views.table import Panel

UNLISTED = frozenset({INSTANTS, *REGION_CATEGORIES})
"""Categories that get no line in an op table."""

BUDGET_BYTES = 3_000_000
"""Most text that one report may add to a notebook: its server takes 1 MB/s over 3 s."""

COMPRESSION = 6
"""Level of gzip: 9 takes three times as long for 1 % less (of repetitive traces up to 8 %)."""

GZIP = 16 + zlib.MAX_WBITS
"""The window of zlib that stands for gzip, as browsers unpack it."""

TICKS_NS = (1, 100, 1_000)
"""Resolutions of the page's clock, tried in this order until the text fits."""

NO_SHAPES = "The shapes of inputs are left out, because the page would be too large with them."
TOO_LARGE = "This page is still larger than {}: names, paths and tables alone take more."

NEAR = 64
"""Events are merged over stretches of so many times the longest of them."""

TRIES = 12
"""Most pages that are made in search of the least merging; most searches take three to five."""

ENOUGH = 0.85
"""Share of the budget from which on a page is large enough."""

Panels = Mapping[str, Panel]
Page = TypeVar("Page")


@dataclass(frozen=True)
class Payload:
    """Text for the page, the resolution of its times in ns, and what was done to fit the budget.

    ``rows_kept``: the page's rows are the slices, neither merged ones nor those of some tracks.
    """

    text: str
    tick_ns: int
    notes: tuple[str, ...] = ()
    rows_kept: bool = True


def encode(
    record: Record, *, budget_bytes: int = BUDGET_BYTES, with_panels: bool = True
) -> Payload:
    """Return the record as text of at most ``budget_bytes``, exact to the nanosecond if that fits.

    Else times are rounded to 100 ns, then to 1 µs; then the shortest events are merged, as few as
    will do; where even that is not enough, shapes are left out. Notes say what was done. Only names
    and call paths, which nothing shortens, can take more than the budget; a note says that too.
    ``with_panels``: include memory and the tables of the analyses; a page of timelines alone has no
    use for them. Of very many tracks only the busiest are included.
    """
    shown = with_busiest_tracks(record)
    # Panels are remembered per record: the other views ask for those of the whole record, too.
    tables = panels(record) if with_panels else None
    payload = _Page(shown, tables, hidden_tracks_note(shown, record), budget_bytes).fitting()
    return payload if shown is record else replace(payload, rows_kept=False)


@dataclass(frozen=True)
class _Page:
    """A record and the budget of its page; ``tables`` is None without panels and memory."""

    record: Record
    tables: Panels | None
    track_notes: tuple[str, ...]
    budget_bytes: int

    def fitting(self) -> Payload:
        """Return the page with the fewest changes that fits, else the smallest page."""
        rows = page_rows(self.record.trace)
        for tick_ns in TICKS_NS:
            payload = self.written(rows, tick_ns)
            if self.fits(payload):
                return payload
        payload = self.merged(rows, tick_ns, payload)
        if self.fits(payload):
            return payload
        rows = without_shapes(rows)
        payload = self.written(rows, tick_ns, 0, NO_SHAPES)
        if not self.fits(payload):
            payload = self.merged(rows, tick_ns, payload, NO_SHAPES)
        if not self.fits(payload):
            budget = f"{self.budget_bytes / 1e6:.2g} MB"
            payload = self.written(rows, tick_ns, rows.span_ns, NO_SHAPES, TOO_LARGE.format(budget))
        return payload

    def fits(self, payload: Payload) -> bool:
        return len(payload.text) <= self.budget_bytes

    def merged(self, rows: PageRows, tick_ns: int, unmerged: Payload, *notes: str) -> Payload:
        """Return the page with few events merged that fits, or with all merged if none fits."""
        return least_merged(
            lambda longest_ns: self.written(rows, tick_ns, longest_ns, *notes),
            lambda payload: len(payload.text),
            span_ns=rows.span_ns,
            unmerged_size=len(unmerged.text),
            budget=self.budget_bytes,
        )

    def written(self, rows: PageRows, tick_ns: int, longest_ns: int = 0, *notes: str) -> Payload:
        """Return the page; ``longest_ns``: of the events that are merged, 0 if none are."""
        shown = merge_short(rows, longest_ns, NEAR * longest_ns) if longest_ns else rows
        done = _changes(rows, tick_ns, len(rows) - len(shown), longest_ns)
        all_notes = (*self.track_notes, *done, *notes)
        return _payload(self.record, shown, self.tables, tick_ns, all_notes)


def least_merged(
    merged: Callable[[int], Page],
    size_of: Callable[[Page], int],
    *,
    span_ns: int,
    unmerged_size: int,
    budget: int,
) -> Page:
    """Return the page with the least merging that fits; if none fits, the one with the most.

    ``merged`` makes the page on which events of up to the given ns are merged; ``unmerged_size`` is
    above the budget. The page takes `ENOUGH` of the budget, unless `TRIES` do not find such a page.
    """
    # The longest merged events, in ns, and the size of a page that is too large and one that fits.
    (too_short, large), fits = (1, unmerged_size), None
    longest_ns = isqrt(span_ns)
    for number in range(TRIES):
        page = merged(longest_ns)
        size = size_of(page)
        if size <= budget:
            best, fits = page, (longest_ns, size)
        elif longest_ns < span_ns:
            too_short, large = longest_ns, size
        else:
            return page
        if fits is None:
            longest_ns = span_ns
            continue
        long_enough, small = fits
        if small >= ENOUGH * budget or long_enough <= too_short + 1:
            break
        share = 0.5
        if number % 2:  # as if sizes fell by a power law from one to the other
            share = log(large / (budget * (1 + ENOUGH) / 2)) / log(large / small)
        ratio = long_enough / too_short
        longest_ns = round(too_short * exp(min(max(share, 0.1), 0.9) * log(ratio)))
        longest_ns = min(max(longest_ns, too_short + 1), long_enough - 1)
    return best


def _changes(rows: PageRows, tick_ns: int, merged: int, longest_ns: int) -> tuple[str, ...]:
    """Return one sentence on how times and rows differ from the record's, if they do."""
    done = []
    if tick_ns > TICKS_NS[0]:
        done.append(f"the times of {len(rows):,} events are rounded to {format_ns(tick_ns)}")
    if merged:
        longest = format_ns(min(longest_ns, int(rows.dur.max())))
        done.append(
            f"{format_count(merged, 'event')} of at most {longest} are merged "
            "with neighbours of the same name and caller"
        )
    return (f"To keep this page small, {' and '.join(done)}.",) if done else ()


def _payload(
    record: Record, rows: PageRows, tables: Panels | None, tick_ns: int, notes: tuple[str, ...]
) -> Payload:
    layout, planes = _columns(rows, tick_ns)
    arrays = Arrays()
    rows_kept = len(rows) == len(record.trace)
    label = rows.label if rows_kept else None
    header = {
        **_header(record, rows, tick_ns, notes),
        "memory": None if tables is None else page_memory(record, rows_kept=rows_kept),
        "panels": page_panels(tables or {}, record, arrays, tick_ns, label=label),
        "columns": layout,
        "arrays": arrays.layout,
    }
    text = json.dumps(printable_values(header), separators=(",", ":")).encode()
    parts = [len(text).to_bytes(4, "little"), text, *planes, arrays.data]  # too large to join
    packer = zlib.compressobj(COMPRESSION, wbits=GZIP)
    packed = b"".join([*map(packer.compress, parts), packer.flush()])
    return Payload(base64.b64encode(packed).decode("ascii"), tick_ns, notes, rows_kept)


def _header(record: Record, rows: PageRows, tick_ns: int, notes: Sequence[str]) -> dict[str, Any]:
    trace = record.trace
    sizes = np.bincount(rows.track, minlength=len(trace.tracks)).tolist()
    names = rows.names
    return {
        "version": 1,
        "tick_ns": tick_ns,
        "start_ns": trace.start_ns,
        "end_ns": trace.end_ns,
        "rows": len(rows),
        "names": names,
        "categories": rows.categories,
        "label": rows.label_pairs,
        "unlisted": [
            label
            for label, (name, category) in enumerate(rows.label_pairs)
            if names[name] in LEFT_OUT or rows.categories[category] in UNLISTED
        ],
        "families": _families(record, rows),
        "library": _library(rows),
        "shapes": rows.shapes,
        "tracks": [
            {
                **{key: str(track[key]) for key in ("kind", "label", "process", "thread")},
                **{key: int(track[key]) for key in ("lane", "device", "stream")},
                "rows": size,
            }
            for track, size in zip(trace.tracks.to_dict("records"), sizes, strict=True)
        ],
        "calls": _calls(record),
        "lines": page_lines(record, rows.label_kinds),
        "module_classes": module_classes(trace),
        "notes": list(notes),
    }


def _families(record: Record, rows: PageRows) -> list[int]:
    """Return the family of each label's kernels as an index into `FAMILIES`, -1 for other work."""
    family = families(record.trace)
    return [
        FAMILIES.index(family.get(rows.names[name], FAMILIES[-1]))
        if rows.categories[category] == "kernel"
        else NONE
        for name, category in rows.label_pairs
    ]


def _library(rows: PageRows) -> list[int]:
    """Return the labels of Python frames that are not the user's code: libraries and built-ins."""
    frames = [
        (label, rows.names[name])
        for label, (name, category) in enumerate(rows.label_pairs)
        if rows.categories[category] == "python_function"
    ]
    files = [function_place(name)[0] for _, name in frames]
    is_user = is_user_code(pd.DataFrame({"file": files}, dtype=object))
    return [
        label
        for (label, name), own in zip(frames, is_user, strict=True)
        if not own and (PYTHON_FRAME.match(name) or name.startswith("<built-in"))
    ]


def _calls(record: Record) -> list[dict[Hashable, Any]] | None:
    """Return the call tree estimated from cProfile, if that ran; ``library`` is not user code."""
    if record.calls is None:
        return None
    tree = call_tree(record, source="cprofile")
    functions = record.calls.functions
    own = np.array(function_labels(functions), object)[np.asarray(is_user_code(functions))]
    tree["library"] = (tree["parent"] >= 0) & ~tree["name"].isin(own)
    return tree[["parent", "name", "calls", "total_ns", "self_ns", "library"]].to_dict("records")


def _columns(rows: PageRows, tick_ns: int) -> tuple[list[Mapping[str, Any]], list[bytes]]:
    """Return layout and bytes of each column, without those that are empty or can be derived."""
    layout: list[Mapping[str, Any]] = []
    planes: list[bytes] = []
    for name, encoding, values in _values(rows, tick_ns):
        if name in ("ts", "dur", "label") or values.any():
            width, data = byte_planes(values)
            layout.append({"name": name, "encoding": encoding, "width": width})
            planes.append(data)
    return layout, planes


def _values(rows: PageRows, tick_ns: int) -> Iterator[tuple[str, str, AnyInts]]:
    """Yield name, encoding and values of each column; all at once, they take much memory."""
    ts, end = _ticks(rows.ts, tick_ns), _ticks(rows.ts + rows.dur, tick_ns)
    yield "ts", "delta", _differences(ts, rows.track)
    yield "dur", "plain", end - ts
    yield "label", "plain", rows.label
    yield "owner", "link", _steps(rows.owner)
    if not rows.nests(ts, end):
        above = np.where(rows.parent >= 0, np.arange(len(rows)) - rows.parent, 0)
        yield "parent", "plain", above
    if not rows.op_follows():
        yield "op", "link", _steps(rows.op)
    yield "before", "signed", fold_sign(ts - _ticks(rows.began, tick_ns))
    yield "after", "signed", fold_sign(_ticks(rows.ended, tick_ns) - end)
    yield "forward", "link", _steps(rows.forward)
    yield "shape", "plain", rows.shape + 1
    yield "bytes", "signed", fold_sign(rows.bytes)
    yield "device_bytes", "signed", fold_sign(rows.device_bytes)
    yield "flops", "signed", fold_sign(rows.flops)
    if np.any(rows.count != 1):
        yield "count", "plain", rows.count


def _ticks(ns: AnyInts, tick_ns: int) -> AnyInts:
    return (ns + tick_ns // 2) // tick_ns


def _differences(values: AnyInts, track: AnyInts) -> AnyInts:
    """Return differences to the row before on the same track; a track's first value stays."""
    steps = np.diff(values, prepend=0)
    first = np.diff(track, prepend=-1) != 0
    return np.where(first, values, steps)


def _steps(links: AnyInts) -> AnyInts:
    """Return 0 for no link, else one more than the folded step from the link before."""
    steps = np.zeros(len(links), np.int64)
    known = np.flatnonzero(links >= 0)
    targets = links[known].astype(np.int64)
    steps[known] = 1 + fold_sign(targets - np.append(0, targets[:-1]))
    return steps
