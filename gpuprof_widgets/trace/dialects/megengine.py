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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links, schema
from gpuprof_widgets.trace.assemble import counter_table
from gpuprof_widgets.trace.dialects.dialect import (
    Dialect,
    Life,
    Parts,
    Place,
    Tensor,
    allocations,
    in_layers,
    joined,
    lives,
    marked,
    on_rows,
    texts_of,
)
from gpuprof_widgets.trace.events import EventFlows, Events, Names, text_codes, typed
from gpuprof_widgets.trace.gather import Gathered, id_text
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
from gpuprof_widgets.trace.trace_events import Event

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


OBJECT = "TensorLifetime"
MEMORY_NUMBER = re.compile(r"\d{1,12}")
ELEMENT_BYTES = {
    **dict.fromkeys(("Float64", "Int64"), 8),
    **dict.fromkeys(("Float32", "Int32"), 4),
    **dict.fromkeys(("Float16", "BFloat16", "Int16", "Uint16"), 2),
    **dict.fromkeys(("Int8", "Uint8", "Bool", "Byte"), 1),
}
"""Bytes of an element, by what MegEngine calls its format."""

TORCH_TYPES = {
    "Float64": "double",
    "Float32": "float",
    "Float16": "c10::Half",
    "BFloat16": "c10::BFloat16",
    "Int64": "long int",
    "Int32": "int",
    "Int16": "short int",
    "Int8": "signed char",
    "Uint8": "unsigned char",
    "Bool": "bool",
}
"""What torch calls these formats."""


def tensors(file: Gathered) -> tuple[list[Tensor], list[str]]:
    """The tensors whose size is told, and what could not be told of others, as notes."""
    found = [tensor for life in lives(file, _is_tensor) if (tensor := _tensor(life))]
    count = sum(map(_is_tensor, file.others["N"]))
    left = count - len(found)
    note = f"{left:,} of {count:,} tensors have no size, and no part in the memory views"
    return found, [note] if left else []


def _is_tensor(event: Event) -> bool:
    return event.name == OBJECT


def _tensor(life: Life) -> Tensor | None:
    told = {key: str(life.description.get(key, "")) for key in ("shape", "dtype", "device")}
    node = comp_node(told["device"])
    if told["dtype"] not in ELEMENT_BYTES:
        return None
    size = prod(map(int, MEMORY_NUMBER.findall(told["shape"]))) * ELEMENT_BYTES[told["dtype"]]
    process = id_text(life.created.pid)
    return Tensor(
        name=f"tensor {life.created.id}",
        maker=(process, id_text(life.described.tid)),
        holder=(process, "tensors"),
        made=life.described_ns,
        released=None if life.deleted_ns is None else max(life.deleted_ns, life.described_ns),
        size=min(size, 2**62),
        gpu=max(node.device, 0) if node and node.on_gpu else NONE,
        args={"shape": told["shape"], "dtype": told["dtype"]},
    )


SCOPED = re.compile(r"[^.()\s]+(\.[^.()\s]+)+")
SCOPE_NUMBERED = re.compile(r"\[\d+\]")
OF_OUTPUT = re.compile(r":\d+$")
BACKWARD = "backward"


def places(names: Collection[str]) -> dict[str, Place]:
    """Of each of these ops its scope; callbacks have in their names those of other ops."""
    scopes = {
        name: SCOPE_NUMBERED.sub("", name.rpartition(".")[0])
        for name in names
        if SCOPED.fullmatch(name)
    }
    return {
        name: Place(scope, scope.partition(".")[0] == BACKWARD) for name, scope in scopes.items()
    }


def operands(
    events: Events, names: NDArray[np.object_], ops: NDArray[np.bool_]
) -> Mapping[str, pd.Series]:
    """Args of the ops: their own names, shapes and types of their inputs, shapes of their outputs.

    ``names``: what each event is, as "Input" and "Output" within the op of their thread.
    """
    taken, made = (_within(events, names == name, ops) for name in ("Input", "Output"))
    called = {op: OF_OUTPUT.sub("", tensors[0]["name"]) for op, tensors in made.items()}
    columns: dict[str, dict[int, Any]] = {
        NODE: {op: name for op, name in called.items() if name},
        INPUT_SHAPES: {op: _shapes(tensors) for op, tensors in taken.items()},
        INPUT_TYPES: {op: [_type(one) for one in tensors] for op, tensors in taken.items()},
        OUTPUT_SHAPES: {op: _shapes(tensors) for op, tensors in made.items()},
    }
    return {
        key: typed([*values.values()], np.array([*values], dtype=np.int64))
        for key, values in columns.items()
        if values
    }


def _within(
    events: Events, tensors: NDArray[np.bool_], ops: NDArray[np.bool_]
) -> dict[int, list[dict[str, str]]]:
    """Of each op the tensors in it, in order of time; each as ``name``, ``shape`` and ``dtype``."""
    row, op = np.flatnonzero(tensors), np.flatnonzero(ops)
    row = row[np.argsort(events.ts[row], kind="stable")]
    thread = events.process.codes.astype(np.int64) * len(events.thread.categories)
    thread = thread + events.thread.codes
    last = links.latest_before(thread[row], events.ts[row], thread[op], events.ts[op])
    around = np.append(op, -1)[last]
    ends = events.ts + events.dur
    inside = (around >= 0) & (events.ts[row] >= events.ts[around]) & (ends[row] <= ends[around])
    told = {key: texts_of(events.args.get(key), len(events)) for key in ("name", "shape", "dtype")}
    found: dict[int, list[dict[str, str]]] = {}
    for each, of in zip(row[inside].tolist(), around[inside].tolist(), strict=True):
        found.setdefault(of, []).append({key: texts[each] for key, texts in told.items()})
    return found


def _shapes(tensors: list[dict[str, str]]) -> list[list[int]]:
    return [[*map(int, NUMBER.findall(one["shape"]))] for one in tensors]


def _type(tensor: dict[str, str]) -> str:
    return TORCH_TYPES.get(tensor["dtype"], tensor["dtype"])


TEXT = re.compile(
    r'(?:CompNode\(")?'
    r"(?P<name>(?P<kind>gpu|cuda|rocm|cambricon|atlas|xpu|cpu|multithread)"
    r"(?P<device>x|\d{1,4})?:(?P<stream>\w+))"
    r'(?:"(?: from "(?P<asked>[^"]*)")?\))?'
)
HOSTS = ("cpu", "multithread")
"""Kinds of nodes whose work the CPU does."""

ANY = "xpu"


@dataclass(frozen=True)
class CompNode:
    """A computing node, as far as its text tells.

    ``name`` ("gpu0:1"), ``asked`` ("gpux:1"; "" where that is not told), ``on_gpu``: whether its
    work is a GPU's (None: that of any device), ``device`` (-1: the one that is the default) and
    ``stream`` (-1: one that has a name instead of a number).
    """

    name: str
    asked: str
    on_gpu: bool | None
    device: int
    stream: int


def comp_node(text: str) -> CompNode | None:
    """The node of this text; None where it is none."""
    found = TEXT.fullmatch(text.strip())
    if not found:
        return None
    kind, device, stream = found["kind"], found["device"] or "", found["stream"]
    return CompNode(
        name=found["name"],
        asked=found["asked"] or "",
        on_gpu=None if kind == ANY else kind not in HOSTS,
        device=int(device) if device.isdecimal() else NONE,
        stream=int(stream) if stream.isdecimal() and len(stream) < 10 else NONE,
    )
