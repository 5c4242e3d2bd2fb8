"""CUDA and HIP graphs: one call replays many kernels, each captured from a call made before."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

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
