"""GPU work: its kind, when each GPU was busy, its gaps, and the families of its kernels.

Every analysis takes the kind of a slice (compute, communication, copy, memset) from here
(`gpu_kinds`), so that all tables agree on it. The family of a kernel (`families`) says by its name
what it computes: what its author meant, not what ran. Kernels of torch.compile, which fuse several
ops, go by the kind of their loop where they name no op that is more than elementwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.reasons import says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Codes, Ints, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import GPU_TRACKS, NONE

COMPUTE, COMMUNICATION, COPY, MEMSET = "compute", "communication", "copy", "memset"
KINDS = (COMPUTE, COMMUNICATION, COPY, MEMSET)

LIBRARIES = re.compile(
    r"\b(nccl|rccl|msccl|mccl|hccl|oneccl|uccl)|nvshmem|rocshmem|symm_mem|symmetric_memory"
    r"|intra_node_comm|quickreduce|userbuffers|deep_?ep|(hybrid|nixl)_ep|\bdpsk::ep::|\bmori::",
    re.IGNORECASE,
)
"""Libraries whose kernels move data between ranks: NCCL and its relatives, memory that ranks share
(NVSHMEM, rocSHMEM, torch's symmetric memory, Transformer Engine's userbuffers), and exchanges among
experts (DeepEP, as ``dpsk::ep`` in DeepSeek's own traces, UCCL, NIXL, MORI)."""

_WORD_START = r"(?-i:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z])|(?=[A-Z][a-z]))"
"""The start of a word: ``ncclAllGather`` has three words, ``smallGather`` two."""

COLLECTIVES = re.compile(
    rf"{_WORD_START}(all_?(reduce|gather)|reduce_?scatter|all_?(to|2)_?all|cross_device_reduce"
    r"|multimem|lamport|a2a_?(dispatch|combine))|\bEp(Dispatch|Combine)",
    re.IGNORECASE,
)
"""Functions that do so in vLLM, SGLang, AITER, FlashInfer, TensorRT-LLM, pplx and FBGEMM."""

LOCAL = re.compile(
    r"\btriton_[a-z]+_fused_|gemm|matmul|layout|epilogue|prologue|permute|scan", re.IGNORECASE
)
"""Functions that match the above but work on one rank: torch.compile names fused kernels after the
ops that they feed, the libraries above have kernels that count, sort and add up what arrived, and a
kernel that multiplies matrices while it communicates counts as compute."""

SORTING = re.compile(r"\b(cub|thrust)(::|_)", re.IGNORECASE)
"""CUB within a library's own namespace (``dpsk::ep::CUB_200::…``)."""

_NCCL = re.compile(r"\bnccl")
_PARAMETERS = re.compile(r"[<(]")

COLUMNS = (
    *("device", "span_ns", "busy_ns", "idle_ns", "busy_share"),
    *("kernel_ns", "copy_ns", "memset_ns", "slices"),
)


def gpu_kinds(trace: Trace) -> tuple[Rows, npt.NDArray[np.object_]]:
    """Return the rows of all GPU slices, and the kind of each, one of `KINDS`.

    A kernel communicates if its name says so (`is_communicating`) or if it carries the name of a
    collective. A name that starts with ``hip`` says nothing: AMD's compute kernels have it too.
    """
    rows = trace.index.gpu
    return rows, np.array(KINDS, object)[kind_codes(trace)[rows]]


@remembered
def kind_codes(trace: Trace) -> npt.NDArray[np.int8]:
    """Return per slice its kind as a position in `KINDS`; it means nothing for CPU slices."""
    communicating = frozenset(filter(is_communicating, trace.index.names))
    code = trace.index.named(communicating).astype(np.int8)
    if (collective := trace.args.get("Collective name")) is not None:
        code[collective.index[collective.notna()]] = KINDS.index(COMMUNICATION)
    for category, kind in (("gpu_memcpy", COPY), ("gpu_memset", MEMSET)):
        code[trace.index.in_category(category)] = KINDS.index(kind)
    return code


@lru_cache(maxsize=10_000)
def is_communicating(name: str) -> bool:
    """Return whether a kernel of that name moves data between ranks.

    The name of its function counts and not its template parameters (``reduce_kernel<…>``), except
    for NCCL's types, which no kernel has unless it calls NCCL.
    """
    path = without_parameters(name)
    function = path.rpartition("::")[2]
    if LOCAL.search(function) or SORTING.search(path):
        return False
    return bool(LIBRARIES.search(path) or COLLECTIVES.search(function) or _NCCL.search(name))


def without_parameters(name: str) -> str:
    """Return a function's name with its namespaces, without template and call parameters."""
    return _PARAMETERS.split(name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]


@says_if_empty("the trace has no GPU work: neither kernels nor copies")
def device_busy(record: Record) -> pd.DataFrame:
    """One row per GPU that the run used, by index; busy and idle add up to the span exactly.

    A GPU has a row in every window, even where it ran nothing, so that windows add up to the run.

    Columns:

    - ``device``: index of the GPU.
    - ``span_ns``: the whole trace or window.
    - ``busy_ns``: at least one kernel, copy or memset ran, on any stream.
    - ``idle_ns``: ``span_ns`` less ``busy_ns``.
    - ``busy_share``: ``busy_ns`` / ``span_ns``.
    - ``kernel_ns``, ``copy_ns``, ``memset_ns``: at least one such slice ran; these may overlap.
    - ``slices``: number of kernels, copies and memsets.

    Source: defined here. The utilisation of PyTorch's TensorBoard plugin counts kernels alone (see
    `gpu_summary`).
    """
    trace = record.trace
    span, table = trace.span_ns, []
    for device in devices(trace):
        busy, *by_category = (
            intervals.length(busy_intervals(trace, device, *categories))
            for categories in ((), ("kernel",), ("gpu_memcpy",), ("gpu_memset",))
        )
        share, slices = busy / span if span else 0.0, len(rows_on(trace, device))
        table.append((device, span, busy, span - busy, share, *by_category, slices))
    return pd.DataFrame(table, columns=list(COLUMNS))


def devices(trace: Trace) -> list[int]:
    """Return the index of every GPU that the run used, by its tracks, which a window keeps."""
    tracks = trace.tracks
    return sorted(set(tracks["device"][tracks["kind"].isin(GPU_TRACKS)].tolist()))


def devices_at_work(trace: Trace) -> list[int]:
    """Return the index of every GPU that ran anything in this trace or window."""
    return [int(device) for device in np.unique(trace.index.device[trace.index.gpu])]


def rows_on(trace: Trace, device: int) -> Rows:
    """Return the rows of the slices of one GPU."""
    rows = trace.index.gpu
    return np.asarray(rows[trace.index.device[rows] == device], np.intp)


def busy_intervals(trace: Trace, device: int, *categories: str) -> Intervals:
    """Return when the GPU ran a slice of these categories, or any slice if none is named."""
    rows = rows_on(trace, device)
    if categories:
        rows = rows[trace.index.in_category(*categories)[rows]]
    return open_within(trace, rows)


def kind_times(trace: Trace, device: int) -> dict[str, Intervals]:
    """Return when each of `KINDS` ran on the GPU, in their order."""
    rows = rows_on(trace, device)
    kind = kind_codes(trace)[rows]
    return {name: open_within(trace, rows[kind == code]) for code, name in enumerate(KINDS)}


@dataclass(frozen=True)
class Gaps:
    """Gaps in GPU work in order of time; a missing row or time is -1.

    ``before``, ``after``: rows of the GPU slice whose end began the gap and of the one whose start
    ended it; ``launch``: row of the call that launched ``after``, which lasted from ``launch_ns``
    to ``launched_ns`` (before any window cut it); ``thread``: the CPU track that made that call,
    else the one that launches most.
    """

    start: Ints
    end: Ints
    before: Codes
    after: Codes
    launch: Codes
    launch_ns: Ints
    launched_ns: Ints
    thread: Codes


def gaps_between(trace: Trace, rows: Rows) -> Gaps:
    """Return the times of the trace in which none of these GPU slices ran."""
    return gaps_of_each(trace, [rows])[0]


def gaps_of_each(trace: Trace, groups: list[Rows]) -> tuple[Gaps, Ints]:
    """Return the gaps of each group of GPU slices, one after another, and the group of each gap."""
    parts = []
    for rows in groups:
        opens, closes = intervals.gaps(open_within(trace, rows), trace.start_ns, trace.end_ns)
        timed = rows[trace.index.dur[rows] > 0]
        before = _row_at(timed, trace.index.end[timed], opens)
        parts.append((opens, closes, before, _row_at(timed, trace.index.ts[timed], closes)))
    start, end, before, after = (np.concatenate(column) for column in zip(*parts, strict=True))
    group = np.repeat(np.arange(len(groups)), [len(starts) for starts, *_ in parts])
    launch = take(trace.index.column("launch"), after)
    usual = np.array([_usual_track(trace, rows) for rows in groups], np.int32)[group]
    thread = np.where(launch >= 0, take(trace.index.track, launch), usual).astype(np.int32)
    called, returned = (take(times, launch) for times in trace.index.uncut)
    return Gaps(start, end, before, after, launch, called, returned, thread), group


def _row_at(rows: Rows, moments: Ints, times: Ints) -> Codes:
    """Return per time the row whose moment equals it, -1 for none."""
    order = np.argsort(moments, kind="stable")
    at = np.append(order, NONE)[np.searchsorted(moments[order], times)]
    return np.where(take(moments, at) == times, take(rows, at), NONE).astype(np.int32)


def _usual_track(trace: Trace, rows: Rows) -> int:
    """Return the CPU track that launches most of these slices, else the first CPU track."""
    launch = trace.index.column("launch")[rows]
    if (launch >= 0).any():
        return int(np.bincount(trace.index.track[launch[launch >= 0]]).argmax())
    cpu_tracks = np.flatnonzero((trace.tracks["kind"] == "cpu").to_numpy())
    return int(cpu_tracks[0]) if len(cpu_tracks) else NONE


def open_times(trace: Trace, selection: npt.NDArray[Any]) -> Intervals:
    """Return when any of these slices (rows, or a mask of all slices) was open."""
    return intervals.union(trace.index.ts[selection], trace.index.end[selection])


def open_within(trace: Trace, selection: npt.NDArray[Any]) -> Intervals:
    """Return when any of these slices was open, cut to the trace's start and end."""
    return intervals.clip(open_times(trace, selection), trace.start_ns, trace.end_ns)


def open_ns(trace: Trace, selection: npt.NDArray[Any]) -> int:
    """Return for how long any of these slices was open."""
    return intervals.length(open_times(trace, selection))


FAMILIES = (
    *("matrix product", "convolution", "attention", "normalisation", "softmax", "reduction"),
    *("elementwise", "lookup", "sort, scan", COMMUNICATION, "other kernel"),
)

RULES = {
    family: re.compile(pattern, re.IGNORECASE)
    for family, pattern in {
        "attention": r"flash_(fwd|bwd|fprop|attn)|fmha|attention|(?<![a-z])(sdpa|mha|mla)(?![a-z])"
        r"|efficient_attn|paged_attn|ck_fused_attn|FmhaFwd|FmhaBwd",
        "convolution": r"conv(?!ert)|(?-i:[dwDW]grad)|fprop|scudnn|winograd|implicit_gemm"
        r"|im2col|col2im|wrw|MIOpen\w*Conv|igemm_(fwd|bwd|wrw)",
        "softmax": r"soft_?max|cross_?entropy|nll_?(loss|criterion)",
        "normalisation": r"(layer|batch|group|rms|instance)_?norm|(?<![a-z])bn_|_norm(alize)?_"
        r"|RowwiseMoments|GammaBeta|rmsnorm|(?<![a-z])ln_(fwd|bwd)",
        "matrix product": r"gemm|gemv|gemvx|matmul|splitK|nvjet|Cijk_|cutlass|xdlops|triton_tem_"
        r"|(?<![a-z])(dot|bmm|mm)_kernel|ger_kernel|fused_moe|grouped_mm",
        "lookup": r"(?<!rotary_)embedding|gather|scatter|index(?!_?of)|take_put"
        r"|masked_(fill|select|scatter)",
        "sort, scan": r"sort|top_?k|scan|cumsum|unique|histogram|radix|nonzero|merge"
        r"|Device(Select|Compact)",
        "reduction": r"reduc|triton_(red|per)_|l2norm|lpnorm|(?<![a-z])norm_kernel|argm(ax|in)"
        r"|(?<![a-z])(sum|prod)(?![a-z])",
        "elementwise": r"elementwise|element_wise|pointwise|triton_poi_|multi_tensor_apply|fill"
        r"|copy|CatArray|dropout|(?<![a-z])(gelu|relu|silu|sigmoid|add|bias_?add|mul|div|cast|clamp)"
        r"|activation|op_tensor|PackedTensor|SubTensorOp|where|nchwToNhwc|nhwcToNchw"
        r"|transpose|permute|adam|sgd|rotary|rope|OpTensor|distribution|triu|tril",
    }.items()
}
"""Parts of names, in the order in which they count: a fused softmax also reduces."""

WRAPPERS = re.compile(r"cutlass|^(void )?Kernel2?$|ck::kernel|kernel_func|device_kernel", re.I)
"""Functions whose template parameters say what they compute."""


@lru_cache(maxsize=10_000)
def family_of(name: str) -> str:
    """Return the family of a compute kernel of that name."""
    path = without_parameters(name)
    words = name if WRAPPERS.search(path) else path
    return next((family for family, rule in RULES.items() if rule.search(words)), FAMILIES[-1])


@remembered
def families(trace: Trace) -> dict[str, str]:
    """Return the family of every kernel of the trace by name.

    Kernels that communicate are those that all analyses call so (`gpu_kinds`).
    """
    index = trace.index
    kernels = np.flatnonzero(index.in_category("kernel"))
    communicates = kind_codes(trace)[kernels] == KINDS.index(COMMUNICATION)
    family = {name: family_of(name) for name in set(index.names_of(kernels).tolist())}
    return family | dict.fromkeys(index.names_of(kernels[communicates]).tolist(), COMMUNICATION)
