"""MegEngine's chrome timeline, by ``megengine.utils.profiler.Profiler`` of any version.

Sources: imperative/src/impl/profiler/chrome_timeline.cpp and states.h (from 1.4),
imperative/src/impl/interpreter/profiler.cpp (1.0 to 1.3), utils/profiler.py (0.6).

Threads are the interpreter (called ``channel`` up to 1.3), which hands over commands, the worker,
which runs them, and the computing nodes (``xpux:0``, ``CompNode("gpu0:0" from "gpux:0")``), each a
device and one of its streams. With CUPTI, streams that MegEngine did not identify have no name. Ops
have an id in their args, on the worker and on the node that they ran on (``__id__``, from 1.0 to
1.3 ``id``): that links kernels with their op. Device times are on the host's clock already.
``localTime`` is when that clock was 0, as ns since 1970; up to 1.3 the option ``align_time`` added
this to the times.

An op's name is that of its first output (``forward.fc[1].ADD:0`` of a timeline, where scopes of
modules are on; ``fc.MatrixMul`` of a graph); its scope is its layer.

Tensors are in the timelines of 1.0 to 1.3, as objects called ``TensorLifetime``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gpuprof_widgets.trace import links, schema
from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.dialects.dialect import (
    Dialect,
    Parts,
    Place,
    Texts,
    in_layers,
    marked,
    texts_of,
)
from gpuprof_widgets.trace.events import EventFlows, Events, text_codes, typed
from gpuprof_widgets.trace.gather import Gathered
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.schema import (
    CPU_KERNEL,
    FRAMEWORK,
    GPU_CATEGORIES,
    INPUT_SHAPES,
    INPUT_TYPES,
    NODE,
    NONE,
    OUTPUT_SHAPES,
    SCOPE_ECHO,
)

COMMANDS = ("CommandEnqueue", "CommandExecute")
DISPATCH, EXECUTE, TO_DEVICE = "OpDispatch", "OpExecute", "HostToDevice"
TENSOR_COMMANDS = ("Input", "Output", "Put", "Drop", "Del", "RecFree", "ReGen", "GetValue")
TENSOR_EVENT = re.compile(rf"^({'|'.join(TENSOR_COMMANDS)}) \d+$")
RUNTIME_EVENTS = (
    *(*COMMANDS, *TENSOR_COMMANDS, DISPATCH),
    *("TensorGetProp", "TensorWaitProp", "SyncEvent", "AutoEvict"),
)
"""Events of MegEngine's threads besides ops: handing over, waiting, keeping tensors."""

INTERPRETERS, WORKER = ("interpreter", "channel"), "worker"
"""MegEngine's names of its threads."""

PROFILING = ("StartProfile", "StopProfile")
NUMBER = re.compile(r"\d{1,9}")
CALL = re.compile(r"(?P<runtime>cuda|hip)[A-Z]\w*|cu[A-Z]\w*")
CUPTI_ARROWS = ("KernelLink", "CUPTILink")
LAUNCH_ARROWS = (*CUPTI_ARROWS, "KernelLaunch")
"""Correlation ids replace these arrows, as they also hold where clocks disagree by a us."""

RUNTIME = "megengine_runtime"
NODE_ARGS = ("device", "__device__")
MEMORY_KIND = "CUPTI_ACTIVITY_MEMORY_KIND_"
EPOCH_NS = re.compile(r"[1-3]\d{18}")
YEAR_NS = 366 * 86_400 * 10**9

FORMATS = {
    "Float64": ("double", 8),
    "Float32": ("float", 4),
    "Float16": ("c10::Half", 2),
    "BFloat16": ("c10::BFloat16", 2),
    "Int64": ("long int", 8),
    "Int32": ("int", 4),
    "Int16": ("short int", 2),
    "Int8": ("signed char", 1),
    "Uint8": ("unsigned char", 1),
    "Bool": ("bool", 1),
}
"""torch's name of each format, and the bytes of an element."""


def recognises(parts: Parts, file: Gathered) -> bool:
    """Return whether there are MegEngine's commands, or ops with its ids and its nodes."""
    args, names = parts.events.args, parts.events.name.categories
    has_commands = "__type__" in args and bool(set(COMMANDS) & set(names))
    threads = [*parts.names.threads.values(), *parts.events.thread.categories]
    return has_commands or ("__id__" in args and any(map(comp_node, map(str, threads))))


def translate(parts: Parts, file: Gathered) -> Parts:
    """Return ops, regions and MegEngine's calls on the CPU, linked with GPU kernels and copies."""
    columns = _Columns(parts)
    category = _categories(columns)
    events = replace(
        parts.events,
        name=_names(columns, category),
        category=text_codes(category.tolist()),
        args=_args(columns, category),
    )
    kinds = np.array([*parts.flows.kind], dtype=object)
    kept = ~np.isin(kinds, LAUNCH_ARROWS)
    flows = EventFlows(parts.flows.source[kept], parts.flows.target[kept], kinds[kept].tolist())
    events, flows = in_layers(events, flows, places)
    metadata = file.header.get("metadata")
    local_time = str(metadata.get("localTime")) if isinstance(metadata, dict) else ""
    is_relative = 0 <= int(parts.events.ts.max(initial=0)) < YEAR_NS
    return replace(
        parts,
        events=events,
        flows=flows,
        zero_ns=int(local_time) if is_relative and EPOCH_NS.fullmatch(local_time) else 0,
        metadata=parts.metadata
        | {"recorded_by": "MegEngine profiler", FRAMEWORK: schema.MEGENGINE},
    )


MEGENGINE = Dialect(recognises, translate)


class _Columns:
    """The events by column: command or name, thread, node, op, and whether CUPTI recorded them."""

    def __init__(self, parts: Parts) -> None:
        self.events = events = parts.events
        self.flows = parts.flows
        names = [TENSOR_EVENT.sub(r"\1", str(name)) for name in events.name.categories]
        self.name = np.array(names, dtype=object)[events.name.codes]
        nodes = _nodes(parts)
        lanes = list(zip(events.process, events.thread, strict=True))
        threads = {lane: name.strip() for lane, name in parts.names.threads.items()}
        self.thread = np.array([threads.get(lane, "") for lane in lanes], dtype=object)
        self.node = np.array([nodes.get(lane) for lane in lanes], dtype=object)
        self.op = self.text("__id__")
        from_1_0_to_1_3 = self.has("inputs") & (self.op == "")
        self.op[from_1_0_to_1_3] = self.text("id")[from_1_0_to_1_3]
        kernels, copies = self.has("execution_time"), self.has("src_kind")
        self.by_cupti = kernels | copies | (self.has("value") & (self.name == "Memset"))

    def has(self, key: str) -> Mask:
        """Return which events have this arg."""
        mask = np.zeros(len(self.events), dtype=bool)
        if key in self.events.args:
            mask[self.events.args[key].index.to_numpy()] = True
        return mask

    def text(self, key: str) -> Texts:
        """Return an arg as text, "" for events without it."""
        return texts_of(self.events.args.get(key), len(self.events))

    def cupti_arrows(self) -> tuple[Ints, Ints]:
        """Return the rows of calls, and of the GPU work that each launched."""
        chosen = np.isin(np.array([*self.flows.kind], dtype=object), CUPTI_ARROWS)
        return self.flows.source[chosen], self.flows.target[chosen]


def _nodes(parts: Parts) -> dict[tuple[str, str], CompNode]:
    """Return the node of each process and thread.

    A thread may bear the name of the node that was asked for: then it is the node that its process
    got for that.
    """
    events, names = parts.events, parts.names.threads
    granted = {}
    for key in NODE_ARGS:
        values = events.args.get(key, pd.Series(dtype=object))
        processes = events.process.take(values.index.to_numpy(np.int64))
        for process, text in set(zip(processes, values.astype(str), strict=True)):
            if (node := comp_node(text)) and node.asked:
                granted[process, node.asked] = node
    return {
        lane: granted.get((lane[0], node.name), node)
        for lane in set(zip(events.process, events.thread, strict=True))
        if (node := comp_node(names.get(lane, lane[1])))
    }


def _categories(columns: _Columns) -> Texts:
    """Return the categories; what is nothing else is a region of the user.

    The interpreter enters a scope, and later the worker does, as a command among others: the
    worker's is an echo. Kernels are those of CUPTI, or the ops of nodes without it.
    """
    name, thread = columns.name, columns.thread
    category = np.full(len(name), "user_annotation", dtype=object)
    calls, _ = columns.cupti_arrows()
    category[calls] = "cuda_runtime"
    for text in set(name.tolist()):
        if call := CALL.fullmatch(text):
            category[name == text] = "cuda_runtime" if call["runtime"] else "cuda_driver"
    category[np.isin(name, RUNTIME_EVENTS)] = RUNTIME
    category[np.isin(name, PROFILING)] = "overhead"
    category[(columns.op != "") & (name != DISPATCH)] = "cpu_op"
    region = category == "user_annotation"
    entered = name[region & np.isin(thread, INTERPRETERS)].astype(str)
    category[region & (thread == WORKER) & np.isin(name, np.unique(entered))] = SCOPE_ECHO
    on_gpu = np.array([bool(node and node.on_gpu) for node in columns.node], dtype=bool)
    category[[node is not None for node in columns.node]] = CPU_KERNEL
    category[on_gpu] = "gpu_user_annotation"
    if not columns.by_cupti.any():
        category[on_gpu & (columns.op != "")] = "kernel"
        category[on_gpu & (name == TO_DEVICE)] = "gpu_memcpy"
    category[columns.by_cupti] = "kernel"
    category[columns.has("src_kind")] = "gpu_memcpy"
    category[columns.by_cupti & (name == "Memset")] = "gpu_memset"
    return category


def _names(columns: _Columns, category: Texts) -> pd.Categorical:
    names = columns.name.copy()
    op_name = columns.text("name")
    executed = (names == EXECUTE) & (op_name != "")
    names[executed] = op_name[executed]
    names[(category == "gpu_memcpy") & (names == TO_DEVICE)] = "Memcpy HtoD"
    source, target = columns.text("src_kind"), columns.text("dst_kind")
    for row in np.flatnonzero(columns.has("src_kind")).tolist():
        ends = [text.removeprefix(MEMORY_KIND).capitalize() for text in (source[row], target[row])]
        sides = ["H" if end in ("Pageable", "Pinned") else "D" for end in ends]
        names[row] = f"Memcpy {sides[0]}to{sides[1]} ({ends[0]} -> {ends[1]})"
    return text_codes(names.tolist())


def _args(columns: _Columns, category: Texts) -> dict[str, pd.Series]:
    """Return the file's args, with ours where both have a value."""
    events = columns.events
    on_gpu = np.isin(category, ("gpu_user_annotation", *GPU_CATEGORIES))
    device = [node.device if node else 0 for node in columns.node]
    threads = [int(text) if NUMBER.fullmatch(text) else NONE for text in events.thread]
    pairs = zip(columns.node, threads, strict=True)
    stream = np.array([node.stream if node else tid for node, tid in pairs], dtype=np.int64)
    written = {"comp node" if key == "device" else key: v for key, v in events.args.items()}
    size = _bytes(columns)
    args = {
        "device": marked(on_gpu, np.array(device, dtype=np.int64)),
        "stream": marked(on_gpu & (stream >= 0), stream),
        "correlation": _correlations(columns, category),
        "bytes": marked(on_gpu & (size >= 0), size),
    }
    for key, values in _operands(events, columns.name, category == "cpu_op").items():
        args[key] = values.combine_first(written[key]) if key in written else values
    return {**written, **{key: values for key, values in args.items() if len(values)}}


def _correlations(columns: _Columns, category: Texts) -> pd.Series:
    """Return a number for each op, on it and its kernels; with CUPTI one for each arrow."""
    process = columns.events.process.codes.astype(str).astype(object)
    number, _ = pd.factorize(process + "/" + columns.op)
    correlation = np.where(columns.op != "", number + 1, NONE).astype(np.int64)
    correlation[~np.isin(category, ("cpu_op", "kernel"))] = NONE
    calls, work = columns.cupti_arrows()
    correlation[columns.by_cupti] = NONE
    correlation[calls] = correlation[work] = len(columns.events) + 1 + np.arange(len(calls))
    return marked(correlation >= 0, correlation)


def _bytes(columns: _Columns) -> Ints:
    """Return the bytes of copies and memsets, -1 where the file does not say."""
    written = pd.to_numeric(pd.Series(columns.text("bytes")), errors="coerce")
    elements = pd.to_numeric(pd.Series(columns.text("nr_elements")), errors="coerce")
    size = {name: element_bytes for name, (_, element_bytes) in FORMATS.items()}
    counted = (elements * pd.Series(columns.text("dtype")).map(size)).where(
        columns.name == TO_DEVICE
    )
    return written.fillna(counted).fillna(NONE).clip(NONE, 2**62).to_numpy(np.int64)


def _operands(events: Events, names: Texts, ops: Mask) -> Mapping[str, pd.Series]:
    """Return args of the ops: node name, shapes and types of inputs, shapes of outputs.

    These are in events called "Input" and "Output" (``names``) within the op on its thread.
    """
    inputs, outputs = (_within(events, names == name, ops) for name in ("Input", "Output"))
    nodes = outputs["name"].map(lambda made: OUTPUT_NUMBER.sub("", made[0]))
    columns = {
        NODE: nodes[nodes != ""],
        INPUT_SHAPES: inputs["shape"].map(_sizes),
        INPUT_TYPES: inputs["dtype"].map(torch_types),
        OUTPUT_SHAPES: outputs["shape"].map(_sizes),
    }
    return {
        key: typed(values.tolist(), values.index.to_numpy(np.int64))
        for key, values in columns.items()
        if len(values)
    }


def _sizes(shapes: Sequence[str]) -> list[list[int]]:
    return [[*map(int, NUMBER.findall(shape))] for shape in shapes]


def _within(events: Events, tensors: Mask, ops: Mask) -> pd.DataFrame:
    """Return lists of ``name``, ``shape`` and ``dtype`` of the tensors in each op, by its row."""
    row, op = np.flatnonzero(tensors), np.flatnonzero(ops)
    row = row[np.argsort(events.ts[row], kind="stable")]
    thread = events.process.codes.astype(np.int64) * len(events.thread.categories)
    thread = thread + events.thread.codes
    last = links.latest_before(thread[row], events.ts[row], thread[op], events.ts[op])
    around = take(op, last)
    ends = events.ts + events.dur
    inside = (around >= 0) & (events.ts[row] >= events.ts[around]) & (ends[row] <= ends[around])
    keys = ("name", "shape", "dtype")
    columns = {key: texts_of(events.args.get(key), len(events))[row[inside]] for key in keys}
    return pd.DataFrame(columns).groupby(around[inside]).agg(list)


def torch_types(formats: Iterable[str]) -> list[str]:
    """Return torch's names of MegEngine's formats; unknown ones keep their name."""
    return [FORMATS[name][0] if name in FORMATS else name for name in formats]


SCOPED = re.compile(r"[^.()\s]+(\.[^.()\s]+)+")
SCOPE_NUMBER = re.compile(r"\[\d+\]")
OUTPUT_NUMBER = re.compile(r":\d+$")
BACKWARD = ("backward.", "backward[")


def places(names: Collection[str]) -> dict[str, Place]:
    """Return the scope and the pass of each op that has a scope in its name.

    A number in brackets (``fc[1]``) counts the ops of one scope. Callbacks have no scope: their
    names hold those of other ops, with parentheses.
    """
    return {
        name: Place(SCOPE_NUMBER.sub("", name.rpartition(".")[0]), name.startswith(BACKWARD))
        for name in names
        if SCOPED.fullmatch(name)
    }


COMP_NODE = re.compile(
    r'(?:CompNode\(")?'
    r"(?P<name>(?P<kind>gpu|cuda|rocm|cambricon|atlas|xpu|cpu|multithread)"
    r"(?P<device>x|\d{1,4})?:(?P<stream>\w+))"
    r'(?:"(?: from "(?P<asked>[^"]*)")?\))?'
)
CPU_NODES = ("cpu", "multithread", "xpu")
"""Kinds of nodes whose work the CPU does, as far as their text says (``xpu``: any device)."""


@dataclass(frozen=True)
class CompNode:
    """A computing node: a device and one of its streams, as far as its text says.

    ``asked``: the node that was asked for, "" if unknown. ``device`` is 0 for the default one,
    ``stream`` is -1 if it has a name instead of a number.
    """

    name: str
    asked: str
    on_gpu: bool
    device: int
    stream: int


def comp_node(text: str) -> CompNode | None:
    """Return the node of this text; None where it is none.

    ``CompNode("gpu0:1" from "gpux:1")`` is stream 1 of GPU 0. The second half is what was asked
    for, which may stand alone: ``gpux:1`` is stream 1 of the default GPU, ``xpux:0`` stream 0 of
    any kind of device. Source: src/core/impl/comp_node/comp_node.cpp of MegEngine (locators).
    """
    match = COMP_NODE.fullmatch(text.strip())
    if not match:
        return None
    kind, device, stream = match["kind"], match["device"] or "", match["stream"]
    return CompNode(
        name=match["name"],
        asked=match["asked"] or "",
        on_gpu=kind not in CPU_NODES,
        device=int(device) if device.isdecimal() else 0,
        stream=int(stream) if stream.isdecimal() and len(stream) < 10 else NONE,
    )
