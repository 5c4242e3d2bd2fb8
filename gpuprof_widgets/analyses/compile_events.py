"""When torch.compile compiled, as any trace of PyTorch 2 tells it.

Dynamo's timers open a region each, called after the timer: ``_compile.compile_inner
(dynamo_timed)`` is one function's compilation, from the trace of its bytecode to the end of the
backend's work. `Torch-Compiled Region` and `TorchDynamo Cache Lookup` are no compilation: they
come with every call of what was compiled.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.model import Trace

Mask = npt.NDArray[np.bool_]

TIMED = re.compile(r".* \(dynamo_timed\)")
"""torch/_dynamo/utils.py: `dynamo_timed` opens it for all phases, backends and tuning included."""
OWN_WORK = re.compile(
    rf"{TIMED.pattern}|dynamo|entire_(frame|backward)_compile|.+_data: .*compile_id=.+"
    r"|TorchDynamo Cache Lookup"
)
"""What else torch.compile marks of its work (`ChromiumEventLogger`, torch/_dynamo/utils.py), and
its search for a graph that fits."""
OF_A_FUNCTION = re.compile(r"_compile(?:\.(?:<locals>\.)?compile_inner)? \(dynamo_timed\)")
"""One compilation as the trace has it; the middle was spelt otherwise before torch 2.6."""


@remembered
def is_compiling(trace: Trace) -> Mask:
    """Which CPU slices are torch.compile's own work, the search for a graph too, or ran in it."""
    own = trace.index.matching(OWN_WORK) & trace.index.in_category("cpu_op", "user_annotation")
    return np.asarray(links.itself_or_ancestor(trace.slices["parent"].to_numpy(), own) >= 0)


def compiled_functions(trace: Trace) -> npt.NDArray[np.intp]:
    """The rows of the compilations of a function, those that are part of another left out."""
    return _outermost(trace, trace.index.matching(OF_A_FUNCTION))


def compiling_time(trace: Trace) -> intervals.Intervals:
    """When anything was compiled, on any thread."""
    rows = _outermost(trace, trace.index.matching(TIMED))
    start, dur = (trace.slices[name].to_numpy()[rows] for name in ("ts", "dur"))
    return intervals.union(start, start + dur)


def _outermost(trace: Trace, mask: Mask) -> npt.NDArray[np.intp]:
    """Those with time in this range, outside of all others of their kind."""
    inside = links.nearest_ancestor(trace.slices["parent"].to_numpy(), mask) >= 0
    return np.flatnonzero(mask & ~inside & (trace.slices["count"].to_numpy() > 0))
