"""VizTracer's traces: every call of a Python function as one slice of category ``FEE``.

Names are ``step (/home/me/train.py:12)``, and ``builtins.sorted`` for what is not Python, as
VizTracer 0.15 to 1.1 write them (``src/viztracer/modules/snaptrace.c``, ``report_builder.py``).
They become the frames that torch writes with stacks: ``/home/me/train.py(12): step``.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.dialects.dialect import Dialect, Parts
from gpuprof_widgets.trace.dialects.rows import recoded
from gpuprof_widgets.trace.events import Events, from_codes
from gpuprof_widgets.trace.gather import Gathered

METADATA = "viztracer_metadata"
CALL = "FEE"  # function entry and exit

_PLACE = re.compile(r"(?P<name>.*) \((?P<file>.*):(?P<line>\d+)\)", re.DOTALL)


def recognises(parts: Parts, file: Gathered) -> bool:
    """Whether VizTracer says in the file that it wrote it."""
    return METADATA in file.header


def translate(parts: Parts, file: Gathered) -> Parts:
    """The calls as frames of Python on their threads."""
    return replace(
        parts,
        events=_with_frames(parts.events),
        metadata={**parts.metadata, "recorded_by": "VizTracer"},
    )


def _with_frames(events: Events) -> Events:
    calls = (
        events.category.codes
        == events.category.categories.get_indexer(pd.Index([CALL], dtype=object))[0]
    )
    names = list(map(str, events.name.categories))
    frames = [_PLACE.sub(r"\g<file>(\g<line>): \g<name>", name) for name in names]
    codes = np.where(calls, events.name.codes + len(names), events.name.codes)
    used, codes = np.unique(codes, return_inverse=True)
    texts = [*names, *frames]
    return replace(
        events,
        name=from_codes(codes.astype(np.int32), [texts[code] for code in used.tolist()]),
        category=recoded(events.category, calls, "python_function"),
    )


VIZTRACER = Dialect("VizTracer", recognises, translate)
