"""Reword findings on runs of other programs, which cannot use PyTorch's functions.

Programs that call CUDA themselves get remedies in CUDA's words, HIP programs in HIP's, and runs of
PyTorch under Nsight Systems the options of nsys. The tables below are keyed by the remedies' texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from gpuprof_widgets.analyses.allocator import ALLOCATING, FREEING
from gpuprof_widgets.analyses.copies import EVERY_STEP
from gpuprof_widgets.analyses.findings.communication import (
    EXPOSED_COMMUNICATION_REMEDY as COMMUNICATE,
)
from gpuprof_widgets.analyses.findings.communication import LATE_RANK
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.gpu_idle import HOST_REMEDIES, KEEP_FED, REMEDIES
from gpuprof_widgets.analyses.findings.idle_cause import BETWEEN, GPU_ALONE
from gpuprof_widgets.analyses.findings.kernels import TF32_REMEDY
from gpuprof_widgets.analyses.findings.launches import BY_OPS, FUSE, GRAPH
from gpuprof_widgets.analyses.findings.launches import REMEDY as LAUNCH_LESS
from gpuprof_widgets.analyses.findings.memory import STALL_REMEDY
from gpuprof_widgets.analyses.findings.recording import SYNCHRONISE
from gpuprof_widgets.analyses.findings.recording import UNLINKED_REMEDY as OF_UNLINKED
from gpuprof_widgets.analyses.findings.transfers import ONE_STREAM_REMEDIES as OF_STREAM
from gpuprof_widgets.analyses.findings.transfers import PEER_REMEDY, PIN_REMEDY
from gpuprof_widgets.analyses.findings.transfers import REMEDIES as NEEDLESS
from gpuprof_widgets.analyses.findings.uneven_calls import BY_NAME, COPYING
from gpuprof_widgets.analyses.findings.waits import COPY_REMEDIES, FREEING_REMEDY
from gpuprof_widgets.analyses.gpu_work import COMMUNICATION, COPY
from gpuprof_widgets.analyses.host_states import LAUNCHING
from gpuprof_widgets.analyses.reasons import NSYS, NVPROF, recorder_of
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import MEGENGINE, TENSORFLOW, WRITTEN_CATEGORY

MEANS = (
    r"torch|pin_memory|non_blocking|num_workers|persistent_workers|prefetch_factor|DataLoader"
    r"|foreach|autocast|GradScaler|DDP|FSDP|async_op|with_stack|--warmup|\.to\(|\.item\(|optimizer\."
)
WORDS = {"PyTorch op": "op", "PyTorch's ops": "its ops", "the DataLoader": "its input"}
OF_PYTORCH = re.compile(r"\b(at|aten|c10|torch)::|\btorch\b")
"""PyTorch's C++ namespaces or its Python package, in names of ops and kernels."""
OF_HIP = re.compile(r"hip[A-Z]\w*")
UNDER_NSYS = {
    REMEDIES[GPU_ALONE]: "waited for the CPU, whose ops are not in the trace. Mark them as well "
    "(torch.autograd.profiler.emit_nvtx(), and nsys profile --trace=cuda,nvtx).",
    REMEDIES[BETWEEN]: "waited for the CPU, which was in no op and in no call that the trace "
    "shows. Sample Python (nsys profile --python-sampling=true) to see where it was.",
    "(--shapes, record_shapes=True)": "(emit_nvtx(record_shapes=True))",
    " (--warmup)": "",
    " (--steps with --warmup)": "",
    " (--workers)": "",
}
"""How to record more of a PyTorch run under Nsight Systems or nvprof, which we did not start."""
EXAMPLES = re.compile(rf" \([^()]*(?:{MEANS})[^()]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z`])")


def for_its_framework(record: Record, findings: list[Finding]) -> list[Finding]:
    """Return the findings in the words of the program that ran: PyTorch, CUDA, HIP or another.

    Remedies that have no such words lose the sentences and examples that only PyTorch knows.
    """
    recorder = recorder_of(record)
    of_cuda = recorder in (NSYS, NVPROF)
    of_framework = recorder in (TENSORFLOW, MEGENGINE)
    if not (of_cuda or of_framework or WRITTEN_CATEGORY in record.trace.args):
        return findings
    if of_cuda and _has_name(record.trace, OF_PYTORCH):
        return [_in_words(finding, partial(_replaced, UNDER_NSYS)) for finding in findings]
    of_hip, reworded = _has_name(record.trace, OF_HIP), []
    for finding in findings:
        own = finding if of_framework else _in_words(finding, in_cuda)
        sentences = SENTENCE_END.split(EXAMPLES.sub("", own.remedy))
        remedy = " ".join(sentence for sentence in sentences if not re.search(MEANS, sentence))
        own = replace(_in_words(own, partial(_replaced, WORDS)), remedy=remedy)
        reworded.append(_in_words(own, in_hip) if of_hip else own)
    return reworded


def _has_name(trace: Trace, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(name) for name in trace.index.names)


def _in_words(finding: Finding, words: Callable[[str], str]) -> Finding:
    title, text, remedy = map(words, (finding.title, finding.text, finding.remedy))
    return replace(finding, title=title, text=text, remedy=remedy)


def _replaced(words: Mapping[str, str], text: str) -> str:
    for of_pytorch, general in words.items():
        text = text.replace(of_pytorch, general)
    return text


CUDA_WORDS = {
    HOST_REMEDIES[LAUNCHING]: "launch less (fuse kernels, or capture them in a CUDA graph), or "
    "give each kernel more to do",
    KEEP_FED: "avoid synchronising calls (cudaDeviceSynchronize, cudaStreamSynchronize, "
    "cudaMemcpy where cudaMemcpyAsync would do)",
    REMEDIES[GPU_ALONE]: "waited for the CPU, which was in no call of CUDA. The trace does not "
    "show what it did: add NVTX ranges around the program's phases, or sample the CPU.",
    COPY_REMEDIES["DtoH"]: "Keep results on the GPU, or read them less often or later: with "
    "cudaMemcpyAsync into pinned memory (cudaMallocHost), and a synchronisation before reading.",
    COPY_REMEDIES["HtoD (Pageable"]: "Copy from pinned memory (cudaMallocHost) with "
    "cudaMemcpyAsync.",
    COPY_REMEDIES["HtoD (Pinned"]: "Its memory is pinned already: cudaMemcpyAsync suffices.",
    FREEING_REMEDY: "Freeing waits for the GPU: keep buffers and reuse them, or free them in the "
    "order of a stream (cudaFreeAsync).",
    COMMUNICATE: "Overlap communication with compute: use a separate stream, and send pieces as "
    f"soon as their data is there. Or send less, and less often. {LATE_RANK}",
    OF_STREAM[COPY]: "Copy the next piece on a separate stream while this one is computed: use "
    "pinned memory (cudaMallocHost), cudaMemcpyAsync, and cudaStreamWaitEvent before use.",
    OF_STREAM[COMMUNICATION]: "Run communication on a separate stream, and call "
    "cudaStreamWaitEvent only where the result is needed.",
    LAUNCH_LESS: "Launch less: a CUDA graph (cudaStreamBeginCapture) replays a whole step with one "
    "call. Fused kernels, and more work for each kernel, need fewer launches.",
    FUSE + GRAPH: "Fuse kernels, or give each kernel more to do. A CUDA graph "
    "(cudaStreamBeginCapture) launches many kernels with one call.",
    PIN_REMEDY: "Copy from pinned memory (cudaMallocHost, or cudaHostRegister once) with "
    "cudaMemcpyAsync on a stream. Then the CPU goes on, and the copy runs beside kernels.",
    TF32_REMEDY: "cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH) lets products of fp32 run "
    "on tensor cores as TF32, which has 10 instead of 23 bits of mantissa.",
    NEEDLESS[EVERY_STEP]: "Copy it once, and keep it in the GPU's memory from step to step.",
    PEER_REMEDY: "Keep data that is used together on one GPU, or exchange it on a separate stream, "
    "beside compute (cudaMemcpyPeerAsync, NCCL).",
    STALL_REMEDY: "Allocate before the timed part and reuse buffers, or take them from a pool "
    "(cudaMallocAsync).",
    SYNCHRONISE: "Call cudaDeviceSynchronize() right before recording.",
    OF_UNLINKED: "This work may have been launched before the recording began: call "
    "cudaDeviceSynchronize() right before recording. Or the recorder dropped the launches: record "
    "a shorter part.",
    BY_NAME[ALLOCATING]: "memory is taken from the driver. Allocate before the timed part and "
    "reuse buffers, or take them from a pool (cudaMallocAsync).",
    BY_NAME[FREEING]: "memory is returned to the driver. Keep buffers and reuse them.",
    BY_NAME[COPYING]: "the CPU launches nothing until it returns. Copy from pinned memory "
    "(cudaMallocHost) with cudaMemcpyAsync, and less often.",
    BY_OPS: "launched them",
}
"""Remedies for PyTorch, or parts of them, and what a program does that calls CUDA itself."""

HIP_WORDS = {
    r"\bcudaMallocHost\b": "hipHostMalloc",
    r"\bcuda(?=[A-Z])": "hip",
    r"\bCUDA\b": "HIP",
    r"\bNVTX\b": "roctx",
    r"\bNCCL\b": "RCCL",
}
"""CUDA's names and HIP's, as hipify maps them."""


def in_cuda(text: str) -> str:
    """Return a finding's text or remedy for a program that calls CUDA itself."""
    return _replaced(CUDA_WORDS, text)


def in_hip(text: str) -> str:
    """Return a text in CUDA's words with HIP's names."""
    for of_cuda, in_hip_words in HIP_WORDS.items():
        text = re.sub(of_cuda, in_hip_words, text)
    return text
