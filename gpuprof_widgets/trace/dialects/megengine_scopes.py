"""The scopes of MegEngine's ops, and the tensors that each took and made.

An op's name is that of its first output (``forward.fc[1].ADD:0`` of a timeline, where scopes of
modules are on; ``fc.MatrixMul`` of a graph): numbers in brackets tell apart what one scope made.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.dialects.layers import Place
from gpuprof_widgets.trace.dialects.megengine_memory import NUMBER, TORCH_TYPES
from gpuprof_widgets.trace.dialects.rows import texts_of
from gpuprof_widgets.trace.events import Events, typed
from gpuprof_widgets.trace.schema import INPUT_SHAPES, INPUT_TYPES, NODE, OUTPUT_SHAPES

SCOPED = re.compile(r"[^.()\s]+(\.[^.()\s]+)+")
NUMBERED = re.compile(r"\[\d+\]")
OF_OUTPUT = re.compile(r":\d+$")
BACKWARD = "backward"


def places(names: Collection[str]) -> dict[str, Place]:
    """Of each of these ops its scope; callbacks have in their names those of other ops."""
    scopes = {
        name: NUMBERED.sub("", name.rpartition(".")[0]) for name in names if SCOPED.fullmatch(name)
    }
    return {
        name: Place(scope, scope.partition(".")[0] == BACKWARD) for name, scope in scopes.items()
    }


def operands(
    events: Events, names: NDArray[np.object_], ops: NDArray[np.bool_]
) -> Mapping[str, pd.Series]:
    """Args of the ops: their own names, shapes and types of their inputs, shapes of their outputs.

    ``names``: what each event is, as "Input" and "Output" within the op of their thread.
    """
    taken, made = (_within(events, names == name, ops) for name in ("Input", "Output"))
    called = {op: OF_OUTPUT.sub("", tensors[0]["name"]) for op, tensors in made.items()}
    columns: dict[str, dict[int, Any]] = {
        NODE: {op: name for op, name in called.items() if name},
        INPUT_SHAPES: {op: _shapes(tensors) for op, tensors in taken.items()},
        INPUT_TYPES: {op: [_type(one) for one in tensors] for op, tensors in taken.items()},
        OUTPUT_SHAPES: {op: _shapes(tensors) for op, tensors in made.items()},
    }
    return {
        key: typed([*values.values()], np.array([*values], dtype=np.int64))
        for key, values in columns.items()
        if values
    }


def _within(
    events: Events, tensors: NDArray[np.bool_], ops: NDArray[np.bool_]
) -> dict[int, list[dict[str, str]]]:
    """Of each op the tensors in it, in order of time; each as ``name``, ``shape`` and ``dtype``."""
    row, op = np.flatnonzero(tensors), np.flatnonzero(ops)
    row = row[np.argsort(events.ts[row], kind="stable")]
    thread = events.process.codes.astype(np.int64) * len(events.thread.categories)
    thread = thread + events.thread.codes
    last = links.latest_before(thread[row], events.ts[row], thread[op], events.ts[op])
    around = np.append(op, -1)[last]
    ends = events.ts + events.dur
    inside = (around >= 0) & (events.ts[row] >= events.ts[around]) & (ends[row] <= ends[around])
    told = {key: texts_of(events.args.get(key), len(events)) for key in ("name", "shape", "dtype")}
    found: dict[int, list[dict[str, str]]] = {}
    for each, of in zip(row[inside].tolist(), around[inside].tolist(), strict=True):
        found.setdefault(of, []).append({key: texts[each] for key, texts in told.items()})
    return found


def _shapes(tensors: list[dict[str, str]]) -> list[list[int]]:
    return [[*map(int, NUMBER.findall(one["shape"]))] for one in tensors]


def _type(tensor: dict[str, str]) -> str:
    return TORCH_TYPES.get(tensor["dtype"], tensor["dtype"])
