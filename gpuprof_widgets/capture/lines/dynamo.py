"""torch.compile reads the plain code of functions, whatever a recording has put into it.

It cannot trace regions. Which functions it will reach cannot be told from their source alone: a
helper compiles what it is given, and `flex_attention` its score function. So what reads code in
TorchDynamo is given the plain code instead; its modules are private, and loaded at the first use.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

PlainOf = Callable[[CodeType], CodeType]
"""The plain code behind a changed one; any other code as it is."""

CONVERSION = "torch._dynamo.convert_frame"
FUNCTIONS = "torch._dynamo.variables.functions"
READERS = ("_compile", "compile_frame")
"""Functions of `CONVERSION` whose first argument is the code of the frame that they compile."""

_plain_of: list[PlainOf] = []
_replaced: list[tuple[Any, str, Any]] = []


def read_plain(plain_of: PlainOf) -> None:
    """From now on TorchDynamo reads the plain code of what this knows."""
    if not _plain_of:
        if CONVERSION in sys.modules:
            _replace()
        else:
            sys.meta_path.insert(0, _at_import)
    if plain_of not in _plain_of:
        _plain_of.append(plain_of)


def read_any(plain_of: PlainOf) -> None:
    """It does no more; with the last one TorchDynamo is as it was."""
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
    """Give what reads code the plain one: of the frame itself, and of the functions it calls."""
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
