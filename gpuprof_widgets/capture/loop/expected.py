"""What the source runs only every N iterations, for the option ``--expect``.

`Guards` notes which functions stand under a condition like ``step % 100 == 0``, and the part
`ExpectedRegions` puts that into the metadata.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from gpuprof_widgets.capture.cell import CellTree, Rewrite, applied_rewrite
from gpuprof_widgets.capture.code import Embedded
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.options import Options


def guards(options: Options) -> Rewrite | None:
    """Return the reader of a cell's guards, where regions are expected."""
    return None if options.expect is None else Guards()


class Guards:
    """A rewrite that changes nothing: it only notes what runs under which ``% N``."""

    def __init__(self) -> None:
        self.periods: dict[str, dict[str, int]] = {}

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Note what runs every how many iterations; the innermost guard counts."""
        for statement in tree.statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.If) and (every := _period(node.test)) is not None:
                    place = {"every": every, "line": node.lineno}
                    self.periods |= dict.fromkeys(_names_called(node.body), place)


def expected(context: Context) -> ExpectedRegions | None:
    """Return the part with the guards, where a cell's guards were read."""
    guards = applied_rewrite(context.code, Guards)
    return None if guards is None else ExpectedRegions(guards)


class ExpectedRegions(Part):
    """Puts the guards of the expected names into the metadata."""

    loses = "how often the expected regions should run is not known"

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def metadata(self) -> dict[str, Any]:
        return {"guards": self._guards.periods}


def _period(test: ast.expr) -> int | None:
    """Return N for a test that is true every N iterations, such as ``x % N == c`` or ``not x % N``.

    ``c`` may be anything: it is reached once in N.
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
    """Yield the functions and methods that these statements call, and the regions they open."""
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
