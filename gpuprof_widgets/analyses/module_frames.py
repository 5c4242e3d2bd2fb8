"""The frames that torch writes for modules where it records stacks: ``nn.Module: Conv2d_3``."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

MODULE_FRAME = "nn.Module: "
"""How their names begin; a module's name as torch counts them follows."""


def module_frames(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which slices are such frames."""
    called = trace.index.matching(re.compile(rf"{re.escape(MODULE_FRAME)}.*", re.DOTALL))
    return called & trace.index.in_category("python_function")


def module_frame_around(trace: Trace, frame: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """Of each Python frame (-1: none) the innermost of these that it is or runs in; else -1."""
    around = links.itself_or_ancestor(trace.index.parent, module_frames(trace))
    return np.asarray(np.append(around, NONE)[frame], np.int32)
