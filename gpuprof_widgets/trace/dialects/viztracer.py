"""VizTracer's traces: every call of a Python function as one slice of category ``FEE`` or ``fee``.

Names are ``step (/home/me/train.py:12)``, and ``builtins.sorted`` for functions that are not
Python, as VizTracer 0.15 to 1.1 write them (``src/viztracer/modules/snaptrace.c``,
``report_builder.py``). They become the frames that torch writes with stacks:
``/home/me/train.py(12): step``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof_widgets.trace.dialects.dialect import Dialect, Parts, recoded
from gpuprof_widgets.trace.events import Events, from_codes
from gpuprof_widgets.trace.gather import Gathered

METADATA = "viztracer_metadata"
CALLS = ("FEE", "fee")  # function entry and exit
OVERFLOW = (
    "VizTracer's buffer was full: only the last calls are here, and those before are lost "
    "(record with a larger --tracer_entries)"
)


def recognises(parts: Parts, file: Gathered) -> bool:
    """Return whether the file has VizTracer's metadata."""
    return METADATA in file.header


def translate(parts: Parts, file: Gathered) -> Parts:
    """Turn the calls into Python frames on their threads."""
    return replace(
        parts,
        events=_with_frames(parts.events),
        notes=[*parts.notes, *([OVERFLOW] if _overflowed(file) else [])],
        metadata={**parts.metadata, "recorded_by": "VizTracer"},
    )


VIZTRACER = Dialect("VizTracer", recognises, translate)


def _overflowed(file: Gathered) -> bool:
    """Return whether newer calls overwrote the oldest (``parse`` in viztracer.py)."""
    metadata = file.header[METADATA]
    return isinstance(metadata, dict) and metadata.get("overflow") is True


def _with_frames(events: Events) -> Events:
    is_call = np.array([name in CALLS for name in events.category.categories], dtype=bool)
    calls = is_call[events.category.codes]
    names = list(map(str, events.name.categories))
    texts = [*names, *map(_frame, names)]
    codes = events.name.codes.astype(np.int64) + np.where(calls, len(names), 0)
    used, codes = np.unique(codes, return_inverse=True)
    return replace(
        events,
        name=from_codes(codes.astype(np.int32), [texts[code] for code in used.tolist()]),
        category=recoded(events.category, calls, "python_function"),
    )


def _frame(name: str) -> str:
    """Return a call of a Python function as torch names it; other names stay."""
    called, _, line = name.removesuffix(")").rpartition(":")
    function, _, file = called.rpartition(" (")
    return f"{file}({line}): {function}" if function and line.isdecimal() else name
