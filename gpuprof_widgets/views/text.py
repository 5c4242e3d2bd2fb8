"""Text that has to fit into a given room."""

from __future__ import annotations


def shortened(text: str, width: int) -> str:
    """The text, with its middle left out where it is too long: both ends tell ops apart."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
