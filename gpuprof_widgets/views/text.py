"""Text that has to fit into a given room, and text of a trace as HTML has it."""

from __future__ import annotations

import re
from html import escape
from itertools import accumulate
from textwrap import wrap

from rich.cells import cell_len

from gpuprof_widgets.printable import SOURCE, printable

TEXT_WIDTH = 79
_FORMULA_MARK = re.compile(r"[$\\]")


def shortened(text: str, width: int) -> str:
    """The text, with its middle left out where it is too wide: both ends tell ops apart.

    ``width``: columns of a terminal, of which wide characters take two.
    """
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{_head(text, width - 1 - tail)}…{_head(text[::-1], tail)[::-1]}"


def _head(text: str, width: int) -> str:
    """The characters with which a text begins that fit into the width."""
    ends = accumulate(map(cell_len, text[:width]))
    return text[: sum(end <= width for end in ends)]


def wrapped(text: str, *, first: str = "", then: str = "") -> list[str]:
    """Lines of prose below 80 columns, with what stands before the first and before the others."""
    shown = printable(text, keep=SOURCE)
    return wrap(shown, TEXT_WIDTH, initial_indent=first, subsequent_indent=then)


def escaped(text: str) -> str:
    """The text as HTML that shows it: without markup, formulas, control codes, turned direction.

    Notebooks typeset what stands between dollars, and MathJax reads links and styles there; it
    finds no formula whose marks are elements of their own.
    """
    return _FORMULA_MARK.sub(r"<span>\g<0></span>", escape(printable(text, keep=SOURCE)))
