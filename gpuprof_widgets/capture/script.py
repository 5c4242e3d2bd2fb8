"""A script, or a module as `python -m` runs it: its code, and the ``__main__`` in which it runs.

What a script sees is as under ``python script.py``: ``sys.argv``, ``sys.path``, its namespace.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from gpuprof_widgets.capture.cell import CellCode, CellTree, Codes, Rewrite, rewritten_code
from gpuprof_widgets.exceptions import OptionError


@dataclass(frozen=True)
class Script:
    """A program to run: its ``label``, its ``source``, its ``file``, and what imports it has."""

    label: str
    source: bytes | str
    file: str
    module: ModuleType

    def text(self) -> str:
        """The source as an editor shows it."""
        if isinstance(self.source, str):
            return self.source
        return importlib.util.decode_source(self.source)

    def compiled(self, rewrites: Sequence[Rewrite]) -> CellCode:
        """Its code, with these rewrites; a `SyntaxError` as the script's own."""
        tree = compile(self.source, self.file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        parts = CellTree(self.label, self.text(), tree.body, None)  # type: ignore[attr-defined]

        def compiled() -> Codes:
            body = ast.Module(parts.statements, [])
            return compile(body, self.file, "exec", dont_inherit=True), None

        names = self.module.__dict__
        return rewritten_code(parts, compiled, rewrites, (names, names))

    def become_main(self, arguments: Sequence[str]) -> None:
        """Make this the process's program: its ``__main__`` and its ``sys.argv``."""
        sys.argv[:] = arguments
        sys.modules["__main__"] = self.module


def script_in_file(path: str) -> Script:
    """The script of a file; its folder becomes the first of ``sys.path``."""
    file = Path(path)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise OptionError(
            f"{path}: cannot be run ({error.strerror}); name a Python file, or a module with -m"
        ) from error
    _first_on_path(str(file.resolve().parent))
    absolute = os.path.abspath(path)  # noqa: PTH100  # as Python does, which keeps links
    loader = SourceFileLoader("__main__", absolute)
    names = {"__file__": absolute, "__cached__": None, "__loader__": loader, "__spec__": None}
    return Script(file.name, source, absolute, _main(names | {"__package__": None}))


def script_in_module(name: str) -> Script:
    """The module of that name, or the ``__main__`` of a package; found from here first."""
    _first_on_path(str(Path.cwd()))
    spec = _spec_to_run(name)
    source = spec.loader.get_source(spec.name) if isinstance(spec.loader, InspectLoader) else None
    if source is None or spec.origin is None:
        raise OptionError(f"{name} has no Python source that could be run")
    names = {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return Script(name, source, spec.origin, _main(names))


def _spec_to_run(name: str) -> ModuleSpec:
    """The module that `python -m` would run."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the package is there; what it imports is not
        spec = None
    if spec is None:
        raise OptionError(f"there is no module {name} to run; is it installed, or in this folder?")
    if spec.submodule_search_locations is None:
        return spec
    if name.endswith(".__main__"):
        raise OptionError(f"{name} is a package, which cannot be run")
    return _spec_to_run(f"{name}.__main__")


def _first_on_path(folder: str) -> None:
    """Put the program's folder where that of ``gpuprof`` itself was."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _main(names: dict[str, Any]) -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__.update(names)
    if "__annotations__" in vars(sys.modules["__main__"]):  # as this Python makes it
        module.__annotations__ = {}
    return module
