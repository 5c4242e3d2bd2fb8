"""VizTracer's traces: every call of a Python function as one slice of category ``FEE`` or ``fee``.

Names are ``step (/home/me/train.py:12)``, and ``builtins.sorted`` for what is not Python, as
VizTracer 0.15 to 1.1 write them (``src/viztracer/modules/snaptrace.c``, ``report_builder.py``).
They become the frames that torch writes with stacks: ``/home/me/train.py(12): step``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof_widgets.trace.dialects.dialect import Dialect, Parts
from gpuprof_widgets.trace.dialects.rows import recoded
from gpuprof_widgets.trace.events import Events, from_codes
from gpuprof_widgets.trace.gather import Gathered

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
