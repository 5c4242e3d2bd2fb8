"""VizTracer's traces: every call of a Python function as one slice of category ``FEE`` or ``fee``.

Names are ``step (/home/me/train.py:12)``, and ``builtins.sorted`` for what is not Python, as
VizTracer 0.15 to 1.1 write them (``src/viztracer/modules/snaptrace.c``, ``report_builder.py``).
They become the frames that torch writes with stacks: ``/home/me/train.py(12): step``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.dialects.dialect import Dialect, Parts, recoded
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

Mask = NDArray[np.bool_]

METADATA = "viztracer_metadata"
CALLS = ("FEE", "fee")  # function entry and exit
OVERFLOW = (
    "VizTracer's buffer was full: it has the last calls alone, and those before are lost "
    "(record with a larger --tracer_entries)"
)


def recognises(parts: Parts, file: Gathered) -> bool:
    """Whether VizTracer says in the file that it wrote it."""
    return METADATA in file.header


def translate(parts: Parts, file: Gathered) -> Parts:
    """The calls as frames of Python on their threads."""
    return replace(
        parts,
        events=_with_frames(parts.events),
        notes=[*parts.notes, *([OVERFLOW] if _overflowed(file) else [])],
        metadata={**parts.metadata, "recorded_by": "VizTracer"},
    )


def _overflowed(file: Gathered) -> bool:
    """Whether VizTracer wrote newer calls over the oldest (``parse`` in viztracer.py)."""
    told = file.header[METADATA]
    return isinstance(told, dict) and told.get("overflow") is True


def _with_frames(events: Events) -> Events:
    written = np.array([name in CALLS for name in events.category.categories], dtype=bool)
    calls = written[events.category.codes]
    names = list(map(str, events.name.categories))
    frames = list(map(_frame, names))
    codes = events.name.codes.astype(np.int64) + np.where(calls, len(names), 0)
    used, codes = np.unique(codes, return_inverse=True)
    texts = [*names, *frames]
    return replace(
        events,
        name=from_codes(codes.astype(np.int32), [texts[code] for code in used.tolist()]),
        category=recoded(events.category, calls, "python_function"),
    )


def _frame(name: str) -> str:
    """A call of a Python function as torch names it; others keep their name."""
    called, _, line = name.removesuffix(")").rpartition(":")
    function, _, file = called.rpartition(" (")
    return f"{file}({line}): {function}" if function and line.isdecimal() else name


VIZTRACER = Dialect("VizTracer", recognises, translate)


REGION, MOMENT = "user_annotation", "cpu_instant_event"
ANYBODYS = frozenset(("other", MOMENT))
"""Categories that say nothing of who wrote them: those of events without one."""
OURS = frozenset((*CATEGORIES, CPU_KERNEL, SCOPE_ECHO)) - ANYBODYS

KINETO_KEYS = frozenset(("schemaVersion", "deviceProperties", "distributedInfo"))
"""What stands beside the events of torch.profiler's files."""

DEVICE = re.compile(r"/device:(?!CPU)")
"""What XLA calls the processes that are devices: their slices are no thread's."""


def with_named_regions(parts: Parts, file: Gathered) -> Parts:
    """The parts with slices and instants on threads as regions; as they are if we know any."""
    if KINETO_KEYS & file.header.keys() or any(map(_is_ours, parts.events.category.categories)):
        return parts
    events = parts.events
    threads = _on_threads(parts)
    moments = np.zeros(len(events), dtype=bool)
    moments[parts.moments] = True
    if not threads.any():
        return parts
    rows = np.flatnonzero(threads)
    category = recoded(events.category, threads & ~moments, REGION)
    written = typed([str(text) for text in events.category.take(rows)], rows)
    regions = replace(
        events,
        category=recoded(category, threads & moments, MOMENT),
        args={**events.args, WRITTEN_CATEGORY: written},
    )
    return replace(
        parts,
        events=regions,
        names=replace(parts.names, threads=_thread_names(events, rows, parts.names)),
        metadata={**parts.metadata, PROCESS_NAMES: dict(parts.names.processes)},
    )


def _is_ours(category: str) -> bool:
    return category in OURS or (category not in ANYBODYS and kind_of(category) != "other")


def _on_threads(parts: Parts) -> Mask:
    """Which events are on a thread of a process that is no device."""
    named = parts.names.processes
    processes = map(str, parts.events.process.categories)
    hosts = np.array([not DEVICE.match(named.get(one, "")) for one in processes], dtype=bool)
    threads = np.asarray(hosts[parts.events.process.codes], dtype=bool)
    threads[parts.threadless] = False
    return threads


def _thread_names(
    events: Events, rows: NDArray[np.intp], names: Names
) -> Mapping[tuple[str, str], str]:
    """The names with those of these rows' threads after their process's, where that has one."""
    process, thread = events.process, events.thread
    lanes = process.codes[rows].astype(np.int64) * len(thread.categories) + thread.codes[rows]
    renamed = dict(names.threads)
    for lane in np.unique(lanes).tolist():
        at = divmod(lane, len(thread.categories))
        pair = str(process.categories[at[0]]), str(thread.categories[at[1]])
        if of := names.processes.get(pair[0], "").strip():
            renamed[pair] = f"{of} · {names.threads.get(pair, '').strip() or f'thread {pair[1]}'}"
    return renamed
