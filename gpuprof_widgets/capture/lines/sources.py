"""Functions that were defined before: their source rewritten, and compiled as it was."""

from __future__ import annotations
import __future__

import ast
import gc
import linecache
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from itertools import groupby
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from gpuprof_widgets.capture.code import Embedded, code_pairs, codes_in
from gpuprof_widgets.capture.lines.compiled import compiled_definitions, read_any, read_plain
from gpuprof_widgets.capture.lines.regions import LineMarks

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
Definition = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[str, int]


@dataclass(frozen=True)
class SourceFile:
    """Functions of one file: the definitions of those whose source is still what they run.

    ``without`` are the others, and those that a compiler reads.
    """

    label: str
    tree: ast.Module
    compiled: set[ast.AST]
    functions: list[tuple[FunctionType, Definition]]
    without: list[FunctionType]

    @property
    def outermost(self) -> list[Definition]:
        """Those that are not inside of another: what changes it reaches them."""
        nodes = [node for _, node in self.functions]
        inner = {each for node in nodes for each in ast.walk(node) if each is not node}
        return [node for node in dict.fromkeys(nodes) if node not in inner]

    def codes(self, embedded: Embedded) -> Iterator[tuple[FunctionType, CodeType]]:
        """The functions with the code of their definitions as these are now."""
        if not self.functions:
            return
        like = self.functions[0][0].__code__
        every = _all_codes(embedded.filled(_compiled(self.tree, like)))
        codes = {_place(code): code for code in every}
        yield from ((function, codes[_place(function.__code__)]) for function, _ in self.functions)


def functions_of_cells(
    namespace: Mapping[str, Any], cell_labels: Mapping[str, str]
) -> Iterator[FunctionType]:
    """The functions in the namespace, and those in its classes, that a cell has defined."""
    for value in list(namespace.values()):
        found = list(vars(value).values()) if isinstance(value, type) else [value]
        for one in found:
            for function in _functions_of(one):
                if _file(function) in cell_labels:
                    yield function


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """The function that a value is or wraps, and those that decorators have wrapped in it."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    while isinstance(value, (FunctionType, _lru_cache_wrapper)):
        if isinstance(value, FunctionType):
            yield value
        value = vars(value).get("__wrapped__")


def source_files(
    functions: Iterable[FunctionType],
    cell_labels: Mapping[str, str],
    statements: Iterable[ast.stmt] = (),
) -> Iterator[SourceFile]:
    """The functions with their definitions, file by file.

    ``statements`` are those of the code that is to run, which may compile some of them.
    """
    distinct = sorted({id(one): one for one in functions}.values(), key=_file)
    if not distinct:
        return
    trees = {file: _tree(file) for file in {*map(_file, distinct), *cell_labels}}
    # What one cell defines another compiles.
    every = [statement for tree in trees.values() for statement in tree.body]
    every += statements
    compiled = {inner for node in compiled_definitions(every) for inner in ast.walk(node)}
    for file, group in groupby(distinct, key=_file):
        of_file = list(group)
        usable = _usable(of_file, trees[file], compiled)
        places = [(one, usable.get(_place(one.__code__))) for one in of_file]
        yield SourceFile(
            cell_labels.get(file, Path(file).name),
            trees[file],
            compiled,
            [(one, node) for one, node in places if node is not None],
            [one for one, node in places if node is None],
        )


def _tree(file: str) -> ast.Module:
    """The syntax of a file, empty where it cannot be read any more."""
    try:
        return ast.parse("".join(linecache.getlines(file)), file)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _file(function: FunctionType) -> str:
    return function.__code__.co_filename


def _usable(
    functions: list[FunctionType], tree: ast.Module, compiled: set[ast.AST]
) -> dict[Place, Definition]:
    """The definitions of the functions whose source is still what they run.

    Not those that a compiler reads, and has perhaps read already.
    """
    definitions = {
        (node.name, first_line(node)): node
        for node in ast.walk(tree)
        if isinstance(node, Definition) and node not in compiled
    }
    plain = {_place(one): one for one in _all_codes(_compiled(tree, functions[0].__code__))}
    places = [
        _place(one.__code__)
        for one in functions
        if plain.get(_place(one.__code__)) == one.__code__ and not _known_to_dynamo(one)
    ]
    return {place: definitions[place] for place in places if place in definitions}


def _place(code: CodeType) -> Place:
    return code.co_name, code.co_firstlineno


def first_line(node: Definition) -> int:
    """The line that the code has as its first: a decorator's, where there is one."""
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
    """Whether torch.compile has compiled this function: other code would be compiled again."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    return bool(dynamo._debug_get_cache_entry_list(function.__code__))


class CodeSwap:
    """Which changed code stands for which plain code, and whose marks it has, if any."""

    def __init__(self) -> None:
        # By the id of the first: codes of equal content are equal, and slow to hash.
        self._plain: dict[int, tuple[CodeType, CodeType, LineMarks | None]] = {}
        self._files: set[str] = set()
        self._references: list[tuple[int, int]] = []
        self.compiled: dict[str, None] = {}
        """Names of the functions whose plain code torch.compile has read, in that order."""

    def add(self, marked: CodeType, plain: CodeType, marks: LineMarks | None = None) -> None:
        """Take note of a code and of those inside it; a `ValueError` where they do not match."""
        self._plain.update(
            {id(mine): (mine, theirs, marks) for mine, theirs in code_pairs(marked, plain)}
        )
        self._files.add(marked.co_filename)
        self._references = self._count_references()
        read_plain(self._read)

    def put(self, function: FunctionType, marked: CodeType) -> None:
        """Give a function its changed code."""
        function.__code__ = marked
        self._references = []

    def marks_of(self, code: CodeType) -> LineMarks | None:
        """The marks in a code, if it is one with regions."""
        known = self._plain.get(id(code))
        return known[2] if known is not None else None

    def take(self) -> None:
        """Give every function alive its plain code, however it came by the other."""
        read_any(self._read)
        if self._count_references() == self._references:
            return  # none was made, or none is left: looking for them takes tens of milliseconds
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename in self._files:
                plain = self._plain_of(one.__code__)
                if plain is not None:
                    one.__code__ = plain

    def _count_references(self) -> list[tuple[int, int]]:
        """Of the codes that functions can have: not those of comprehensions, which do not stay."""
        return [
            (sys.getrefcount(marked), sys.getrefcount(marked.co_consts))
            for marked, _, _ in self._plain.values()
            if marked.co_name == "<lambda>" or not marked.co_name.startswith("<")
        ]

    def _read(self, code: CodeType) -> CodeType:
        """What torch.compile reads in place of this code."""
        plain = self._plain_of(code)
        if plain is None:
            return code
        self.compiled[plain.co_qualname] = None
        return plain

    def _plain_of(self, code: CodeType) -> CodeType | None:
        known = self._plain.get(id(code))
        if known is not None:
            return known[1]
        for marked, plain, _ in self._plain.values():
            # types.coroutine gives a function a copy of its code with another flag.
            if code.co_consts is marked.co_consts and code.co_name == marked.co_name:
                return plain.replace(co_flags=code.co_flags)
        return None
