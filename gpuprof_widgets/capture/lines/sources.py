"""Functions that were defined earlier: find their source, and exchange their code.

`source_files` finds the definitions of functions whose source is still what they run. `CodeSwap`
gives functions their rewritten code, and takes it from every function that has it by then.
Compilers that read the code of functions (torch.compile, numba, ...) must find it plain, for they
would meet regions in it: `READERS` are replaced. Which functions they read is known no earlier.
"""

from __future__ import annotations
import __future__

import ast
import functools
import gc
import linecache
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from itertools import groupby
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

from gpuprof_widgets.capture.cell import CellCode
from gpuprof_widgets.capture.code import Embedded, code_pairs, codes_in, functions_in
from gpuprof_widgets.capture.lines.regions import LineMarks

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
Definition = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[str, int]


@dataclass(frozen=True)
class SourceFile:
    """Functions of one file, with the definitions of those whose source is still what they run.

    ``without`` are the functions without such a source, and those that Dynamo has compiled.
    """

    label: str
    tree: ast.Module
    functions: list[tuple[FunctionType, Definition]]
    without: list[FunctionType]

    @property
    def outermost(self) -> list[Definition]:
        """The definitions that are in no other one: rewriting these reaches the inner ones."""
        nodes = [node for _, node in self.functions]
        inner = {part for node in nodes for part in ast.walk(node) if part is not node}
        return [node for node in dict.fromkeys(nodes) if node not in inner]

    def codes(self, embedded: Embedded) -> Iterator[tuple[FunctionType, CodeType]]:
        """Yield the functions (at least one) with the code of their definitions as they are."""
        like = self.functions[0][0].__code__
        code = embedded.filled(_compiled(self.tree, like))
        codes = {place(inner): inner for inner in _all_codes(code)}
        yield from ((function, codes[place(function.__code__)]) for function, _ in self.functions)


def functions_of_cells(
    namespace: Mapping[str, Any], cell_labels: Mapping[str, str]
) -> Iterator[FunctionType]:
    """Yield the functions that cells defined, in the namespace and in its classes."""
    for value in list(namespace.values()):
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            yield from (one for one in functions_in(member) if _file(one) in cell_labels)


def source_files(
    functions: Iterable[FunctionType], cell_labels: Mapping[str, str]
) -> Iterator[SourceFile]:
    """Yield the functions with their definitions, file by file."""
    distinct = sorted({id(function): function for function in functions}.values(), key=_file)
    for file, group in groupby(distinct, key=_file):
        of_file = list(group)
        try:
            tree = ast.parse("".join(linecache.getlines(file)), file)
        except (SyntaxError, ValueError):  # it cannot be read any more
            tree = ast.Module([], [])
        nodes = (node for node in ast.walk(tree) if isinstance(node, Definition))
        definitions = {place_of(node): node for node in nodes}
        plain = {place(code): code for code in _all_codes(_compiled(tree, of_file[0].__code__))}
        found: list[tuple[FunctionType, Definition]] = []
        without: list[FunctionType] = []
        for function in of_file:
            where = place(function.__code__)
            same = plain.get(where) == function.__code__ and not _known_to_dynamo(function)
            if same and where in definitions:
                found.append((function, definitions[where]))
            else:
                without.append(function)
        yield SourceFile(cell_labels.get(file, Path(file).name), tree, found, without)


def _file(function: FunctionType) -> str:
    return function.__code__.co_filename


def place(code: CodeType) -> Place:
    """Return the name and the first line of a function's code."""
    return code.co_name, code.co_firstlineno


def place_of(node: Definition) -> Place:
    """Return the `place` of the code that a definition makes."""
    return node.name, first_line(node)


def first_line(node: Definition) -> int:
    """Return the first line of the function's code: a decorator's, where there is one."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _compiled(tree: ast.Module, like: CodeType) -> CodeType:
    flags = (like.co_flags & _FUTURE) | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code: CodeType = compile(tree, like.co_filename, "exec", flags, dont_inherit=True)
    return code


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    for inner in codes_in(code):
        yield inner
        yield from _all_codes(inner)


def _known_to_dynamo(function: FunctionType) -> bool:
    """Whether torch.compile has compiled this function: other code would make it compile again."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and bool(dynamo._debug_get_cache_entry_list(function.__code__))


class CodeSwap:
    """Exchanges plain code for changed code and back, and knows the marks in changed code."""

    def __init__(self) -> None:
        # By the id of the changed code: codes are slow to hash, and equal if their content is.
        self._plain: dict[int, tuple[CodeType, CodeType, LineMarks | None]] = {}
        self._files: set[str] = set()
        self._functions: WeakSet[FunctionType] = WeakSet()
        self._references: list[tuple[int, int]] = []
        self.compiled: dict[str, None] = {}
        """Names of the functions whose plain code a compiler has read, in order."""

    def add(self, marked: CodeType, plain: CodeType, marks: LineMarks | None = None) -> None:
        """Add a code and those inside it; raises a `ValueError` where they do not match."""
        for changed, original in code_pairs(marked, plain):
            self._plain[id(changed)] = changed, original, marks
        self._files.add(marked.co_filename)
        self._references = self._count_references()
        if not _swaps:
            for module in READERS.keys() & sys.modules.keys():
                _replace(sys.modules[module])
            sys.meta_path.insert(0, _at_import)
        if self not in _swaps:
            _swaps.append(self)

    def add_cell(self, cell: CellCode, marks: LineMarks | None = None) -> None:
        """Add the codes of a cell that were rewritten."""
        for marked, plain in zip((cell.statements, cell.last), cell.plain, strict=True):
            if marked is not None and plain is not None:
                self.add(marked, plain, marks)

    def put(self, function: FunctionType, marked: CodeType, marks: LineMarks | None = None) -> None:
        """Add a function's changed code, and give it to the function."""
        self.add(marked, function.__code__, marks)
        function.__code__ = marked
        self._functions.add(function)
        self._references = []

    def marks_of(self, code: CodeType) -> LineMarks | None:
        """Return the marks in a code, if it has regions."""
        known = self._plain.get(id(code))
        return known[2] if known is not None else None

    def take(self) -> None:
        """Give every living function its plain code, however it got the changed one."""
        if self in _swaps:
            _swaps.remove(self)
            if not _swaps:
                sys.meta_path.remove(_at_import)
                while _replaced:
                    setattr(*_replaced.pop())
        if self._count_references() == self._references:
            return  # no function has it: searching all objects takes tens of milliseconds
        # The collector does not list objects that gc.freeze() has put apart.
        for candidate in (*self._functions, *gc.get_objects()):
            if type(candidate) is FunctionType and candidate.__code__.co_filename in self._files:
                plain = self.plain_of(candidate.__code__)
                if plain is not None:
                    candidate.__code__ = plain

    def _count_references(self) -> list[tuple[int, int]]:
        """Return the reference counts of functions' codes; those of comprehensions do not stay."""
        return [
            (sys.getrefcount(marked), sys.getrefcount(marked.co_consts))
            for marked, _, _ in self._plain.values()
            if marked.co_name == "<lambda>" or not marked.co_name.startswith("<")
        ]

    def plain_of(self, code: CodeType) -> CodeType | None:
        """Return the plain code of a changed one; None for any other code."""
        known = self._plain.get(id(code))
        if known is not None:
            return known[1]
        for marked, plain, _ in self._plain.values():
            # types.coroutine gives a function a copy of its code with another flag.
            if code.co_consts is marked.co_consts and code.co_name == marked.co_name:
                return plain.replace(co_flags=code.co_flags)
        return None


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

_swaps: list[CodeSwap] = []
"""Those whose plain code compilers read, as long as there is any."""

_replaced: list[tuple[Any, str, Any]] = []


def _replace(module: ModuleType) -> None:
    for path in READERS[module.__name__]:
        owner, _, name = path.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        # Private names, which may disappear: then the compiler meets the regions.
        if (reader := getattr(holder, name, None)) is not None:
            _replaced.append((holder, name, reader))
            setattr(holder, name, _reads_plain(reader))


def _reads_plain(reader: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(reader)
    def read(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return reader(*map(_plain, args[:2]), *args[2:], **kwargs)

    return read


def _plain(value: Any) -> Any:
    """Return what to read in place of this; a function has its plain code from now on."""
    if isinstance(value, CodeType):
        for swap in _swaps:
            if (plain := swap.plain_of(value)) is not None:
                swap.compiled[plain.co_qualname] = None
                value = plain
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
        spec = PathFinder.find_spec(name, path, target) if name in READERS else None
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if _swaps:
                    _replace(module)

            loader.exec_module = exec_module
        return spec


_at_import = _AtImport()
