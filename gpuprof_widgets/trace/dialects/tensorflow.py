"""TensorFlow's Timeline: the Chrome trace that TensorFlow 1 makes of a step's RunMetadata.

Source: tensorflow/python/client/timeline.py. All slices have the category ``Op`` and the type of
the op as their name; the node's name and those of its inputs are in args. The name of its process
says what a slice is:

- ``/job:localhost/replica:0/task:0/cpu:0 Compute``: ops that ran on the CPU,
- ``/job:localhost/replica:0/task:0/gpu:0 Compute``: the CPU's time in ops that launch GPU work,
- ``/gpu:0/stream:12 Compute``: what ran on a stream; ``/gpu:0/stream:all Compute`` and
  ``/gpu:0/memcpy Compute``: the kernels and the copies of all streams once more,
- ``... Tensors`` and ``Allocators``: when tensors were alive, and the bytes of each allocator.

Threads are lanes: the writer puts each op on the first lane that is free. A node's kernels have its
name in their args, which identifies the op that launched them: of a node that ran several times (in
a loop) the last launch that had begun by then.

The layer of a node is the name scope in which it was made: ``layer_1/fully_connected/MatMul``
belongs to ``layer_1/fully_connected``. What an op consists of is under the op's name
(``MatMul/ReadVariableOp``). Its gradient is within ``gradients``, under that name with ``_grad``
behind it, or, with Keras, within ``gradient_tape``, under that name. What TensorFlow adds when it
runs a graph begins with ``_`` (``_recv_x_0``); what it makes of a node there ends with it
(``while/merge/_5``).

With ``show_memory=True`` each output of a node is an object (phases N, O and D): created when the
node began, with a snapshot that describes it, deleted after its last use that the Timeline saw. Its
size is the ``requested_bytes`` in the text of the snapshot, as in TensorFlow's own counters of its
allocators. Of the tensors that a loop makes again and again under one name only the last is
deleted; the others are left out, as in those counters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import schema
from gpuprof_widgets.trace.assemble import counter_table
from gpuprof_widgets.trace.dialects.dialect import (
    Dialect,
    Life,
    Mask,
    Parts,
    Place,
    Rows,
    Tensor,
    in_layers,
    kept_flows,
    marked,
    recoded,
    taken,
    tensors_of,
    texts_of,
    with_tensors,
)
from gpuprof_widgets.trace.events import Events, Names, text_codes
from gpuprof_widgets.trace.gather import Gathered, id_text
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, FRAMEWORK, NONE
from gpuprof_widgets.trace.trace_events import Event

PROCESS = re.compile(
    r"(?P<host>(?:/job:[^/]+)?(?:/replica:\d+)?(?:/task:\d+)?)"
    r"/(?:device:)?(?P<kind>\w+):(?P<index>\d{1,4})"
    r"(?:/(?P<row>stream:all|stream:(?P<stream>\d{1,9})|memcpy)\S*)? (?P<content>Compute|Tensors)",
    re.IGNORECASE,
)
TENSORS = " · tensors"
HOST, LAUNCHING, STREAM, ALL_STREAMS, COPIES = "host", "launching", "stream", "stream:all", "memcpy"

COPY = re.compile(r"MEMCPY((?P<source>[HDP])(?:to|2)(?P<target>[HDP]))?", re.IGNORECASE)
MEMSET = re.compile(r"MEMSET", re.IGNORECASE)
SIZE_ARGS = ("memcpy_details", "kernel", "num_bytes")
"""Args of copies that hold their size: in the words of XProf, which TensorFlow's builds for AMD's
GPUs have under ``kernel`` (``MemcpyH2D kind:pinned size:4096 dest:0 async:1``), or as a number."""
SIZE = re.compile(r"(?:.*\bsize:)?(\d{1,18})(?:\s.*)?", re.DOTALL)
UNKNOWN = "unknown"
"""The writer's name of an op whose label it does not understand."""

GRADIENTS = re.compile(r"(gradients|gradient_tape)(_\d+)?")
GRADIENT = "_grad"
MADE_AT_RUN = re.compile(r"_\d+\w*")

TENSOR_CATEGORY = "Tensor"
BYTES = re.compile(r"requested_bytes: (\d{1,18})")
ALLOCATOR = re.compile(r"allocator_name: (\S+)")
GPU_ALLOCATOR = re.compile(r"gpu_(?:(\d{1,4})_)?bfc", re.IGNORECASE)


@dataclass(frozen=True)
class Process:
    """A process by its name: its part of the timeline, and its device."""

    part: str
    label: str
    host: str = ""
    device: int = NONE
    stream: int = NONE


def recognises(parts: Parts, file: Gathered) -> bool:
    """Return whether there are slices of the category Op, and processes named after devices."""
    return "Op" in parts.events.category.categories and any(
        PROCESS.fullmatch(name.strip()) for name in parts.names.processes.values()
    )


def translate(parts: Parts, file: Gathered) -> Parts:
    """Return ops of the CPU and launching ops as cpu_op, and GPU work once, linked by the node."""
    processes = _processes(parts.names)
    process_of_code = [
        processes.get(pid, Process(HOST, "")) for pid in parts.events.process.categories
    ]
    kept, copies = _without_repetition(parts.events, process_of_code)
    events = taken(_translated_events(parts.events, process_of_code, copies), kept)
    flows = kept_flows(parts.flows, kept, len(parts.events))
    events, flows = in_layers(events, flows, places)
    tensors, note = _tensors(file, parts.names)
    events, tensor_rows = with_tensors(events, tensors)
    return replace(
        parts,
        events=events,
        names=_labelled(events, parts.names, processes, tensor_rows),
        counters=_by_allocator(parts.counters),
        flows=flows,
        notes=[*parts.notes, *note],
        metadata={
            **parts.metadata,
            "recorded_by": "TensorFlow Timeline",
            FRAMEWORK: schema.TENSORFLOW,
        },
    )


TENSORFLOW = Dialect("TensorFlow Timeline", recognises, translate)


def _processes(names: Names) -> dict[str, Process]:
    """Return the file's processes; with several hosts, number all GPUs and add hosts to labels."""
    processes = {pid: process_of(name) for pid, name in names.processes.items()}
    if len({process.host for process in processes.values()} - {""}) < 2:
        return processes
    on_gpu = [p for p in processes.values() if p.part not in (HOST, LAUNCHING)]
    gpus = sorted({(process.host, process.device) for process in on_gpu})
    number = {gpu: position for position, gpu in enumerate(gpus)}
    return {
        pid: replace(
            process,
            device=number.get((process.host, process.device), process.device),
            label=f"{process.label} of {process.host}" if process.host else process.label,
        )
        for pid, process in processes.items()
    }


def process_of(name: str) -> Process:
    """Parse the name of a process; one that is not named after a device ran ops of the host."""
    match = PROCESS.fullmatch(name.strip())
    if not match:
        return Process(HOST, name.strip())
    kind, index, row = match["kind"], match["index"], match["row"]
    label, host = f"{kind.upper()} {index}", match["host"].lstrip("/")
    if row:
        part = STREAM if match["stream"] else row.lower()
        return Process(part, label, host, int(index), int(match["stream"] or NONE))
    if match["content"].lower() == "tensors":
        return Process(HOST, f"{label}{TENSORS}", host)
    if kind.lower().endswith("cpu"):
        return Process(HOST, label, host)
    return Process(LAUNCHING, f"launching for {label}", host, int(index))


def _without_repetition(events: Events, processes: Sequence[Process]) -> tuple[Rows, Mask]:
    """Return the rows that do not repeat one of a stream, and which rows are copies."""
    part = _by_process(events, [process.part for process in processes])
    table = pd.DataFrame({
        "device": _by_process(events, [process.device for process in processes]),
        "ts": events.ts,
        "dur": events.dur,
        "name": events.name.codes,
        "node": texts_of(events.args.get("name"), len(events)),
    })  # fmt: skip
    repeats, copies = np.zeros(len(events), bool), part == COPIES
    on_stream = np.flatnonzero(part == STREAM)
    for summary in (ALL_STREAMS, COPIES):
        row, twin = _twins(table, on_stream, np.flatnonzero(part == summary))
        repeats[twin] = True
        copies[row] |= summary == COPIES
    return np.flatnonzero(~repeats), copies


def _twins(table: pd.DataFrame, rows: Rows, others: Rows) -> tuple[Rows, Rows]:
    """Return pairs of equal rows; of several alike the first goes with the first, and so on."""
    alike = list(table.columns)
    first, second = (
        part.assign(number=part.groupby(alike, sort=False).cumcount(), row=part.index)
        for part in (table.loc[rows], table.loc[others])
    )
    pairs = first.merge(second, on=[*alike, "number"], suffixes=("", "_of_other"))
    return pairs["row"].to_numpy(np.intp), pairs["row_of_other"].to_numpy(np.intp)


def _by_process(events: Events, values: Sequence[Any]) -> NDArray[Any]:
    """Return for each event the value of its process; ``values`` are in the dictionary's order."""
    return np.asarray(np.array(values)[events.process.codes])


def _translated_events(events: Events, processes: Sequence[Process], copies: Mask) -> Events:
    """Return the events with our categories, names of copies, devices, streams, correlations."""
    part = _by_process(events, [process.part for process in processes])
    launching, on_gpu = part == LAUNCHING, ~np.isin(part, (HOST, LAUNCHING))
    device = _by_process(events, [process.device for process in processes])
    stream = _by_process(events, [process.stream for process in processes])
    lanes = np.asarray(events.thread, dtype=object)
    threads = np.where(on_gpu, stream.astype(str), lanes)
    args = {
        "device": marked(on_gpu, device),
        "stream": marked(on_gpu, stream),
        "correlation": _correlations(events, launching | on_gpu),
        EXECUTOR_LANE: marked(~on_gpu, lanes),
    }
    category = _categories(events, on_gpu, copies)
    is_copy = np.asarray(category == "gpu_memcpy")
    size = _sizes(events, is_copy)
    if (size >= 0).any():
        args["bytes"] = marked(size >= 0, size)
    return replace(
        events,
        name=_names(events, is_copy),
        category=category,
        thread=text_codes(threads.tolist()),
        args={**events.args, **args},
    )


def _categories(events: Events, on_gpu: Mask, copies: Mask) -> pd.Categorical:
    def named(pattern: re.Pattern[str]) -> Mask:
        matches = [pattern.match(str(name)) is not None for name in events.name.categories]
        return np.asarray(np.array(matches)[events.name.codes])

    category = recoded(events.category, np.asarray(events.category == "Op"), "cpu_op")
    category = recoded(category, on_gpu, "kernel")
    category = recoded(category, on_gpu & (named(COPY) | copies), "gpu_memcpy")
    return recoded(category, on_gpu & named(MEMSET), "gpu_memset")


def _names(events: Events, copies: Mask) -> pd.Categorical:
    """Name copies like Kineto, with their direction if known; ops without a type by their node."""
    texts = [str(name) for name in events.name.categories]
    copy_names = [
        f"Memcpy {match['source']}to{match['target']}" if match and match["source"] else "Memcpy"
        for match in map(COPY.match, texts)
    ]
    names = np.array(texts, dtype=object)[events.name.codes]
    names[copies] = np.array(copy_names, dtype=object)[events.name.codes[copies]]
    node = texts_of(events.args.get("name"), len(events))
    return text_codes(np.where((names == UNKNOWN) & (node != ""), node, names).tolist())


def _sizes(events: Events, copies: Mask) -> NDArray[np.int64]:
    """Return the bytes of each copy, -1 where the file does not say."""
    size = np.full(len(events), NONE, dtype=np.int64)
    for key in SIZE_ARGS:
        texts = texts_of(events.args.get(key), len(events))
        for row in np.flatnonzero(copies & (texts != "") & (size < 0)).tolist():
            if match := SIZE.fullmatch(texts[row]):
                size[row] = int(match[1])
    return size


def _correlations(events: Events, linked: Mask) -> pd.Series:
    """Return a number for each node, on the ops that launch it and on its GPU work."""
    node = texts_of(events.args.get("name"), len(events))
    number, _ = pd.factorize(node)
    return marked(linked & (node != ""), number + 1)


def _labelled(
    events: Events, names: Names, processes: Mapping[str, Process], tensor_rows: Names
) -> Names:
    """Name lanes by their device, numbered where it has several; likewise the rows of tensors."""
    pairs = pd.DataFrame({"process": events.process, "thread": events.thread}).astype(str)
    lanes = [*pairs.drop_duplicates().itertuples(index=False, name=None)]
    lanes = [lane for lane in lanes if lane not in tensor_rows.threads]
    count = Counter(pid for pid, _ in lanes)
    label = {pid: process.label for pid, process in processes.items()}
    threads = {
        (pid, lane): label[pid] if count[pid] == 1 else f"{label[pid]} · lane {lane}"
        for pid, lane in lanes
        if pid in label
    }
    holders = {
        pid: label[pid].replace(TENSORS, "") for pid, _ in tensor_rows.threads if pid in label
    }
    return Names(
        {**names.processes, **holders}, {**threads, **tensor_rows.threads, **names.threads}
    )


def _by_allocator(counters: pd.DataFrame) -> pd.DataFrame:
    """Name each counter by its allocator once: counter and series both have that name."""
    names = [str(name) for name in counters["name"]]
    halves = [name[: len(name) // 2] for name in names]
    once = [
        half if name == f"{half} {half}" else name for name, half in zip(names, halves, strict=True)
    ]
    return counter_table(counters["ts"].to_numpy(), once, counters["value"].to_numpy())


def places(nodes: Collection[str]) -> dict[str, Place]:
    """Return the layer and the pass of each node."""
    return {node: _place(node, nodes) for node in nodes if not node.startswith("_")}


def _place(node: str, nodes: Collection[str]) -> Place:
    *scope, name = node.split("/")
    if MADE_AT_RUN.fullmatch(name):
        scope = scope[:-1]
    is_backward = bool(scope) and GRADIENTS.fullmatch(scope[0]) is not None
    if is_backward:
        ends = [at for at, part in enumerate(scope) if part.endswith(GRADIENT)]
        scope = scope[1 : min(ends, default=len(scope))]
    while scope and "/".join(scope) in nodes:
        scope.pop()
    return Place("/".join(scope), is_backward)


def _tensors(file: Gathered, names: Names) -> tuple[list[Tensor], list[str]]:
    """Return the tensors with a size and an end, and a note on the others."""
    by_name = {name.strip(): pid for pid, name in names.processes.items()}
    compute = {
        pid: by_name.get(f"{name.strip().removesuffix('Tensors')}Compute", pid)
        for pid, name in names.processes.items()
    }
    return tensors_of(file, _is_tensor, lambda life: _tensor(life, compute), "no size or no end")


def _is_tensor(event: Event) -> bool:
    return event.cat == TENSOR_CATEGORY


def _tensor(life: Life, compute: dict[str, str]) -> Tensor | None:
    """Return the tensor; ``compute`` is the process of ops for each process of tensors."""
    text = str(life.description.get("tensor_description"))
    size, allocator = BYTES.search(text), ALLOCATOR.search(text)
    if size is None or life.deleted_ns is None:
        return None
    allocator_name = allocator[1] if allocator else ""
    gpu = GPU_ALLOCATOR.fullmatch(allocator_name)
    process = id_text(life.created.pid)
    return Tensor(
        name=life.created.name,
        maker=(compute.get(process, process), id_text(life.created.tid)),
        holder=(process, "0"),
        made=life.created_ns,
        released=max(life.deleted_ns, life.created_ns),
        size=int(size[1]),
        gpu=int(gpu[1] or 0) if gpu else NONE,
        args={"allocator": allocator_name},
    )
