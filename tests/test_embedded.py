"""Objects as constants of compiled code."""

from __future__ import annotations

import ast
import warnings

from gpuprof_widgets.capture.code import Embedded

SOURCE = """
def outer():
    def inner():
        return seen()
    return inner
result = outer()()
"""


class CallOf(ast.NodeTransformer):
    """Puts a call of an object in the place of calls of a name."""

    def __init__(self, name: str, value: object, embedded: Embedded) -> None:
        self._name, self._value, self._embedded = name, value, embedded

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == self._name:
            return self._embedded.call(self._value, at=node)
        return node


def test_an_object_is_reached_without_a_name_even_from_inner_functions() -> None:
    thing = object()
    embedded = Embedded()
    tree = CallOf("seen", lambda: thing, embedded).visit(ast.parse(SOURCE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = embedded.filled(compile(tree, "<test>", "exec"))
    names: dict[str, object] = {}
    exec(code, names)
    assert names["result"] is thing
    assert set(names) - {"__builtins__"} == {"outer", "result"}


def test_texts_of_the_user_and_code_without_objects_stay_as_they_are() -> None:
    code = compile("x = 'gpuprof:embedded:0:0', lambda: 'gpuprof:'", "<test>", "exec")
    assert Embedded().filled(code) is code


def test_an_embedded_expression_has_the_location_of_its_node() -> None:
    node = ast.parse("\n\n  \nspam(1)").body[0]
    call = Embedded().call(print, at=node)
    assert (call.lineno, call.func.lineno, call.end_col_offset) == (4, 4, 7)
