"""The rows of a call tree as they are printed: where in the tree each of them stands."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

TREE = frozenset({"node", "parent", "depth", "name"})
"""Columns of a table whose rows are the nodes of a tree."""

INDENT = "  "
DEEPEST = 200
BETWEEN, LEFT_OUT = " > ", "…"

LONGEST_PATH = 5
"""Names that are printed of a path, its last ones: Python's may have a hundred."""


def with_paths(shown: pd.DataFrame, table: pd.DataFrame, *, is_sorted: bool) -> pd.DataFrame:
    """The rows with names that say where they stand; other tables as they are.

    In the order of the tree names are indented. Rows that are sorted have lost their parents from
    above them: those have their path. ``table`` has all the nodes.
    """
    if not set(table.columns) >= TREE:
        return shown
    if not is_sorted:
        depths = zip(shown["depth"], shown["name"], strict=True)
        return shown.assign(name=[_indented(depth, str(name)) for depth, name in depths])
    parent = dict(zip(table["node"], table["parent"], strict=True))
    name = dict(zip(table["node"], table["name"], strict=True))
    return shown.assign(name=[_path(node, parent, name) for node in shown["node"]])


def _indented(depth: int, name: str) -> str:
    """The name below its caller's; beyond the deepest indent it says how much deeper it is."""
    deeper = f"(+{depth - DEEPEST}) " if depth > DEEPEST else ""
    return INDENT * min(depth, DEEPEST) + deeper + name


def _path(node: int, parent: Mapping[int, int], name: Mapping[int, str]) -> str:
    """The names that lead to the node, without the root's."""
    names = [str(name[node])]
    above = parent[node]
    while above >= 0 and parent[above] >= 0:
        names.insert(0, LEFT_OUT if len(names) == LONGEST_PATH else str(name[above]))
        if len(names) > LONGEST_PATH:
            break
        above = parent[above]
    return BETWEEN.join(names)
