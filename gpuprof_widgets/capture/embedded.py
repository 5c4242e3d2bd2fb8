"""Objects inside compiled code, as its constants: reached without a name in anyone's namespace."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any


class Embedded:
    """The objects that rewritten code uses, by the placeholders that its syntax tree has for them.

    A placeholder is a text, which a tree may hold anywhere; once compiled it is among the constants
    of the code, where `filled` puts the object itself. Compile with warnings off: Python warns of
    code that calls a text.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def expression(self, value: Any, at: ast.AST) -> ast.expr:
        """An expression whose value is this very object, located at that node."""
        placeholder = f"gpuprof:embedded:{id(self)}:{len(self._values)}"
        self._values[placeholder] = value
        return ast.copy_location(ast.Constant(placeholder), at)

    def call(self, function: Any, *arguments: ast.expr, at: ast.AST) -> ast.Call:
        """A call of this very function, located at that node."""
        call = ast.Call(self.expression(function, at), list(arguments), [])
        return ast.copy_location(call, at)

    def filled(self, code: CodeType) -> CodeType:
        """The code with the objects in the place of their placeholders, inner code included."""
        constants = tuple(self._constant(value) for value in code.co_consts)
        same = all(a is b for a, b in zip(constants, code.co_consts, strict=True))
        return code if same else code.replace(co_consts=constants)

    def _constant(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return self.filled(value)
        return self._values.get(value, value) if isinstance(value, str) else value
