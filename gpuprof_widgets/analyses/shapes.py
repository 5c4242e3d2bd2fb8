"""Input shapes of ops, as torch's own table writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

SHAPE_KEYS = ("Input Dims", "Input dims")
"""Arg that holds the shapes, in today's files and in those of torch 1.8."""


def shape_text(dims: Any) -> str:
    """``[[8, 3, 16, 16], [8, 3, 3, 3], []]``; a list of tensors is ``[]``, as torch writes it."""
    if not isinstance(dims, list | tuple):
        return str(dims)
    return str([[] if _holds_lists(dim) else dim for dim in dims])


def shape_codes(trace: Trace) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Per slice the number of its shape text (-1: none was recorded), and those texts."""
    codes = np.full(len(trace), NONE, np.int32)
    number: dict[str, int] = {}
    for place, values in map(trace.index.arg, SHAPE_KEYS):
        written = (shape_text(dims) for dims in values)
        code = [NONE if text == "[]" else number.setdefault(text, len(number)) for text in written]
        codes = np.where(place >= 0, np.array([*code, NONE], np.int32)[place], codes)
    return codes, list(number)


def _holds_lists(dim: Any) -> bool:
    return isinstance(dim, list | tuple) and any(isinstance(size, list | tuple) for size in dim)
