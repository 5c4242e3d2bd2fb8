"""The finding on tensors that grow by copying: `torch.cat` in a loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.attribution import in_backward
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share, group_rows
from gpuprof_widgets.analyses.findings.finding import (
    WORTH_NS,
    Finding,
    code,
    place_of,
    run_ns,
    share_of,
)
from gpuprof_widgets.analyses.lines import cell_lines, lines_beyond_limit
from gpuprof_widgets.analyses.op_calls import Call, distinct_calls, frame_of
from gpuprof_widgets.analyses.owners import line_of, module_frames, region_around
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

CAT = "aten::cat"
CATS = frozenset({CAT})
ALIKE = 0.9
"""Share of the calls that must take up what the loop has collected before."""
MOST_CHAINS = 256
"""Tensors at most that grow in turns in one place, such as keys and values of all layers."""
TIMES_EARLIER = 2
"""Times the time of the first half of the calls that the second half takes where shapes are unknown
(three times for a tensor that grows from nothing)."""
PARTS = 16
"""Parts into which the calls are split by time, of which the quick calls are compared: other
programs make some calls slower, and none quicker."""
QUICK = 0.2
"""Quantile of the times of a part's calls."""
RANK_CORRELATION = 0.9
"""Spearman's correlation of order and time that shows growth; one jump of all times has 0.75."""

APPENDS = re.compile(
    r"(?<![\w.])([\w.]+)\s*=\s*[\w.]*\b(?:cat|concat|concatenate|hstack|vstack)"
    r"\((?:.*[\[(,])?\s*\1\s*[,\])](?!.*\)\s*\[)"
)
"""A line that appends to a whole tensor and keeps the whole result; it is sought in so many
characters of the line."""
SEARCHED = 500
CERTAIN_TIMES_EARLIER = 1.5
"""As `TIMES_EARLIER`, on such a line: it tells a tensor that grows from many short ones."""

INSTEAD = (
    "ollect the parts in a list and call `torch.cat` once after the loop, or write them into a "
    "tensor of the full size (`out[i] = x`). Then nothing is copied again and again."
)
COPIED_AGAIN = ", and each call copied all of it"
GROWS = "A tensor grows by `torch.cat` in a loop"
JOINS_MORE = "`torch.cat` joins more and more from call to call"
IF_IT_APPENDS = (
    "If each call appends to the result of the call before (`out = torch.cat([out, x])`), c"
)
OF_A_CACHE = (
    " If these are the keys and values of a model that generates text, use a cache of fixed size "
    '(`cache_implementation="static"` in Transformers).'
)
DENSE_LAYERS = 64
"""Layers of the deepest block of a DenseNet, each of which reads what all before it returned."""


@dataclass(frozen=True)
class Growth:
    """Calls that grow a tensor; by their shapes ``smallest`` to ``largest``, -1 if unknown."""

    at: Rows
    smallest: int = NONE
    largest: int = NONE


def growing_cat(
    record: Record, *, growing_cat_share: float = 0.05, growing_cat_calls: int = 16
) -> list[Finding]:
    """Fires for tensors that grow by ``torch.cat`` in a loop, for 5 % of the run or more.

    Each call copies all that was collected before: the time grows with the square of the rounds. If
    shapes were recorded, nearly all calls must join as much as an earlier call in the same place
    returned; else the calls in one place must take longer and longer. The place is the line, module
    and Python function. Only a line whose text appends makes it certain. Silent on layers of a
    block, each of which reads what all before it returned.

    Cost: the time of these calls, on the GPU if they ran there.
    """
    trace = record.trace
    rows = _cats(trace)
    if len(rows) < growing_cat_calls:
        return []
    took, on_gpu = _times(trace, rows)
    run = run_ns(record)
    if int(took.sum()) < max(WORTH_NS, growing_cat_share * run):  # spare the search
        return []
    table = _placed(record, rows)
    least = max(growing_cat_calls, 2)
    line = take(cell_lines(trace).of_slice, line_of(trace)[rows])
    different, which = np.unique(line, return_inverse=True)
    appends = np.array([_appends(record, each) for each in different.tolist()])[which]
    growths = [
        growth
        for growth in _growths(trace, table.assign(took=took, appends=appends), least)
        if not _is_of_layers(trace, rows[growth.at])
    ]
    if not growths:
        return []
    of_growth = np.array([pd.Series(line[growth.at]).mode()[0] for growth in growths])
    found = []
    for number in np.unique(of_growth).tolist():
        chosen = [growth for growth, at in zip(growths, of_growth, strict=True) if at == number]
        at = np.unique(np.concatenate([growth.at for growth in chosen]))
        cost = int(took[at].sum())
        share = share_of(cost, run)
        if cost < WORTH_NS or share < growing_cat_share:
            continue
        sure = _appends(record, number)
        where = f"{format_ns(cost)}{' on the GPU' if on_gpu[at].all() else ''}"
        what = "copied a growing tensor" if sure else "joined more and more"
        text = (
            f"{code(CAT)} {what} in {format_count(len(at), 'call')}, which took {where} "
            f"({format_share(share)} of the time). {_grew(chosen, took, sure=sure)}."
        )
        title = GROWS if sure else JOINS_MORE
        remedy = f"C{INSTEAD}" if sure else IF_IT_APPENDS + INSTEAD
        remedy += OF_A_CACHE if _in_modules(trace, rows[at]) else ""
        place = place_of(trace, rows[at])
        found.append(Finding(text, cost, share, remedy=remedy, title=title, **place))
    return found


def _cats(trace: Trace) -> Rows:
    """Return the calls of `cat` outside of the backward pass, by thread and time."""
    index = trace.index
    cats = index.named(CATS) & index.is_op & index.on_tracks("cpu")
    if not cats.any():
        return np.empty(0, np.intp)
    cats &= ~in_backward(trace) & (links.nearest_ancestor(index.parent, cats) < 0)
    rows = np.flatnonzero(cats)
    return np.asarray(rows[np.lexsort((index.ts[rows], index.track[rows]))], np.intp)


def _times(trace: Trace, rows: Rows) -> tuple[Ints, Mask]:
    """Return the time of each call: of its GPU work, where it has any, else of the CPU."""
    index = trace.index
    on_gpu = np.zeros(len(trace) + 1, np.int64)
    around = links.itself_or_ancestor(index.parent, index.named(CATS))
    np.add.at(on_gpu, take(around, index.column("op")[index.gpu]), index.dur[index.gpu])
    launched = on_gpu[rows] > 0
    return np.where(launched, on_gpu[rows], index.dur[rows]), launched


def _placed(record: Record, rows: Rows) -> pd.DataFrame:
    """Return per call its ``place``, and the executions around it: ``inner`` and ``outer``.

    The place has the thread, the line, the module, the Python function and the op around. Lines
    that ran too often to be recorded each time count as the line around them.
    """
    trace, index = record.trace, record.trace.index
    parent, known = index.parent, cell_lines(trace)
    beyond = lines_beyond_limit(known, record)
    keys = list(zip(known.lines["cell"], known.lines["line"], strict=True))
    within = np.array([key not in beyond for key in keys], bool)
    lines = take(within, known.of_slice, False)
    execution = take(links.itself_or_ancestor(parent, lines), line_of(trace)[rows])
    around = take(links.nearest_ancestor(parent, lines), execution)
    module = region_around(trace, "module")[rows]
    annotation = index.ancestor("user_annotation")[rows]
    in_line = execution >= 0
    outer = np.where(module >= 0, execution, around)
    inner = np.where(module >= 0, module, execution)
    inner = np.where(inner >= 0, inner, annotation)
    place, _ = group_rows(
        {
            "track": index.track[rows],
            "line": take(known.of_slice, execution),
            "module": index.names_of(module),
            "function": index.names_of(frame_of(trace)[rows]),
            "op": index.names_of(take(index.op_around, parent[rows])),
            "annotation": index.names_of(np.where(in_line, NONE, annotation)),
        }
    )
    return pd.DataFrame({"row": rows, "place": place, "inner": inner, "outer": outer})


def _growths(trace: Trace, table: pd.DataFrame, least: int) -> Iterator[Growth]:
    """Yield the calls of each place that grow a tensor; ``at`` counts in the rows of the table."""
    sizes = _sizes(trace, table["row"].to_numpy(np.intp))
    known = (sizes["rest"] != "").to_numpy(bool)
    shapes_of = pd.Series(known).groupby(table["place"].to_numpy()).transform("mean").to_numpy()
    by_shape = (sizes["dim"].to_numpy() >= 0) & (shapes_of >= ALIKE)
    for at in _groups({"place": table["place"], "shape": sizes["rest"]}, by_shape, least):
        group = sizes.iloc[at]
        if _takes_up(group, least):
            yield Growth(at, int(group["first"].min()), int(group["out"].max()))
    took = table["took"].to_numpy(np.int64)
    executions = table.groupby(["place", "inner"])["row"]
    few = (executions.transform("size") < least) & (table["inner"] >= 0)
    turn = executions.cumcount().where(few, 0)  # of a few calls in one execution of a region
    for at in _groups({"place": table["place"], "turn": turn}, shapes_of < ALIKE, least):
        is_certain = bool(table["appends"].iloc[at].all())
        for part in _rounds(table, at, least):
            if _is_growing(took[part], is_certain=is_certain):
                yield Growth(part)


def _groups(keys: dict[str, Any], mask: Mask, least: int) -> Iterator[Rows]:
    """Yield the rows within the mask that are alike in all keys, where there are enough."""
    rows = np.flatnonzero(mask)
    groups, _ = group_rows({name: np.asarray(values)[rows] for name, values in keys.items()})
    for group in links.rows_by(groups.astype(np.int64)).values():
        if len(group) >= least:
            yield rows[group]


def _rounds(table: pd.DataFrame, at: Rows, least: int) -> Iterator[Rows]:
    """Split the calls of one place by the runs of its loop, where each has enough calls."""
    for column in ("inner", "outer"):
        execution = table[column].to_numpy(np.int64)[at]
        parts = [part for part in links.rows_by(execution).values() if len(part) >= least]
        if sum(map(len, parts)) >= ALIKE * len(at):
            yield from (at[part] for part in parts)
            return
    yield at


def _is_growing(took: Ints, *, is_certain: bool) -> bool:
    """Whether the times of calls, in order, become longer and longer; single long ones are none.

    ``is_certain``: the line appends, so that longer calls in the second half are enough.
    """
    parts = np.array_split(took, min(len(took), PARTS))
    quick = np.array([np.quantile(part, QUICK) for part in parts])
    half = len(quick) // 2
    times_earlier = CERTAIN_TIMES_EARLIER if is_certain else TIMES_EARLIER
    if quick[half:].sum() < times_earlier * quick[:half].sum() or not quick.any():
        return False
    if is_certain:
        return True
    ranks = pd.Series(quick).rank().to_numpy()
    return bool(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1] >= RANK_CORRELATION)


def _takes_up(sizes: pd.DataFrame, least: int) -> bool:
    """Whether nearly all calls append to what the call as many calls before has returned."""
    first, last, out = (sizes[column].to_numpy(np.int64) for column in ("first", "last", "out"))
    if len(np.unique(out)) < least:
        return False
    for chains in range(1, min(MOST_CHAINS, len(out) // least) + 1):
        before, now = out[:-chains], slice(chains, None)
        appended = (first[now] == before) | (last[now] == before) | (out[now] == before + last[now])
        appended &= out[now] > before
        if np.count_nonzero(appended) >= ALIKE * len(before):
            return True
    return False


def _sizes(trace: Trace, rows: Rows) -> pd.DataFrame:
    """Return per call the dimension along which it joins, -1 if unknown, and lengths along it.

    ``first``, ``last``: of the first and the last tensor; ``out``: of the result; ``rest``: the
    other dimensions, "" where no shapes are known.
    """
    calls, number = distinct_calls(trace, rows)
    columns = ["dim", "first", "last", "out", "rest"]
    table = pd.DataFrame(map(_joined, calls), columns=columns)
    return table.iloc[number].reset_index(drop=True)


def _joined(call: Call) -> tuple[int, int, int, int, str]:
    shapes = _shapes(call)
    dim = _dimension(call, shapes) if len(shapes) > 1 else NONE
    if dim < 0:
        return NONE, 0, 0, 0, "?" if len(shapes) > 1 else ""
    lengths = [shape[dim] for shape in shapes]
    rest = f"{dim}: {[*shapes[0][:dim], *shapes[0][dim + 1 :]]}"
    return dim, lengths[0], lengths[-1], sum(lengths), rest


def _shapes(call: Call) -> list[Sequence[int]]:
    """Return the shapes of the tensors in the list, all of as many dimensions; [] if unknown.

    An empty tensor of one dimension may be joined with any other, and counts nothing.
    """
    listed = call.dims[0] if call.dims else []
    if not isinstance(listed, list | tuple):
        return []
    shapes = [shape for shape in listed if isinstance(shape, list | tuple)]
    if len(shapes) < len(listed) or not all(isinstance(n, int) for s in shapes for n in s):
        return []
    most = max(map(len, shapes), default=0)
    return [shape if len(shape) == most else [0] * most for shape in shapes] if most else []


def _dimension(call: Call, shapes: list[Sequence[int]]) -> int:
    """Return the dimension as it was recorded, else the only one in which shapes differ."""
    dims = len(shapes[0])
    try:
        dim = int(call.concrete[1])
        return dim % dims if -dims <= dim < dims else NONE
    except (IndexError, TypeError, ValueError):
        differ = [at for at in range(dims) if len({shape[at] for shape in shapes}) > 1]
        return differ[0] if len(differ) == 1 else NONE


def _grew(growths: list[Growth], took: Ints, *, sure: bool) -> str:
    """Say how the tensors grew: by their shapes, else by the time of the calls."""
    by_shape = [growth for growth in growths if growth.largest >= 0]
    if by_shape:
        most = max(by_shape, key=lambda growth: int(took[growth.at].sum()))
        sizes = f"from {most.smallest:,} to {most.largest:,} along one dimension"
        whose = "The tensor" if sure else "The result"
        return f"{whose} grew {sizes}{COPIED_AGAIN if sure else ''}"
    first = sum(int(took[growth.at[: len(growth.at) // 2]].sum()) for growth in growths)
    second = sum(int(took[growth.at[len(growth.at) // 2 :]].sum()) for growth in growths)
    times = f"{second / max(first, 1):.1f} times as long as the first half"
    again = ", as each call copied the whole tensor" if sure else ""
    return f"The second half of the calls took {times}{again}"


def _appends(record: Record, line: int) -> bool:
    """Whether a line (a row of `CellLines.lines`) says that it appends to a tensor."""
    source = "" if line < 0 else str(cell_lines(record.trace).lines["code"].iloc[line])
    return APPENDS.search(source[:SEARCHED]) is not None


def _is_of_layers(trace: Trace, rows: Rows) -> bool:
    """Whether the calls are few in each run of one module, and many of them: those of its layers.

    A cache grows by one or two calls in each run of a module, a loop in a module by many.
    """
    run = region_around(trace, "module")[rows]
    inside = run[run >= 0]
    if 2 * len(inside) <= len(run):
        return False
    calls = float(np.median(np.unique(inside, return_counts=True)[1]))
    return 2 < calls <= DENSE_LAYERS


def _in_modules(trace: Trace, rows: Rows) -> bool:
    """Whether modules called most of these ops."""
    inside = region_around(trace, "module")[rows] >= 0
    frames = links.itself_or_ancestor(trace.index.parent, module_frames(trace))
    inside |= take(frames, frame_of(trace)[rows]) >= 0
    return bool(2 * np.count_nonzero(inside) > len(rows))
