"""TensorFlow's Timeline: the Chrome trace that TensorFlow 1 makes of a step's RunMetadata.

Source: tensorflow/python/client/timeline.py. All slices have the category ``Op`` and the type of
the op as their name; the node's name and those of its inputs are in args. What a slice is, the name
of its process says:

- ``/job:localhost/replica:0/task:0/cpu:0 Compute``: ops that ran on the CPU,
- ``/job:localhost/replica:0/task:0/gpu:0 Compute``: the CPU's time in ops that launch GPU work,
- ``/gpu:0/stream:12 Compute``: what ran on a stream; ``/gpu:0/stream:all Compute`` and
  ``/gpu:0/memcpy Compute``: the kernels and the copies of all streams once more,
- ``... Tensors`` and ``Allocators``: when tensors were alive, and the bytes of each allocator.

Threads are lanes: the writer puts each op on the first lane that is free. A node's kernels have its
name in their args, which tells the op that launched them: of a node that ran several times (in a
loop) the last launch that had begun by then.
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
    Parts,
    Place,
    Tensor,
    Thread,
    allocations,
    in_layers,
    joined,
    kept_flows,
    lives,
    marked,
    on_rows,
    recoded,
    taken,
    texts_of,
)
from gpuprof_widgets.trace.events import Events, Names, text_codes
from gpuprof_widgets.trace.gather import Gathered, id_text
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, FRAMEWORK, NODE, NONE
from gpuprof_widgets.trace.trace_events import Event

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]

PROCESS = re.compile(
    r"(?P<host>(?:/job:[^/]+)?(?:/replica:\d+)?(?:/task:\d+)?)"
    r"/(?:device:)?(?P<kind>\w+):(?P<index>\d{1,4})"
    r"(?:/(?P<row>stream:all|stream:(?P<stream>\d{1,9})|memcpy)\S*)? (?P<what>Compute|Tensors)",
    re.IGNORECASE,
)
COPY = re.compile(r"MEMCPY((?P<source>[HDP])(?:to|2)(?P<target>[HDP]))?", re.IGNORECASE)
SIZE_ARGS = ("memcpy_details", "kernel", "num_bytes")
"""Args of copies that tell their size: in the words of XProf, which TensorFlow's builds for AMD's
GPUs have under ``kernel`` (``MemcpyH2D kind:pinned size:4096 dest:0 async:1``), or as a number."""
SIZE = re.compile(r"(?:.*\bsize:)?(\d{1,18})(?:\s.*)?", re.DOTALL)
MEMSET = re.compile(r"MEMSET", re.IGNORECASE)
UNKNOWN = "unknown"
"""What the writer calls an op whose label it does not understand."""

TENSORS = " · tensors"
HOST, LAUNCHING, STREAM, ALL_STREAMS, COPIES = "host", "launching", "stream", "stream:all", "memcpy"


@dataclass(frozen=True)
class Process:
    """What the name of a process says: which part of the timeline it is, of which device."""

    part: str
    label: str
    host: str = ""
    device: int = NONE
    stream: int = NONE


def recognises(parts: Parts, file: Gathered) -> bool:
    """Whether ops are told by category, and devices by the names of processes."""
    return "Op" in parts.events.category.categories and any(
        PROCESS.fullmatch(name.strip()) for name in parts.names.processes.values()
    )


def translate(parts: Parts, file: Gathered) -> Parts:
    """Ops of the CPU and launching ops as cpu_op, GPU work once, linked by the node's name."""
    told = _processes(parts.names)
    nothing = Process(HOST, "")
    processes = [told.get(pid, nothing) for pid in parts.events.process.categories]
    kept, copied = _once(parts.events, processes)
    events = taken(_told(parts.events, processes, copied), kept)
    found, note = tensors(file, parts.names)
    end = int((events.ts + events.dur).max(initial=0))
    rows, names_of_rows = on_rows(found, end)
    flows = kept_flows(parts.flows, kept, len(parts.events))
    nodes = np.where(events.category == "cpu_op", texts_of(events.args.get(NODE), len(events)), "")
    events, flows = in_layers(events, flows, nodes, places(set(nodes)))
    events = joined(joined(events, allocations(found)), rows)
    return replace(
        parts,
        events=events,
        names=_labelled(events, parts.names, told, names_of_rows),
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
    """The file's processes; of several hosts, GPUs are numbered through and labels say whose."""
    told = {pid: process_of(name) for pid, name in names.processes.items()}
    if len({one.host for one in told.values()} - {""}) < 2:
        return told
    ran = [one for one in told.values() if one.part not in (HOST, LAUNCHING)]
    gpus = sorted({(one.host, one.device) for one in ran})
    number = {gpu: position for position, gpu in enumerate(gpus)}
    return {
        pid: replace(
            one,
            device=number.get((one.host, one.device), one.device),
            label=f"{one.label} of {one.host}" if one.host else one.label,
        )
        for pid, one in told.items()
    }


def process_of(name: str) -> Process:
    """What a process of this name is; one that TensorFlow does not name so ran ops."""
    found = PROCESS.fullmatch(name.strip())
    if not found:
        return Process(HOST, name.strip())
    device, row, of = int(found["index"]), found["row"], f"{found['kind'].upper()} {found['index']}"
    host = found["host"].lstrip("/")
    if row:
        part = STREAM if found["stream"] else row.lower()
        return Process(part, of, host, device, int(found["stream"] or NONE))
    if found["what"].lower() == "tensors":
        return Process(HOST, f"{of}{TENSORS}", host)
    if found["kind"].lower().endswith("cpu"):
        return Process(HOST, of, host)
    return Process(LAUNCHING, f"launching for {of}", host, device)


def _once(events: Events, processes: Sequence[Process]) -> tuple[Rows, Mask]:
    """The rows without those that stand on their stream as well, and which rows are copies."""
    part = _by_process(events, [one.part for one in processes])
    table = pd.DataFrame({
        "device": _by_process(events, [one.device for one in processes]),
        "ts": events.ts,
        "dur": events.dur,
        "name": events.name.codes,
        "node": texts_of(events.args.get("name"), len(events)),
    })  # fmt: skip
    again, copied = np.zeros(len(events), bool), part == COPIES
    for which in (ALL_STREAMS, COPIES):
        row, twin = _twins(table, np.flatnonzero(part == STREAM), np.flatnonzero(part == which))
        again[twin] = True
        copied[row] |= which == COPIES
    return np.flatnonzero(~again), copied


def _twins(table: pd.DataFrame, rows: Rows, others: Rows) -> tuple[Rows, Rows]:
    """Pairs of rows that say the same; of several alike the first is the first's, and so on."""
    alike = list(table.columns)
    first, second = (
        part.assign(number=part.groupby(alike, sort=False).cumcount(), row=part.index)
        for part in (table.loc[rows], table.loc[others])
    )
    pairs = first.merge(second, on=[*alike, "number"], suffixes=("", "_of_other"))
    return pairs["row"].to_numpy(np.intp), pairs["row_of_other"].to_numpy(np.intp)


def _by_process(events: Events, values: Sequence[Any]) -> NDArray[Any]:
    """Of each event the value of its process, given in the order of the dictionary."""
    return np.asarray(np.array(values)[events.process.codes])


def _told(events: Events, processes: Sequence[Process], copied: Mask) -> Events:
    """The events with our categories, names of copies, devices, streams and correlations."""
    part = _by_process(events, [one.part for one in processes])
    launching, on_gpu = part == LAUNCHING, ~np.isin(part, (HOST, LAUNCHING))
    device = _by_process(events, [one.device for one in processes])
    stream = _by_process(events, [one.stream for one in processes])
    threads = np.where(on_gpu, stream.astype(str), np.asarray(events.thread, dtype=object))
    args = {
        "device": marked(on_gpu, device),
        "stream": marked(on_gpu, stream),
        "correlation": _correlations(events, launching, on_gpu),
        EXECUTOR_LANE: marked(~on_gpu, np.asarray(events.thread, dtype=object)),
    }
    category = _categories(events, on_gpu, copied)
    size = _sizes(events, np.asarray(category == "gpu_memcpy"))
    if (size >= 0).any():
        args["bytes"] = marked(size >= 0, size)
    return replace(
        events,
        name=_names(events, category == "gpu_memcpy"),
        category=category,
        thread=text_codes(threads.tolist()),
        args={**events.args, **args},
    )


def _categories(events: Events, on_gpu: Mask, copied: Mask) -> pd.Categorical:
    of_name = [str(name) for name in events.name.categories]
    copies = np.array([COPY.match(name) is not None for name in of_name])[events.name.codes]
    memsets = np.array([MEMSET.match(name) is not None for name in of_name])[events.name.codes]
    category = recoded(events.category, np.asarray(events.category == "Op"), "cpu_op")
    category = recoded(category, on_gpu, "kernel")
    category = recoded(category, on_gpu & (copies | copied), "gpu_memcpy")
    return recoded(category, on_gpu & memsets, "gpu_memset")


def _names(events: Events, copies: Mask) -> pd.Categorical:
    """Copies by Kineto's names, as far as their direction is told; what has no type by its node."""
    texts = [str(name) for name in events.name.categories]
    ends = [COPY.match(text) for text in texts]
    of_copies = [
        f"Memcpy {one['source']}to{one['target']}" if one and one["source"] else "Memcpy"
        for one in ends
    ]
    names = np.array(texts, dtype=object)[events.name.codes]
    names[copies] = np.array(of_copies, dtype=object)[events.name.codes[copies]]
    node = texts_of(events.args.get("name"), len(events))
    return text_codes(np.where((names == UNKNOWN) & (node != ""), node, names).tolist())


def _sizes(events: Events, copies: Mask) -> NDArray[np.int64]:
    """The bytes of each copy, -1 where none are told."""
    size = np.full(len(events), NONE, dtype=np.int64)
    for key in SIZE_ARGS:
        told = texts_of(events.args.get(key), len(events))
        for row in np.flatnonzero(copies & (told != "") & (size < 0)).tolist():
            if found := SIZE.fullmatch(told[row]):
                size[row] = int(found[1])
    return size


def _correlations(events: Events, launching: Mask, on_gpu: Mask) -> pd.Series:
    """A number of its own for each node: on the ops that launch it, and on the work of it."""
    node = texts_of(events.args.get("name"), len(events))
    number, _ = pd.factorize(node)
    return marked((launching | on_gpu) & (node != ""), number + 1)


def _labelled(events: Events, names: Names, told: Mapping[str, Process], rows: Names) -> Names:
    """Lanes are called by their device, and numbered where it has several; so are tensors' rows."""
    pairs = pd.DataFrame({"process": events.process, "thread": events.thread}).astype(str)
    lanes = [*pairs.drop_duplicates().itertuples(index=False, name=None)]
    lanes = [lane for lane in lanes if lane not in rows.threads]
    count = Counter(process for process, _ in lanes)
    label = {pid: one.label for pid, one in told.items()}
    threads = {
        (pid, lane): label[pid] if count[pid] == 1 else f"{label[pid]} · lane {lane}"
        for pid, lane in lanes
        if pid in label
    }
    holders = {pid: label[pid].replace(TENSORS, "") for pid, _ in rows.threads if pid in label}
    return Names({**names.processes, **holders}, {**threads, **rows.threads, **names.threads})


def _by_allocator(counters: pd.DataFrame) -> pd.DataFrame:
    """The counters, each named by its allocator once: its name is that of its series as well."""
    names = [str(name) for name in counters["name"]]
    halves = [name[: len(name) // 2] for name in names]
    once = [
        half if name == f"{half} {half}" else name for name, half in zip(names, halves, strict=True)
    ]
    return counter_table(counters["ts"].to_numpy(), once, counters["value"].to_numpy())


GRADIENTS = re.compile(r"(gradients|gradient_tape)(_\d+)?")
GRADIENT = "_grad"
MADE_OF_IT = re.compile(r"_\d+\w*")


def places(nodes: Collection[str]) -> dict[str, Place]:
    """Of each of these nodes its layer and its pass."""
    return {node: _place(node, nodes) for node in nodes if not node.startswith("_")}


def _place(node: str, nodes: Collection[str]) -> Place:
    *scope, name = node.split("/")
    if MADE_OF_IT.fullmatch(name):
        scope = scope[:-1]
    is_backward = bool(scope) and GRADIENTS.fullmatch(scope[0]) is not None
    if is_backward:
        ends = [at for at, part in enumerate(scope) if part.endswith(GRADIENT)]
        scope = scope[1 : min(ends, default=len(scope))]
    while scope and "/".join(scope) in nodes:
        scope.pop()
    return Place("/".join(scope), is_backward)


CATEGORY = "Tensor"
BYTES = re.compile(r"requested_bytes: (\d{1,18})")
ALLOCATOR = re.compile(r"allocator_name: (\S+)")
GPU_ALLOCATOR = re.compile(r"gpu_(?:(\d{1,4})_)?bfc", re.IGNORECASE)


def tensors(file: Gathered, names: Names) -> tuple[list[Tensor], list[str]]:
    """The tensors with a size and an end, and what could not be told of others, as notes."""
    by_name = {name.strip(): process for process, name in names.processes.items()}
    compute = {
        process: by_name.get(f"{name.strip().removesuffix('Tensors')}Compute", process)
        for process, name in names.processes.items()
    }
    made = [_tensor(life, compute) for life in lives(file, _is_tensor)]
    found = [one for one in made if one is not None]
    count = sum(map(_is_tensor, file.others["N"]))
    left = count - len(found)
    note = f"{left:,} of {count:,} tensors have no size or no end, and no part in the memory views"
    return found, [note] if left else []


def _is_tensor(event: Event) -> bool:
    return event.cat == CATEGORY


def _tensor(life: Life, compute: dict[str, str]) -> Tensor | None:
    text = str(life.description.get("tensor_description"))
    size, allocator = BYTES.search(text), ALLOCATOR.search(text)
    if size is None or life.deleted_ns is None:
        return None
    told = allocator[1] if allocator else ""
    gpu = GPU_ALLOCATOR.fullmatch(told)
    process = id_text(life.created.pid)
    holder: Thread = (process, "0")
    return Tensor(
        name=life.created.name,
        maker=(compute.get(process, process), id_text(life.created.tid)),
        holder=holder,
        made=life.created_ns,
        released=max(life.deleted_ns, life.created_ns),
        size=int(size[1]),
        gpu=int(gpu[1] or 0) if gpu else NONE,
        args={"allocator": told},
    )
