"""Python that ran within an op's own region, where neither frames nor lines of it were recorded."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace.callers import BACKWARD
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.owners import is_engine

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

FUNCTION = re.compile(r"(?!Compiled)[A-Za-z_]\w*(?<!Undefined)Backward")
"""Autograd's nodes of functions that are written in Python, ``MyFunctionBackward``.

torch's own nodes have a number (``MulBackward0``), those of C++ extensions a namespace. What
``CompiledFunction`` runs itself may be compiled code.
Source: torch/autograd/function.py, ``FunctionMeta``.
"""
ENGINE_OWN = re.compile(rf"{re.escape(BACKWARD)}: .*|torch::autograd::AccumulateGrad")
"""Where the engine runs hooks of tensors and of nodes."""
HOOK_NS = 50_000
"""What the engine does itself between two nodes takes a few microseconds."""


def python_functions(trace: Trace) -> Mask:
    """Which ops are an ``autograd.Function`` in Python, forward or backward: their own time is its.

    A forward is known by the node that it has in the same trace.
    """
    ops = trace.index.is_op
    nodes = ops & trace.index.matching(FUNCTION) & ~is_engine(trace.slices["name"])
    names = {str(name) for name in trace.slices["name"][nodes].unique()}
    forward = frozenset(name.removesuffix("Backward") for name in names)
    return nodes | (ops & trace.index.named(forward))


def in_hooks(record: Record, start: Ints, end: Ints, own: Mask) -> Mask:
    """Which of these stretches of time, ``own`` the engine's innermost ones, ran Python hooks.

    Those that are long, if functions that the engine called took about as long, as cProfile saw it.
    Took they far more, then ops ran in them, as where checkpointing runs a forward anew: then it is
    not known. Where Python frames were recorded these tell by themselves.
    """
    long = own & (end - start >= HOOK_NS)
    if record.calls is None or (record.trace.tracks["kind"] == "python").any():
        return np.zeros(len(start), bool)
    took = _called_by_the_engine(record.calls)
    all_long = int((end - start)[long].sum())
    return long & (all_long / 2 < took < 2 * all_long)


def _called_by_the_engine(calls: Calls) -> int:
    """Time (ns) of the functions that ``run_backward`` called, but for backwards of Functions."""
    file, name = (calls.functions[key] for key in ("file", "name"))
    engine = ((file == "~") & name.str.contains("run_backward", regex=False)).to_numpy(bool)
    node = ((name == "apply") & file.str.endswith("function.py")).to_numpy(bool)
    edges = calls.edges
    hooks = engine[edges["caller"].to_numpy()] & ~node[edges["callee"].to_numpy()]
    return int(edges["total_ns"].to_numpy()[hooks].sum())
