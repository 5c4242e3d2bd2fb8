"""Remedies in the words of CUDA's and HIP's own programs, for those that name PyTorch's means."""

from __future__ import annotations

import re

from gpuprof_widgets.analyses.allocator import ALLOCATING, FREEING
from gpuprof_widgets.analyses.findings.device_idle import (
    GPU_ALONE,
    HOST_REMEDIES,
    KEEP_FED,
    REMEDIES,
)
from gpuprof_widgets.analyses.findings.exposed_communication import REMEDY as COMMUNICATE
from gpuprof_widgets.analyses.findings.fp32_matmul import REMEDY as IN_TF32
from gpuprof_widgets.analyses.findings.launch_bound import REMEDY as LAUNCH_LESS
from gpuprof_widgets.analyses.findings.memory import STALL_REMEDY
from gpuprof_widgets.analyses.findings.needless_copies import REMEDIES as NEEDLESS
from gpuprof_widgets.analyses.findings.one_call import BY_NAME, COPYING
from gpuprof_widgets.analyses.findings.one_stream import REMEDIES as OF_STREAM
from gpuprof_widgets.analyses.findings.pageable_copies import REMEDY as PIN
from gpuprof_widgets.analyses.findings.peer_copies import OTHERWISE as OF_PEERS
from gpuprof_widgets.analyses.findings.short_kernels import BY_OPS, FUSE, GRAPH
from gpuprof_widgets.analyses.findings.synchronising import COPY_REMEDIES, FREEING_REMEDY
from gpuprof_widgets.analyses.findings.unlinked import REMEDY as OF_UNLINKED
from gpuprof_widgets.analyses.gpu_kinds import COMMUNICATION, COPY
from gpuprof_widgets.analyses.host_states import LAUNCHING
from gpuprof_widgets.analyses.needless_copies import EVERY_STEP

CUDA_WORDS = {
    HOST_REMEDIES[LAUNCHING]: "make launches fewer (fuse kernels, or capture them in a CUDA "
    "graph), or give each kernel more to do",
    KEEP_FED: "fewer synchronising calls (cudaDeviceSynchronize, cudaStreamSynchronize, cudaMemcpy "
    "where cudaMemcpyAsync would do) keep it fed",
    REMEDIES[GPU_ALONE]: "it waited for the CPU, which was in no call of CUDA's: what it did is "
    "not in the trace. NVTX ranges around the program's phases, or samples of the CPU, tell.",
    COPY_REMEDIES["DtoH"]: "Keep results on the GPU, or read them less often or later: with "
    "cudaMemcpyAsync into pinned memory (cudaMallocHost), and a synchronisation before reading.",
    COPY_REMEDIES["HtoD (Pageable"]: "Copy from pinned memory (cudaMallocHost) with "
    "cudaMemcpyAsync.",
    COPY_REMEDIES["HtoD (Pinned"]: "Its memory is pinned already: cudaMemcpyAsync suffices.",
    FREEING_REMEDY: "Freeing waits for the GPU: keep buffers and use them again, or free them in "
    "the order of a stream (cudaFreeAsync).",
    COMMUNICATE: "Let it overlap with compute: on a stream of its own, in pieces that begin as "
    "soon as their data is there. Or send less and less often. Where it mostly waits, another "
    "rank is late: gpuprof ranks compares them.",
    OF_STREAM[COPY]: "Copy the next piece on a stream of its own while this one is computed: "
    "pinned memory (cudaMallocHost), cudaMemcpyAsync, and cudaStreamWaitEvent before use.",
    OF_STREAM[COMMUNICATION]: "Give it a stream of its own, and cudaStreamWaitEvent only where "
    "the result is needed.",
    LAUNCH_LESS: "Launch less: a CUDA graph (cudaStreamBeginCapture) replays a whole step with one "
    "call; fused kernels, and more work for each, need fewer launches.",
    FUSE + GRAPH: "Fuse kernels, or give each more to do; a CUDA graph (cudaStreamBeginCapture) "
    "launches a whole stretch with one call.",
    PIN: "Copy from pinned memory (cudaMallocHost, or cudaHostRegister once) with cudaMemcpyAsync "
    "on a stream; then the CPU goes on and the copy runs beside kernels.",
    IN_TF32: "cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH) lets products of fp32 run on "
    "tensor cores as TF32, with 10 instead of 23 bits of mantissa.",
    NEEDLESS[EVERY_STEP]: "Copy it once, and keep it in the GPU's memory from step to step.",
    OF_PEERS: "Keep data that is used together on one GPU, or exchange it on a stream of its own, "
    "beside compute (cudaMemcpyPeerAsync, NCCL).",
    STALL_REMEDY: "Allocate before what is timed and use buffers again, or take them from a pool "
    "(cudaMallocAsync).",
    OF_UNLINKED: "Either it was launched before the recording began (cudaDeviceSynchronize() right "
    "before that leaves it out), or the recorder dropped the launches: then record a shorter part.",
    BY_NAME[ALLOCATING]: "memory is taken from the driver: allocate before what is timed and use "
    "buffers again, or take them from a pool (cudaMallocAsync).",
    BY_NAME[FREEING]: "memory is given back to the driver: keep buffers and use them again.",
    BY_NAME[COPYING]: "nothing is launched before it returns: copy from pinned memory "
    "(cudaMallocHost) with cudaMemcpyAsync, and less often.",
    BY_OPS: "launched them",
}
"""For each such remedy, or part of one, what a program does that calls CUDA itself."""

HIP_WORDS = {
    r"\bcudaMallocHost\b": "hipHostMalloc",
    r"\bcuda(?=[A-Z])": "hip",
    r"\bCUDA\b": "HIP",
    r"\bNVTX\b": "roctx",
    r"\bNCCL\b": "RCCL",
}
"""The names of HIP in their place, as hipify has them."""


def in_cuda(text: str) -> str:
    """A finding's text or remedy as a program needs it that calls CUDA itself."""
    for of_pytorch, own in CUDA_WORDS.items():
        text = text.replace(of_pytorch, own)
    return text


def in_hip(text: str) -> str:
    """The same for HIP, of a text in CUDA's words."""
    for of_cuda, own in HIP_WORDS.items():
        text = re.sub(of_cuda, own, text)
    return text
