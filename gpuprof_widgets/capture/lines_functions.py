"""Functions have regions in their code while a profile records, and their own code after it."""

from __future__ import annotations

import gc
from types import CodeType, FunctionType

from gpuprof_widgets.capture.code_pairs import code_pairs
from gpuprof_widgets.capture.lines_regions import LineMarks


class CodeSwap:
    """Which code with regions stands for which plain code, and whose marks it has."""

    def __init__(self) -> None:
        # By the id of the first: codes of equal content are equal, and slow to hash.
        self._plain: dict[int, tuple[CodeType, CodeType, LineMarks]] = {}

    def add(self, marked: CodeType, plain: CodeType, marks: LineMarks) -> None:
        """Take note of a code and of those inside it; a `ValueError` where they do not match."""
        pairs = list(code_pairs(marked, plain))
        self._plain.update({id(mine): (mine, theirs, marks) for mine, theirs in pairs})

    def marks_of(self, code: CodeType) -> LineMarks | None:
        """The marks in a code, if it is one with regions."""
        known = self._plain.get(id(code))
        return known[2] if known is not None else None

    def take(self) -> None:
        """Give every function alive its plain code, however it came by the other."""
        if not self._plain:
            return
        for one in gc.get_objects():
            if type(one) is FunctionType and id(one.__code__) in self._plain:
                one.__code__ = self._plain[id(one.__code__)][1]
