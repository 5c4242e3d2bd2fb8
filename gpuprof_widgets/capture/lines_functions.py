"""Functions have regions in their code while a profile records, and their own code after it."""

from __future__ import annotations

import gc
from types import CodeType, FunctionType
from weakref import WeakSet, ref

from gpuprof_widgets.capture.code_pairs import code_pairs

chosen: WeakSet[FunctionType] = WeakSet()
"""The functions marked with `gpuprof_widgets.lines`."""


class CodeSwap:
    """Which code with regions stands for which plain code, and the functions that have it."""

    def __init__(self) -> None:
        self._plain: dict[int, tuple[CodeType, CodeType]] = {}  # by the id of the first
        self._had: list[tuple[ref[FunctionType], CodeType]] = []

    def add(self, marked: CodeType, plain: CodeType) -> None:
        """Take note of a code and of those inside it; a `ValueError` where they do not match."""
        pairs = list(code_pairs(marked, plain))
        self._plain.update({id(mine): (mine, theirs) for mine, theirs in pairs})

    def put(self, function: FunctionType, marked: CodeType) -> None:
        """Give a function its code with regions."""
        function.__code__ = marked

    def put_again(self) -> None:
        """The same for the functions from which it was taken: for the next window."""
        for known, marked in self._had:
            function = known()
            if function is not None and function.__code__ is self._plain[id(marked)][1]:
                function.__code__ = marked
        self._had = []

    def take(self) -> None:
        """Give every function alive its plain code, however it came by the other."""
        if not self._plain:
            return
        for one in gc.get_objects():
            if type(one) is FunctionType and id(one.__code__) in self._plain:
                marked, plain = self._plain[id(one.__code__)]
                one.__code__ = plain
                self._had.append((ref(one), marked))
