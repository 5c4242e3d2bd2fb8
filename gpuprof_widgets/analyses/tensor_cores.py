"""Which kernels use tensor cores, which ops could, and how much time that would save.

Traces do not say it: kernels are recognised by their names. The two lists of the TensorBoard plugin
(torch_tb_profiler/profiler/tensor_core.py, after NVIDIA's PyProf) are the basis. They end at CUDA
11; flash attention, Hopper's kernels and AMD's matrix cores are added here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.gpu_peaks import busiest_device, peaks_of
from gpuprof_widgets.analyses.op_calls import Call, of_calls
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.roofline import work_pieces
from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.known_metadata import Peaks
from gpuprof_widgets.trace.model import Record

BY_TENSORBOARD = re.compile(
    "[hs]884|[hsc]1688|hmma|i8816|16816|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1"
    "|conv2d_c1_k1|direct_group|xmma_implicit_gemm|xmma_sparse_conv"
    "|xmma_warp_specialized_implicit_gemm|xmma_(sparse_)?gemm"
)
"""Parts of the names of kernels that use tensor cores, according to the TensorBoard plugin."""

LATER = re.compile(
    r"tensorop|_tensor\d+x\d+x\d+|nvjet|[hqi]?gmma|sm90_xmma"  # CUTLASS, cuDNN 8, cuBLAS 12
    r"|flash_(fwd|bwd)\w*_kernel|flash_fprop|fmha_cutlass[FB]_\w+_sm(7|8|9|10|12)\d"  # attention
    r"|xdlops|_xdl_|mfma|gtcx|Cijk_\w+_MI\d+x"  # AMD: Composable Kernel, MIOpen, Tensile
)
"""The same for kernels that came after the plugin, and for AMD's matrix cores."""

WITHOUT = re.compile(r"simt|ffma", re.IGNORECASE)
"""Kernels that use none, although the rest of their names says otherwise."""

ELIGIBLE = re.compile(
    r"aten::(conv(_transpose)?[123]d|convolution|_convolution(_nogroup)?|conv_tbc|prelu|linear"
    r"|addmm_?|addmv|addr|matmul|mm|mv|addbmm|bmm|baddbmm|chain_matmul|linalg_multi_dot"
    r"|cudnn_convolution(_transpose)?(_backward(_weight|_input)?)?"
    r"|(_thnn_fused_lstm|_thnn_fused_gru|lstm|gru|rnn_tanh|rnn_relu)_cell)"
    r"|(CudnnConvolution(Transpose)?|Mm|Mv|Addmm|Addmv|Addbmm)Backward\d*|BmmBackward0"
)
"""Eligible ops according to the TensorBoard plugin, in any precision that has tensor cores."""

ELIGIBLE_SINCE = re.compile(
    r"aten::(convolution_backward|miopen_convolution(_add_relu)?|cudnn_convolution(_add)?_relu"
    r"|_addmm_activation|_(scaled|int|grouped)_mm"
    r"|_scaled_dot_product_(flash|efficient|cudnn)_attention(_backward)?"
    r"|_(flash|efficient)_attention_(forward|backward))"
)
"""Ops of later versions of torch that do the same work, and attention."""


def on_tensor_cores(names: Iterable[str]) -> Mask:
    """Return which kernels use tensor cores (AMD: matrix cores), as far as their names tell.

    False for kernels of Triton, and so of torch.compile, because their names do not tell.
    """
    known = [BY_TENSORBOARD.search(name) or LATER.search(name) for name in names]
    return np.array([bool(match and not WITHOUT.search(match.string)) for match in known], bool)


def are_eligible(names: Iterable[str]) -> Mask:
    """Return which ops do work that tensor cores can do, whatever their inputs' types.

    A number after ``Backward`` does not matter.
    """
    known = [ELIGIBLE.fullmatch(name) or ELIGIBLE_SINCE.fullmatch(name) for name in names]
    return np.array([match is not None for match in known], bool)


NVIDIA = re.compile(r"NVIDIA|Tesla|Quadro|GeForce|TITAN", re.IGNORECASE)
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
HALVES = ("fp16", "bf16")
PLAIN = re.compile(r"(^|simt_|_)sgemm_\d+x\d+")
"""Kernels of cuBLAS and CUTLASS for products in fp32 on plain cores."""
HALF_SAVED = 0.5
"""Share of the time saved on unknown devices: half the bytes take at least half as long."""
MULTIPLE = 8
"""Sizes of matrices in 16 bits have to be multiples of this."""


@remembered
def products(record: Record) -> pd.DataFrame:
    """One row per compute kernel, with what tensor cores have to do with it.

    Columns: those of `work_pieces`; ``tensor_cores`` (used, by the kernel's name), ``eligible``
    (its op is one that can, in a number format that has tensor cores or is not known); ``plain``
    (a matrix product in full fp32: by its op, and by the kernel's name where no op of PyTorch's
    library launched it: in a compiled function, a replayed graph, or a trace without ops);
    ``in_tf32_ns``, ``in_half_ns``: how long it would take in TF32 or in 16 bits, as near to the
    roof as it is now.
    """
    pieces = work_pieces(record)
    names = record.trace.slices["name"].iloc[pieces["row"]]
    roof = peaks_of(record, busiest_device(record))
    possible = pieces["dtype"].isin(["fp32", "tf32", *HALVES, ""])
    return pieces.assign(
        tensor_cores=_by_name(on_tensor_cores, names) | (pieces["dtype"] == "tf32"),
        eligible=_by_name(are_eligible, pieces["op"]) & possible,
        plain=(pieces["op"].isin(PRODUCTS) & (pieces["dtype"] == "fp32"))
        | (
            ~pieces["op"].str.startswith("aten::").astype(bool)
            & _by_name(lambda each: [*map(bool, map(PLAIN.search, each))], names)
        ),
        in_tf32_ns=_at_roof(pieces, roof, "tf32", 1.0),
        in_half_ns=_at_roof(pieces, roof, "fp16", 0.5),
    )


def capability(record: Record) -> int | None:
    """Return the major compute capability of the busiest NVIDIA GPU; None for other devices.

    None as well if the trace has no GPU work.
    """
    if not len(record.trace.index.gpu):
        return None
    device = busiest_device(record)
    named: Mapping[str, Any] = _device_with(record.metadata.get("devices"), "index", device)
    if not NVIDIA.search(str(named.get("name", ""))):
        return None
    if "compute_capability" in named:
        return int(str(named["compute_capability"]).split(".")[0])
    major = _device_with(record.metadata.get("deviceProperties"), "id", device).get("computeMajor")
    return None if major is None else int(major)


def unaligned(record: Record, pieces: pd.DataFrame) -> Mask:
    """Return which pieces are products in 16 bits with a size that is no multiple of 8.

    Only the fastest varying dimensions matter (NVIDIA, "Matrix multiplication background user's
    guide"), so not the number of rows of ``a @ b``; torch's MatMulDimInFP16Pattern looks at all.
    """
    wanted = pieces["op"].isin(PRODUCTS) & pieces["dtype"].isin(HALVES)
    is_unaligned = np.zeros(len(pieces), bool)
    rows = pieces.loc[wanted, "op_row"].to_numpy(np.intp)
    is_unaligned[wanted.to_numpy(bool)] = of_calls(record.trace, rows, _is_unaligned)
    return is_unaligned


def _is_unaligned(call: Call) -> bool:
    first = 1 if call.name in ("aten::addmm", "aten::baddbmm") else 0
    sizes = [_along_memory(call, position) for position in (first, first + 1)]
    if call.is_tensor(first + 1):
        sizes.append(call.dims[first + 1][-1])  # the result has rows of this length
    return any(size % MULTIPLE for size in sizes)


def _along_memory(call: Call, position: int) -> int:
    """Return the size of the axis along which the matrix lies contiguous in memory."""
    if not call.is_tensor(position) or len(call.dims[position]) < 2:
        return 0
    shape = call.dims[position]
    strides = list(call.strides[position]) if position < len(call.strides) else []
    transposed = len(strides) == len(shape) and strides[-1] != 1 and strides[-2] == 1
    return int(shape[-2] if transposed else shape[-1])


def _at_roof(pieces: pd.DataFrame, roof: Peaks | None, dtype: str, bytes_factor: float) -> Ints:
    """Return the time in another format, by the ratio of the roofs; half if these are unknown."""
    time = pieces["time_ns"].to_numpy(np.int64)
    known = roof.flops_per_s if roof else {}
    code, formats = pd.factorize(pieces["dtype"])
    peak = take(np.array([known.get(each, np.nan) for each in formats], float), code, np.nan)
    other = known.get(dtype, np.nan)
    memory = roof.bytes_per_s if roof else np.nan
    flops, moved = pieces["flops"].to_numpy(float), pieces["bytes"].to_numpy(float)
    now = np.maximum(flops / peak, moved / memory)
    then = np.maximum(flops / other, moved * bytes_factor / memory)
    usable = np.isfinite(now) & np.isfinite(then) & (now > 0)
    ratio = np.divide(then, now, out=np.full(len(time), 1 - HALF_SAVED), where=usable)
    return np.asarray(time * np.minimum(ratio, 1), np.int64)


def _by_name(rule: Callable[[Any], Any], names: pd.Series) -> Mask:
    """Return the rule's answer for each name, computed once per distinct name."""
    code, distinct = pd.factorize(names)
    return take(np.array(rule(distinct), bool), code, missing=False)


def _device_with(devices: Any, key: str, value: int) -> Mapping[str, Any]:
    return next((device for device in devices or () if device.get(key) == value), {})
