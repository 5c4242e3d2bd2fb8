"""What a kernel computes, by its name: its family, one of `FAMILIES`.

A name says what its author meant, not what ran: kernels of torch.compile, which fuse several ops,
go by the kind of their loop where they name no op that is more than elementwise.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from gpuprof_widgets.analyses.gpu_work import COMMUNICATION, KINDS, kind_codes, without_parameters
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.model import Trace

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
    is_kernel = index.in_category("kernel")
    communicates = kind_codes(trace) == KINDS.index(COMMUNICATION)
    names = index.names_of(np.flatnonzero(is_kernel))
    moving = set(index.names_of(np.flatnonzero(is_kernel & communicates)).tolist())
    return {
        name: COMMUNICATION if name in moving else family_of(name) for name in set(names.tolist())
    }
