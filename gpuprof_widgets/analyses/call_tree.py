"""The merged call tree behind the flame graph: equal paths become one node.

A path has the CPU time in which it ran and the GPU time that it launched. GPU work that nothing in
the tree launched has a separate node, so that the GPU time adds up as well.

Recorded slices nest exactly (`_merged_paths`). cProfile has no timestamps, so that its tree is an
estimate from the shares of callers (`estimated_tree`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.operators import INSTANTS
from gpuprof_widgets.analyses.python_calls import calls_modules, function_labels
from gpuprof_widgets.analyses.reasons import LACKS, NO_TIMES, of_the_whole_run
from gpuprof_widgets.analyses.regions import names_with_steps_merged
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.schema import NONE, SAMPLED

COLUMNS = (
    *("node", "parent", "depth", "name", "category", "calls"),
    *("total_ns", "self_ns", "device_ns", "device_self_ns"),
)
ROOT = "all threads"

UNLAUNCHED = "GPU work without a launch in the trace"
"""The root's child with the GPU work that no path launched."""
UNLAUNCHED_CATEGORY = "unlaunched"

TIMES = {"cpu": "total_ns", "device": "device_ns"}
"""Columns that the width of a path can stand for."""

NO_GPU_TIME = "the trace has no GPU work that took time"

SMALLEST_SHARE = 0.001
"""Share of all time below which an estimated node stays in its parent's self time."""
DEEPEST = 100
"""Levels of an estimated tree."""


def call_tree(record: Record, *, source: str | None = None, time: str = "cpu") -> pd.DataFrame:
    """One row per path of names, each followed by what is below it, the longest first.

    That is what the flame graph draws. The steps of a profiler are one ``ProfilerStep*``, as in the
    op table. GPU time is that of kernels, copies and memsets, summed over streams and GPUs. What
    nothing in the tree launched is a child of the root with ``category`` "unlaunched", whose
    ``calls`` are such slices. So the root has the GPU time of the whole trace, and the self times
    add up to it.

    Formula: ``total_ns`` = ``self_ns`` + the totals of the children, exactly.

    Options:

    - ``source``: "ops" (ops, annotations and runtime calls by nesting), "merged" (Python frames and
      ops nested together) or "cprofile" (an estimate: cProfile has no timestamps). None: the flame
      graph's, which is "merged" with recorded frames, "cprofile" without any op, else "ops".
    - ``time``: "cpu" or "device": which time sorts. With "device", paths that caused no GPU time
      are left out, and "cprofile", which knows of none, is no source.

    Columns:

    - ``node``, ``parent``: number of the row, and of the row above it in the tree; the root is 0
      and has -1.
    - ``depth``: its depth in the tree.
    - ``name``, ``category``: the last name of the path. A level of category "thread" is there only
      if several threads have any.
    - ``calls``: number of calls.
    - ``total_ns``, ``self_ns``: CPU time, with and without what is below.
    - ``device_ns``, ``device_self_ns``: GPU time launched by the node and all below it, and by the
      node itself.

    Source: nesting of the recorded slices; with "cprofile" an estimate from the shares of callers.
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
    tree = SOURCES[source](record)
    # Each node is followed by all below it, the longest child first.
    parent, nodes = tree["parent"].to_numpy(), tree["node"].to_numpy()
    place, _ = links.preorder(parent, -tree[TIMES[time]].to_numpy())
    tree = tree.assign(parent=take(place.astype(np.int32), parent)).iloc[np.argsort(place)]
    tree = tree.assign(node=nodes).reset_index(drop=True)
    if time == "device":  # the parents of nodes that caused GPU time did as well
        kept = ((tree["device_ns"] > 0) | (tree["parent"] < 0)).to_numpy()
        number = np.cumsum(kept, dtype=np.int32) - np.int32(1)
        tree = tree[kept].reset_index(drop=True)
        tree = tree.assign(node=number[kept], parent=take(number, tree["parent"].to_numpy()))
    if record.metadata.get(SAMPLED):
        tree.attrs[SAMPLED] = True
    if len(tree) == 1:
        no_calls = f"the trace has no calls to make a tree of (source {source!r})"
        tree.attrs[LACKS] = NO_GPU_TIME if time == "device" else no_calls
    return tree


def flame_source(record: Record, *, time: str = "cpu") -> str:
    """Return the source of the flame graph: Python frames and ops, else ops, else cProfile."""
    kinds = set(record.trace.tracks["kind"])
    if "python" in kinds:
        return "merged"
    only_calls = "cpu" not in kinds and record.calls is not None
    return "cprofile" if only_calls and time == "cpu" else "ops"


def _ops(record: Record) -> pd.DataFrame:
    trace = record.trace
    rows = np.flatnonzero(trace.index.on_tracks("cpu") & ~trace.index.in_category(INSTANTS))
    index = np.full(len(trace) + 1, NONE, np.int32)  # the last entry is for no parent
    index[rows] = np.arange(len(rows))
    parent = index[trace.index.parent[rows]]
    open_parent = links.open_ancestor(parent, trace.index.ts[rows], trace.index.end[rows])
    return _merged_paths(trace, rows.astype(np.int32), parent, open_parent, trace.index.track[rows])


def _python_and_ops(record: Record) -> pd.DataFrame:
    trace = record.trace
    rows, parent, lane = merged_parents(trace)
    open_parent, _ = links.nest(trace.index.ts[rows], trace.index.end[rows], lane)
    return _merged_paths(trace, rows, parent, open_parent, lane)


def merged_parents(trace: Trace) -> tuple[Codes, Codes, Codes]:
    """Nest frames and ops of each thread together; a parent is open at the start and ends later.

    Return rows of the trace by thread and start, the position of each row's parent among them, and
    each row's lane. Because a parent must end later, a `record_function` region is not within the
    frame of its ``__enter__``. Times are those before a window cut them, since at its edges all
    slices would begin and end together.
    """
    kept = trace.index.on_tracks("cpu", "python") & ~trace.index.in_category(INSTANTS)
    rows = np.flatnonzero(kept)
    lane = trace.tracks["lane"].to_numpy()[trace.index.track[rows]]
    ts, end = (times[rows] for times in trace.index.uncut)
    is_op = ~trace.index.on_tracks("python")[rows]
    order = np.lexsort((is_op, -end, ts, lane))
    rows, lane, ts, end = rows[order], lane[order], ts[order], end[order]
    parent, _ = links.nest(ts, end, lane)
    # The innermost ancestor that does not end before the slice does.
    around = links.last_above(end, parent + 1, np.maximum(end - 1, ts))
    return rows.astype(np.int32), np.where(lane[around] == lane, around, np.int32(NONE)), lane


def _merged_paths(
    trace: Trace, rows: Codes, parent: Codes, open_parent: Codes, group: Codes
) -> pd.DataFrame:
    """Return the tree of label paths of these rows, which are sorted by group (thread) and start.

    ``open_parent``: the innermost row that is still open when a row starts; the row's time is taken
    from that one's self time, even if the row lasts longer. The tree grows level by level.
    """
    index = trace.index
    self_ns = links.self_times(index.ts[rows], index.end[rows], open_parent)
    launcher = index.launcher[index.gpu]
    # The last sum takes the GPU work without a launcher.
    device = group_sums(launcher, index.dur[index.gpu], len(trace) + 1)[rows]
    unlaunched = index.gpu[~np.isin(launcher, rows)]
    code, names = names_with_steps_merged(trace)
    kinds = len(index.categories)
    label = code[rows].astype(np.int64) * kinds + index.column("category")[rows]
    nodes = [(NONE, ROOT, "thread")]
    node = np.zeros(len(rows), np.int64)
    threads, first, thread = np.unique(group, return_index=True, return_inverse=True)
    if len(threads) > 1:
        titles = trace.tracks.groupby("lane")["label"].first()  # ops' tracks precede frames'
        lane = trace.tracks["lane"].to_numpy()[index.track[rows[first]]]
        nodes += [(0, title, "thread") for title in titles[lane]]
        node += thread.reshape(-1) + 1
    for at in links.rows_by(links.depths(parent)).values():
        above = np.where(parent[at] >= 0, node[parent[at]], node[at])
        number, key = pd.factorize(above * len(names) * kinds + label[at], sort=True)
        node[at] = number + len(nodes)
        upper, lower = np.divmod(key, len(names) * kinds)
        name, kind = np.divmod(lower, kinds)
        columns = zip(upper.tolist(), name, kind, strict=True)
        nodes += [(up, names[code], index.categories[kind]) for up, code, kind in columns]
    count = index.column("count").astype(np.int64)
    values = {"calls": count[rows], "self_ns": self_ns, "device_self_ns": device}
    if len(unlaunched):
        node = np.append(node, np.full(len(unlaunched), len(nodes)))
        nodes.append((0, UNLAUNCHED, UNLAUNCHED_CATEGORY))
        dur = index.dur[unlaunched]
        more = count[unlaunched], np.zeros_like(dur), dur
        values = {key: np.append(values[key], of) for key, of in zip(values, more, strict=True)}
    return _tree_table(nodes, node, values)


def _tree_table(
    nodes: list[tuple[int, str, str]], node: Ints, values: dict[str, Ints]
) -> pd.DataFrame:
    """Return the tree as a table; a node's total and GPU time include all below it.

    ``nodes``: parent, name and category of each. Nodes that a window keeps for their links alone,
    without any call or time, are left out.
    """
    parents, names, categories = zip(*nodes, strict=True)
    parent = np.array(parents, np.int32)
    sums = {key: group_sums(node, value, len(parent)) for key, value in values.items()}
    total, device = (links.subtree_sum(sums[key], parent) for key in ("self_ns", "device_self_ns"))
    has_any = np.logical_or.reduce([value > 0 for value in sums.values()])
    used = links.subtree_sum(has_any.astype(np.int64), parent) > 0
    used[0] = True
    number = np.cumsum(used, dtype=np.int32) - np.int32(1)
    columns = {
        "node": number,
        "parent": take(number, parent),
        "depth": links.depths(parent),
        "name": pd.Series(names, dtype=object),
        "category": pd.Series(categories, dtype=object),
        "total_ns": total,
        "device_ns": device,
        **sums,
    }
    return pd.DataFrame(columns)[list(COLUMNS)][used].reset_index(drop=True)


SOURCES: dict[str, Callable[[Record], pd.DataFrame]] = {
    "ops": _ops,
    "merged": _python_and_ops,
    "cprofile": lambda record: estimated_tree(record.calls)[list(COLUMNS)],
}


def estimated_tree(calls: Calls | None) -> pd.DataFrame:
    """Return a tree of cProfile's calls with the columns of `call_tree`, category "cprofile".

    The root's total is that of all functions. A function that is already on the path is not entered
    again: its time there stays in the self time of the last function entered, and so does that of
    nodes below a thousandth of all time. Only torch's functions through which a module calls the
    next are: there the callees that are not on the path get the time, the longest first, but
    nowhere more in all than cProfile counted.
    """
    nodes = [(NONE, "all calls", 0, 0.0)]
    if calls is not None and len(calls.functions):
        nodes += _estimated_nodes(calls)
    parents, names, counts, totals = zip(*nodes, strict=True)
    parent, time = np.array(parents, np.int32), np.rint(np.array(totals)).astype(np.int64)
    # Self time is what children leave of a total, so that widths add up.
    self_ns = np.maximum(time - group_sums(parent[1:], time[1:], len(nodes)), 0)
    columns: dict[str, Any] = {
        "node": np.arange(len(nodes)),
        "parent": parent,
        "depth": links.depths(parent),
        "name": pd.Series(names, dtype=object),
        "category": pd.Series(["cprofile"] * len(nodes), dtype=object),
        "calls": np.array(counts, np.int64),
        "total_ns": links.subtree_sum(self_ns, parent),
        "self_ns": self_ns,
        "device_ns": np.zeros(len(nodes), np.int64),
        "device_self_ns": np.zeros(len(nodes), np.int64),
    }
    return of_the_whole_run(pd.DataFrame(columns), NO_TIMES)


def _estimated_nodes(calls: Calls) -> list[tuple[int, str, int, float]]:
    """Return parent, name, calls and total of the nodes below the root, parents before children.

    The callees of each function share its time as its edges do, down from the roots.
    """
    functions, nodes = calls.functions, list[tuple[int, str, int, float]]()
    labels = function_labels(functions)
    total = functions["total_ns"].to_numpy(dtype=np.float64)
    floor = SMALLEST_SHARE * float(functions["self_ns"].sum())
    # Times of a cycle overlap, and the longest edge contains the others: it comes first, until the
    # caller's time is used up.
    edges = calls.edges.sort_values("total_ns", ascending=False, kind="stable")
    by_caller = edges.groupby("caller", sort=False)
    columns = ["callee", "calls", "total_ns"]
    callees = {
        int(str(caller)): list(zip(*(group[key].tolist() for key in columns), strict=True))
        for caller, group in by_caller
    }
    passing = set(np.flatnonzero(calls_modules(functions)).tolist())
    unspent = {
        (function, callee): min(ns, total[callee])
        for function in passing
        for callee, _, ns in callees.get(function, ())
        if callee not in passing
    }
    stack: list[tuple[int, int, float, tuple[int, ...]]] = []
    for root, time, count in _roots(calls):
        if time >= floor:
            nodes.append((0, labels[root], count, time))
            stack.append((root, len(nodes), time, ()))
    while stack:
        function, node, time, above = stack.pop()
        path = (*above, function)
        if function not in callees or len(path) >= DEEPEST or total[function] <= 0:
            continue
        share, left = 1.0 if function in above else min(time / total[function], 1.0), time
        passed, entered = list(takewhile(passing.__contains__, reversed(path))), []
        for callee, count, total_ns in callees[function]:
            part = min(total_ns * share, left, unspent.get((function, callee), total_ns))
            closed = passed if callee in passing else path
            if callee not in closed and part >= floor and part > 0:
                left -= part
                if (function, callee) in unspent:
                    unspent[function, callee] -= part
                nodes.append((node, labels[callee], round(count * part / total_ns), part))
                entered.append((callee, len(nodes), part, path))
        stack.extend(reversed(entered))
    return nodes


def _roots(calls: Calls) -> list[tuple[int, float, int]]:
    """Return the functions called from outside of the profile, with the time and number of calls.

    For a function that is also called from inside, the time is what its edges leave of its total;
    for a recursive one, whose edges overlap, its total times the share of such calls.
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
    if not roots:  # no call from outside is known: begin with the longest function
        longest = int(total.argmax())
        return [(longest, float(total[longest]), int(functions["calls"].iloc[longest]))]
    return [(row, float(time[row]), int(outside[row])) for row in roots]
