"""Which kernels use tensor cores and which ops could have: one place for both rules.

The trace does not say it: kernels are known by their names. The TensorBoard plugin's two lists
(torch_tb_profiler/profiler/tensor_core.py, after NVIDIA's PyProf) are the ground; they stop at
CUDA 11 and know neither flash attention, Hopper's kernels nor AMD's matrix cores, which are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

BY_TENSORBOARD = re.compile(
    "[hs]884|[hsc]1688|hmma|i8816|16816|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1"
    "|conv2d_c1_k1|direct_group|xmma_implicit_gemm|xmma_sparse_conv"
    "|xmma_warp_specialized_implicit_gemm|xmma_(sparse_)?gemm"
)
"""What the TensorBoard plugin takes for a kernel on tensor cores, by a part of its name."""

LATER = re.compile(
    r"tensorop|_tensor\d+x\d+x\d+|nvjet|[hqi]?gmma|sm90_xmma"  # CUTLASS, cuDNN 8, cuBLAS 12
    r"|flash_(fwd|bwd)\w*_kernel|flash_fprop|fmha_cutlass[FB]_\w+_sm(7|8|9|10|12)\d"  # attention
    r"|xdlops|_xdl_|mfma|gtcx|Cijk_\w+_MI\d+x"  # AMD: Composable Kernel, MIOpen, Tensile
)
"""Kernels on tensor (or matrix) cores that came after that list."""

WITHOUT = re.compile(r"simt|ffma", re.IGNORECASE)
"""Kernels that compute without them although the rest of their names says otherwise."""

ELIGIBLE = frozenset(
    {
        *(f"aten::conv{n}d" for n in (1, 2, 3)),
        *(f"aten::conv_transpose{n}d" for n in (1, 2, 3)),
        *(f"aten::{name}" for name in ("_convolution", "_convolution_nogroup", "convolution")),
        *(f"aten::{name}" for name in ("conv_tbc", "cudnn_convolution", "prelu", "addmm", "addmv")),
        *(f"aten::{name}" for name in ("addr", "matmul", "mm", "mv", "linear", "addbmm", "bmm")),
        *(f"aten::{name}" for name in ("baddbmm", "chain_matmul", "linalg_multi_dot", "addmm_")),
        *(f"aten::{name}" for name in ("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")),
        *(f"aten::{name}" for name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")),
        "aten::cudnn_convolution_transpose",
        *(f"aten::cudnn_convolution_backward{end}" for end in ("", "_weight", "_input")),
        *(f"aten::cudnn_convolution_transpose_backward{end}" for end in ("", "_weight", "_input")),
        *(f"{name}Backward" for name in ("CudnnConvolution", "CudnnConvolutionTranspose")),
        *(f"{name}Backward" for name in ("Mm", "Mv", "Addmm", "Addmv", "Addbmm")),
        "BmmBackward0",
    }
)
"""Ops that the TensorBoard plugin takes for eligible, in any precision that has tensor cores."""

ELIGIBLE_SINCE = frozenset(
    {
        "aten::convolution_backward",
        "aten::miopen_convolution",
        "aten::miopen_convolution_add_relu",
        "aten::cudnn_convolution_relu",
        "aten::cudnn_convolution_add_relu",
        "aten::_addmm_activation",
        "aten::_scaled_mm",
        "aten::_int_mm",
        "aten::_grouped_mm",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_backward",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_efficient_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_cudnn_attention_backward",
        "aten::_flash_attention_forward",
        "aten::_flash_attention_backward",
        "aten::_efficient_attention_forward",
        "aten::_efficient_attention_backward",
    }
)
"""Ops of later versions of torch that do the same work, and attention."""


def on_tensor_cores(names: Iterable[str]) -> Mask:
    """Which kernels of these names use tensor cores (AMD: matrix cores), as far as names tell.

    Kernels of Triton, among them those of torch.compile, have names that say nothing: False.
    """
    return np.array([_uses(str(name)) for name in names], bool)


def are_eligible(names: Iterable[str]) -> Mask:
    """Which ops of these names do work that tensor cores can do, whatever their inputs' types.

    Those with ``Backward`` and a number count as those without one.
    """
    return np.array([_can(str(name)) for name in names], bool)


def _uses(name: str) -> bool:
    known = BY_TENSORBOARD.search(name) or LATER.search(name)
    return bool(known) and not WITHOUT.search(name)


def _can(name: str) -> bool:
    known = ELIGIBLE | ELIGIBLE_SINCE
    return name in known or re.sub(r"Backward\d+$", "Backward", name) in known
