"""Who is responsible for a slice: its owners, from the Python frame down to the kernel.

`owners` lists the whole chain of one slice. The other functions return one owner of every slice:

- `region_around`, `line_of`: the region in which it ran, or from which it was launched;
- `region_behind`, `line_behind`, `forward_of`: the same for the forward op of a backward op;
- `module_frame_around`: the frame that torch writes for a module where it records stacks;
- `captured_calls`: for the work of a CUDA or HIP graph, which one call replays, the call that was
  captured into the graph before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.op_calls import frame_of
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Mask, Rows
from gpuprof_widgets.trace.index import Value, take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import calling_lines, causes, is_engine
from gpuprof_widgets.trace.schema import (
    GPU_CATEGORIES,
    LAUNCH_CATEGORIES,
    NONE,
    NVTX_RANGE,
    REGION_CATEGORIES,
)

MODULE_FRAME = "nn.Module: "
"""How the names of module frames begin; the module's name and number follow: ``Conv2d_3``."""

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

    Of the Python frames, the innermost one and the innermost ``nn.Module`` are listed. The chain
    follows a backward op to its forward op (role "forward"), to the lines and modules in which that
    ran and to its Python frame. It follows the work of a replayed graph to the ops and regions in
    which it was captured (role "captured"), if the trace holds the capture.

    Options:

    - ``row``: the slice: its row in ``trace.slices``.

    Columns:

    - ``role``: "python", "line", "module", "annotation", "forward", "captured", "op", "launch",
      "gpu" or the slice's category.
    - ``row``, ``name``: the owner.

    Source: Kineto's correlation and external ids, and nesting by time.
    """
    slices = record.trace.slices
    if not len(slices):
        raise OptionError(f"there is no slice {row}: the record has no slices at all")
    if not 0 <= row < len(slices):
        raise OptionError(f"there is no slice {row}: the trace's rows are 0 to {len(slices) - 1}.")
    launcher = int(record.trace.index.launcher[row])
    parent = record.trace.index.parent
    chain = [row, *([launcher] if launcher >= 0 else [])]
    chain += _around(parent, chain[-1])
    category = slices["category"].to_numpy(object)
    names = slices["name"].to_numpy(object)
    # The ops and regions in which the work of a graph was captured.
    captured = _around(parent, int(captured_calls(record.trace)[row]))
    captured = [each for each in captured if each not in chain]
    forward = _forward_side(record, [*chain, *captured])
    frames = [] if category[row] == "python_function" else _frames(record, chain)
    roles = [(_role(category[r], names[r]), r) for r in chain]
    roles += [(REGION_ROLES.get(category[r], "captured"), r) for r in captured]
    roles += [(REGION_ROLES.get(category[r], "forward"), r) for r in forward]
    roles += [(_role(category[r], names[r]), r) for r in frames]
    rows = [{"role": role, "row": r, "name": names[r]} for role, r in reversed(roles)]
    return pd.DataFrame(rows, columns=["role", "row", "name"])


def _around(parent: Codes, row: int) -> list[int]:
    """Return the slices around one, innermost first."""
    around: list[int] = []
    while row >= 0 and (row := int(parent[row])) >= 0:
        around.append(row)
    return around


def _forward_side(record: Record, chain: list[int]) -> list[int]:
    """Return the forward op of the chain's backward op and the regions around it, innermost first.

    Double backward adds the forward op behind the forward op; no slice is listed twice.
    """
    forward, parent = record.trace.index.column("forward"), record.trace.index.parent
    category = record.trace.slices["category"].to_numpy(object)
    forwards: list[int] = []
    at = next((int(forward[r]) for r in chain if forward[r] >= 0), -1)
    while at >= 0 and at not in (*chain, *forwards):
        forwards.append(at)
        around = _around(parent, at)
        for above in around:
            if category[above] in REGION_CATEGORIES and above not in (*chain, *forwards):
                forwards.append(above)
        at = next((int(forward[r]) for r in (at, *around) if forward[r] >= 0), -1)
    return forwards


def _role(category: str, name: str) -> str:
    is_module = category == "python_function" and name.startswith(MODULE_FRAME)
    return "module" if is_module else ROLES.get(category, category)


def _frames(record: Record, chain: list[int]) -> list[int]:
    """Return the innermost Python frame of the chain's ops and the innermost module around it."""
    trace = record.trace
    forward, frame_of_slice = trace.index.column("forward"), frame_of(trace)
    sources = [int(forward[r]) for r in chain if forward[r] >= 0] or chain
    frame = next((int(frame_of_slice[r]) for r in sources if frame_of_slice[r] >= 0), -1)
    if frame < 0:
        return []
    module = int(module_frame_around(trace, np.array([frame]))[0])
    return [frame] if module in (-1, frame) else [frame, module]


@remembered
def region_around(trace: Trace, category: str) -> Codes:
    """Return per slice the row of the innermost region of that category around it; -1 for none.

    A region is around itself. GPU work counts where it was launched, a backward op where it ran:
    for ``cell_line`` that is the line that called ``backward()``.
    """
    if not trace.index.in_category(category).any():
        return np.full(len(trace), NONE, np.int32)
    around = trace.index.within(category)
    on_gpu = (trace.index.column("launch") >= 0) | trace.index.is_gpu
    return np.where(on_gpu, take(around, trace.index.launcher), around)


@remembered
def forward_of(trace: Trace) -> Codes:
    """Return per slice the forward op of the innermost backward op around it; -1: none.

    GPU work counts where it was launched.
    """
    forward = trace.index.column("forward")
    around = links.itself_or_ancestor(trace.index.parent, forward >= 0)
    return _as_launched(trace, take(forward, around)).astype(np.int32)


def _as_launched(trace: Trace, of_slice: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """Return the values of all slices, those of GPU work taken from its launch; -1 without one."""
    return np.where(trace.index.is_gpu, take(of_slice, trace.index.launcher), of_slice)


@remembered
def region_behind(trace: Trace, category: str) -> Codes:
    """Return per slice the region that caused it: in the backward pass, that of the forward op.

    Double backward leads to the region behind both. A region within a backward op comes first,
    because checkpointing runs the forward again there. Without any of these, `region_around` holds.
    """
    wanted = trace.index.in_category(category)
    if not wanted.any():
        return region_around(trace, category)
    caused = links.itself_or_ancestor(cause_of(trace), wanted)
    return np.where(caused >= 0, caused, region_around(trace, category)).astype(np.int32)


@remembered
def cause_of(trace: Trace) -> Codes:
    """Return per slice the slice that caused it (see `causes`), by the times before any window."""
    return causes(trace.slices, trace.index.uncut[0])


@remembered
def line_of(trace: Trace) -> Codes:
    """Return per slice the row of the cell line in which it ran or was launched; -1 for none.

    The backward pass on autograd's threads ran in the line that called it.
    """
    around = region_around(trace, "cell_line")
    if not trace.index.in_category("cell_line").any():
        return around
    caller = _as_launched(trace, calling_lines(trace))
    return np.where(around >= 0, around, caller).astype(np.int32)


@remembered
def line_behind(trace: Trace) -> Codes:
    """Return per slice of the backward pass the row of the cell line of its forward op; else -1.

    Nodes of the engine itself (`AccumulateGrad`, hooks of parameters) have no forward op. They
    belong to the backward op before them, whose gradient they take: the engine runs them next.
    """
    forward = forward_of(trace)
    source = np.where(forward >= 0, forward, take(forward, _op_before(trace)))
    return take(line_of(trace), source)


def _op_before(trace: Trace) -> Codes:
    """Return per slice of a node without forward op the backward op before it; -1: none."""
    parent, linked = trace.index.parent, trace.index.column("forward") >= 0
    nodes = linked | is_engine(trace.slices["name"])
    rows = np.flatnonzero(nodes & (links.nearest_ancestor(parent, nodes) < 0))
    latest = np.maximum.accumulate(np.where(linked[rows], np.arange(len(rows)), NONE))
    caller, track = line_of(trace)[rows], trace.index.track[rows]
    same = (latest >= 0) & (caller[latest] == caller) & (track[latest] == track) & ~linked[rows]
    before = np.full(len(trace), NONE, np.int32)
    before[rows[same]] = rows[latest[same]]
    return take(before, _as_launched(trace, links.itself_or_ancestor(parent, before >= 0)))


@dataclass(frozen=True)
class LineSource:
    """The text of a cell or of a file's function; ``name`` is the ``cell`` of its slices.

    ``first`` is the number of the first line, ``statements`` are the lines in which recorded
    statements begin, ``beyond_limit`` those that ran more often than the limit of recording.
    """

    name: str
    first: int
    text: tuple[str, ...]
    statements: tuple[int, ...]
    beyond_limit: tuple[int, ...] = ()

    def code(self, line: int) -> str:
        """Return a line without its indentation; "" outside of the text."""
        index = line - self.first
        return self.text[index].strip() if 0 <= index < len(self.text) else ""


def line_sources(record: Record) -> list[LineSource]:
    """Return the recorded cells and functions; none where lines were not recorded."""
    lines = record.metadata.get("lines") or {}
    return [
        LineSource(
            str(cell["label"]),
            int(cell.get("first_line", 1)),
            tuple(str(cell["source"]).splitlines()),
            *(tuple(map(int, cell.get(key, ()))) for key in ("statements", "beyond_limit")),
        )
        for cell in lines.get("cells", ())
    ]


def module_frames(trace: Trace) -> Mask:
    """Return which slices are frames that torch writes for modules."""
    named = trace.index.matching(re.compile(rf"{re.escape(MODULE_FRAME)}.*", re.DOTALL))
    return named & trace.index.in_category("python_function")


def module_frame_around(trace: Trace, frame: npt.NDArray[np.integer]) -> Codes:
    """Return per Python frame the innermost module frame that it is or runs in; -1: none."""
    around = links.itself_or_ancestor(trace.index.parent, module_frames(trace))
    return take(around, frame)


REPLAY = re.compile(r"(cuda|hip|cu)GraphLaunch\w*")
BEGIN_CAPTURE = re.compile(r"(cuda|hip|cu)StreamBeginCapture\w*")
END_CAPTURE = re.compile(r"(cuda|hip|cu)StreamEndCapture\w*")
PUT_IN_A_GRAPH = {
    "kernel": re.compile(r"(cuda|hip|cu)(?!Graph)\w*Launch\w*"),
    "gpu_memcpy": re.compile(r"(cuda|hip|cu)(?!Graph)\w*Memcpy\w*"),
    "gpu_memset": re.compile(r"(cuda|hip|cu)(?!Graph)\w*Memset\w*"),
}
"""By the category of GPU work, the calls that become nodes when made while a stream is captured.

Source: CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture".
"""
OVERLAP_NS = 300
"""Consecutive kernels of a replay overlap by at most this: 64 to 256 ns were seen."""
NODE = "graph node id"
"""Kineto's arg of a replayed kernel: the number of its node, in the order of capture."""


@remembered
def graph_launches(trace: Trace) -> Mask:
    """Return which slices are calls that replay a graph."""
    return trace.index.matching(REPLAY) & trace.index.is_launch


def is_mostly_replayed(trace: Trace) -> bool:
    """Return whether graphs launched most of the GPU work: then more graphs are no advice."""
    launch = trace.index.column("launch")[trace.index.gpu]
    return bool(2 * np.count_nonzero(graph_launches(trace)[launch[launch >= 0]]) > len(launch))


@remembered
def captured_calls(trace: Trace) -> Codes:
    """Return per GPU slice of a replay the call that was captured into the graph; -1 if unknown.

    It is known if the trace holds exactly one capture, before the replay, of the same sequence of
    kernels, copies and memsets, and all replays of that sequence run kernels of the same names:
    graphs of one model for several batch sizes look alike. The order of a replay's slices is that
    of their node numbers, else of time; if they overlap without numbers, it is unknown.
    """
    captured, names = np.full(len(trace), NONE, np.int32), trace.index.name
    kinds = np.zeros(len(trace), np.int8)  # of GPU work, and of the calls that ask for it
    for number, (category, pattern) in enumerate(PUT_IN_A_GRAPH.items(), start=1):
        asks = trace.index.is_launch & trace.index.matching(pattern)
        kinds[trace.index.in_category(category) | asks] = number
    captures = _captures(trace, kinds)
    alike: dict[bytes, dict[bytes, list[tuple[int, Rows]]]] = {}
    for call, rows in _replays(trace).items() if captures else ():
        by_names = alike.setdefault(kinds[rows].tobytes(), {})
        by_names.setdefault(names[rows].tobytes(), []).append((call, rows))
    for sequence, by_names in alike.items():
        candidates = captures.get(sequence, [])
        if len(candidates) == 1 and len(by_names) == 1:
            ((end, calls),), (replays,) = candidates, by_names.values()
            for call, rows in replays:
                if end <= trace.index.ts[call]:
                    captured[rows] = calls
    return captured


def _captures(trace: Trace, kinds: npt.NDArray[np.int8]) -> dict[bytes, list[tuple[int, Codes]]]:
    """Return the end and the calls, in order of time, of each capture, by the sequence of kinds.

    Calls of every thread count, because autograd's threads make those of the backward pass. Calls
    with GPU work of their own do not: they were not captured.
    """
    calls, ts = trace.index.is_launch, trace.index.ts
    begun = np.sort(ts[calls & trace.index.matching(BEGIN_CAPTURE)])
    ended = np.sort(ts[calls & trace.index.matching(END_CAPTURE)])
    did_work = np.zeros(len(trace) + 1, bool)
    did_work[trace.index.column("launch")] = True
    nodes = np.flatnonzero(calls & (kinds > 0) & ~did_work[:-1])
    nodes = nodes[np.argsort(ts[nodes], kind="stable")]
    captures: dict[bytes, list[tuple[int, Codes]]] = {}
    for end, before in zip(ended.tolist(), np.append(np.int64(-1), ended).tolist(), strict=False):
        at = int(np.searchsorted(begun, end)) - 1
        if at < 0 or begun[at] <= before:
            continue  # it began before the trace did
        first, last = np.searchsorted(ts[nodes], (begun[at], end))
        captured = nodes[first:last].astype(np.int32)
        captures.setdefault(kinds[captured].tobytes(), []).append((int(end), captured))
    return captures


def _replays(trace: Trace) -> dict[int, Rows]:
    """Return the GPU slices in order, by the row of the call, of replays whose order is known."""
    rows, launch, ts = trace.index.gpu, trace.index.column("launch"), trace.index.ts
    rows = rows[(launch[rows] >= 0) & graph_launches(trace)[launch[rows]]]
    values = trace.args.get(NODE, pd.Series(dtype=object)).reindex(rows, fill_value=NONE)
    node = np.array([n if isinstance(n, int | np.integer) else NONE for n in values], np.int64)
    order = np.lexsort((ts[rows], node, launch[rows]))
    rows, node = rows[order], node[order]
    edges = np.flatnonzero(np.diff(launch[rows], prepend=NONE, append=NONE))
    replays = {}
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        replay = rows[first:last]
        in_sequence = (ts[replay[1:]] >= trace.index.end[replay[:-1]] - OVERLAP_NS).all()
        if in_sequence or (node[first:last] >= 0).all():
            replays[int(launch[replay[0]])] = replay
    return replays
