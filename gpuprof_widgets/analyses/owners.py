"""Who is responsible for a slice: its owners from the Python frame down to the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.op_calls import frame_of
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import calling_lines, causes, is_engine
from gpuprof_widgets.trace.schema import (
    GPU_CATEGORIES,
    LAUNCH_CATEGORIES,
    NONE,
    NVTX_RANGE,
    REGION_CATEGORIES,
)

Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

REGION_ROLES = {"cell_line": "line", "module": "module", "module_backward": "module"}
ROLES = {
    "python_function": "python",
    "user_annotation": "annotation",
    NVTX_RANGE: "annotation",
    "cpu_op": "op",
    **REGION_ROLES,
    **dict.fromkeys(LAUNCH_CATEGORIES, "launch"),
    **dict.fromkeys(GPU_CATEGORIES, "gpu"),
}


def owners(record: Record, row: int) -> pd.DataFrame:
    """The chain of owners of one slice, the outermost first, the slice itself last.

    Columns: ``role`` (python, line, module, annotation, forward, op, launch, gpu or the slice's
    category), ``row``, ``name``. Of the Python frames: the innermost one, and the innermost
    ``nn.Module``. A backward op is followed to its forward op (role "forward"), to the lines and
    modules in which that ran, and to its Python frame; what a graph replays to the ops and regions
    in which it was captured (role "captured"), where the trace holds them.
    """
    slices = record.trace.slices
    if not len(slices):
        raise OptionError(f"there is no slice {row}: the record has no slices at all")
    if not 0 <= row < len(slices):
        raise OptionError(f"there is no slice {row}: the trace's rows are 0 to {len(slices) - 1}.")
    parent = slices["parent"].to_numpy()
    chain = [row]
    launch, op = (int(slices[link].iloc[row]) for link in ("launch", "op"))
    if launch >= 0 or op >= 0:
        chain.append(launch if launch >= 0 else op)
    while parent[chain[-1]] >= 0:
        chain.append(int(parent[chain[-1]]))
    category = slices["category"].to_numpy(object)
    names = slices["name"].to_numpy(object)
    captured = _captured_side(record, chain)
    forward = _forward_side(record, [*chain, *captured])
    frames = [] if category[row] == "python_function" else _frames(record, chain)
    found = [(_role(category[r], names[r]), r) for r in chain]
    found += [(REGION_ROLES.get(category[r], "captured"), r) for r in captured]
    found += [(REGION_ROLES.get(category[r], "forward"), r) for r in forward]
    found += [(_role(category[r], names[r]), r) for r in frames]
    rows = [{"role": role, "row": r, "name": names[r]} for role, r in reversed(found)]
    return pd.DataFrame(rows, columns=["role", "row", "name"])


def _captured_side(record: Record, chain: list[int]) -> list[int]:
    """The ops and regions in which the first of the chain was put into the graph it is replayed by,
    the innermost first.
    """
    at, parent = int(captured_calls(record.trace)[chain[0]]), record.trace.slices["parent"]
    found: list[int] = []
    while at >= 0 and (at := int(parent.iloc[at])) >= 0:
        found.append(at)
    return [row for row in found if row not in chain]


def _forward_side(record: Record, chain: list[int]) -> list[int]:
    """The forward op of the chain's backward op and the regions around it, the innermost first.

    Of a backward op's backward also the forward op behind that; nothing twice.
    """
    slices = record.trace.slices
    forward, parent = slices["forward"].to_numpy(), slices["parent"].to_numpy()
    category = slices["category"].to_numpy(object)
    found: list[int] = []
    at = next((int(forward[r]) for r in chain if forward[r] >= 0), -1)
    while at >= 0 and at not in (*chain, *found):
        found.append(at)
        behind, above = int(forward[at]), int(parent[at])
        while above >= 0:
            if category[above] in REGION_CATEGORIES and above not in (*chain, *found):
                found.append(above)
            behind = behind if behind >= 0 else int(forward[above])
            above = int(parent[above])
        at = behind
    return found


def _role(category: str, name: str) -> str:
    is_module = category == "python_function" and name.startswith(MODULE_FRAME)
    return "module" if is_module else ROLES.get(category, category)


def _frames(record: Record, chain: list[int]) -> list[int]:
    """The innermost Python frame of the chain's ops, and the innermost module around it."""
    slices = record.trace.slices
    forward, parent = slices["forward"].to_numpy(), slices["parent"].to_numpy()
    frame_of_slice = frame_of(record.trace)
    sources = [int(forward[r]) for r in chain if forward[r] >= 0] or chain
    frame = next((int(frame_of_slice[r]) for r in sources if frame_of_slice[r] >= 0), -1)
    if frame < 0:
        return []
    module = frame
    names = slices["name"].to_numpy(object)
    while module >= 0 and not names[module].startswith(MODULE_FRAME):
        module = int(parent[module])
    return [frame] if module in (-1, frame) else [frame, module]


@remembered
def region_around(trace: Trace, category: str) -> Rows:
    """Per slice the row of the innermost region of that category around it; -1 for none.

    A region is around itself; what runs on a GPU is where it was launched. A backward op is where
    it ran: for ``cell_line`` that is the line that called ``backward()``.
    """
    if not trace.index.in_category(category).any():
        return np.full(len(trace), NONE, np.int32)
    around = trace.index.within(category)
    on_gpu = (trace.index.column("launch") >= 0) | trace.index.is_gpu
    return np.where(on_gpu, np.append(around, NONE)[trace.index.launcher], around).astype(np.int32)


@remembered
def forward_of(trace: Trace) -> Rows:
    """Per slice the forward op of the innermost backward op around it; -1 in the forward pass.

    What runs on a GPU is where it was launched.
    """
    forward = trace.index.column("forward")
    around = links.itself_or_ancestor(trace.index.parent, forward >= 0)
    behind = np.append(forward, NONE)[around]
    launched = np.append(behind, NONE)[trace.index.launcher]
    return np.where(trace.index.is_gpu, launched, behind).astype(np.int32)


@remembered
def region_behind(trace: Trace, category: str) -> Rows:
    """Per slice the region that caused it: in the backward pass that around the forward op.

    Of a backward op's backward the one behind both; a region within a backward op (checkpointing
    runs a forward anew there) comes first. Where none is found, the same as `region_around`.
    """
    wanted = trace.index.in_category(category)
    if not wanted.any():
        return region_around(trace, category)
    caused = links.itself_or_ancestor(cause_of(trace), wanted)
    return np.where(caused >= 0, caused, region_around(trace, category)).astype(np.int32)


@remembered
def cause_of(trace: Trace) -> Rows:
    """Per slice who caused it (see `causes`), by the times before a window cut them."""
    return causes(trace.slices, trace.index.uncut[0])


@remembered
def line_of(trace: Trace) -> Rows:
    """Per slice the row of the cell line in which it ran or was launched; -1 for none.

    What the backward pass does on a thread of its own ran in the line that called it.
    """
    around = region_around(trace, "cell_line")
    if not trace.index.in_category("cell_line").any():
        return around
    caller = np.append(calling_lines(trace), NONE)
    gpu = trace.index.gpu
    caller[gpu] = caller[trace.index.launcher[gpu]]
    return np.where(around >= 0, around, caller[:-1]).astype(np.int32)


@remembered
def line_behind(trace: Trace) -> Rows:
    """Per slice of the backward pass the row of the cell line of its forward op; else -1.

    What the engine does itself (`AccumulateGrad`, and hooks of parameters) has no forward op. It is
    part of the backward op before it, whose gradient it takes: the engine puts it before all else.
    """
    forward = np.append(forward_of(trace), NONE)
    source = np.where(forward[:-1] >= 0, forward[:-1], forward[_op_before(trace)])
    return np.asarray(np.append(line_of(trace), NONE)[source], np.int32)


def _op_before(trace: Trace) -> Rows:
    """Per slice that the engine runs for no backward op the one before, in the same call; or -1."""
    slices = trace.slices
    parent, linked = slices["parent"].to_numpy(), slices["forward"].to_numpy() >= 0
    nodes = linked | is_engine(slices["name"])
    rows = np.flatnonzero(nodes & (links.nearest_ancestor(parent, nodes) < 0))
    latest = np.maximum.accumulate(np.where(linked[rows], np.arange(len(rows)), NONE))
    caller, track = line_of(trace)[rows], slices["track"].to_numpy()[rows]
    same = (latest >= 0) & (caller[latest] == caller) & (track[latest] == track) & ~linked[rows]
    before = np.full(len(trace) + 1, NONE, np.int32)
    before[rows[same]] = rows[latest[same]]
    around = np.append(links.itself_or_ancestor(parent, before[:-1] >= 0), NONE)
    gpu = trace.index.gpu
    around[gpu] = around[trace.index.launcher[gpu]]
    return np.asarray(before[around[:-1]], np.int32)


@dataclass(frozen=True)
class LineSource:
    """A cell, or the function of a file: its name as the slices' ``cell``, and its text.

    ``first`` is the number of the text's first line, ``statements`` are those in which recorded
    statements begin, ``beyond_limit`` those that ran more often than is recorded.
    """

    name: str
    first: int
    text: tuple[str, ...]
    statements: tuple[int, ...]
    beyond_limit: tuple[int, ...] = ()

    def code(self, line: int) -> str:
        """A line without its indentation; empty outside of the text."""
        place = line - self.first
        return self.text[place].strip() if 0 <= place < len(self.text) else ""


def line_sources(record: Record) -> list[LineSource]:
    """The sources that the recording left in the metadata; none where lines were not recorded."""
    lines = record.metadata.get("lines") or {}
    return [_source(given) for given in lines.get("cells", ())]


def _source(given: dict[str, Any]) -> LineSource:
    return LineSource(
        str(given["label"]),
        int(given.get("first_line", 1)),
        tuple(str(given["source"]).splitlines()),
        tuple(int(line) for line in given.get("statements", ())),
        tuple(int(line) for line in given.get("beyond_limit", ())),
    )


MODULE_FRAME = "nn.Module: "
"""How their names begin; a module's name as torch counts them follows."""


def module_frames(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which slices are such frames."""
    called = trace.index.matching(re.compile(rf"{re.escape(MODULE_FRAME)}.*", re.DOTALL))
    return called & trace.index.in_category("python_function")


def module_frame_around(trace: Trace, frame: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """Of each Python frame (-1: none) the innermost of these that it is or runs in; else -1."""
    around = links.itself_or_ancestor(trace.index.parent, module_frames(trace))
    return np.asarray(np.append(around, NONE)[frame], np.int32)


REPLAY = re.compile(r"(cuda|hip|cu)GraphLaunch\w*")
BEGIN = re.compile(r"(cuda|hip|cu)StreamBeginCapture\w*")
END = re.compile(r"(cuda|hip|cu)StreamEndCapture\w*")
PUT_IN_A_GRAPH = {
    "kernel": re.compile(r"(cuda|hip|cu)(?!Graph)\w*Launch\w*"),
    "gpu_memcpy": re.compile(r"(cuda|hip|cu)(?!Graph)\w*Memcpy\w*"),
    "gpu_memset": re.compile(r"(cuda|hip|cu)(?!Graph)\w*Memset\w*"),
}
"""By the category of the GPU work: the calls that, made while a stream is captured, become nodes.

Source: CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture".
"""
OVERLAP_NS = 300
"""Kernels of a replay that run one after another overlap by up to this: 64 to 256 ns were seen."""
NODE = "graph node id"
"""Kineto's arg of a replayed kernel: nodes are numbered in the order in which they were made."""


@remembered
def graph_launches(trace: Trace) -> Mask:
    """Which slices are calls that replay a graph."""
    return trace.index.matching(REPLAY) & trace.index.is_launch


def is_mostly_replayed(trace: Trace) -> bool:
    """Whether graphs launched most of the GPU work: then more graphs are no advice."""
    launch = trace.slices["launch"].to_numpy()[trace.index.gpu]
    return bool(2 * np.count_nonzero(graph_launches(trace)[launch[launch >= 0]]) > len(launch))


@remembered
def captured_calls(trace: Trace) -> Rows:
    """Per GPU slice of a replay: the call that put it into the graph, -1 where that is not known.

    It is known where the trace holds one capture, before the replay, of the same sequence of
    kernels, copies and memsets, and all replays of that sequence are of kernels of the same names:
    graphs of one model for several batch sizes look alike. Slices of a replay are in the order of
    their nodes' numbers, else of time; where they overlap without numbers, it is not known either.
    """
    found = np.full(len(trace), NONE, np.int32)
    kinds, names = _kinds(trace), trace.slices["name"].cat.codes.to_numpy()
    captures, ts = _captures(trace, kinds), trace.slices["ts"].to_numpy()
    alike: dict[bytes, dict[bytes, list[tuple[int, npt.NDArray[np.intp]]]]] = {}
    for call, rows in _replays(trace).items() if captures else ():
        by_names = alike.setdefault(kinds[rows].tobytes(), {})
        by_names.setdefault(names[rows].tobytes(), []).append((call, rows))
    for sequence, by_names in alike.items():
        made = captures.get(sequence, [])
        if len(made) == 1 and len(by_names) == 1:
            ((end, calls),), (replays,) = made, by_names.values()
            for call, rows in replays:
                if end <= ts[call]:
                    found[rows] = calls
    return found


def _kinds(trace: Trace) -> npt.NDArray[np.int8]:
    """Per GPU slice its category, per call that of what it asks for, as a number; else 0."""
    kinds = np.zeros(len(trace), np.int8)
    calls = trace.index.is_launch
    for number, (category, pattern) in enumerate(PUT_IN_A_GRAPH.items(), start=1):
        kinds[trace.index.in_category(category) | (calls & trace.index.matching(pattern))] = number
    return kinds


def _captures(trace: Trace, kinds: npt.NDArray[np.int8]) -> dict[bytes, list[tuple[int, Rows]]]:
    """By the sequence of their kinds: when each capture ended, and its calls in order of time.

    Any thread's calls count, as autograd's make the backward pass's, but none that did GPU work at
    once: these were not captured.
    """
    calls, ts = trace.index.is_launch, trace.slices["ts"].to_numpy()
    begun = np.sort(ts[calls & trace.index.matching(BEGIN)])
    ended = np.sort(ts[calls & trace.index.matching(END)])
    launch = trace.slices["launch"].to_numpy()
    did_work = np.zeros(len(trace) + 1, bool)
    did_work[launch] = True
    nodes = np.flatnonzero(calls & (kinds > 0) & ~did_work[:-1])
    nodes = nodes[np.argsort(ts[nodes], kind="stable")]
    found: dict[bytes, list[tuple[int, Rows]]] = {}
    for end, before in zip(ended.tolist(), np.append(np.int64(-1), ended).tolist(), strict=False):
        at = int(np.searchsorted(begun, end)) - 1
        if at < 0 or begun[at] <= before:
            continue  # it began before the trace did
        first, last = np.searchsorted(ts[nodes], (begun[at], end))
        mine = nodes[first:last].astype(np.int32)
        found.setdefault(kinds[mine].tobytes(), []).append((int(end), mine))
    return found


def _replays(trace: Trace) -> dict[int, npt.NDArray[np.intp]]:
    """By the row of the call: the GPU slices of each replay whose order is known, in that order."""
    rows = trace.index.gpu
    launch, ts = trace.slices["launch"].to_numpy(), trace.slices["ts"].to_numpy()
    rows = rows[(launch[rows] >= 0) & graph_launches(trace)[launch[rows]]]
    node = _node_numbers(trace)[rows]
    order = np.lexsort((ts[rows], node, launch[rows]))
    rows, node = rows[order], node[order]
    edges = np.flatnonzero(np.diff(launch[rows], prepend=NONE, append=NONE))
    replays = {}
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        mine = rows[first:last]
        if (node[first:last] >= 0).all() or _one_after_another(trace, mine):
            replays[int(launch[mine[0]])] = mine
    return replays


def _node_numbers(trace: Trace) -> npt.NDArray[np.int64]:
    numbers = np.full(len(trace), NONE, np.int64)
    if (given := trace.args.get(NODE)) is not None:
        known = given[np.array([isinstance(one, int | np.integer) for one in given], bool)]
        numbers[known.index.to_numpy()] = known.to_numpy(np.int64)
    return numbers


def _one_after_another(trace: Trace, rows: npt.NDArray[np.intp]) -> bool:
    """Whether none of these, in order of time, began while the one before it clearly still ran."""
    ts, dur = (trace.slices[name].to_numpy()[rows] for name in ("ts", "dur"))
    return bool((ts[1:] >= (ts + dur)[:-1] - OVERLAP_NS).all())
