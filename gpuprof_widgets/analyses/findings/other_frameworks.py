"""Findings on runs of other programs: what names PyTorch's own means does not help there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuprof_widgets.analyses.findings.cuda_words import in_cuda, in_hip
from gpuprof_widgets.analyses.findings.device_idle import BETWEEN, GPU_ALONE, REMEDIES
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.gpu_ops import NO_SHAPES
from gpuprof_widgets.analyses.lacking import NSYS, NVPROF, recorder_of
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import MEGENGINE, TENSORFLOW, WRITTEN_CATEGORY

MEANS = (
    r"torch|pin_memory|non_blocking|num_workers|persistent_workers|prefetch_factor|DataLoader"
    r"|foreach|autocast|GradScaler|DDP|FSDP|async_op|with_stack|--warmup|\.to\(|\.item\(|optimizer\."
)
WORDS = {"PyTorch op": "op", "PyTorch's ops": "its ops", "the DataLoader": "its input"}
OF_PYTORCH = re.compile(r"\b(at|aten|c10|torch)::|\btorch\b")
"""In names of ops and kernels: PyTorch's C++ namespaces, or its Python package."""
OF_HIP = re.compile(r"hip[A-Z]\w*")
UNDER_NSYS = {
    REMEDIES[GPU_ALONE]: "it waited for the CPU, of which the trace holds no ops: mark these as "
    "well (torch.autograd.profiler.emit_nvtx(), and nsys profile --trace=cuda,nvtx).",
    REMEDIES[BETWEEN]: "it waited for the CPU, which was in no op and in no call that the trace "
    "holds: samples of Python (nsys profile --python-sampling=true) tell where it was.",
    NO_SHAPES: NO_SHAPES.replace("--shapes", "emit_nvtx(record_shapes=True)"),
    " (--warmup)": "",
}
"""How to record more of a run of PyTorch under Nsight Systems or nvprof, which we did not start."""
EXAMPLES = re.compile(rf" \([^()]*(?:{MEANS})[^()]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z`])")


def for_its_framework(record: Record, said: list[Finding]) -> list[Finding]:
    """The findings in the words of the program that ran: PyTorch, CUDA, HIP or another framework.

    Of what is neither in CUDA's words nor in a framework's own, remedies lose the sentences and
    examples that only PyTorch knows.
    """
    recorder = recorder_of(record)
    of_cuda = recorder in (NSYS, NVPROF)
    of_framework = recorder in (TENSORFLOW, MEGENGINE)
    if not (of_cuda or of_framework or WRITTEN_CATEGORY in record.trace.args):
        return said
    if of_cuda and _has_name(record.trace, OF_PYTORCH):
        return [_in_words(one, lambda text: _replaced(text, UNDER_NSYS)) for one in said]
    if not of_framework:
        said = [_in_words(one, in_cuda) for one in said]
    said = [
        replace(one, text=_replaced(one.text, WORDS), remedy=_without_means(one.remedy))
        for one in said
    ]
    return [_in_words(one, in_hip) for one in said] if _has_name(record.trace, OF_HIP) else said


def _has_name(trace: Trace, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(str(name)) for name in trace.slices["name"].cat.categories)


def _in_words(finding: Finding, words: Callable[[str], str]) -> Finding:
    return replace(finding, text=words(finding.text), remedy=words(finding.remedy))


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for of_pytorch, general in words.items():
        text = text.replace(of_pytorch, general)
    return text


def _without_means(remedy: str) -> str:
    sentences = SENTENCE_END.split(EXAMPLES.sub("", remedy))
    return " ".join(one for one in sentences if not re.search(MEANS, one))
