"""Families of kernels: known names, agreement with the other analyses, colours of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets.views
from gpuprof_widgets.analyses.gpu_work import (
    COMMUNICATION,
    FAMILIES,
    RULES,
    families,
    family_of,
    gpu_kinds,
)
from gpuprof_widgets.trace.model import Record
from tests.traces import kernel, trace_of

KNOWN = {
    "ampere_sgemm_128x64_tn": "matrix product",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_tn_align4>(Params)": (
        "matrix product"
    ),
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT": "matrix product",
    "void gemv2T_kernel_val<int, float, float, 128>(Params)": "matrix product",
    "Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN": "matrix product",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_nhwc": "convolution",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32>(P)": "convolution",
    "volta_scudnn_128x64_relu_interior_nn_v1": "convolution",
    "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true>(P)": "convolution",
    "void pytorch_flash::flash_fwd_kernel<Traits<32, 128>>(Params)": "attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)": "attention",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)": (
        "normalisation"
    ),
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512>(Params)": "normalisation",
    "void at::native::batch_norm_backward_kernel<float>(int)": "normalisation",
    "void (anonymous namespace)::softmax_warp_forward<float, float>(float*)": "softmax",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)": "softmax",
    "void at::native::reduce_kernel<512, 1, ReduceOp<float, NormTwoOps>>(Op)": "reduction",
    "triton_red_fused_sum_view_3": "reduction",
    "triton_per_fused_native_layer_norm_2": "normalisation",
    "triton_poi_fused_relu_4": "elementwise",
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)": "elementwise",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Adam>(T)": "elementwise",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(F)": "elementwise",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(T)": "lookup",
    "void at::native::embedding_backward_feature_kernel(long*)": "lookup",
    "void at::native::radixSortKVInPlace<2, -1>(T)": "sort, scan",
    "void at_cuda_detail::cub::DeviceScanKernel<Policy>(T)": "sort, scan",
    "void at::native::max_pool_forward_nchw<float>(int)": "other kernel",
    "void my_own_thing(float*)": "other kernel",
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_kernels(name: str) -> None:
    assert family_of(name) == KNOWN[name]


def test_every_family_has_a_rule_or_an_owner() -> None:
    assert {*RULES, COMMUNICATION, "other kernel"} == set(FAMILIES)
    assert set(KNOWN.values()) == set(FAMILIES) - {COMMUNICATION}


def test_communication_is_what_all_analyses_call_so(shared_record: Record) -> None:
    trace = shared_record.trace
    rows, kinds = gpu_kinds(trace)
    names = trace.index.names_of(rows)
    is_kernel = trace.index.in_category("kernel")[rows]
    moving = set(names[is_kernel & (kinds == COMMUNICATION)])
    found = families(trace)
    assert set(found) == set(names[is_kernel])
    assert {name for name, family in found.items() if family == COMMUNICATION} == moving


def test_a_kernel_with_the_name_of_a_collective_communicates() -> None:
    given: dict[str, Any] = {"Collective name": "allreduce"}
    trace = trace_of(kernel("sgemm_like", ts=0, dur=9, **given), kernel("sgemm", ts=9, dur=9)).trace
    assert families(trace) == {"sgemm_like": COMMUNICATION, "sgemm": "matrix product"}


SOURCE = Path(gpuprof_widgets.views.__file__).parent / "extension" / "categories.ts"


def test_the_page_has_the_same_families() -> None:
    table = SOURCE.read_text(encoding="utf-8").split("export const FAMILIES")[1].split("\n]")[0]
    assert tuple(re.findall(r'text: "([^"]+)"', table)) == FAMILIES
