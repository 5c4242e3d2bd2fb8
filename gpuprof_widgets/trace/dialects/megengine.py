"""MegEngine's chrome timeline, by ``megengine.utils.profiler.Profiler`` of any version.

Sources: imperative/src/impl/profiler/chrome_timeline.cpp and states.h (from 1.4),
imperative/src/impl/interpreter/profiler.cpp (1.0 to 1.3), utils/profiler.py (0.6).

Threads are the interpreter (called ``channel`` up to 1.3), which hands over commands, the worker,
which runs them, and the computing nodes (``xpux:0``, ``CompNode("gpu0:0" from "gpux:0")``). With
CUPTI, streams that MegEngine did not identify have no name. Ops have an id in their args, on the
worker and on the node that they ran on (``__id__``, from 1.0 to 1.3 ``id``): that links kernels
with their op. Device times are on the host's clock already. ``localTime`` is when that clock was 0,
as ns since 1970; up to 1.3 the option ``align_time`` put this into the times.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import schema
from gpuprof_widgets.trace.comp_nodes import CompNode, comp_node
from gpuprof_widgets.trace.counters import counter_table
from gpuprof_widgets.trace.dialects.dialect import Dialect, Parts
from gpuprof_widgets.trace.dialects.layers import in_layers
from gpuprof_widgets.trace.dialects.megengine_memory import ELEMENT_BYTES, tensors
from gpuprof_widgets.trace.dialects.megengine_scopes import operands, places
from gpuprof_widgets.trace.dialects.rows import joined, marked, texts_of
from gpuprof_widgets.trace.dialects.tensors import allocations, on_rows
from gpuprof_widgets.trace.events import EventFlows, Events, Names, text_codes
from gpuprof_widgets.trace.gather import Gathered
from gpuprof_widgets.trace.schema import (
    CPU_KERNEL,
    FRAMEWORK,
    GPU_CATEGORIES,
    NODE,
    NONE,
    SCOPE_ECHO,
)

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
Texts = NDArray[np.object_]

COMMANDS = ("CommandEnqueue", "CommandExecute")
DISPATCH, EXECUTE, TO_DEVICE = "OpDispatch", "OpExecute", "HostToDevice"
OF_TENSORS = ("Input", "Output", "Put", "Drop", "Del", "RecFree", "ReGen", "GetValue")
NUMBERED = re.compile(rf"(?P<what>{'|'.join(OF_TENSORS)}) (?P<tensor>\d{{1,18}})")
OWN = (
    *(*COMMANDS, *OF_TENSORS, DISPATCH),
    *("TensorGetProp", "TensorWaitProp", "SyncEvent", "AutoEvict"),
)
"""What MegEngine's threads do besides running ops: hand over, wait, keep tensors."""

INTERPRETERS, WORKER = ("interpreter", "channel"), "worker"
"""What MegEngine calls its threads."""

PROFILING = ("StartProfile", "StopProfile")
NUMBER = re.compile(r"\d{1,9}")
CALL = re.compile(r"(?P<runtime>cuda|hip)[A-Z]\w*|cu[A-Z]\w*")
LAST_NAME = re.compile(r"\d([A-Za-z_]+)E$")
"""The class in a mangled name such as N3mgb10imperative11interpreter4intl7ApplyOpE."""

CUPTI_ARROWS = ("KernelLink", "CUPTILink")
LAUNCH_ARROWS = (*CUPTI_ARROWS, "KernelLaunch")
"""The links between slices say these, which also hold where the clocks disagree by a us."""

RUNTIME = "megengine_runtime"
NODE_ARGS = ("device", "__device__")
MEMORY_KIND = "CUPTI_ACTIVITY_MEMORY_KIND_"
MEMORY_IN_USE = "_alloc_mem"
LATEST_US = 10**17
A_YEAR_NS = 366 * 86_400 * 10**9


def recognises(parts: Parts, file: Gathered) -> bool:
    """Whether MegEngine's commands are there, or ops with its ids beside its computing nodes."""
    args, names = parts.events.args, parts.events.name.categories
    of_commands = "__type__" in args and bool(set(COMMANDS) & set(names))
    called = [*parts.names.threads.values(), *parts.events.thread.categories]
    return of_commands or ("__id__" in args and any(map(comp_node, map(str, called))))


def translate(parts: Parts, file: Gathered) -> Parts:
    """Ops, regions and MegEngine's own calls on the CPU, kernels and copies on GPUs, linked."""
    rows = _Rows(parts)
    category = _categories(rows)
    found, note = tensors(file)
    on_lanes, names = on_rows(found, int((parts.events.ts + parts.events.dur).max(initial=0)))
    ours = replace(
        parts.events,
        name=_names(rows, category),
        category=text_codes(category.tolist()),
        args=_args(rows, category),
    )
    kinds = np.array([*parts.flows.kind], dtype=object)
    others = ~np.isin(kinds, LAUNCH_ARROWS)
    flows = parts.flows
    flows = EventFlows(flows.source[others], flows.target[others], kinds[others].tolist())
    nodes = np.where(category == "cpu_op", texts_of(ours.args.get(NODE), len(ours)), "")
    ours, flows = in_layers(ours, flows, nodes, places(set(nodes)))
    events = joined(joined(ours, allocations(found)), on_lanes)
    zero = _zero_ns(parts, file)
    return replace(
        parts,
        events=replace(events, ts=events.ts + zero),
        names=Names(parts.names.processes, {**names.threads, **parts.names.threads}),
        notes=[*parts.notes, *note],
        counters=_renamed(parts.counters.assign(ts=parts.counters["ts"] + zero)),
        flows=flows,
        metadata={
            **parts.metadata,
            "recorded_by": "MegEngine profiler",
            FRAMEWORK: schema.MEGENGINE,
        },
    )


MEGENGINE = Dialect("MegEngine chrome timeline", recognises, translate)


def _nodes(parts: Parts) -> dict[tuple[str, str], CompNode]:
    """The computing nodes by process and thread; what was asked for as what its process got."""
    events = parts.events
    got = {
        (process, node.asked): node
        for key in NODE_ARGS
        for process, text in _distinct(events, key)
        if (node := comp_node(text)) and node.asked
    }
    pairs = pd.DataFrame({"process": events.process, "thread": events.thread}).astype(str)
    found = {
        (process, thread): comp_node(parts.names.threads.get((process, thread), thread))
        for process, thread in pairs.drop_duplicates().itertuples(index=False)
    }
    return {lane: got.get((lane[0], node.name), node) for lane, node in found.items() if node}


def _distinct(events: Events, key: str) -> list[tuple[str, str]]:
    """Each process, and a text that its events have under this key in their args."""
    if key not in events.args:
        return []
    values = events.args[key].astype(str)
    processes = np.asarray(events.process.take(values.index.to_numpy()), dtype=object)
    pairs = pd.DataFrame({"process": processes, "text": values.to_numpy()}).drop_duplicates()
    return [*pairs.itertuples(index=False, name=None)]


class _Rows:
    """The events, and what each is: on which node, of which op, seen by CUPTI or not."""

    def __init__(self, parts: Parts) -> None:
        self.events = events = parts.events
        self.flows = parts.flows
        self.written = np.asarray(events.name, dtype=object)
        numbered = [NUMBERED.fullmatch(str(name)) for name in events.name.categories]
        whats = [one["what"] if one else name for one, name in
                 zip(numbered, events.name.categories, strict=True)]  # fmt: skip
        self.name = np.array(whats, dtype=object)[events.name.codes]
        tensors = [int(one["tensor"]) if one else NONE for one in numbered]
        self.tensor = np.array(tensors, dtype=np.int64)[events.name.codes]
        nodes = _nodes(parts)
        lanes = list(zip(events.process, events.thread, strict=True))
        called = {lane: name.strip() for lane, name in parts.names.threads.items()}
        self.thread = np.array([called.get(lane, "") for lane in lanes], dtype=object)
        self.node = np.array([nodes.get(lane) for lane in lanes], dtype=object)
        self.on_node = np.array([node is not None for node in self.node], dtype=bool)
        self.op = texts_of(events.args.get("__id__"), len(events))
        of_older = self.has("inputs") & (self.op == "")
        self.op[of_older] = texts_of(events.args.get("id"), len(events))[of_older]
        kernels, copies = self.has("execution_time"), self.has("src_kind")
        self.by_cupti = kernels | copies | (self.has("value") & (self.name == "Memset"))

    def has(self, key: str) -> Mask:
        """Which events have this arg."""
        found = np.zeros(len(self.events), dtype=bool)
        if key in self.events.args:
            found[self.events.args[key].index.to_numpy()] = True
        return found

    def text(self, key: str) -> Texts:
        """An arg as text, "" where an event has none."""
        return texts_of(self.events.args.get(key), len(self.events))

    def cupti_arrows(self) -> tuple[Ints, Ints]:
        """From calls to what they launched."""
        chosen = np.isin(np.array([*self.flows.kind], dtype=object), CUPTI_ARROWS)
        return self.flows.source[chosen], self.flows.target[chosen]


def _categories(rows: _Rows) -> Texts:
    category = np.full(len(rows.events), "user_annotation", dtype=object)
    of_host(rows, category)
    of_nodes(rows, category)
    return category


def of_host(rows: _Rows, category: Texts) -> None:
    """Name the categories of what threads did: regions of the user are what is nothing else.

    Scopes are entered by the interpreter and later, as a command among others, by the worker.
    """
    calls, _ = rows.cupti_arrows()
    category[calls] = "cuda_runtime"
    for text in set(rows.name.tolist()):
        if call := CALL.fullmatch(text):
            category[rows.name == text] = "cuda_runtime" if call["runtime"] else "cuda_driver"
    category[np.isin(rows.name, OWN)] = RUNTIME
    category[np.isin(rows.name, PROFILING)] = "overhead"
    category[(rows.op != "") & (rows.name != DISPATCH)] = "cpu_op"
    of_worker = (category == "user_annotation") & (rows.thread == WORKER)
    opened = rows.name[(category == "user_annotation") & np.isin(rows.thread, INTERPRETERS)]
    category[of_worker & np.isin(rows.name, np.unique(opened.astype(str)))] = SCOPE_ECHO


def of_nodes(rows: _Rows, category: Texts) -> None:
    """Name those of what nodes ran. CUPTI's kernels count where it saw any, not the ops around."""
    on_gpu = np.array([bool(node and node.on_gpu) for node in rows.node], dtype=bool)
    category[rows.on_node] = CPU_KERNEL
    category[on_gpu] = "gpu_user_annotation"
    if not rows.by_cupti.any():
        category[on_gpu & (rows.op != "")] = "kernel"
        category[on_gpu & (rows.name == TO_DEVICE)] = "gpu_memcpy"
    category[rows.by_cupti] = "kernel"
    category[rows.has("src_kind")] = "gpu_memcpy"
    category[rows.by_cupti & (rows.name == "Memset")] = "gpu_memset"


def _names(rows: _Rows, category: Texts) -> pd.Categorical:
    names = rows.name.copy()
    told = rows.text("name")
    executed = (names == EXECUTE) & (told != "")
    names[executed] = told[executed]
    for row in np.flatnonzero(np.isin(names, COMMANDS) & rows.has("__type__")).tolist():
        found = LAST_NAME.search(str(rows.events.args["__type__"][row]))
        names[row] = f"{names[row]} {found[1]}" if found else names[row]
    names[(category == "gpu_memcpy") & (names == TO_DEVICE)] = "Memcpy HtoD"
    source, target = rows.text("src_kind"), rows.text("dst_kind")
    for row in np.flatnonzero(rows.has("src_kind")).tolist():
        ends = [text.removeprefix(MEMORY_KIND).capitalize() for text in (source[row], target[row])]
        sides = ["H" if one in ("Pageable", "Pinned") else "D" for one in ends]
        names[row] = f"Memcpy {sides[0]}to{sides[1]} ({ends[0]} -> {ends[1]})"
    return text_codes(names.tolist())


def _args(rows: _Rows, category: Texts) -> dict[str, pd.Series]:
    on_gpu = np.isin(category, ("gpu_user_annotation", *GPU_CATEGORIES))
    device = np.array([max(node.device, 0) if node else 0 for node in rows.node], dtype=np.int64)
    threads = [int(text) if NUMBER.fullmatch(text) else NONE for text in rows.events.thread]
    pairs = zip(rows.node, threads, strict=True)
    stream = np.array([node.stream if node else own for node, own in pairs], dtype=np.int64)
    written = {
        "comp node" if key == "device" else key: values for key, values in rows.events.args.items()
    }
    size = _bytes(rows)
    made = {
        "device": marked(on_gpu, device),
        "stream": marked(on_gpu & (stream >= 0), stream),
        "correlation": _correlations(rows, category),
        "tensor": marked(rows.tensor >= 0, rows.tensor),
        "bytes": marked(on_gpu & (size >= 0), size),
    }
    made |= {
        key: told if (others := written.get(key)) is None else told.combine_first(others)
        for key, told in operands(rows.events, rows.name, category == "cpu_op").items()
    }
    return {**written, **{key: values for key, values in made.items() if len(values)}}


def _correlations(rows: _Rows, category: Texts) -> pd.Series:
    """Of ops and their kernels one number for each op; of CUPTI's calls one for each arrow."""
    of_process = rows.events.process.codes.astype(str).astype(object) + "/" + rows.op
    number, _ = pd.factorize(of_process)
    correlation = np.where(rows.op != "", number + 1, NONE).astype(np.int64)
    correlation[~np.isin(category, ("cpu_op", "kernel"))] = NONE
    calls, work = rows.cupti_arrows()
    correlation[rows.by_cupti] = NONE
    correlation[calls] = correlation[work] = len(rows.events) + 1 + np.arange(len(calls))
    return marked(correlation >= 0, correlation)


def _bytes(rows: _Rows) -> Ints:
    """Of copies and memsets, -1 where nothing is told."""
    written = pd.to_numeric(pd.Series(rows.text("bytes")), errors="coerce")
    elements = pd.to_numeric(pd.Series(rows.text("nr_elements")), errors="coerce")
    each = pd.Series(rows.text("dtype")).map(ELEMENT_BYTES)
    counted = (elements * each).where(rows.name == TO_DEVICE)
    return written.fillna(counted).fillna(NONE).clip(NONE, 2**62).to_numpy(np.int64)


def _renamed(counters: pd.DataFrame) -> pd.DataFrame:
    """The counters, those of memory by our names of devices."""
    names = [_counter(str(name)) for name in counters["name"]]
    return counter_table(counters["ts"].to_numpy(), names, counters["value"].to_numpy())


def _counter(name: str) -> str:
    node = comp_node(name.removesuffix(MEMORY_IN_USE)) if name.endswith(MEMORY_IN_USE) else None
    if node is None:
        return name
    return f"GPU {max(node.device, 0)} memory used" if node.on_gpu else "CPU memory used"


def _zero_ns(parts: Parts, file: Gathered) -> int:
    """When (ns since 1970) the file's clock was 0; 0 where it is not told, or in the times already.

    The header has it as ns, the event ``Metadata`` of other versions as us.
    """
    told = file.header.get("metadata")
    written = told.get("localTime") if isinstance(told, dict) else None
    for event in file.others["M"]:
        if event.name == "Metadata":
            written = (event.args or {}).get("localTime")
    try:
        number = int(str(written))
    except ValueError:
        return 0
    moment = number if number > LATEST_US else number * 1000
    at_most = int(parts.events.ts.max(initial=0))
    return moment if 0 < moment < 2**62 and 0 <= at_most < A_YEAR_NS else 0
