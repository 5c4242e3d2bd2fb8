"""`--expect eval,checkpoint`: what of the cell runs only every so often, as its source says.

A guard such as ``if step % 500 == 0:`` tells how often what it calls runs, without waiting for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from gpuprof_widgets.capture.cell import CellTree, Rewrite
from gpuprof_widgets.capture.embedded import Embedded
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace


def guards(options: Options) -> Rewrite | None:
    """The reader of a cell's guards, where regions are expected."""
    return None if options.expect is None else Guards()


class Guards:
    """Changes nothing in the tree: it only looks what runs under which ``% N`` in it."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, int]] = {}

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Note what runs every how many iterations; the innermost guard that says so counts."""
        for statement in tree.statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.If) and (every := _period(node.test)) is not None:
                    place = {"every": every, "line": node.lineno}
                    self.found |= dict.fromkeys(_names_called(node.body), place)


def expected(context: Context) -> ExpectedRegions | None:
    """The part that tells the guards that were found."""
    applied = context.code.rewrites if context.code is not None else ()
    return next((ExpectedRegions(one) for one in applied if isinstance(one, Guards)), None)


class ExpectedRegions:
    """Puts the guards of the expected names into the metadata."""

    loses = "no word on how often what is expected runs"

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def start(self) -> None:
        """Nothing is put in."""

    def stop(self) -> None:
        """Nothing to take out."""

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        return {"guards": self._guards.found}


def _period(test: ast.expr) -> int | None:
    """N, where the test is true every N iterations: ``x % N == c``, ``not x % N``, and with `and`.

    ``c`` may be anything: there is one such moment in N.
    """
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return _modulus(left) or _modulus(right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _modulus(operand)
        case ast.BoolOp(op=ast.And(), values=values):
            periods = [period for value in values if (period := _period(value)) is not None]
            return max(periods, default=None)
    return None


def _modulus(node: ast.expr) -> int | None:
    match node:
        case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=int(every))) if every > 1:
            return every
    return None


def _names_called(body: list[ast.stmt]) -> Iterator[str]:
    """The functions and methods that these statements call, and the regions that they open."""
    for statement in body:
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Name(id="record_function"), args=[ast.Constant(str(name))]):
                    yield name
                case ast.Call(
                    func=ast.Attribute(attr="record_function"), args=[ast.Constant(str(name))]
                ):
                    yield name
                case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                    yield name
