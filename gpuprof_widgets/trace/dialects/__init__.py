"""Programs whose Chrome traces mean more than the format says, and traces of unknown programs.

`translated` asks the dialects. A trace that none of them recognises is read as the format says, and
as torch.profiler writes it. If torch did not write it either, `with_named_regions` reads what its
threads did as annotations, which tables and flame graphs count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.dialects.dialect import Dialect, Parts, recoded
from gpuprof_widgets.trace.dialects.megengine import MEGENGINE
from gpuprof_widgets.trace.dialects.tensorflow import TENSORFLOW
from gpuprof_widgets.trace.events import Events, Names, from_codes, typed
from gpuprof_widgets.trace.gather import Gathered
from gpuprof_widgets.trace.schema import (
    CATEGORIES,
    CPU_KERNEL,
    PROCESS_NAMES,
    SCOPE_ECHO,
    WRITTEN_CATEGORY,
)
from gpuprof_widgets.trace.tracks import kind_of

VIZTRACER_KEY = "viztracer_metadata"
OVERFLOW = (
    "VizTracer's buffer was full: only the last calls are here, and those before are lost "
    "(record with a larger --tracer_entries)"
)


def _with_frames(parts: Parts, file: Gathered) -> Parts:
    """Turn VizTracer's calls into Python frames on their threads, named as torch names them.

    Every call is a slice of category ``FEE`` or ``fee`` (function entry and exit), named
    ``step (/home/me/train.py:12)``, or ``builtins.sorted`` for a function that is not Python, as
    VizTracer 0.15 to 1.1 write them (``src/viztracer/modules/snaptrace.c``, ``report_builder.py``).
    """
    events, metadata = parts.events, file.header[VIZTRACER_KEY]
    calls = np.asarray(events.category.isin(("FEE", "fee")))
    names = list(map(str, events.name.categories))
    codes = events.name.codes.astype(np.int32) + np.where(calls, len(names), 0)
    frames = from_codes(codes.astype(np.int32), [*names, *map(_frame, names)])
    # Newer calls have overwritten the oldest (``parse`` in viztracer.py).
    overflowed = isinstance(metadata, dict) and metadata.get("overflow") is True
    return replace(
        parts,
        events=replace(
            events,
            name=frames.remove_unused_categories(),
            category=recoded(events.category, calls, "python_function"),
        ),
        notes=[*parts.notes, *([OVERFLOW] if overflowed else [])],
        metadata={**parts.metadata, "recorded_by": "VizTracer"},
    )


def _frame(name: str) -> str:
    """Return a call of a Python function as torch names it; other names stay."""
    called, _, line = name.removesuffix(")").rpartition(":")
    function, _, file = called.rpartition(" (")
    return f"{file}({line}): {function}" if function and line.isdecimal() else name


VIZTRACER = Dialect(lambda _, file: VIZTRACER_KEY in file.header, _with_frames)

DIALECTS: tuple[Dialect, ...] = (TENSORFLOW, MEGENGINE, VIZTRACER)


def translated(parts: Parts, file: Gathered) -> Parts:
    """Return the parts as translated by the first dialect that recognises them."""
    for dialect in DIALECTS:
        if dialect.recognises(parts, file):
            return dialect.translate(parts, file)
    return parts


REGION, MOMENT = "user_annotation", "cpu_instant_event"
NEUTRAL = frozenset(("other", MOMENT))
"""Categories of events without one: they do not tell which program wrote the trace."""
TORCH_CATEGORIES = frozenset((*CATEGORIES, CPU_KERNEL, SCOPE_ECHO)) - NEUTRAL

TORCH_KEYS = frozenset(("schemaVersion", "deviceProperties", "distributedInfo"))
"""Keys next to the events in torch.profiler's files."""

DEVICE = re.compile(r"/device:(?!CPU)")
"""XLA's names of processes that are devices: their slices belong to no thread."""


def with_named_regions(parts: Parts, file: Gathered) -> Parts:
    """Turn slices on threads into regions, and instants there into moments.

    Their category is kept as an arg; what is on no thread (async slices, objects) stays as it is.
    So does a trace with torch's keys or categories.
    """
    if TORCH_KEYS & file.header.keys() or any(map(_is_torch, parts.events.category.categories)):
        return parts
    events, names = parts.events, parts.names.processes
    processes = map(str, events.process.categories)
    hosts = np.array([not DEVICE.match(names.get(pid, "")) for pid in processes], dtype=bool)
    on_thread = np.asarray(hosts[events.process.codes], dtype=bool)
    on_thread[parts.threadless] = False
    if not on_thread.any():
        return parts
    is_moment = np.zeros(len(events), dtype=bool)
    is_moment[parts.moments] = True
    rows = np.flatnonzero(on_thread)
    category = recoded(events.category, on_thread & ~is_moment, REGION)
    written = typed([str(text) for text in events.category.take(rows)], rows)
    regions = replace(
        events,
        category=recoded(category, on_thread & is_moment, MOMENT),
        args={**events.args, WRITTEN_CATEGORY: written},
    )
    return replace(
        parts,
        events=regions,
        names=replace(parts.names, threads=_thread_names(events, rows, parts.names)),
        metadata={**parts.metadata, PROCESS_NAMES: dict(parts.names.processes)},
    )


def _is_torch(category: str) -> bool:
    return category in TORCH_CATEGORIES or (
        category not in NEUTRAL and kind_of(category) != "other"
    )


def _thread_names(events: Events, rows: Rows, names: Names) -> Mapping[tuple[str, str], str]:
    """Return the names, with the process's name before those of these rows' threads."""
    process, thread = events.process, events.thread
    lanes = process.codes[rows].astype(np.int64) * len(thread.categories) + thread.codes[rows]
    renamed = dict(names.threads)
    for lane in np.unique(lanes).tolist():
        process_code, thread_code = divmod(lane, len(thread.categories))
        pid, tid = str(process.categories[process_code]), str(thread.categories[thread_code])
        if process_name := names.processes.get(pid, "").strip():
            thread_name = names.threads.get((pid, tid), "").strip() or f"thread {tid}"
            renamed[pid, tid] = f"{process_name} · {thread_name}"
    return renamed
