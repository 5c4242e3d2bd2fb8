"""TensorFlow's Timeline: the Chrome trace that TensorFlow 1 makes of a step's RunMetadata.

Source: tensorflow/python/client/timeline.py. All slices have the category ``Op`` and the type of
the op as their name; the node's name and those of its inputs are in args. The name of its process
says what a slice is:

- ``/job:localhost/replica:0/task:0/cpu:0 Compute``: ops that ran on the CPU,
- ``/job:localhost/replica:0/task:0/gpu:0 Compute``: the CPU's time in ops that launch GPU work,
- ``/gpu:0/stream:12 Compute``: what ran on a stream; ``/gpu:0/stream:all Compute`` and
  ``/gpu:0/memcpy Compute``: the kernels and the copies of all streams once more,
- ``... Tensors`` and ``Allocators``: when tensors were alive (with ``show_memory=True``, as
  objects), and the bytes of each allocator.

Threads are lanes: the writer puts each op on the first lane that is free. A node's kernels have its
name in their args, which identifies the op that launched them: of a node that ran several times (in
a loop) the last launch that had begun by then.

The layer of a node is the name scope in which it was made: ``layer_1/fully_connected/MatMul``
belongs to ``layer_1/fully_connected``. What an op consists of is under the op's name
(``MatMul/ReadVariableOp``). Its gradient is within ``gradients``, under that name with ``_grad``
behind it, or, with Keras, within ``gradient_tape``, under that name. What TensorFlow adds when it
runs a graph begins with ``_`` (``_recv_x_0``); what it makes of a node there ends with it
(``while/merge/_5``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gpuprof_widgets.trace import schema
from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.dialects.dialect import (
    Dialect,
    Parts,
    Place,
    in_layers,
    kept_flows,
    marked,
    recoded,
    taken,
    texts_of,
)
from gpuprof_widgets.trace.events import Events, Names, text_codes
from gpuprof_widgets.trace.gather import Gathered
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, FRAMEWORK, NONE

PROCESS = re.compile(
    r"(?P<host>(?:/job:[^/]+)?(?:/replica:\d+)?(?:/task:\d+)?)"
    r"/(?:device:)?(?P<kind>\w+):(?P<index>\d{1,4})"
    r"(?:/(?P<row>stream:all|stream:(?P<stream>\d{1,9})|memcpy)\S*)? (?P<content>Compute|Tensors)",
    re.IGNORECASE,
)
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
    table = _table(parts.events, processes)
    repeats, copies = _repeats_and_copies(table)
    kept = np.flatnonzero(~repeats)
    events = taken(_translated_events(parts.events, table, copies), kept)
    flows = kept_flows(parts.flows, kept, len(parts.events))
    events, flows = in_layers(events, flows, places)
    return replace(
        parts,
        events=events,
        names=_labelled(events, parts.names, processes),
        flows=flows,
        objects_by="category",
        metadata=parts.metadata
        | {"recorded_by": "TensorFlow Timeline", FRAMEWORK: schema.TENSORFLOW},
    )


TENSORFLOW = Dialect(recognises, translate)


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
    if match["content"].lower() == "tensors" or kind.lower().endswith("cpu"):
        return Process(HOST, label, host)
    return Process(LAUNCHING, f"launching for {label}", host, int(index))


def _table(events: Events, processes: Mapping[str, Process]) -> pd.DataFrame:
    """Return one row per event: its process's part, device and stream, its times, name and node."""
    of_code = [processes.get(pid, Process(HOST, "")) for pid in events.process.categories]
    places = pd.DataFrame(
        [(process.part, process.device, process.stream) for process in of_code],
        columns=["part", "device", "stream"],
    )
    return places.iloc[events.process.codes].assign(
        ts=events.ts,
        dur=events.dur,
        name=np.asarray(events.name, dtype=object),
        node=texts_of(events.args.get("name"), len(events)),
        row=np.arange(len(events)),
    )


def _repeats_and_copies(table: pd.DataFrame) -> tuple[Mask, Mask]:
    """Return which rows repeat one of a stream, and which are copies.

    Of several rows alike the first on a stream goes with the first of the summary, and so on.
    """
    alike = ["device", "ts", "dur", "name", "node"]
    table = table.assign(number=table.groupby(["part", *alike], sort=False).cumcount())
    part = table["part"].to_numpy()
    repeats, copies = np.zeros(len(table), bool), part == COPIES
    for summary in (ALL_STREAMS, COPIES):
        pairs = table[part == STREAM].merge(table[part == summary], on=[*alike, "number"])
        repeats[pairs["row_y"]] = True
        copies[pairs["row_x"]] |= summary == COPIES
    return repeats, copies


def _translated_events(events: Events, table: pd.DataFrame, copies: Mask) -> Events:
    """Return the events with our categories, devices, streams and links.

    Copies are named like Kineto's, with their direction if known, ops without a type by their node.
    """
    part, name, node = (table[key].to_numpy() for key in ("part", "name", "node"))
    on_gpu = ~np.isin(part, (HOST, LAUNCHING))
    directions = {text: match for text in set(name) if (match := COPY.match(text))}
    is_copy = on_gpu & (copies | np.isin(name.astype(str), list(directions)))
    is_memset = on_gpu & np.array([MEMSET.match(text) is not None for text in name], dtype=bool)
    category = recoded(events.category, np.asarray(events.category == "Op"), "cpu_op")
    for rows, ours in ((on_gpu, "kernel"), (is_copy, "gpu_memcpy"), (is_memset, "gpu_memset")):
        category = recoded(category, rows, ours)
    names = np.where((name == UNKNOWN) & (node != ""), node, name)
    ways = {text: f" {m['source']}to{m['target']}" for text, m in directions.items() if m["source"]}
    names[is_copy] = [f"Memcpy{ways.get(text, '')}" for text in name[is_copy]]
    lanes = np.asarray(events.thread, dtype=object)
    stream = table["stream"].to_numpy()
    number, _ = pd.factorize(node)
    size = _sizes(events, is_copy)
    args = {
        "device": marked(on_gpu, table["device"].to_numpy()),
        "stream": marked(on_gpu, stream),
        "correlation": marked((on_gpu | (part == LAUNCHING)) & (node != ""), number + 1),
        "bytes": marked(size >= 0, size),
        EXECUTOR_LANE: marked(~on_gpu, lanes),
    }
    return replace(
        events,
        name=text_codes(names.tolist()),
        category=category,
        thread=text_codes(np.where(on_gpu, stream.astype(str), lanes).tolist()),
        args={**events.args, **{key: values for key, values in args.items() if len(values)}},
    )


def _sizes(events: Events, copies: Mask) -> Ints:
    """Return the bytes of each copy, -1 where the file does not say."""
    size = np.full(len(events), NONE, dtype=np.int64)
    for key in SIZE_ARGS:
        texts = texts_of(events.args.get(key), len(events))
        for row in np.flatnonzero(copies & (texts != "") & (size < 0)).tolist():
            if match := SIZE.fullmatch(texts[row]):
                size[row] = int(match[1])
    return size


def _labelled(events: Events, names: Names, processes: Mapping[str, Process]) -> Names:
    """Name lanes by their device, and number them where it has several."""
    lanes = {*zip(events.process, events.thread, strict=True)}
    count = Counter(pid for pid, _ in lanes)
    threads = {
        (pid, lane): processes[pid].label + (f" · lane {lane}" if count[pid] > 1 else "")
        for pid, lane in lanes
        if pid in processes
    }
    labels = {pid: process.label for pid, process in processes.items()}
    return replace(
        names, processes={**names.processes, **labels}, threads={**threads, **names.threads}
    )


def places(nodes: Collection[str]) -> dict[str, Place]:
    """Return the layer and the pass of each node."""
    places = {}
    for node in nodes:
        *scope, name = node.split("/")
        if MADE_AT_RUN.fullmatch(name):
            scope = scope[:-1]
        is_backward = bool(scope) and GRADIENTS.fullmatch(scope[0]) is not None
        if is_backward:
            ends = [at for at, part in enumerate(scope) if part.endswith(GRADIENT)]
            scope = scope[1 : min(ends, default=len(scope))]
        while scope and "/".join(scope) in nodes:
            scope.pop()
        if not node.startswith("_"):
            places[node] = Place("/".join(scope), is_backward)
    return places
