"""Names as they stand in traces: of cuBLAS, cuDNN, CUTLASS, FlashAttention, NCCL, ATen, Triton; and
of ATen's operators."""

from __future__ import annotations

import pytest

from gpuconsole.model.profile import OpClassName
from gpuconsole.workloads.profiling.trace import class_of_kernel, class_of_op, on_tensor_cores

KERNELS: dict[str, tuple[OpClassName, bool]] = {
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNN": ("gemm", True),
    (
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_stage4_warpsize2x2x1_tensor16x8x16_kernel"
    ): (
        "gemm",
        True,
    ),
    (
        "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_stage3_warpsize2x2x1_tensor16x8x8_kernel"
    ): (
        "gemm",
        True,
    ),
    (
        "sm90_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_on_kernel__5x_cublas"
    ): (
        "gemm",
        False,
    ),
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn": ("gemm", True),
    "ampere_sgemm_128x64_nn": ("gemm", False),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(...)": ("gemm", False),
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x4_tn_align8>(...)": (
        "gemm",
        True,
    ),
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(...)": (
        "gemm",
        False,
    ),
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, ...>>(Flash_fwd_params)": (
        "attention",
        True,
    ),
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>": ("attention", True),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0"
    ): (
        "attention",
        True,
    ),
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::...)": ("attention", True),
    (
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_stage3_kernel_cudnn"
    ): (
        "convolution",
        True,
    ),
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(...)": (
        "convolution",
        False,
    ),
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(...)>": (
        "elementwise",
        False,
    ),
    (
        "void at::native::elementwise_kernel<128, 2,"
        " at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float> >>"
    ): (
        "elementwise",
        False,
    ),
    "triton_poi_fused_add_gelu_mul_3": ("elementwise", False),
    "triton_red_fused_native_layer_norm_2": ("normalization", False),
    "triton_per_fused_sum_1": ("reduction", False),
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(...)": (
        "normalization",
        False,
    ),
    (
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float,"
        " float>(...)"
    ): (
        "normalization",
        False,
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float,"
        " at::native::func_wrapper_t<...>>>"
    ): (
        "reduction",
        False,
    ),
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(...)": (
        "reduction",
        False,
    ),
    (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...,"
        " FusedAdamMathFunctor<float, 4>>"
    ): (
        "optimizer",
        False,
    ),
    (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...,"
        " BinaryOpListAlphaFunctor<float>>"
    ): (
        "elementwise",
        False,
    ),
    (
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned"
        " int>(...)"
    ): (
        "embedding",
        False,
    ),
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>": (
        "copy",
        False,
    ),
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": (
        "communication",
        False,
    ),
    "my_own_kernel": ("other", False),
}
OPS: dict[str, OpClassName] = {
    "aten::addmm": "gemm",
    "aten::bmm": "gemm",
    "aten::linear": "gemm",
    "mkldnn::_linear_pointwise": "gemm",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
    "aten::mkldnn_convolution": "convolution",
    "aten::convolution_backward": "convolution",
    "aten::gelu_backward": "elementwise",
    "aten::add_": "elementwise",
    "aten::threshold_backward": "elementwise",
    "aten::native_layer_norm": "normalization",
    "aten::_log_softmax_backward_data": "reduction",
    "aten::sum": "reduction",
    "aten::index_select": "embedding",
    "aten::embedding_dense_backward": "embedding",
    "aten::_fused_adamw_": "optimizer",
    "aten::copy_": "copy",
    "gloo:all_reduce": "communication",
    "c10d::allreduce_": "communication",
    "## Call CompiledFxGraph fy63oot ##": "fused",
    "aten::view": "other",
    "aten::empty": "other",
    "AddmmBackward0": "other",
    "autograd::engine::evaluate_function: AddmmBackward0": "other",
    "somebody::mm_of_mine": "other",
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernels_class_and_whether_it_uses_tensor_cores(name: str) -> None:
    assert (class_of_kernel(name), on_tensor_cores(name)) == KERNELS[name]


def test_operators() -> None:
    assert {name: class_of_op(name) for name in OPS} == OPS
