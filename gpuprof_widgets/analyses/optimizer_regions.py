"""What optimizers do within the regions that torch opens around ``step`` and ``zero_grad``."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.int32]

STEP = re.compile(r"Optimizer\.step#(?P<kind>.+)\.step")
ZERO_GRAD = re.compile(r"Optimizer\.zero_grad#(?P<kind>.+)\.zero_grad")
ZEROING = frozenset({"aten::zero_", "aten::_foreach_zero_"})
ON_MANY = re.compile(r".*(_foreach_|_fused_).*", re.DOTALL)
PLAIN = re.compile(r"aten::.*", re.DOTALL)
FRESH = frozenset({"aten::zeros", "aten::zeros_like", "aten::new_zeros"})
"""Ops that zero what they have just made."""


def zeroing_ops(trace: Trace) -> tuple[npt.NDArray[np.intp], Rows]:
    """The ops that fill a gradient with zeros, and the ``zero_grad`` region around each.

    torch's GradNotSetToNonePattern: ``aten::zero_`` that is not ``aten::zeros``' own.
    """
    parent = trace.slices["parent"].to_numpy()
    fresh = np.append(trace.index.named(FRESH), False)
    zeroing = trace.index.named(ZEROING) & trace.index.is_op & ~fresh[parent]
    inside = np.append(zeroing, False)
    return _within(trace, ZERO_GRAD, zeroing & ~inside[parent])


def single_tensor_ops(trace: Trace) -> tuple[npt.NDArray[np.intp], Rows]:
    """The ops of an optimizer's step that launched kernels for one tensor, and the step around.

    Names with ``_foreach_`` or ``_fused_`` work on many tensors at once; what runs on the CPU is
    left out: there a loop over the parameters costs no launches. (torch's
    OptimizerSingleTensorPattern goes by the frame ``_single_tensor_adam``, which needs stacks.)
    """
    launching = np.zeros(len(trace) + 1, bool)
    launching[trace.slices["op"].to_numpy()[trace.index.gpu]] = True
    on_many = trace.index.matching(ON_MANY)
    wanted = launching[:-1] & trace.index.matching(PLAIN) & ~on_many & trace.index.is_op
    inside_many = links.nearest_ancestor(trace.index.parent, on_many) >= 0
    return _within(trace, STEP, wanted & ~inside_many)


def _within(
    trace: Trace, region: re.Pattern[str], wanted: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.intp], Rows]:
    """Those of the slices that lie in such a region, and the innermost one around each."""
    regions = trace.index.matching(region) & trace.index.on_tracks("cpu")
    around = links.nearest_ancestor(trace.slices["parent"].to_numpy(), regions)
    rows = np.flatnonzero(wanted & (around != NONE) & (trace.slices["count"].to_numpy() > 0))
    return rows, around[rows]


def kinds(trace: Trace, region: re.Pattern[str], rows: Rows) -> list[str]:
    """The optimizers of these regions, in the order of their names."""
    names = trace.slices["name"].to_numpy(object)[np.unique(rows)]
    return sorted({match["kind"] for name in names if (match := region.fullmatch(str(name)))})
