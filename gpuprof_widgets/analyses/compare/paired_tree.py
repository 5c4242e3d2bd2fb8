"""Two call trees as one: every path of either run, with its times in both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.call_tree import UNLAUNCHED_CATEGORY, call_tree, flame_source
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE

COLUMNS = (
    *("node", "parent", "depth", "name", "category"),
    *("calls_a", "calls_b", "a_ns", "b_ns", "delta_ns", "self_a_ns", "self_b_ns"),
    *("device_a_ns", "device_b_ns", "width_ns"),
)
THREAD = "thread"

_LINE = re.compile(r"^\d+: ")
_FRAME = re.compile(r"\(\d+\)(?=: )")

SUMMED = ("calls", "total_ns", "self_ns", "device_ns")


def paired_tree(a: Record, b: Record, *, source: str | None = None) -> pd.DataFrame:
    """Return one row per path of names in either run, parents before children; row 0 is the root.

    ``source``: as for `call_tree`; None takes "ops" if both runs have any, else the source of a's
    flame graph. Paths are matched by names: cell lines and Python frames without line numbers,
    threads without numbers in their labels and, if several have the same label, in the order of
    their times. If one run has a single thread, its paths are matched with the other's busiest one.

    Columns: ``node``, ``parent``, ``depth``, ``name`` (b's, else a's), ``category``; of either run
    ``calls_``, ``a_ns`` and ``b_ns`` (total), ``self_``, ``device_`` as in `call_tree`;
    ``delta_ns`` (b less a); ``width_ns``: the longer of the two self times plus the widths of the
    children, so that the nodes of both runs have room.
    """
    if source is None:
        has_ops = all((run.trace.tracks["kind"] == "cpu").any() for run in (a, b))
        source = "ops" if has_ops else flame_source(a)
    trees = [call_tree(record, source=source) for record in (a, b)]
    if len({_has_threads(tree) for tree in trees}) > 1:
        trees = [tree if _has_threads(tree) else _with_thread(tree) for tree in trees]
    place_of: dict[tuple[int, str, str, int], int] = {}
    nodes: list[tuple[int, str, str]] = []
    places = [_places_of_nodes(tree, place_of, nodes) for tree in trees]
    parents, names, categories = zip(*nodes, strict=True)
    parent = np.array(parents, np.int32)
    sums = np.zeros((len(nodes), len(SUMMED), 2), np.int64)
    for side, tree in enumerate(trees):
        np.add.at(sums[:, :, side], places[side], tree[list(SUMMED)].to_numpy(np.int64))
    depth, width = np.zeros(len(nodes), np.int32), sums[:, 2].max(axis=1)
    for node in range(1, len(nodes)):
        depth[node] = depth[parent[node]] + 1
    for node in range(len(nodes) - 1, 0, -1):
        width[parent[node]] += width[node]
    columns: dict[str, Any] = {
        "node": np.arange(len(nodes), dtype=np.int32),
        "parent": parent,
        "depth": depth,
        "name": pd.Series(names, dtype=object),
        "category": pd.Series(categories, dtype=object),
        "delta_ns": sums[:, 1, 1] - sums[:, 1, 0],
        "width_ns": width,
    }
    for number, text in enumerate(("calls_{}", "{}_ns", "self_{}_ns", "device_{}_ns")):
        for side, run in enumerate("ab"):
            columns[text.format(run)] = sums[:, number, side]
    return pd.DataFrame(columns)[list(COLUMNS)]


def _places_of_nodes(
    tree: pd.DataFrame,
    place_of: dict[tuple[int, str, str, int], int],
    nodes: list[tuple[int, str, str]],
) -> list[int]:
    """Return per node of the tree the place of its path among ``nodes``, to which new ones go."""
    places: list[int] = []
    threads = _thread_ranks(tree.to_dict("records"))
    for number, (parent, name, category) in enumerate(
        zip(tree["parent"], tree["name"].astype(str), tree["category"].astype(str), strict=True)
    ):
        above = places[parent] if number else NONE
        common, rank = threads.get(number, (path_name(name, category), 0))
        place = place_of.setdefault((above, common, category, rank), len(nodes))
        nodes[place : place + 1] = [(above, name, category)]
        places.append(place)
    return places


def path_name(name: str, category: str) -> str:
    """Return the name without the line number of a cell line or frame, which may have moved."""
    if category == "cell_line":
        return _LINE.sub("", name)
    return _FRAME.sub("", name) if category == "python_function" else name


def _has_threads(tree: pd.DataFrame) -> bool:
    return bool((tree["category"].to_numpy()[1:] == THREAD).any())


def _with_thread(tree: pd.DataFrame) -> pd.DataFrame:
    """Return the tree of one thread with a node for the thread below the root."""
    root, below = tree.iloc[:1], tree.iloc[1:]
    ran = (below["category"] != UNLAUNCHED_CATEGORY).to_numpy()
    if not ran.any():
        return tree
    launched_ns = root["device_ns"] - below["device_ns"][~ran].sum()
    thread = root.assign(parent=0, depth=1, name="thread", category=THREAD, device_ns=launched_ns)
    below = below.assign(parent=below["parent"] + ran, depth=below["depth"] + ran)
    moved = pd.concat([root, thread, below], ignore_index=True)
    return moved.assign(node=np.arange(len(moved)))


def _thread_ranks(nodes: Sequence[dict[Any, Any]]) -> dict[int, tuple[str, int]]:
    """Return each thread node's label without numbers and its rank among threads of that label.

    Threads are ranked by time: the busiest ones of both runs are a pair.
    """
    threads = [
        (number, node) for number, node in enumerate(nodes) if number and node["category"] == THREAD
    ]
    threads.sort(key=lambda pair: -int(pair[1]["total_ns"]))
    seen: dict[str, int] = {}
    ranks = {}
    for number, node in threads:
        label = re.sub(r"\d+", "", str(node["name"])).partition("(")[0].strip()
        ranks[number] = (label, seen.setdefault(label, 0))
        seen[label] += 1
    return ranks
