"""Functions have changed code while a profile records, and their own code after it."""

from __future__ import annotations

import gc
import sys
from types import CodeType, FunctionType

from gpuprof_widgets.capture.code_pairs import code_pairs
from gpuprof_widgets.capture.lines.dynamo import read_any, read_plain
from gpuprof_widgets.capture.lines.regions import LineMarks


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
