"""Text from a trace as a terminal may have it: shown, never interpreted."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control, format and unassigned characters written out, escape codes among them.

    Names in traces are other people's: an escape sequence would colour, move or title the terminal.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _written_out(each) for each in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
