"""The Python stack under which an op ran, as torch's ``group_by_stack_n`` sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.int32]

BACKWARD_PREFIX = "autograd::engine::evaluate_function: "
HIDDEN_FRAMES = (
    ("autograd/__init__", "_make_grads"),
    ("autograd/__init__", "backward"),
    ("torch/tensor", "backward"),
)
"""Frames that torch takes out of a stack: the module and the function."""


@remembered
def frame_of(trace: Trace) -> Rows:
    """Per slice of a cpu track: row of the innermost Python frame open when it starts.

    Frames are looked up among frames alone: a `record_function` region outlasts the frame of its
    ``__enter__``, which must not pass for a caller of what the region holds.
    """
    slices, tracks = trace.slices, trace.tracks
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    frame = np.full(len(slices), NONE, np.int32)
    kind, lane = tracks["kind"].to_numpy(), tracks["lane"].to_numpy()
    ops_of_lane = links.rows_by(np.where(kind == "cpu", lane, NONE)[track])
    for python in np.flatnonzero(kind == "python").tolist():
        ops = ops_of_lane.get(int(lane[python]), np.empty(0, np.intp))
        frame[ops] = trace.index.innermost_open(trace.index.rows_of_track(python), ts[ops])
    return frame


def stack_codes(trace: Trace, depth: int) -> tuple[npt.NDArray[np.int32], list[tuple[str, ...]]]:
    """Per slice the number of its stack of at most ``depth`` frames, innermost first; the stacks.

    A backward op has the stack of its forward op, as in torch, and none where that is unknown.
    """
    frame = frame_of(trace)
    source = _stack_source(trace)
    frame = np.where(source >= 0, frame[source], NONE).astype(np.int32)
    names, parent = trace.slices["name"], trace.slices["parent"].to_numpy()
    hidden = _hidden(names.cat.categories.tolist())[names.cat.codes.to_numpy()]
    name_code = np.append(names.cat.codes.to_numpy(), NONE)
    texts = [str(text) for text in names.cat.categories]
    codes = np.zeros(len(trace), np.int64)
    stacks: list[tuple[str, ...]] = [()]
    for _ in range(depth):
        frame = _not_hidden(frame, hidden, parent)
        if not (frame >= 0).any():
            break
        codes, stacks = _extended(codes, stacks, name_code[frame], texts)
        frame = np.where(frame >= 0, parent[frame], NONE).astype(np.int32)
    return codes.astype(np.int32), stacks


def _extended(
    codes: npt.NDArray[np.int64],
    stacks: list[tuple[str, ...]],
    name: npt.NDArray[np.integer[Any]],
    texts: list[str],
) -> tuple[npt.NDArray[np.int64], list[tuple[str, ...]]]:
    """The stacks with one more frame each (none where the name is -1), numbered anew."""
    width = len(texts) + 1
    used, longer = np.unique(codes * width + name + 1, return_inverse=True)
    pairs = [divmod(int(key), width) for key in used]
    extended = [stacks[code] + ((texts[name - 1],) if name else ()) for code, name in pairs]
    return longer.reshape(-1).astype(np.int64), extended


def _stack_source(trace: Trace) -> Rows:
    """The slice whose stack counts: itself, or for all below a backward node its forward op."""
    slices = trace.slices
    parent, forward = slices["parent"].to_numpy(), slices["forward"].to_numpy()
    node = links.itself_or_ancestor(parent, _backward_nodes(slices["name"], parent))
    return np.where(node >= 0, forward[node], np.arange(len(slices))).astype(np.int32)


def _backward_nodes(name: pd.Series, parent: Rows) -> npt.NDArray[np.bool_]:
    """The slice ``XBackward0`` in ``autograd::engine::evaluate_function: XBackward0``."""
    number = {str(text): code for code, text in enumerate(name.cat.categories)}
    node_in = [number.get(text.removeprefix(BACKWARD_PREFIX), NONE) for text in number]
    starts = [text.startswith(BACKWARD_PREFIX) for text in number]
    expected = np.array([*np.where(starts, node_in, NONE), NONE])
    code = np.append(name.cat.codes.to_numpy(), NONE)
    return np.asarray((expected[code[parent]] >= 0) & (expected[code[parent]] == code[:-1]))


def _hidden(names: list[str]) -> npt.NDArray[np.bool_]:
    marks = [any(all(part in name for part in pair) for pair in HIDDEN_FRAMES) for name in names]
    return np.array([*marks, False])


def _not_hidden(frame: Rows, hidden: npt.NDArray[np.bool_], parent: Rows) -> Rows:
    """Each frame, or the first of its ancestors that is not hidden."""
    shown = links.itself_or_ancestor(parent, ~hidden)
    return np.append(shown, np.int32(NONE))[frame]
