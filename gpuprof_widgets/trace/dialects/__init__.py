"""The programs whose Chrome traces mean more than their format says.

A trace that none of these recognises is read as the format says, and as torch.profiler writes it.
"""

from __future__ import annotations

from gpuprof_widgets.trace.dialects.dialect import Dialect, Parts
from gpuprof_widgets.trace.dialects.megengine import MEGENGINE
from gpuprof_widgets.trace.dialects.tensorflow import TENSORFLOW
from gpuprof_widgets.trace.dialects.viztracer import VIZTRACER
from gpuprof_widgets.trace.gather import Gathered

DIALECTS: tuple[Dialect, ...] = (TENSORFLOW, MEGENGINE, VIZTRACER)


def translated(parts: Parts, file: Gathered) -> Parts:
    """The parts in our words, by the first dialect that recognises them."""
    for dialect in DIALECTS:
        if dialect.recognises(parts, file):
            return dialect.translate(parts, file)
    return parts
