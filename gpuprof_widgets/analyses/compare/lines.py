"""The lines of two runs matched by their text, and their call paths matched by names.

Lines of equal text are the same line, wherever they stand now. An edited line is one line that only
A has, and another that only B has. `source` is the source of both with what its lines took;
`paired_tree` is two call trees as one, with every path of either run and its times in both.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.call_tree import UNLAUNCHED_CATEGORY, call_tree, flame_source
from gpuprof_widgets.analyses.compare import measured
from gpuprof_widgets.analyses.compare.measured import Pairs, cell_of
from gpuprof_widgets.analyses.compare.tables import ADDED, GONE, SAME, Runs, by_measure
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.owners import line_sources
from gpuprof_widgets.analyses.reasons import says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE

Place = tuple[str, int]
"""A cell and the number of a line."""

NOWHERE: Place = ("", NONE)

MAGIC = "%%gpuprofile"


@remembered
@says_if_empty("neither run has cell lines: they were recorded without")
def lines(runs: Runs, measure: str | None) -> pd.DataFrame:
    """Compare cell lines by their text, those without a text by their number.

    Columns: ``cell`` (b's, else a's), ``code``, ``line_a``, ``line_b`` (-1 where a run has no such
    line), and those of `deltas`.
    """
    pairs = line_pairs(runs)

    def pairing(a: pd.DataFrame, b: pd.DataFrame) -> Pairs:
        rows = []
        for side, keys in (("a", a), ("b", b)):
            places = pd.MultiIndex.from_frame(pairs[[f"cell_{side}", f"line_{side}"]])
            row_of = dict(zip(places, range(len(pairs)), strict=True))
            here = zip(keys["cell"].astype(str), keys["line"], strict=True)
            rows.append(np.array([row_of[place] for place in here], np.int64))
        names = pairs[["cell", "code", "line_a", "line_b"]]
        return Pairs(names.assign(code=names["code"].str.strip()), *rows)

    return by_measure(runs, measure, measured.lines, pairing)


@remembered
@says_if_empty("not both runs have the source of a cell: it was not recorded")
def source(runs: Runs) -> pd.DataFrame:
    """Return the lines of the source in the order of the text, those of A alone where they stood.

    Columns: ``cell`` (b's, else a's), ``line_a``, ``line_b`` (-1 where a run has no such line),
    ``code`` (with its indentation), ``source`` ("same", "added", "gone"), ``a_ns``, ``b_ns``: wall
    self times per step or of the run, as in `lines`, NaN for a line that did not run; ``delta_ns``.
    Cells and functions that only one run recorded are left out, but for the cell that was run.
    """
    pairs = line_pairs(runs)
    shared = pairs[(pairs["line_a"] != NONE) & (pairs["line_b"] != NONE)]
    of_both = pairs["cell_a"].isin({*shared["cell_a"], cell_of(runs.a)} - {""})
    of_both |= pairs["cell_b"].isin({*shared["cell_b"], cell_of(runs.b)} - {""})
    if not all(any(each.text for each in line_sources(run)) for run in (runs.a, runs.b)):
        of_both[:] = False
    keys = ["cell", "line_a", "line_b"]
    times = lines(runs, "cpu_self")[[*keys, "a_ns", "b_ns", "delta_ns"]]
    table = pairs.loc[of_both, [*keys, "code"]].merge(times, how="left", on=keys)
    in_a, in_b = table["line_a"] != NONE, table["line_b"] != NONE
    table = table.assign(
        source=np.select([~in_a, ~in_b], [ADDED, GONE], SAME),
        a_ns=table["a_ns"].where(in_a),
        b_ns=table["b_ns"].where(in_b),
    )
    return table[[*keys, "code", "source", "a_ns", "b_ns", "delta_ns"]]


def edits(runs: Runs) -> pd.DataFrame:
    """Return the lines of `source` that only one run has."""
    table = source(runs)
    return table[table["source"] != SAME]


def is_same_code(runs: Runs) -> bool:
    """Whether both runs have the source of all their lines, and it is the same, line by line."""
    texts = []
    for run in (runs.a, runs.b):
        by_cell: dict[str, list[str]] = {}
        for (cell, _), text in _texts(run).items():
            by_cell.setdefault(cell, []).append(text)
        texts.append(sorted(by_cell.values()))
    return _has_source(runs.a) and _has_source(runs.b) and texts[0] == texts[1] != []


def _has_source(run: Record) -> bool:
    """Whether the source of all cells is known whose lines ran."""
    cells = {each.name for each in line_sources(run) if each.text}
    return cells >= {cell for cell, _ in _texts(run)}


def lacks_text(run: Record) -> bool:
    """Whether lines ran whose text the record lacks, as that of a redacted profile."""
    return bool((cell_lines(run.trace).lines["code"] == "").any())


@remembered
def line_pairs(runs: Runs) -> pd.DataFrame:
    """Return a row per line of either run: in B's order, those of A alone where they stood.

    Columns: ``cell`` (b's, else a's), ``code``, ``cell_a``, ``line_a``, ``cell_b``, ``line_b``; ""
    and -1 where a run has no such line.
    """
    texts = _texts(runs.a), _texts(runs.b)
    # Only sources have indentations: without one of them these are no difference.
    indented = _has_source(runs.a) and _has_source(runs.b)
    keys = [
        [
            (text if indented else text.strip()) or f"{'' if cell == cell_of(run) else cell}:{line}"
            for (cell, line), text in of_run.items()
        ]
        for run, of_run in zip((runs.a, runs.b), texts, strict=True)
    ]
    in_b = _matched(*keys)
    places_a, places_b = map(list, texts)
    follows: dict[int, list[Place]] = {}  # lines of A alone, by the line of B before them
    counterpart = {}
    before = NONE
    for at_a, place in enumerate(places_a):
        before = in_b.get(at_a, before)
        if at_a in in_b:
            counterpart[before] = place
        else:
            follows.setdefault(before, []).append(place)
    rows = [(of_a, NOWHERE) for of_a in follows.get(NONE, [])]
    for at_b, place in enumerate(places_b):
        rows.append((counterpart.get(at_b, NOWHERE), place))
        rows += [(of_a, NOWHERE) for of_a in follows.get(at_b, [])]
    columns = ["cell", "code", "cell_a", "line_a", "cell_b", "line_b"]
    cells = [
        (of_b[0] or of_a[0], texts[1].get(of_b) or texts[0].get(of_a, ""), *of_a, *of_b)
        for of_a, of_b in rows
    ]
    table = pd.DataFrame(cells, columns=columns, dtype=object)
    return table.astype({"line_a": np.int64, "line_b": np.int64})


def _matched(a: Sequence[str], b: Sequence[str]) -> dict[int, int]:
    """Return for each line of a its counterpart in b: as diff pairs them, then what moved."""
    pairs: dict[int, int] = {}
    left_a, left_b = list(range(len(a))), list(range(len(b)))
    while True:
        texts = [a[at] for at in left_a], [b[at] for at in left_b]
        blocks = difflib.SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks()
        equal = {
            left_a[at_a + n]: left_b[at_b + n] for at_a, at_b, size in blocks for n in range(size)
        }
        if not equal:
            return pairs
        pairs |= equal
        left_a = [at for at in left_a if at not in pairs]
        left_b = sorted({*left_b} - {*equal.values()})


def _texts(run: Record) -> dict[Place, str]:
    """Return the text of each line by its place: of the source, else of what ran, "" if unknown.

    Without empty lines and the line of the magic.
    """
    texts = {
        (each.name, each.first + number): text.rstrip()
        for each in line_sources(run)
        for number, text in enumerate(each.text)
        if text.strip() and not text.startswith(MAGIC)
    }
    ran = cell_lines(run.trace).lines.sort_values(["cell", "line"])
    for cell, line, code in zip(ran["cell"].astype(str), ran["line"], ran["code"], strict=True):
        texts.setdefault((cell, int(line)), str(code).strip())
    return texts


TREE_COLUMNS = (
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
    columns: dict[str, Any] = {
        "node": np.arange(len(nodes), dtype=np.int32),
        "parent": parent,
        "depth": links.depths(parent),
        "name": pd.Series(names, dtype=object),
        "category": pd.Series(categories, dtype=object),
        "delta_ns": sums[:, 1, 1] - sums[:, 1, 0],
        "width_ns": links.subtree_sum(sums[:, 2].max(axis=1), parent),
    }
    for number, text in enumerate(("calls_{}", "{}_ns", "self_{}_ns", "device_{}_ns")):
        for side, run in enumerate("ab"):
            columns[text.format(run)] = sums[:, number, side]
    return pd.DataFrame(columns)[list(TREE_COLUMNS)]


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
