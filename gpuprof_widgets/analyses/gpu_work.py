"""What a slice of GPU work is: compute, communication, copy or memset; one place for the rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import nan, prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.reasons import says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import GPU_TRACKS, NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

COMPUTE, COMMUNICATION, COPY, MEMSET = "compute", "communication", "copy", "memset"
KINDS = (COMPUTE, COMMUNICATION, COPY, MEMSET)

LIBRARIES = re.compile(
    r"\b(nccl|rccl|msccl|mccl|hccl|oneccl|uccl)|nvshmem|rocshmem|symm_mem|symmetric_memory"
    r"|intra_node_comm|quickreduce|userbuffers|deep_?ep|(hybrid|nixl)_ep|\bdpsk::ep::|\bmori::",
    re.IGNORECASE,
)
"""Where kernels come from that move data between ranks: NCCL and its kin, the memory that ranks
share (NVSHMEM, rocSHMEM, torch's symmetric memory, Transformer Engine's userbuffers), and the
exchanges among experts (DeepEP, in DeepSeek's own traces ``dpsk::ep``, UCCL, NIXL, MORI)."""

_BEGINS = r"(?-i:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z])|(?=[A-Z][a-z]))"
"""Where a word begins: ``ncclAllGather`` has three, ``smallGather`` two."""

COLLECTIVES = re.compile(
    rf"{_BEGINS}(all_?(reduce|gather)|reduce_?scatter|all_?(to|2)_?all|cross_device_reduce"
    r"|multimem|lamport|a2a_?(dispatch|combine))|\bEp(Dispatch|Combine)",
    re.IGNORECASE,
)
"""The same, by names of functions: vLLM, SGLang, AITER, FlashInfer, TensorRT-LLM, pplx, FBGEMM."""

LOCAL = re.compile(
    r"\btriton_[a-z]+_fused_|gemm|matmul|layout|epilogue|prologue|permute|scan", re.IGNORECASE
)
"""Functions that work on one rank for all that: what torch.compile fuses is named after the ops it
feeds, and the libraries above count, sort and add up what arrived by kernels of their own. What
multiplies matrices meanwhile computes."""

SORTING = re.compile(r"\b(cub|thrust)(::|_)", re.IGNORECASE)
"""CUB within a library's own namespace (``dpsk::ep::CUB_200::…``)."""

_NCCL = re.compile(r"\bnccl")


def gpu_kinds(trace: Trace) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.object_]]:
    """The rows of all GPU slices, and for each one of `KINDS`.

    A kernel communicates when its name says so (`is_communicating`) or when it carries the name of
    a collective. Names that merely start with ``hip`` do not: those are AMD's compute kernels.
    """
    rows = trace.index.gpu
    return rows, np.array(KINDS, object)[kind_codes(trace)[rows]]


@remembered
def kind_codes(trace: Trace) -> npt.NDArray[np.int8]:
    """Per slice the place among `KINDS`; of what ran on no GPU it means nothing."""
    talking = frozenset(filter(is_communicating, trace.index.names))
    code = trace.index.named(talking).astype(np.int8)
    if (collective := trace.args.get("Collective name")) is not None:
        code[collective.index[collective.notna()]] = KINDS.index(COMMUNICATION)
    for category, kind in (("gpu_memcpy", COPY), ("gpu_memset", MEMSET)):
        code[trace.index.in_category(category)] = KINDS.index(kind)
    return code


@lru_cache(maxsize=10_000)
def is_communicating(name: str) -> bool:
    """Whether a kernel of that name moves data between ranks.

    Its function counts, not the types that it is made for (``reduce_kernel<…>``), except for NCCL's
    own, without which no kernel can call it.
    """
    path = without_parameters(name)
    function = path.rpartition("::")[2]
    if LOCAL.search(function) or SORTING.search(path):
        return False
    return bool(LIBRARIES.search(path) or COLLECTIVES.search(function) or _NCCL.search(name))


ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, BARRIER = "all_to_all", "barrier"

SYNCHRONISING = frozenset({ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER})
"""Operations that no rank can end before every rank has begun: each needs data of all others."""

_OPERATIONS = (
    (re.compile(r"reduce_?scatter"), REDUCE_SCATTER),
    (re.compile(r"all_?reduce|cross_device_reduce"), ALL_REDUCE),
    (re.compile(r"all_?gather"), ALL_GATHER),
    (re.compile(r"all_?to_?all|all2all"), ALL_TO_ALL),
    (re.compile(r"(::(notify_)?|a2a_?|\bep)dispatch"), "dispatch"),
    (re.compile(r"(::|a2a_?|\bep)combine"), "combine"),
    (re.compile(r"broadcast"), "broadcast"),
    (re.compile(r"barrier"), BARRIER),
    (re.compile(r"gather"), "gather"),
    (re.compile(r"scatter"), "scatter"),
    (re.compile(r"send_?recv"), "send_recv"),
    (re.compile(r"\bsend"), "send"),
    (re.compile(r"\brecv"), "recv"),
    (re.compile(r"reduce"), "reduce"),
)
"""Of several that match the first: all_gather is no gather. What experts exchange is not called an
all_to_all: where its receiving half is a call of its own, a rank sends and goes on."""

_PARAMETERS = re.compile(r"[<(]")

_ANNOTATION = re.compile(r"(?P<backend>nccl|rccl|gloo|mpi|ucc|xccl|hccl):(?P<operation>.+)")

_BUS_SHARE = {
    ALL_REDUCE: lambda n: 2 * (n - 1) / n,
    ALL_GATHER: lambda n: (n - 1) / n,
    REDUCE_SCATTER: lambda n: (n - 1) / n,
    ALL_TO_ALL: lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
}

_TYPES = (
    (re.compile(r"bfloat16|\bbf16"), "bfloat16", 2),
    (re.compile(r"float8_\w+"), "float8", 1),
    (re.compile(r"half|float16|f16"), "float16", 2),
    (re.compile(r"double|float64|f64"), "float64", 8),
    (re.compile(r"float|f32"), "float32", 4),
    (re.compile(r"unsigned char|byte|uint8|u8"), "uint8", 1),
    (re.compile(r"signed char|char|int8"), "int8", 1),
    (re.compile(r"short|int16"), "int16", 2),
    (re.compile(r"long|int64|i64"), "int64", 8),
    (re.compile(r"int|int32|i32"), "int32", 4),
    (re.compile(r"bool"), "bool", 1),
)


def operation_of(*texts: str) -> str:
    """The operation that the first of these texts names, as ``torch.distributed`` calls it.

    The texts are, best first, what the trace calls the collective, its annotation, its kernel.
    "" where none of them tells.
    """
    for text in texts:
        lower = without_parameters(text).lower()
        for pattern, operation in _OPERATIONS:
            if pattern.search(lower):
                return operation
    return ""


def without_parameters(name: str) -> str:
    """A function's name with its namespaces, without the types that it is made for and takes."""
    return _PARAMETERS.split(name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]


def annotation(name: str) -> tuple[str, str]:
    """Backend and operation of ``nccl:all_reduce``; "" and "" of any other name."""
    found = _ANNOTATION.fullmatch(name)
    return (found["backend"], found["operation"]) if found else ("", "")


def bus_share(operation: str, ranks: int) -> float:
    """What the busiest link carries of the message: bus bandwidth over algorithm bandwidth.

    Of nccl-tests (doc/PERFORMANCE.md): all_reduce 2(n-1)/n; all_gather, reduce_scatter and
    all_to_all (n-1)/n; broadcast, reduce and point to point 1. NaN where the group is unknown.
    """
    if ranks < 1:
        return nan
    share = _BUS_SHARE.get(operation)
    return share(ranks) if share else 1.0


def dtype_of(text: str) -> tuple[str, int]:
    """Name and bytes of a type as Kineto writes it (``c10::Half``, ``Float``); "" and 0 if none."""
    lower = text.lower()
    for pattern, name, size in _TYPES:
        if pattern.search(lower):
            return name, size
    return "", 0


def elements(dims: Any) -> int:
    """Elements of all the tensors in an op's input dims."""
    if not isinstance(dims, list | tuple) or not dims:
        return 0
    if all(isinstance(size, int) for size in dims):
        return prod(dims)
    return sum(elements(one) for one in dims)


def message_bytes(operation: str, sent: int, ranks: int) -> tuple[int, int]:
    """Bytes in and out of a rank that passes ``sent`` bytes to the operation."""
    if operation == ALL_GATHER:
        return sent, sent * max(ranks, 1)
    if operation == REDUCE_SCATTER:
        return sent, sent // max(ranks, 1)
    return (0, 0) if operation == BARRIER else (sent, sent)


def groups_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Per name of a process group its ranks, as the trace lists its groups."""
    information = metadata.get("distributedInfo")
    listed = information.get("pg_config") if isinstance(information, dict) else None
    if not isinstance(listed, list):
        return {}
    known = [one for one in listed if isinstance(one, dict) and isinstance(one.get("ranks"), list)]
    return {str(one.get("pg_name")): ranks_text(one["ranks"]) for one in known}


def world_size_of(metadata: Mapping[str, Any]) -> int:
    """Ranks in the whole job; -1 where the trace does not say."""
    information = metadata.get("distributedInfo")
    told = information.get("world_size") if isinstance(information, dict) else None
    world = metadata.get("world_size", told)
    return world if isinstance(world, int) else -1


def ranks_text(ranks: list[int]) -> str:
    """``0-7`` of consecutive ranks, else ``0,2,4``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


COLUMNS = (
    "device",
    "span_ns",
    "busy_ns",
    "idle_ns",
    "busy_share",
    "kernel_ns",
    "copy_ns",
    "memset_ns",
    "slices",
)


@says_if_empty("the trace has no GPU work: neither kernels nor copies")
def device_busy(record: Record) -> pd.DataFrame:
    """One row per GPU that the run used, by index; busy and idle add up to the span exactly.

    A range in which a GPU ran nothing has its row too: windows that tile a run add up to it.

    Columns (ns): ``device``, ``span_ns`` (the whole trace or window), ``busy_ns`` (at least one
    kernel, copy or memset ran, on whichever stream), ``idle_ns``, ``busy_share``; ``kernel_ns``,
    ``copy_ns`` and ``memset_ns`` (at least one kernel, copy or memset ran: they may overlap),
    ``slices``.
    """
    trace = record.trace
    rows = [_row(trace, device) for device in devices(trace)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def devices(trace: Trace) -> list[int]:
    """Index of every GPU that the run used: of its tracks, which a window keeps."""
    tracks = trace.tracks
    return sorted(set(tracks["device"][tracks["kind"].isin(GPU_TRACKS)].tolist()))


def devices_at_work(trace: Trace) -> list[int]:
    """Index of every GPU that ran anything in this trace or range of it."""
    return [int(device) for device in np.unique(trace.index.device[trace.index.gpu])]


def busy_intervals(trace: Trace, device: int, *categories: str) -> Intervals:
    """When the GPU ran a slice of these categories (all of them where none is named)."""
    rows = trace.index.gpu
    rows = rows[trace.index.device[rows] == device]
    if categories:
        rows = rows[trace.index.in_category(*categories)[rows]]
    return open_within(trace, rows)


def kind_times(trace: Trace, device: int) -> dict[str, Intervals]:
    """When each kind of work ran on the GPU, by the names of `KINDS` and in their order."""
    rows = trace.index.gpu
    rows = rows[trace.index.device[rows] == device]
    kind = kind_codes(trace)[rows]
    return {name: open_within(trace, rows[kind == code]) for code, name in enumerate(KINDS)}


def _row(trace: Trace, device: int) -> dict[str, float]:
    rows = trace.index.gpu
    busy = intervals.length(busy_intervals(trace, device))
    return {
        "device": device,
        "span_ns": trace.span_ns,
        "busy_ns": busy,
        "idle_ns": trace.span_ns - busy,
        "busy_share": busy / trace.span_ns if trace.span_ns else 0.0,
        "kernel_ns": intervals.length(busy_intervals(trace, device, "kernel")),
        "copy_ns": intervals.length(busy_intervals(trace, device, "gpu_memcpy")),
        "memset_ns": intervals.length(busy_intervals(trace, device, "gpu_memset")),
        "slices": int((trace.index.device[rows] == device).sum()),
    }


@dataclass(frozen=True)
class Gaps:
    """Gaps in order of time; rows and times are -1 where there is none.

    ``before``, ``after``: rows of the GPU slice whose end began the gap and of the one whose start
    ended it; ``launch``: row of the call that launched ``after``, which lasted from ``launch_ns``
    to ``launched_ns`` (before any window cut it); ``thread``: the CPU track that made that call,
    else the one that launches most.
    """

    start: Ints
    end: Ints
    before: Rows
    after: Rows
    launch: Rows
    launch_ns: Ints
    launched_ns: Ints
    thread: Rows

    def __len__(self) -> int:
        return len(self.start)


def gaps_between(trace: Trace, rows: npt.NDArray[np.intp]) -> Gaps:
    """The time of the trace that these GPU slices leave free."""
    return gaps_of_each(trace, [rows])[0]


def gaps_of_each(trace: Trace, groups: list[npt.NDArray[np.intp]]) -> tuple[Gaps, Ints]:
    """The same of several groups of GPU slices, one after another, and the place of the group."""
    found = [_between(trace, rows) for rows in groups]
    start, end, before, after = (np.concatenate(column) for column in zip(*found, strict=True))
    group = np.repeat(np.arange(len(groups)), [len(starts) for starts, *_ in found])
    launch = _or_none(trace.slices["launch"].to_numpy(), after).astype(np.int32)
    began, ended = trace.index.uncut
    usual = np.array([_usual_track(trace, rows) for rows in groups], np.int32)[group]
    thread = np.where(launch >= 0, _or_none(trace.index.track, launch), usual).astype(np.int32)
    times = (_or_none(began, launch), _or_none(ended, launch))
    return Gaps(start, end, before, after, launch, *times, thread), group


def _between(trace: Trace, rows: npt.NDArray[np.intp]) -> tuple[Ints, Ints, Rows, Rows]:
    """Start and end of the gaps, and the slices before and after them."""
    ts, dur = trace.slices["ts"].to_numpy()[rows], trace.slices["dur"].to_numpy()[rows]
    start, end = intervals.gaps(open_within(trace, rows), trace.start_ns, trace.end_ns)
    timed = dur > 0
    before = _ending(rows[timed], (ts + dur)[timed], start)
    return start, end, before, _ending(rows[timed], ts[timed], end)


def _or_none(values: Rows | Ints, rows: Rows) -> Ints:
    """The values of these rows, -1 for no row."""
    return np.append(values, NONE)[rows].astype(np.int64)


def _ending(rows: npt.NDArray[np.intp], moment: Ints, wanted: Ints) -> Rows:
    order = np.argsort(moment, kind="stable")
    at = np.minimum(np.searchsorted(moment[order], wanted), max(len(rows) - 1, 0))
    hit = moment[order[at]] == wanted if len(rows) else np.zeros(len(wanted), bool)
    return np.where(hit, rows[order[at]] if len(rows) else NONE, NONE).astype(np.int32)


def _usual_track(trace: Trace, rows: npt.NDArray[np.intp]) -> int:
    """The CPU track that launches most of these slices, else the first one."""
    launch = trace.index.column("launch")[rows]
    if (launch >= 0).any():
        return int(np.bincount(trace.index.track[launch[launch >= 0]]).argmax())
    cpu_tracks = np.flatnonzero((trace.tracks["kind"] == "cpu").to_numpy())
    return int(cpu_tracks[0]) if len(cpu_tracks) else NONE


def open_times(trace: Trace, chosen: npt.NDArray[Any]) -> intervals.Intervals:
    """When any of these slices (rows, or a mask of all) was open, each time once."""
    return intervals.union(trace.index.ts[chosen], trace.index.end[chosen])


def open_within(trace: Trace, chosen: npt.NDArray[Any]) -> intervals.Intervals:
    """The same, between the start and the end of the trace."""
    return intervals.clip(open_times(trace, chosen), trace.start_ns, trace.end_ns)


def open_ns(trace: Trace, chosen: npt.NDArray[Any]) -> int:
    """For how long any of these slices was open."""
    return intervals.length(open_times(trace, chosen))
