"""Collapsed stacks: a line per call path and its self time in ns, which flamegraph.pl draws.

The format is that of Brendan Gregg's FlameGraph (stackcollapse-*.pl): names from the outside in
with semicolons between, a space, a number. It has no way to write a semicolon or a line's end in a
name: they become a comma and a space.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

_CLEAN = {ord(";"): ","} | dict.fromkeys([*range(32), 127, 0x85, 0x2028, 0x2029], " ")
UNNAMED = "(no name)"


def collapsed_stacks(tree: pd.DataFrame) -> Iterator[bytes]:
    """The lines of a call tree (``depth``, ``name``, ``self_ns``; each node before all below it).

    The root itself is no frame; time that is its own stands under its name alone.
    """
    path: list[str] = []  # one at a time: those of a deep tree together are as long as its square
    columns = (tree["depth"].tolist(), tree["name"].tolist(), tree["self_ns"].tolist())
    for depth, name, self_ns in zip(*columns, strict=True):
        path[depth:] = [frame_text(str(name))]
        if self_ns > 0:
            yield f"{';'.join(path[1:] or path)} {self_ns}\n".encode("utf-8", "backslashreplace")


def frame_text(name: str) -> str:
    """A name as the format can hold it."""
    return name.translate(_CLEAN).strip() or UNNAMED
