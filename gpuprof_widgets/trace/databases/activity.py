"""What CUPTI recorded, in our words: rows of several tables, put together as one trace's events.

nvprof and Nsight Systems both store CUPTI's activity records; they differ in tables and columns.
Names, categories and args are those that Kineto, which reads the same records, writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Ints, Table, Texts
from gpuprof_widgets.trace.events import Events, text_codes
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import in_categories, is_gpu

LATEST = 2**62
"""Times beyond it (ns) are damage: sums of two would not fit int64."""

_WAYS = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_UNIFIED = ("HtoD (Unified)", "DtoH (Unified)", "DtoD (Unified)")
COPY_KINDS = dict(enumerate((*_WAYS, *_UNIFIED), 1))
"""CUPTI's CUpti_ActivityMemcpyKind; from 11 on Nsight Systems' own, of unified memory."""

PEER_COPY = 10

SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""CUPTI's CUpti_ActivitySynchronizationType, as Kineto calls them."""

ON_EVENT = (1, 2)

NO_STREAM = 0xFFFFFFFF
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE: the call waits for no one stream."""

_VERSION = re.compile(r"(_ptsz|_ptds)?_v\d{4,5}$|_pt(sz|ds)$")
_DRIVER = re.compile(r"cu[A-Z]")

Columns = Mapping[str, Ints]
Values = Ints | Texts


@dataclass(frozen=True)
class Group:
    """Rows of one table: times in ns, texts by row, args by key (`MISSING` or None: has none)."""

    ts: Ints
    dur: Ints
    name: Texts
    category: Texts
    process: Texts
    thread: Texts
    args: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ts)

    def with_args(self, **args: Values) -> Group:
        """The same rows with more args."""
        return replace(self, args={**self.args, **args})


def joined(groups: Sequence[Group]) -> Events:
    """All rows, one group after the other."""
    first = np.cumsum([0, *map(len, groups)])
    args: dict[str, list[tuple[Ints, NDArray[Any]]]] = {}
    for start, group in zip(first.tolist(), groups, strict=False):
        for key, values in group.args.items():
            rows = np.flatnonzero(_known(values))
            if len(rows):
                args.setdefault(key, []).append((rows + start, values[rows]))
    return Events(
        ts=_chained([group.ts for group in groups], np.int64),
        dur=_chained([group.dur for group in groups], np.int64),
        name=text_codes(_chained([group.name for group in groups], object).tolist()),
        category=text_codes(_chained([group.category for group in groups], object).tolist()),
        process=text_codes(_chained([group.process for group in groups], object).tolist()),
        thread=text_codes(_chained([group.thread for group in groups], object).tolist()),
        args={key: _series(parts) for key, parts in args.items()},
    )


def timed(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Which rows have times that can be: CUPTI writes 0 and 0 where it could not tell them."""
    return (start >= 0) & (end >= start) & (end < LATEST) & ((start > 0) | (end > 0))


def texts(numbers: Ints) -> Texts:
    """Numbers as text; "" for what is missing."""
    distinct, place = np.unique(numbers, return_inverse=True)
    words = ["" if number == MISSING else str(number) for number in distinct.tolist()]
    return np.array(words, object)[place]


def named(numbers: Ints, names: Mapping[int, str], otherwise: str) -> Texts:
    """Names by number; ``otherwise`` and the number for those that have none."""
    distinct, place = np.unique(numbers, return_inverse=True)
    unknown = [f"{otherwise} {n}" if n != MISSING else otherwise for n in distinct.tolist()]
    words = [names.get(n, word) for n, word in zip(distinct.tolist(), unknown, strict=True)]
    return np.array(words, object)[place]


def of_one(word: str, rows: int) -> Texts:
    """The same word in every row."""
    return np.full(rows, word, object)


def unique_correlations(process: Ints, correlation: Ints, *, several: bool) -> Ints:
    """Correlation ids that no two processes share: those of the file where it holds but one."""
    if not several:
        return correlation
    # CUPTI counts in 32 bits, and no process id has more than 22.
    unique = (process << 32) | (correlation & 0xFFFFFFFF)
    return np.where((correlation > 0) & (process != MISSING), unique, MISSING)


def call_name(name: str) -> str:
    """``cudaLaunchKernel`` of ``cudaLaunchKernel_v7000``: CUPTI's names end in a version."""
    return _VERSION.sub("", name)


def call_category(name: str) -> str:
    """By the name of the function: ``cudaMalloc`` is of the runtime, ``cuMemAlloc`` not."""
    return "cuda_driver" if _DRIVER.match(name) else "cuda_runtime"


def each_distinct(values: Texts, of: Any) -> Texts:
    """A function of text applied to every row, called once for each distinct text."""
    answers = {value: of(value) for value in set(values.tolist())}
    return np.array([answers[value] for value in values.tolist()], object)


def copy_names(kind: Ints, source: Ints, target: Ints, memory: Mapping[int, str]) -> Texts:
    """``Memcpy HtoD (Pageable -> Device)``, as Kineto names copies."""
    ways = named(kind, COPY_KINDS, "of kind")
    sources, targets = (named(end, memory, "Unknown") for end in (source, target))
    words = [
        f"Memcpy {way}" if "(" in way else f"Memcpy {way} ({here} -> {there})"
        for way, here, there in zip(ways, sources, targets, strict=True)
    ]
    return np.array(words, object)


def memset_names(kind: Ints, memory: Mapping[int, str]) -> Texts:
    """``Memset (Device)``."""
    words = [f"Memset ({where})" for where in named(kind, memory, "Unknown")]
    return np.array(words, object)


def sizes(x: Ints, y: Ints, z: Ints) -> NDArray[np.object_]:
    """Grids or blocks as lists ``[x, y, z]``, equal ones as one object."""
    table = np.stack([x, y, z], axis=1) if len(x) else np.empty((0, 3), np.int64)
    distinct, place = np.unique(table, axis=0, return_inverse=True)
    lists = np.empty(len(distinct), object)
    lists[:] = [None if MISSING in row else row for row in distinct.tolist()]
    return lists[place.reshape(-1)]


def shared_memory(static: Ints, dynamic: Ints) -> Ints:
    """Bytes of shared memory per block, static and dynamic together."""
    known = (static >= 0) & (dynamic >= 0)
    return np.where(known, static + np.where(known, dynamic, 0), MISSING)


def on_device(device: Ints, stream: Ints, process: Ints) -> tuple[Texts, Texts]:
    """Process and thread of GPU rows, as Kineto has them: the device and the stream.

    Where processes have streams of one number on one GPU, the process stands beside it: they are
    different streams.
    """
    ids = pd.DataFrame({"device": device, "stream": stream, "process": process})
    owners = ids.groupby(["device", "stream"])["process"].transform("nunique").to_numpy()
    thread = texts(stream)
    shared = owners > 1
    thread[shared] = [
        f"{number} of process {owner}"
        for number, owner in zip(thread[shared], texts(process)[shared], strict=True)
    ]
    return texts(device), thread


def latest_record(
    waiting: Columns, waited: Ints, records: Columns, recorded: Ints
) -> NDArray[np.int64]:
    """For each wait for a CUDA event: row of the latest record of that event before it, or -1.

    ``waiting`` and ``records`` have the columns that tell one event from another; the other two are
    correlation ids, which rise with time.
    """
    if not len(waited):
        return np.empty(0, np.int64)
    keys = list(waiting)
    both = pd.DataFrame({key: np.concatenate([waiting[key], records[key]]) for key in keys})
    number = np.asarray(both.groupby(keys, sort=False).ngroup(), np.int64)
    of_waits, of_records = number[: len(waited)], number[len(waited) :]
    row = links.latest_before(of_waits, waited, of_records, recorded)
    before = (row >= 0) & (np.append(recorded, MISSING)[row] < waited)
    return np.where(before, row, -1)


def gpu_group(
    table: Table,
    process: Ints,
    correlation: Ints,
    name: Texts,
    category: str,
    args: Mapping[str, Values],
) -> Group:
    """Rows of a stream: kernels, copies, memsets, synchronisations."""
    device, stream = on_device(table["deviceId"], table["streamId"], process)
    where = {"device": table["deviceId"], "context": table["contextId"]}
    where |= {"stream": table["streamId"], "correlation": correlation}
    took = table["end"] - table["start"]
    kind = of_one(category, len(table))
    return Group(table["start"], took, name, kind, device, stream, where | dict(args))


def launch_args(table: Table, geometry: Sequence[str], shared: Sequence[str]) -> dict[str, Values]:
    """How kernels were launched, under Kineto's keys."""
    x, y, z, *block = (table[key] for key in geometry)
    return {
        "registers per thread": table["registersPerThread"],
        "shared memory": shared_memory(*(table[key] for key in shared)),
        "grid": sizes(x, y, z),
        "block": sizes(*block),
    }


def copy_args(table: Table) -> dict[str, Values]:
    """How much was copied, and between which devices."""
    peers = table["copyKind"] == PEER_COPY
    return {
        "bytes": table["bytes"],
        "fromDevice": np.where(peers, table["srcDeviceId"], MISSING),
        "toDevice": np.where(peers, table["dstDeviceId"], MISSING),
    }


def waited_args(
    kind: Ints, waiting: Columns, waited: Ints, records: Columns, recorded: Table
) -> dict[str, Values]:
    """Of waits for an event: which, and the stream and the call of its latest record before.

    ``waiting`` and ``records`` are the columns that tell one event from another.
    """
    on_event = np.isin(kind, ON_EVENT)
    row = latest_record(waiting, waited, records, recorded["correlationId"])
    row = np.where(on_event, row, -1)
    return {
        "wait_on_stream": np.append(recorded["streamId"], MISSING)[row],
        "wait_on_cuda_event_record_corr_id": np.append(recorded["correlationId"], MISSING)[row],
        "wait_on_cuda_event_id": np.where(on_event, waiting["event"], MISSING),
    }


def overhead_group(table: Table, name: Texts, process: Ints) -> Group:
    """What the profiler itself took; on a thread of its own, as Kineto has it."""
    took, rows = table["end"] - table["start"], len(table)
    kind, thread = of_one("overhead", rows), of_one("profiler overhead", rows)
    return Group(table["start"], took, name, kind, texts(process), thread)


def sync_group(group: Group) -> Group:
    """As Kineto has them: a wait for no one stream lies on the thread -1."""
    no_stream = group.args["stream"] == NO_STREAM
    return replace(group, thread=np.where(no_stream, "-1", group.thread))


def _known(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype == object:
        return np.array([value is not None for value in values], bool)
    return np.asarray(values != MISSING)


def _series(parts: Sequence[tuple[Ints, NDArray[Any]]]) -> pd.Series:
    rows = np.concatenate([rows for rows, _ in parts])
    values = np.concatenate([values for _, values in parts])
    return pd.Series(values, index=pd.Index(rows, dtype=np.int64), dtype=values.dtype)


def _chained(parts: Sequence[NDArray[Any]], kind: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def gpu_annotations(trace: Trace, start: int) -> Group:
    """Per annotation and stream a row from the first to the last slice that it launched there.

    That is `nvtx_gpu_proj_trace` of Nsight Systems. ``start``: of the trace on the file's clock.
    """
    slices, tracks = trace.slices, trace.tracks
    pairs = _pairs(trace)
    pairs["track"] = slices["track"].to_numpy()[pairs["gpu"]]
    pairs["ts"] = slices["ts"].to_numpy()[pairs["gpu"]]
    pairs["end"] = pairs["ts"] + slices["dur"].to_numpy()[pairs["gpu"]]
    place = tracks[["process", "thread", "device", "stream"]]
    placed = pairs.join(place, on="track").groupby(["owner", "process", "thread"], sort=False)
    table = placed.agg(
        ts=("ts", "min"), end=("end", "max"), device=("device", "first"), stream=("stream", "first")
    ).reset_index()
    return Group(
        ts=table["ts"].to_numpy(np.int64) + start,
        dur=(table["end"] - table["ts"]).to_numpy(np.int64),
        name=slices["name"].to_numpy(object)[table["owner"]],
        category=of_one("gpu_user_annotation", len(table)),
        process=table["process"].to_numpy(object),
        thread=table["thread"].to_numpy(object),
        args={key: table[key].to_numpy(np.int64) for key in ("device", "stream")},
    )


def _pairs(trace: Trace) -> pd.DataFrame:
    """Each GPU slice (``gpu``) with each annotation around its launch (``owner``)."""
    slices = trace.slices
    annotation = in_categories(slices["category"], ("user_annotation",))
    parent = slices["parent"].to_numpy()
    gpu = np.flatnonzero(is_gpu(slices["category"]))
    owner = slices["op"].to_numpy()[gpu]
    found = []
    while len(gpu := gpu[owner >= 0]):
        owner = owner[owner >= 0]
        here = annotation[owner]
        found.append((gpu[here], owner[here]))
        owner = parent[owner]
    columns = zip(*found, strict=True) if found else ([np.empty(0, np.intp)],) * 2
    return pd.DataFrame(dict(zip(("gpu", "owner"), map(np.concatenate, columns), strict=True)))
