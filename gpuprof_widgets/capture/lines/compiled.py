"""Which functions of a cell a compiler reads: torch.compile, numba, ... must find them unchanged.

They read a function's bytecode, and that of the functions that it calls, and would meet regions.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

COMPILERS = frozenset(
    ["compile", "script", "jit", "njit", "vectorize", "guvectorize", "cfunc", "export"]
)
"""Last names of what compiles functions, as a decorator or called with one."""

_NOT_COMPILERS = frozenset({"re", "regex", "ast", "builtins"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def compiled_definitions(statements: list[ast.stmt]) -> set[ast.AST]:
    """The functions and classes among the statements that something compiles.

    By name, and rather one too many: what is compiled, and what that names in turn.
    """
    nodes = [node for statement in statements for node in ast.walk(statement)]
    named = _meanings(nodes)
    found: set[ast.AST] = set()
    waiting = [part for node in nodes for part in _compiled(node)]
    seen: set[str] = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, _DEFINITIONS):
            found.add(part)
        for name in names_in(part):
            if name not in seen:
                seen.add(name)
                waiting += named[name]
    return found


def _compiled(node: ast.AST) -> Iterator[ast.AST]:
    """What this node hands to a compiler."""
    if isinstance(node, _DEFINITIONS):
        if any(_compiles(decorator) for decorator in node.decorator_list):
            yield node
    elif isinstance(node, ast.Call) and _compiles(node.func):
        yield from (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(node.func, ast.Attribute):  # model.compile()
            yield node.func.value


def _compiles(node: ast.AST) -> bool:
    """Whether this names a compiler, called with options or not: `torch.compile(dynamic=True)`."""
    if isinstance(node, ast.Call):
        return _compiles(node.func) or any(_compiles(argument) for argument in node.args)
    if isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        return (node.attr in COMPILERS and owner not in _NOT_COMPILERS) or _compiles(node.value)
    return isinstance(node, ast.Name) and node.id in COMPILERS


def _meanings(nodes: list[ast.AST]) -> dict[str, list[ast.AST]]:
    """By name: the functions and classes of that name, and the values assigned to it."""
    found: dict[str, list[ast.AST]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, _DEFINITIONS):
            found[node.name].append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            targets: list[Any] = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in names_in(target):
                    found[name].append(node.value)
    return found


def names_in(node: ast.AST) -> Iterator[str]:
    """The variables and attributes that a piece of code names."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
