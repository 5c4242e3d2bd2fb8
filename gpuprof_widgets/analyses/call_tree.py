"""The merged call tree behind the flame graph: equal paths become one node.

A path has two times: the CPU's, in which it ran, and the GPU's, which it caused. GPU work that
nothing in the tree launched has a node of its own, so that the GPU time adds up as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.operators import INSTANTS
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.reasons import LACKS, NO_TIMES, of_the_whole_run
from gpuprof_widgets.analyses.regions import names_with_steps_merged
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.schema import NONE, SAMPLED

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

COLUMNS = (
    "node",
    "parent",
    "depth",
    "name",
    "category",
    "calls",
    "total_ns",
    "self_ns",
    "device_ns",
    "device_self_ns",
)
ROOT = "all threads"

UNLAUNCHED = "GPU work without a launch in the trace"
"""The node beside the threads that has what no path caused."""
UNLAUNCHED_CATEGORY = "unlaunched"

TIMES = {"cpu": "total_ns", "device": "device_ns"}
"""What a path may be as wide as."""

NO_GPU_TIME = "the trace has no GPU work that took time"


def call_tree(record: Record, *, source: str | None = None, time: str = "cpu") -> pd.DataFrame:
    """One row per path of names, each followed by what is below it, the longest first.

    That is what the flame graph draws. The steps of a profiler are one ``ProfilerStep*``, as in the
    op table.

    ``source``: "ops" (ops, annotations and runtime calls by nesting), "merged" (Python frames and
    ops nested together), "cprofile" (an estimate: cProfile has no timestamps); None: the flame
    graph's, which is "merged" with recorded frames, "cprofile" without any op. ``time``: "cpu" or
    "device", by which the longest is first; with "device" paths that caused no GPU time are left
    out, and cProfile, which knows of none, is no source.

    Columns: ``node`` (the row), ``parent`` (-1 for the root, row 0), ``depth``, ``name``,
    ``category`` ("thread" for the level of threads, which is there only if several have any),
    ``calls``, ``total_ns`` (``self_ns`` and the totals of the children: they add up exactly, widths
    too), ``self_ns``, ``device_ns`` (GPU time launched by the node and all below it),
    ``device_self_ns`` (by the node itself).

    GPU time is that of kernels, copies and memsets, summed over streams and GPUs. What nothing in
    the tree launched is a child of the root, ``category`` "unlaunched", whose ``calls`` are such
    slices: the root has the GPU time of the whole trace, and the self times add up to it.
    """
    source = flame_source(record, time=time) if source is None else source
    if source not in SOURCES:
        raise OptionError(
            f"unknown source {source!r} of a call tree: it is one of {', '.join(SOURCES)}."
        )
    if time not in TIMES:
        raise OptionError(f"unknown time {time!r} of a call tree: it is one of {', '.join(TIMES)}.")
    if time == "device" and source == "cprofile":
        raise OptionError("cProfile knows of no GPU time: the source of it is ops or merged.")
    tree = _longest_first(SOURCES[source](record), by=TIMES[time])
    if time == "device":
        tree = _with_gpu_time(tree)
    if record.metadata.get(SAMPLED):
        tree.attrs[SAMPLED] = True
    if len(tree) == 1:
        no_calls = f"the trace has no calls to make a tree of (source {source!r})"
        tree.attrs[LACKS] = NO_GPU_TIME if time == "device" else no_calls
    return tree


def _longest_first(tree: pd.DataFrame, *, by: str) -> pd.DataFrame:
    """The same with every node followed by all below it, of several children the longest first."""
    parent = tree["parent"].to_numpy()
    place, _ = links.preorder(parent, -tree[by].to_numpy())
    moved = np.where(parent >= 0, place[parent], NONE).astype(np.int32)
    placed = tree.assign(parent=moved).iloc[np.argsort(place)]
    return placed.assign(node=tree["node"].to_numpy()).reset_index(drop=True)


def _with_gpu_time(tree: pd.DataFrame) -> pd.DataFrame:
    """The root and the nodes that caused GPU time; whoever did is below others that did."""
    kept = (tree["device_ns"] > 0).to_numpy() | (tree["parent"] < 0).to_numpy()
    number = np.append(np.cumsum(kept) - 1, NONE).astype(np.int32)
    left = tree[kept].reset_index(drop=True)
    return left.assign(node=number[:-1][kept], parent=number[left["parent"].to_numpy()])


def flame_source(record: Record, *, time: str = "cpu") -> str:
    """Where the flame graph comes from: Python frames and ops, else ops, else cProfile."""
    kinds = set(record.trace.tracks["kind"])
    if "python" in kinds:
        return "merged"
    only_calls = "cpu" not in kinds and record.calls is not None
    return "cprofile" if only_calls and time == "cpu" else "ops"


def _ops(record: Record) -> pd.DataFrame:
    trace = record.trace
    rows = np.flatnonzero(trace.index.on_tracks("cpu") & ~trace.index.in_category(INSTANTS))
    index = np.full(len(trace) + 1, NONE, np.int32)  # the last one stands for "nobody"
    index[rows] = np.arange(len(rows))
    parent = index[trace.index.parent[rows]]
    open_parent = links.open_above(parent, trace.index.ts[rows], trace.index.end[rows])
    return _merged_paths(trace, rows.astype(np.int32), parent, open_parent, trace.index.track[rows])


def _python_and_ops(record: Record) -> pd.DataFrame:
    trace = record.trace
    rows, parent, lane = merged_parents(trace)
    open_parent, _ = links.nest(trace.index.ts[rows], trace.index.end[rows], lane)
    return _merged_paths(trace, rows, parent, open_parent, lane)


def merged_parents(trace: Trace) -> tuple[Rows, Rows, Rows]:
    """Frames and ops of each thread nested anew; a parent is open at the start and outlasts it.

    Rows of the trace by thread and start, the place of each one's parent among them, the thread
    (its lane). The second condition lifts a `record_function` region out of the frame of its
    ``__enter__``. It goes by the times before a window cut them: at its edge all would begin and
    end together.
    """
    slices = trace.slices
    kept = trace.index.on_tracks("cpu", "python") & ~trace.index.in_category(INSTANTS)
    rows = np.flatnonzero(kept)
    lane = trace.tracks["lane"].to_numpy()[slices["track"].to_numpy()[rows]]
    ts, end = (times[rows] for times in trace.index.uncut)
    is_op = ~trace.index.on_tracks("python")[rows]
    order = np.lexsort((is_op, -end, ts, lane))
    rows, lane, ts, end = rows[order], lane[order], ts[order], end[order]
    parent, _ = links.nest(ts, end, lane)
    # The first ancestor that does not end before it: whatever else lies between had ended.
    around = links.last_above(end, parent + 1, np.maximum(end - 1, ts))
    return rows.astype(np.int32), np.where(lane[around] == lane, around, np.int32(NONE)), lane


def _merged_paths(
    trace: Trace, rows: Rows, parent: Rows, open_parent: Rows, group: Rows
) -> pd.DataFrame:
    """The tree of label paths of these rows, which are sorted by group (thread) and start.

    ``open_parent``: the innermost row that is still open when one starts; it covers that one's
    time, however long it lasts itself.
    """
    index = trace.index
    own = links.self_times(index.ts[rows], index.end[rows], open_parent)
    device, unlaunched = _device_times(trace, rows)
    code, names = names_with_steps_merged(trace)
    label = code[rows].astype(np.int64) * len(index.categories) + index.column("category")[rows]
    threads, thread = np.unique(group, return_inverse=True)
    tree = _Tree(trace, threads, group, index.track[rows], names)
    node = tree.top(thread.reshape(-1))
    for at in links.rows_by(links.depths(parent)).values():
        above = np.where(parent[at] >= 0, node[parent[at]], node[at])
        node[at] = tree.grow(above, label[at])
    count = index.column("count").astype(np.int64)
    values = {"calls": count[rows], "self_ns": own, "device_self_ns": device}
    if len(unlaunched):
        node = np.append(node, np.full(len(unlaunched), tree.beside_threads(UNLAUNCHED)))
        dur = index.dur[unlaunched]
        more = {"calls": count[unlaunched], "self_ns": np.zeros_like(dur), "device_self_ns": dur}
        values = {key: np.append(values[key], more[key]) for key in values}
    return tree.table(node, values)


class _Tree:
    """Nodes as they are found, level by level: parent, name and category.

    A label is a code of ``names`` times the number of categories plus a code of those.
    """

    def __init__(
        self,
        trace: Trace,
        threads: npt.NDArray[np.int32],
        group: npt.NDArray[np.int32],
        track: npt.NDArray[np.int32],
        names: list[str],
    ) -> None:
        self._label_names = names
        self._label_categories = [str(c) for c in trace.slices["category"].cat.categories]
        self._parent, self._names, self._categories = [NONE], [ROOT], ["thread"]
        self._level = len(threads) > 1
        if self._level:
            titles = trace.tracks.groupby("lane")["label"].first()  # of its ops, before its frames
            lane = trace.tracks["lane"].to_numpy()[track[np.searchsorted(group, threads)]]
            self._add([0] * len(threads), titles[lane].tolist(), ["thread"] * len(threads))

    def top(self, thread: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """The node above a thread's outermost slices."""
        return thread.astype(np.int64) + 1 if self._level else np.zeros(len(thread), np.int64)

    def beside_threads(self, name: str) -> int:
        """A new node for what ran on none of them."""
        self._add([0], [name], [UNLAUNCHED_CATEGORY])
        return len(self._parent) - 1

    def grow(self, above: Ints, label: Ints) -> Ints:
        """One new node per distinct (parent node, label); the node of each row."""
        categories = len(self._label_categories)
        labels = len(self._label_names) * categories
        inverse, key = pd.factorize(above * labels + label, sort=True)
        start = len(self._parent)
        name, category = np.divmod(key % labels, categories)
        self._add(
            (key // labels).tolist(),
            [self._label_names[code] for code in name],
            [self._label_categories[code] for code in category],
        )
        nodes: Ints = inverse + start
        return nodes

    def _add(self, parents: list[int], names: list[str], categories: list[str]) -> None:
        self._parent += parents
        self._names += names
        self._categories += categories

    def table(self, node: Ints, values: dict[str, Ints]) -> pd.DataFrame:
        """The tree as a table; what is below a node is added to its total and its GPU time.

        Nodes that a window keeps for their links alone, without any call or time, are left out.
        """
        parent = np.array(self._parent, np.int32)
        sums = {key: np.zeros(len(parent), np.int64) for key in values}
        for key, total in sums.items():
            np.add.at(total, node, values[key])
        total, device = (
            links.subtree_sum(sums[key], parent) for key in ("self_ns", "device_self_ns")
        )
        has_any = np.logical_or.reduce([total > 0 for total in sums.values()])
        used = links.subtree_sum(has_any.astype(np.int64), parent) > 0
        used[0] = True
        number = np.append(np.cumsum(used) - 1, NONE).astype(np.int32)
        columns = {
            "node": number[:-1],
            "parent": number[parent],
            "depth": links.depths(parent),
            "name": pd.Series(self._names, dtype=object),
            "category": pd.Series(self._categories, dtype=object),
            "total_ns": total,
            "device_ns": device,
            **sums,
        }
        return pd.DataFrame(columns)[list(COLUMNS)][used].reset_index(drop=True)


def _device_times(trace: Trace, rows: Rows) -> tuple[Ints, npt.NDArray[np.intp]]:
    """GPU time that each of the rows itself launched: by its launch, else by its op.

    And the GPU slices that none of them launched.
    """
    gpu = trace.index.gpu
    owner = trace.index.launcher[gpu]
    caused = np.zeros(len(trace) + 1, np.int64)  # the last one takes what nobody launched
    np.add.at(caused, owner, trace.index.dur[gpu])
    of_rows: Ints = caused[rows]
    in_tree = np.zeros(len(trace) + 1, bool)
    in_tree[rows] = True
    return of_rows, gpu[~in_tree[owner]]


SOURCES: dict[str, Callable[[Record], pd.DataFrame]] = {
    "ops": _ops,
    "merged": _python_and_ops,
    "cprofile": lambda record: estimated_tree(record.calls)[list(COLUMNS)],
}


SMALLEST_SHARE = 0.001  # of all time; nodes below it stay in their parent's self time
DEEPEST = 100


def estimated_tree(calls: Calls | None) -> pd.DataFrame:
    """The columns of `call_tree`, category "cprofile"; the root's total is that of all functions.

    A function that is already on the path is not entered again: its time there stays in the self
    time of the last one entered. Nodes of less than a thousandth of the time are left out alike.
    """
    growth = _Growth()
    growth.add(NONE, "all calls", 0, 0.0)
    if calls is not None and len(calls.functions):
        _grow_all(calls, growth)
    return growth.table()


@dataclass
class _Growth:
    """The nodes found so far, parents before children."""

    parent: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    total: list[float] = field(default_factory=list)

    def add(self, parent: int, name: str, calls: int, total: float) -> int:
        self.parent.append(parent)
        self.name.append(name)
        self.calls.append(calls)
        self.total.append(total)
        return len(self.parent) - 1

    def table(self) -> pd.DataFrame:
        """Self time is what the children leave of the total, so that widths add up exactly."""
        own = np.rint(np.array(self.total)).astype(np.int64)
        depth = np.zeros(len(own), np.int32)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                depth[node] = depth[parent] + 1
        total, rest = own.copy(), own.copy()
        for node in range(len(own) - 1, 0, -1):
            rest[self.parent[node]] -= own[node]
        rest = np.maximum(rest, 0)
        total = rest.copy()
        for node in range(len(own) - 1, 0, -1):
            total[self.parent[node]] += total[node]
        columns: dict[str, Any] = {
            "node": np.arange(len(own)),
            "parent": np.array(self.parent, np.int32),
            "depth": depth,
            "name": pd.Series(self.name, dtype=object),
            "category": pd.Series(["cprofile"] * len(own), dtype=object),
            "calls": np.array(self.calls, np.int64),
            "total_ns": total,
            "self_ns": rest,
            "device_ns": np.zeros(len(own), np.int64),
            "device_self_ns": np.zeros(len(own), np.int64),
        }
        return of_the_whole_run(pd.DataFrame(columns), NO_TIMES)


def _grow_all(calls: Calls, growth: _Growth) -> None:
    functions = calls.functions
    labels = function_labels(functions)
    total = functions["total_ns"].to_numpy(dtype=np.float64)
    floor = SMALLEST_SHARE * float(functions["self_ns"].sum())
    by_caller = calls.edges.groupby("caller", sort=False)
    callees = {int(str(caller)): group for caller, group in by_caller}
    stack: list[tuple[int, int, float, frozenset[int]]] = []
    for root, time, count in _roots(calls):
        if time >= floor:
            node = growth.add(0, labels[root], count, time)
            stack.append((root, node, time, frozenset([root])))
    while stack:
        function, node, time, path = stack.pop()
        if function not in callees or len(path) >= DEEPEST or total[function] <= 0:
            continue
        share, left = min(time / total[function], 1.0), time
        for callee, count, total_ns in _edges(callees[function]):
            part = min(total_ns * share, left)
            if callee not in path and part >= floor and part > 0:
                left -= part
                child = growth.add(node, labels[callee], round(count * share), part)
                stack.append((callee, child, part, path | {callee}))


def _edges(group: pd.DataFrame) -> list[tuple[int, int, float]]:
    """Callee, calls and total time of the edges of one caller, the longest first.

    Times of a cycle overlap, and the longest one holds the others: it is served first, until the
    caller's time is used up.
    """
    group = group.sort_values("total_ns", ascending=False, kind="stable")
    columns = (group["callee"].tolist(), group["calls"].tolist(), group["total_ns"].tolist())
    return list(zip(*columns, strict=True))


def _roots(calls: Calls) -> list[tuple[int, float, int]]:
    """Functions that were called from outside of the profile: their time and calls from there.

    Of a function that is called from inside too, that is what its edges leave of its total; of
    a recursive one, whose edges overlap, its total by the share of such calls.
    """
    functions, edges = calls.functions, calls.edges
    rows = range(len(functions))
    inside = edges.groupby("callee")[["calls", "total_ns"]].sum().reindex(rows, fill_value=0)
    outside = (functions["calls"] - inside["calls"]).to_numpy()
    total, primitive = functions["total_ns"].to_numpy(), functions["primitive_calls"].to_numpy()
    left = np.maximum(total - inside["total_ns"].to_numpy(), 0)
    by_share = total * np.minimum(outside / np.maximum(primitive, 1), 1)
    time = np.where(functions["calls"].to_numpy() > primitive, by_share, left)
    roots = np.flatnonzero(outside > 0).tolist()
    if not roots:  # nobody called from outside: begin with the longest
        longest = int(total.argmax())
        return [(longest, float(total[longest]), int(functions["calls"].iloc[longest]))]
    return [(row, float(time[row]), int(outside[row])) for row in roots]
