"""Functions that a compiler reads (torch.compile, numba, ...), which must find them unchanged.

Compilers read the bytecode of a function and of those that it calls, where they would meet regions.
`compiled_definitions` finds such functions in the source, by name. `read_plain` makes TorchDynamo
read the plain code of whatever it compiles nevertheless.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

COMPILERS = frozenset(
    ["compile", "script", "jit", "njit", "vectorize", "guvectorize", "cfunc", "export"]
)
"""Last parts of the names of compilers, which decorate a function or are called with one."""

_NOT_COMPILERS = frozenset({"re", "regex", "ast", "builtins"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

PlainOf = Callable[[CodeType], CodeType]
"""Returns the plain code of changed code, and any other code as it is."""

CONVERSION = "torch._dynamo.convert_frame"
FUNCTIONS = "torch._dynamo.variables.functions"
READERS = ("_compile", "compile_frame")
"""Functions of `CONVERSION` whose first argument is the code of the frame that they compile."""


def compiled_definitions(statements: list[ast.stmt]) -> set[ast.AST]:
    """Return the functions and classes among the statements that something compiles.

    They are found by name, with all that they name in turn, so there may be too many of them.
    """
    nodes = [node for statement in statements for node in ast.walk(statement)]
    named = _meanings(nodes)
    definitions: set[ast.AST] = set()
    waiting = [part for node in nodes for part in _compiled(node)]
    seen: set[str] = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, _DEFINITIONS):
            definitions.add(part)
        for name in names_in(part):
            if name not in seen:
                seen.add(name)
                waiting += named[name]
    return definitions


def _compiled(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what this node hands to a compiler."""
    if isinstance(node, _DEFINITIONS):
        if any(_compiles(decorator) for decorator in node.decorator_list):
            yield node
    elif isinstance(node, ast.Call) and _compiles(node.func):
        yield from (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(node.func, ast.Attribute):  # model.compile()
            yield node.func.value


def _compiles(node: ast.AST) -> bool:
    """Whether this names a compiler, maybe called with options: `torch.compile(dynamic=True)`."""
    if isinstance(node, ast.Call):
        return _compiles(node.func) or any(_compiles(argument) for argument in node.args)
    if isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        return (node.attr in COMPILERS and owner not in _NOT_COMPILERS) or _compiles(node.value)
    return isinstance(node, ast.Name) and node.id in COMPILERS


def _meanings(nodes: list[ast.AST]) -> dict[str, list[ast.AST]]:
    """Return by name the functions and classes of that name, and the values assigned to it."""
    meanings: dict[str, list[ast.AST]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, _DEFINITIONS):
            meanings[node.name].append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            targets: list[Any] = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in names_in(target):
                    meanings[name].append(node.value)
    return meanings


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the variables and attributes that a piece of code names."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


_plain_of: list[PlainOf] = []
_replaced: list[tuple[Any, str, Any]] = []


def read_plain(plain_of: PlainOf) -> None:
    """Make TorchDynamo read plain code, as this function returns it, from now on."""
    if not _plain_of:
        if CONVERSION in sys.modules:
            _replace()
        else:
            sys.meta_path.insert(0, _at_import)
    if plain_of not in _plain_of:
        _plain_of.append(plain_of)


def read_any(plain_of: PlainOf) -> None:
    """Undo `read_plain`; with the last function TorchDynamo is as it was."""
    if plain_of not in _plain_of:
        return
    _plain_of.remove(plain_of)
    if _plain_of:
        return
    if _at_import in sys.meta_path:
        sys.meta_path.remove(_at_import)
    while _replaced:
        owner, name, original = _replaced.pop()
        setattr(owner, name, original)


def _plain(code: CodeType) -> CodeType:
    for plain_of in _plain_of:
        code = plain_of(code)
    return code


def _replace() -> None:
    """Give the readers the plain code of the frame itself, and of the functions that it calls."""
    conversion = sys.modules[CONVERSION]
    for name in READERS:
        if reader := getattr(conversion, name, None):
            _put(conversion, name, functools.partial(_compile_plain, reader))
    variable: Any = getattr(sys.modules.get(FUNCTIONS), "UserFunctionVariable", None)
    if hasattr(variable, "get_code"):
        _put(variable, "get_code", _get_plain(variable.get_code))


def _put(owner: Any, name: str, value: Any) -> None:
    _replaced.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def _compile_plain(reader: Callable[..., Any], code: CodeType, *args: Any, **kwargs: Any) -> Any:
    return reader(_plain(code), *args, **kwargs)


def _get_plain(get_code: Callable[[Any], CodeType]) -> Callable[[Any], CodeType]:
    def get_plain_code(variable: Any) -> CodeType:
        return _plain(get_code(variable))

    return get_plain_code


class _AtImport:
    """Finds TorchDynamo's module as Python does, and replaces its readers once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != CONVERSION:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_load, loader.exec_module)
        return spec


def _load(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    execute(module)
    if _plain_of:
        _replace()


_at_import = _AtImport()
