"""Functions and code objects: which functions a cell reaches, and how rewritten code is exchanged.

`FunctionsElsewhere` finds the user's functions outside of the cell. `Embedded` puts objects into
rewritten code without giving them names. `code_pairs` matches rewritten code with the plain code.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import _lru_cache_wrapper, cache
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from gpuprof_widgets.trace.libraries import is_library

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_MOST_FUNCTIONS = 1000
"""Functions to look at; in a larger program `--steps` bounds the loop over its DataLoader."""
_PACKAGE = str(Path(__file__).parents[1])
_FOLDERS = *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), _PACKAGE
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in _FOLDERS)


class FunctionsElsewhere:
    """The functions and methods of these names, and of the names in their code in turn.

    Names are looked up in the globals of the functions seen so far and in the classes of the
    objects there, so some functions may be reached that never run. Those of installed packages
    are left out.
    """

    def __init__(
        self, names: Iterable[str], namespace: Mapping[str, Any], cell_files: Collection[str]
    ) -> None:
        self._names = set(names)
        self._first = namespace
        self._cell_files = cell_files
        self._functions: list[FunctionType] = []
        self._places: list[Mapping[str, Any]] = [namespace]
        self._seen: set[int] = {id(namespace)}

    def that_train(self) -> list[FunctionType]:
        """Return the functions, of those reachable now, that train or call one that does."""
        waiting = _values(self._names, self._first)
        while waiting and len(self._functions) < _MOST_FUNCTIONS:
            with suppress(Exception):  # raised by a proxy, for example, that is asked for its class
                waiting += self._further(waiting.pop())
        return _training(self._functions)

    def _further(self, value: Any) -> list[Any]:
        """Return what can be reached through a value: by its code's names, and in its places."""
        names: set[str] = set()
        places: list[tuple[Any, Mapping[str, Any]]] = []
        if functions := list(functions_in(value)):
            function = functions[-1]
            if not is_users(function.__code__.co_filename, self._cell_files):
                return []
            if self._is_new(function):
                self._functions.append(function)
                names = _names_in(function.__code__) - self._names
            places = [(function.__globals__, function.__globals__)]
        elif isinstance(value, ModuleType):
            if is_users(getattr(value, "__file__", None), self._cell_files):
                places = [(vars(value), vars(value))]
        elif value is not None:
            kinds = (value if isinstance(value, type) else type(value)).__mro__
            users = (kind for kind in kinds if is_users(_file_of(kind), self._cell_files))
            places = [(kind, vars(kind)) for kind in users]
        values = [found for place in self._places for found in _values(names, place)]
        self._names |= names
        new = [place for owner, place in places if self._is_new(owner)]
        self._places += new
        return values + [found for place in new for found in _values(self._names, place)]

    def _is_new(self, value: Any) -> bool:
        new = id(value) not in self._seen
        self._seen.add(id(value))
        return new


def _values(names: Collection[str], place: Mapping[str, Any]) -> list[Any]:
    return [place[name] for name in place.keys() & names]


def _training(functions: list[FunctionType]) -> list[FunctionType]:
    """Return the functions that name a backward pass or a step, or one of those functions."""
    naming: dict[str, list[FunctionType]] = defaultdict(list)
    for function in functions:
        for name in _names_in(function.__code__):
            naming[name].append(function)
    waiting, training = ["backward", "manual_backward", "step"], dict[int, FunctionType]()
    while waiting:
        for function in naming.pop(waiting.pop(), ()):
            if id(function) not in training:
                training[id(function)] = function
                waiting.append(function.__name__)
    return list(training.values())


def is_users(file: str | None, cell_files: Collection[str]) -> bool:
    """Whether that file is the user's: a cell, or a module outside of installed packages."""
    if file is None:
        return False
    return file in cell_files or (Path(file).suffix == ".py" and not is_installed(file))


def is_installed(file: str) -> bool:
    """Whether a code's file is Python's own, an installed package's or ours, or is no file."""
    is_known = file.startswith(("<", *_LIBRARIES)) or is_library(file)
    return is_known or name_in_package(file) is not None


@cache
def name_in_package(file: str) -> str | None:
    """Return ``torch/serialization.py`` for a file that pip lists in a record beside its package.

    So it does in any folder of ``sys.path`` (``pip install --target``); an editable install has no
    such list.
    """
    path, imported_from = Path(file), {Path(str(entry)).absolute() for entry in sys.path}
    folders = (folder for folder in path.parents if folder in imported_from)
    names = ((folder, path.relative_to(folder).as_posix()) for folder in folders)
    return next((name for folder, name in names if name in _names_in_packages(folder)), None)


@cache
def _names_in_packages(folder: Path) -> set[str]:
    names: set[str] = set()
    for pattern in ("*.dist-info/RECORD", "*.egg-info/installed-files.txt"):
        with suppress(OSError):  # a folder that cannot be listed
            for file in folder.glob(pattern):
                with suppress(OSError):  # one list that cannot be read hides no other
                    lines = file.read_text(errors="replace").splitlines()
                    names |= {line.partition(",")[0].removeprefix("../") for line in lines}
    return names


def functions_in(value: Any) -> Iterator[FunctionType]:
    """Yield the function that a value is or wraps, and those that decorators wrapped in it."""
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    while isinstance(value, (FunctionType, _lru_cache_wrapper)):
        if isinstance(value, FunctionType):
            yield value
        value = vars(value).get("__wrapped__")


def _file_of(kind: type) -> str | None:
    """Return the file of a class: that of its first method (maybe a cell), or its module's."""
    for value in vars(kind).values():
        if functions := list(functions_in(value)):
            return functions[-1].__code__.co_filename
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def _names_in(code: CodeType) -> set[str]:
    return set(code.co_names).union(*map(_names_in, codes_in(code)))


class Embedded:
    """The objects that rewritten code uses, by their placeholders in the syntax tree.

    A placeholder is a string constant; `filled` replaces it in the constants of the compiled code
    by the object itself. Compile with warnings off: Python warns of code that calls a string.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def expression(self, value: Any, at: ast.AST) -> ast.expr:
        """Return an expression whose value is this very object, located at that node."""
        placeholder = f"gpuprof:embedded:{id(self)}:{len(self._values)}"
        self._values[placeholder] = value
        return ast.copy_location(ast.Constant(placeholder), at)

    def call(self, function: Any, *arguments: ast.expr, at: ast.AST) -> ast.Call:
        """Return a call of this very function, located at that node."""
        call = ast.Call(self.expression(function, at), list(arguments), [])
        return ast.copy_location(call, at)

    def filled(self, code: CodeType) -> CodeType:
        """Return the code with the objects in place of their placeholders, inner code included."""
        constants = tuple(self._constant(value) for value in code.co_consts)
        unchanged = all(a is b for a, b in zip(constants, code.co_consts, strict=True))
        return code if unchanged else code.replace(co_consts=constants)

    def _constant(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return self.filled(value)
        return self._values.get(value, value) if isinstance(value, str) else value


def code_pairs(marked: CodeType, plain: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the two codes, then pair by pair the codes of the functions defined in them.

    Raises a `ValueError` where the functions differ in name, line or number.
    """
    if (marked.co_name, marked.co_firstlineno) != (plain.co_name, plain.co_firstlineno):
        raise ValueError(f"{marked.co_name} is not {plain.co_name}")
    yield marked, plain
    for inner_codes in zip(codes_in(marked), codes_in(plain), strict=True):
        yield from code_pairs(*inner_codes)


def codes_in(code: CodeType) -> list[CodeType]:
    """Return the codes of the functions and classes that this code defines."""
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
