"""What a slice of GPU work is: compute, communication, copy or memset; one place for the rule."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.collective_words import without_parameters
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.model import Trace

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
