"""Convolutions whose bias the batch normalisation behind them takes away again."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.indexing_loops import siblings
from gpuprof_widgets.analyses.op_calls import Call, of_calls
from gpuprof_widgets.trace.model import Trace

CONVOLUTION = re.compile(r"aten::conv(_transpose)?[123]d")
NORM = "aten::batch_norm"
COUNTING = "aten::add_"
"""In training BatchNorm counts its batches in between."""


def biased_before_norm(trace: Trace) -> npt.NDArray[np.intp]:
    """The convolutions with a bias that a batch normalisation of their channels follows at once.

    torch's Conv2dBiasFollowedByBatchNorm2dPattern, which looks at modules (and needs stacks); here
    the ops themselves tell, in all dimensions.
    """
    row, group = siblings(trace)
    convolution = trace.index.matching(CONVOLUTION)[row]
    norm, counting = (trace.index.named(frozenset({name}))[row] for name in (NORM, COUNTING))
    at = np.flatnonzero(convolution)
    beyond = len(row)
    following = np.minimum(at + 1, beyond - 1)
    following = np.where(counting[following], np.minimum(following + 1, beyond - 1), following)
    same = norm[following] & (group[following] == group[at]) & (following > at)
    at, following = at[same], following[same]
    channels = np.array(of_calls(trace, row[at], _channels), np.int64)
    normed = np.array(of_calls(trace, row[following], _normed), np.int64)
    return np.asarray(row[at[(channels > 0) & (channels == normed)]], np.intp)


def _channels(call: Call) -> int:
    """Of the result of a convolution with a bias; 0 without one."""
    return int(call.dims[2][0]) if call.is_tensor(2) and len(call.dims[2]) == 1 else 0


def _normed(call: Call) -> int:
    """Channels of what is normalised; -1 where that was not recorded."""
    return int(call.dims[0][1]) if call.is_tensor(0) and len(call.dims[0]) > 1 else -1
