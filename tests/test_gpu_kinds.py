"""Which kernels move data between ranks, by the names that libraries give them."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.collectives import SYNCHRONISING, operation_of
from gpuprof_widgets.analyses.gpu_work import COMMUNICATION, COMPUTE, gpu_kinds
from tests.traces import kernel, trace_of

DISPATCH = (
    "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int**, int)",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*, int, void**)",
    "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)",
    "tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel(int const*, DispatchKernelPointers)",
    "void a2a_dispatch_send_kernel<true, 16, 8, NotFixed>(unsigned long, unsigned long)",
    "EpDispatchIntraNodeKernel_bf16",
)
COMBINE = (
    "void deep_ep::internode::combine<false, 4, __nv_bfloat16, 8>(int4*, float*, bool const*)",
    "void dpsk::ep::internode::combine_ll<7168>(void*, void*)",
    "void moeA2ACombineKernel<8>(CombineKernelPointers, int, int)",
    "void mori::moe::EpCombineInterNodeV1Kernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)",
)
ALL_REDUCE = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8, false>(aiter::RankData*)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, 8>(int)",
    "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>(float*, float*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8>(int)",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true>(AllReduceParams)",
    "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16>(int)",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>(__half*)",
    "oneccl_allreduce_pcie",
)
OTHERS = (
    "void tensorrt_llm::kernels::moeAllToAllKernel<4>(MoeCommFieldInfo)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int)",
    "deep_ep::internode_ll::clean_low_latency_buffer(long*, int, long*, int)",
    "void hybrid_ep::device_sync_kernel<8>(unsigned int*)",
    "void nvshmemi_barrier_on_stream_kernel<(threadgroup_t)2>(int)",
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
    "c10d::nvshmem_extension::exchangeSplitAndOffset(long*, long*)",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs<2>(int, int, int, int, int, void**)",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<8>(float*, float*)",
    "aiter::allgather_lastdim(int)",
    "my_exchange(ncclDevComm, ncclWindow_t)",
    "void fastAllGather<float>(float*)",
    "MY_ALLGATHER_KERNEL",
)
LOCAL = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MaxOps<float>>>",
    "void splitKreduce_kernel<32, 16, int, float, float>(cublasSplitKParams<float>, float const*)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4>>(int)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4, lambda>(int, lambda)",
    "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>>(long*)",
    "void cub::DeviceScanKernel<deep_ep::Config>(int*)",
    "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*, int*, bool*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<true, 8>(__nv_bfloat16*)",
    "void expandInputRowsKernel<__nv_bfloat16, false>(__nv_bfloat16 const*)",
    "void moe_dispatch_kernel<float>(float*)",
    "void flashinfer::trtllm_alltoall::moeLocalGatherDevice<4>(int*)",
    "void smallGatherKernel<float>(float*)",
    "wallreduce(float*)",
    "overallreduced_loss_kernel(float*, int)",
    "triton_poi_fused_all_reduce_lift_fresh_0",
    "triton_red_fused__to_copy_all_gather_into_tensor_wait_tensor_3",
    "paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, 128>(float*)",
    "void fused_moe_kernel<deep_gemm::Layout>(int)",
)


def kind(name: str) -> str:
    """What the only kernel of a trace counts as."""
    return str(gpu_kinds(trace_of(kernel(name, ts=0, dur=1)).trace)[1][0])


@pytest.mark.parametrize("name", [*DISPATCH, *COMBINE, *ALL_REDUCE, *OTHERS])
def test_kernels_between_ranks_communicate(name: str) -> None:
    assert kind(name) == COMMUNICATION


@pytest.mark.parametrize("name", LOCAL)
def test_kernels_of_one_rank_compute(name: str) -> None:
    assert kind(name) == COMPUTE


@pytest.mark.parametrize(
    ("names", "operation"),
    [(DISPATCH, "dispatch"), (COMBINE, "combine"), (ALL_REDUCE, "all_reduce")],
)
def test_kernels_tell_their_operation(names: tuple[str, ...], operation: str) -> None:
    assert {operation_of(name) for name in names} == {operation}


def test_what_experts_exchange_need_not_wait_for_all_ranks() -> None:
    assert not SYNCHRONISING & {"dispatch", "combine"}
