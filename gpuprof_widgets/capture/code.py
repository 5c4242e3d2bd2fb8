"""Functions and code objects: which functions a cell reaches, and how rewritten code is exchanged.

`functions_that_train` finds the user's functions outside of the cell. `Embedded` puts objects into
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

BACKWARD = frozenset({"backward", "manual_backward"})
_MOST_FUNCTIONS = 1000
"""Functions to look at; in a larger program `--steps` bounds the loop over its DataLoader."""
_PACKAGE = str(Path(__file__).parents[1])
_FOLDERS = *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), _PACKAGE
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in _FOLDERS)


def functions_that_train(
    names: Iterable[str], namespace: Mapping[str, Any], cell_files: Collection[str]
) -> list[FunctionType]:
    """Return the user's functions that name a backward pass, or such a function in turn.

    Of these, the ones that the names reach: by themselves or by the names in functions reached.
    They are looked up in the namespace and in the user's modules, so some may never run.
    """
    modules = [module for module in list(sys.modules.values()) if type(module) is ModuleType]
    files = ((module, getattr(module, "__file__", None)) for module in modules)
    users = [vars(module) for module, file in files if is_users(file, cell_files)]
    named: dict[str, dict[FunctionType, None]] = defaultdict(dict)
    for name, function in (pair for place in [namespace, *users] for pair in functions_in(place)):
        if is_users(function.__code__.co_filename, cell_files):
            named[name][function] = named[function.__name__][function] = None
    callers: dict[str, list[FunctionType]] = defaultdict(list)
    names_of: dict[FunctionType, set[str]] = defaultdict(set)
    waiting = list(names)
    while waiting and len(names_of) < _MOST_FUNCTIONS:
        name = waiting.pop()
        for function in named.pop(name, ()):
            if function not in names_of:
                inside = names_in(function.__code__)
                waiting += inside
                for called in inside:
                    callers[called].append(function)
            names_of[function].add(name)
    training: dict[FunctionType, None] = {}
    waiting = list(BACKWARD)
    while waiting:
        for function in callers.pop(waiting.pop(), ()):
            if function not in training:
                training[function] = None
                waiting += names_of[function]
    return list(training)


def functions_in(place: Mapping[str, Any]) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of a namespace and of its classes by name, and what they wrap."""
    for name, value in list(place.items()):
        members = vars(value).items() if issubclass(type(value), type) else [(name, value)]
        for member_name, member in list(members):
            for function in _functions_of(member):
                yield member_name, function


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """Yield the function that a value is or wraps, and those that decorators wrapped in it."""
    kind = type(value)  # not isinstance: it may ask the value, which may raise
    if issubclass(kind, (staticmethod, classmethod, MethodType)):
        value = value.__func__
    elif issubclass(kind, property):
        value = value.fget
    while type(value) in (FunctionType, _lru_cache_wrapper):
        if type(value) is FunctionType:
            yield value
        value = vars(value).get("__wrapped__")


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


def names_in(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in a code and in those inside it."""
    return set(code.co_names).union(*map(names_in, codes_in(code)))


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
