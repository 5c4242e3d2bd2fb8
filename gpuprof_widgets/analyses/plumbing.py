"""CPU slices in which the model computes nothing: collectives, compilation, dispatch to Python."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.collective_calls import HANDING_OVER
from gpuprof_widgets.analyses.collective_words import annotation
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace

Mask = npt.NDArray[np.bool_]

COMMUNICATION = "communication"
COMPILATION = "torch.compile's own work"
DISPATCH = "hooks and Python that hands over"

_PACKING = "fsdp::"
"""How ops begin that copy parameters into what is sent, and out of it."""

_AROUND = re.compile(
    r"PythonDispatchMode|PythonSubclass|PythonTLSSnapshot|autograd::engine::.+"
    r"|RegisterPostBackwardFunction(Backward)?|BackwardHookFunction(Backward)?"
    r"|Torch-Compiled Region.*|Pregraph bytecode|AOTDispatcher .+|CompiledFunction(Backward)?"
)
"""What torch marks around calls of others: the time in them is of hooks and of Python that hands
over. What they call is no part. Line by line: modes, subclasses (torch/csrc/autograd/) and hooks of
autograd; hooks of FSDP and of modules; torch.compile (torch/_dynamo, torch/_functorch)."""


@remembered
def is_communication(trace: Trace) -> Mask:
    """Which CPU slices hand a collective over or wait for other ranks, and all that runs in them.

    Ops of `HANDING_OVER` and of FSDP, and what backends mark on the CPU (``gloo:all_reduce``).
    """
    names = [str(name) for name in trace.slices["name"].cat.categories]
    told = frozenset(
        n for n in names if n.startswith((*HANDING_OVER, _PACKING)) or annotation(n)[0]
    )
    marked = trace.index.named(told) & trace.index.in_category("cpu_op", "user_annotation")
    return np.asarray(links.itself_or_ancestor(trace.slices["parent"].to_numpy(), marked) >= 0)


def is_dispatch(trace: Trace) -> Mask:
    """Which CPU slices only hand over to others; those are not meant."""
    return trace.index.matching(_AROUND) & trace.index.in_category("cpu_op")
