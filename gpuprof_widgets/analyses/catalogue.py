"""Every analysis by name: what it answers, where it is shown, and which peer answered it before.

A new analysis is a function in this package and a row here: the command line, the tests over all
real traces and the table in the documentation take it from there. `Analysed` has a method of the
same name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from gpuprof_widgets.analyses.breakdown import breakdown, overlaps
from gpuprof_widgets.analyses.collectives import collectives
from gpuprof_widgets.analyses.device_busy import device_busy
from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.analyses.memory import allocations, memory_curve, memory_peak
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.steps import steps
from gpuprof_widgets.analyses.streams import streams
from gpuprof_widgets.analyses.waits import waits


@dataclass(frozen=True)
class Analysis:
    """One question and who answers it.

    ``function``: takes a `Record`, returns a DataFrame; ``question``: as a user would ask it;
    ``view``: where the page shows it, "" where it does not; ``peers``: the tools that answered it.
    """

    function: Callable[..., pd.DataFrame]
    question: str
    view: str = ""
    peers: str = ""

    @property
    def name(self) -> str:
        """Of the function, of the method and of the command."""
        return self.function.__name__


ANALYSES = (
    Analysis(
        operators,
        "Which ops take the time, on the CPU and on the GPU?",
        "op table",
        "key_averages(), TensorBoard plugin",
    ),
    Analysis(
        kernels,
        "Which kernels take the GPU's time?",
        "kernels",
        "TensorBoard plugin, HTA, nsys stats",
    ),
    Analysis(
        breakdown,
        "Where did the GPU's time go, and why was it idle?",
        "breakdown",
        "TensorBoard plugin, HTA, TraceLens",
    ),
    Analysis(
        overlaps,
        "How much communication and copying is hidden behind compute?",
        "breakdown",
        "TensorBoard plugin, HTA, TraceLens",
    ),
    Analysis(device_busy, "How busy was each GPU?", "findings", "TensorBoard plugin"),
    Analysis(
        idle,
        "When had the GPU nothing to do, and why?",
        "idle",
        "HTA, nsys analyze",
    ),
    Analysis(
        streams,
        "Do the streams work side by side, and what could but did not?",
        "streams",
        "HTA, nsys analyze",
    ),
    Analysis(
        waits,
        "Where does the CPU wait for the GPU or for data?",
        "findings",
        "nsys analyze",
    ),
    Analysis(steps, "How long does each step take?", "timeline", "TensorBoard plugin"),
    Analysis(lines, "Which line of the cell takes the time?", "lines", "line_profiler, scalene"),
    Analysis(
        python_time,
        "Which Python functions take time, and which only wait for the GPU?",
        "flame graph",
        "cProfile, snakeviz",
    ),
    Analysis(memory_curve, "How much memory was held, over time?", "memory", "TensorBoard plugin"),
    Analysis(memory_peak, "What was alive when memory was fullest?", "memory", "memory snapshot"),
    Analysis(
        collectives,
        "Which collectives ran, how large, how fast, and how much of them was not hidden?",
        "collectives",
        "TensorBoard plugin, HTA, TraceLens, nsys nccl_sum",
    ),
    Analysis(
        allocations,
        "Which blocks were allocated, by whom, for how long?",
        "memory",
        "memory snapshot",
    ),
)


def analysis(name: str) -> Analysis:
    """The analysis of that name."""
    return next(one for one in ANALYSES if one.name == name)
