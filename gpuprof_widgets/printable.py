"""Text from a trace as a reader may have it: shown, never interpreted.

Names in traces are other people's. An escape sequence would colour, move or title a terminal, a
bidi control would let a line read otherwise than it is, and half of a surrogate pair cannot be
written to a file at all. What is on a page needs its markup escaped besides (`views.text`).
"""

from __future__ import annotations

from typing import Any
from unicodedata import category

LINES = "\n"
SOURCE = "\n\t"


def printable(text: str, *, keep: str = "") -> str:
    """The text with control, format and unassigned characters written out, but for those to keep.

    What counts is `str.isprintable`, to which spaces of all widths are added: written out are
    escape codes, bidi controls, characters without width and halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(c if _prints(c) or c in keep else _written_out(c) for c in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines."""
    return printable(text, keep=LINES)


def printable_values(value: Any) -> Any:
    """All texts in what JSON can hold, keys as well; in source code tabs and line ends stay."""
    if isinstance(value, str):
        return printable(value, keep=SOURCE)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(given) for key, given in value.items()}
    if isinstance(value, list | tuple):
        return list(map(printable_values, value))
    return value


def _prints(character: str) -> bool:
    return character.isprintable() or category(character) == "Zs"


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
