"""The layer of each node of a TensorFlow graph: the name scope in which it was made.

``layer_1/fully_connected/MatMul`` is of ``layer_1/fully_connected``. What an op consists of is
under the op's own name (``MatMul/ReadVariableOp``); its gradient is within ``gradients``, under
that name with ``_grad`` behind it, or, as Keras has it, within ``gradient_tape``, under it. What
TensorFlow adds as it runs a graph begins with ``_`` (``_recv_x_0``), what it makes of a node there
ends so (``while/merge/_5``).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gpuprof_widgets.trace.dialects.layers import Place

GRADIENTS = re.compile(r"(gradients|gradient_tape)(_\d+)?")
GRADIENT = "_grad"
MADE_OF_IT = re.compile(r"_\d+\w*")


def places(nodes: Collection[str]) -> dict[str, Place]:
    """Of each of these nodes its layer and its pass."""
    return {node: _place(node, nodes) for node in nodes if not node.startswith("_")}


def _place(node: str, nodes: Collection[str]) -> Place:
    *scope, name = node.split("/")
    if MADE_OF_IT.fullmatch(name):
        scope = scope[:-1]
    is_backward = bool(scope) and GRADIENTS.fullmatch(scope[0]) is not None
    if is_backward:
        ends = [at for at, part in enumerate(scope) if part.endswith(GRADIENT)]
        scope = scope[1 : min(ends, default=len(scope))]
    while scope and "/".join(scope) in nodes:
        scope.pop()
    return Place("/".join(scope), is_backward)
