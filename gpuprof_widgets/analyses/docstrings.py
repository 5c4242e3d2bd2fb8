"""The docstrings of analyses, which the help of their commands and docs/analyses.md are made from.

A docstring may have lists below the paragraphs "Options:" and "Columns:" (or "Columns with
``by="kind"``:"). Each item is names in double backticks, a colon and what they mean.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

OPTIONS, COLUMNS = "Options", "Columns"

_ITEM = re.compile(r"^- ((?:``\w+``(?:, )?)+): ", re.MULTILINE)

Items = dict[tuple[str, ...], str]
"""What each group of names means."""


def paragraphs_of(function: Callable[..., Any]) -> list[str]:
    """Return the paragraphs of the docstring; a list is one paragraph."""
    return inspect.cleandoc(function.__doc__ or "").split("\n\n")


def items_of(paragraph: str) -> Items:
    """Return the items of a list; none if it is not a list of names."""
    before, *parts = _ITEM.split(re.sub(r"\n +", " ", paragraph))
    if before or not parts:
        return {}
    return {
        tuple(re.findall(r"\w+", names)): meaning.strip()
        for names, meaning in zip(parts[::2], parts[1::2], strict=True)
    }


def lists_of(function: Callable[..., Any], kind: str) -> dict[str, Items]:
    """Return the lists of options or columns, by the paragraph above each."""
    paragraphs = paragraphs_of(function)
    return {
        above: items_of(listed)
        for above, listed in pairwise(paragraphs)
        if above.startswith(kind) and above.endswith(":")
    }


def meanings_of(function: Callable[..., Any], kind: str) -> dict[str, str]:
    """Return what each option or column means, by its name; of several lists the first counts."""
    meanings: dict[str, str] = {}
    for items in lists_of(function, kind).values():
        for names, meaning in items.items():
            meanings |= {name: meaning for name in names if name not in meanings}
    return meanings
