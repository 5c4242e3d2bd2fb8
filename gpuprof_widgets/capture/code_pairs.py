"""Rewritten code beside the plain code of the same source: which inner code is which."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType


def code_pairs(marked: CodeType, plain: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The two codes, and those of the functions in them, which are the same in the same order."""
    if (marked.co_name, marked.co_firstlineno) != (plain.co_name, plain.co_firstlineno):
        raise ValueError(f"{marked.co_name} is not {plain.co_name}")
    yield marked, plain
    for mine, theirs in zip(codes_in(marked), codes_in(plain), strict=True):
        yield from code_pairs(mine, theirs)


def codes_in(code: CodeType) -> list[CodeType]:
    """The codes of the functions and classes that this code defines."""
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
