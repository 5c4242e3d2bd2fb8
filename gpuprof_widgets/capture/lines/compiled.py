"""Compilers that read the code of functions (torch.compile, numba, ...), and must find it plain.

`read_plain` gives whatever these compilers read its plain code, for they would meet regions in it.
Which functions that are is known when they read; no name tells before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, FunctionType, ModuleType
from typing import Any

PlainOf = Callable[[CodeType], CodeType]
"""Returns the plain code of changed code, and any other code as it is."""

READERS = {
    "torch._dynamo.convert_frame": ("_compile", "compile_frame"),
    "torch._dynamo.eval_frame": ("OptimizeContext.__call__",),
    "torch._dynamo.variables.functions": ("UserFunctionVariable.get_code",),
    "torch.jit.frontend": ("parse_def",),
    "numba.core.bytecode": ("get_code_object",),
    "numba.core.dispatcher": ("get_code_object",),
    "numba.cuda.core.bytecode": ("get_code_object",),
    "numba.cuda.dispatcher": ("get_code_object",),
}
"""Functions by module that take what is compiled as one of their first two arguments."""

_HOLDERS = ("forward", "fn", "__func__")
"""Where a module, Dynamo's variable and a method have their function."""

_plain_of: list[PlainOf] = []
_replaced: list[tuple[Any, str, Any]] = []


def read_plain(plain_of: PlainOf) -> None:
    """Make compilers read plain code, as this function returns it, from now on."""
    if not _plain_of:
        for module in READERS.keys() & sys.modules.keys():
            _replace(sys.modules[module])
        sys.meta_path.insert(0, _at_import)
    if plain_of not in _plain_of:
        _plain_of.append(plain_of)


def read_any(plain_of: PlainOf) -> None:
    """Undo `read_plain`; with the last function the compilers are as they were."""
    if plain_of not in _plain_of:
        return
    _plain_of.remove(plain_of)
    if _plain_of:
        return
    sys.meta_path.remove(_at_import)
    while _replaced:
        owner, name, original = _replaced.pop()
        setattr(owner, name, original)


def _replace(module: ModuleType) -> None:
    for path in READERS[module.__name__]:
        *owners, name = path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part, None)
        # Private names, which may disappear: then the compiler meets the regions.
        if (reader := getattr(owner, name, None)) is not None:
            _replaced.append((owner, name, reader))
            setattr(owner, name, _reads_plain(reader))


def _reads_plain(reader: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(reader)
    def read(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return reader(*map(_plain, args[:2]), *args[2:], **kwargs)

    return read


def _plain(value: Any) -> Any:
    """Return what to read in place of this; a function has its plain code from now on."""
    if isinstance(value, CodeType):
        for plain_of in _plain_of:
            value = plain_of(value)
        return value
    with suppress(Exception):  # raised by an object of the user's that is asked for an attribute
        for function in (value, getattr(value, "__self__", None)):  # of model.compile(): its call
            for name in _HOLDERS:
                function = getattr(function, name, function)
            if isinstance(function, FunctionType):
                plain = _plain(function.__code__)
                if plain is not function.__code__:
                    function.__code__ = plain
    return value


class _AtImport:
    """Finds the compilers' modules as Python does, and replaces their readers once loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in READERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_load, loader.exec_module)
        return spec


def _load(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    execute(module)
    if _plain_of:
        _replace(module)


_at_import = _AtImport()
