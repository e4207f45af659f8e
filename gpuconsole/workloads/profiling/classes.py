"""Which class a kernel or an operator belongs to, by its name.

GPU kernels: names of cuBLAS, cuDNN, CUTLASS, FlashAttention, NCCL, ATen and Triton kernels. Operators: ATen's own names.
The first pattern that fits decides.
"""

from __future__ import annotations

import re
from functools import lru_cache

from gpuconsole.model.profile import OpClassName

COMPILED_GRAPH = "## Call CompiledFxGraph"
"""The span in which torch.compile's generated code runs; what no operator in it accounts for is that code itself."""

_KERNEL_NAMES: tuple[tuple[OpClassName, str], ...] = (
    ("communication", r"nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|symm_mem"),
    ("optimizer", r"adam|multi_tensor_apply.*(sgd|lamb|adagrad)"),
    ("attention", r"flash|fmha|sdpa|attention|attn"),
    ("convolution", r"conv(?!ert)|implicit_gemm|dgrad|wgrad|winograd|_fprop|nchwToNhwc|nhwcToNchw|16816cudnn|1688cudnn|884cudnn"),
    ("gemm", r"gemm|gemv|nvjet|cublas|splitk|cutlass.*(tensorop|simt)|xmma|matmul|triton_tem_|dot_kernel|s884|s1688|s16816"),
    ("normalization", r"layer_?norm|batch_?norm|group_?norm|rms_?norm|instance_?norm|GammaBeta|cuCompute(Part)?GradInput|bn_(fw|bw)"),
    ("embedding", r"embedding|index_?select|indexing_backward|index_put|gather|scatter|index_elementwise|indexFuncLarge"),
    ("copy", r"CatArray|copy_kernel|memcpy|memset"),
    ("reduction", r"reduce|softmax|nll_loss|triton_(red|per)_|norm_kernel|argm(ax|in)|pool|scan|sort|topk"),
    ("elementwise", r"elementwise|triton_poi_|multi_tensor_apply|dropout|fill|distribution_"),
)

_OP_NAMES: tuple[tuple[OpClassName, str], ...] = (
    ("attention", r".*(scaled_dot_product|flash_attention|efficient_attention|cudnn_attention|flex_attention).*"),
    ("convolution", r".*convolution.*|(thnn_|slow_)?conv_?(transpose|depthwise)?[123]d.*"),
    (
        "gemm",
        r"(add)?mm|(badd)?bmm|addmv|mv|dot|vdot|ger|addr|addbmm|matmul|linear|_int_mm|_scaled_mm|_grouped_mm|mkldnn_linear.*"
        r"|_linear_pointwise.*|_mkl_linear|_addmm_activation|linear_backward|einsum",
    ),
    ("normalization", r".*(layer_norm|batch_norm|group_norm|rms_norm|instance_norm|weight_norm).*"),
    ("embedding", r"embedding.*|_embedding_bag.*|index_select.*|_?index_put_?.*|index_add_?|index|gather.*|scatter.*|take|_unsafe_index.*"),
    ("copy", r"copy_|_local_scalar_dense|cat|_foreach_copy_?|repeat|roll|flip|constant_pad_nd|_pin_memory"),
    (
        "reduction",
        r"sum|mean|prod|max|min|amax|amin|aminmax|argmax|argmin|all|any|_?(log_)?softmax(_backward_data)?|logsumexp|norm|linalg_vector_norm"
        r"|nll_loss.*|var|std|var_mean|std_mean|cumsum|cumprod|topk|sort|.*pool[123]d.*|_foreach_norm|mse_loss.*|binary_cross_entropy.*",
    ),
    (
        "elementwise",
        r"(_foreach_)?(add|sub|rsub|mul|div|true_divide|pow|exp|exp2|expm1|log|log2|log1p|sqrt|rsqrt|neg|abs|reciprocal|square|sign|sin|cos"
        r"|erf|tanh|sigmoid|silu|gelu|relu|relu6|elu|celu|selu|mish|softplus|hardswish|hardsigmoid|hardtanh|leaky_relu|prelu|log_sigmoid|glu"
        r"|threshold|clamp|clamp_min|clamp_max|maximum|minimum|lerp|addcmul|addcdiv|floor|ceil|round|trunc|remainder|fmod|where|zero|fill"
        r"|masked_fill|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|isnan|isinf|nan_to_num|tril|triu)(_backward|_forward)?_?"
        r"|(native_|feature_)?dropout_?(_backward)?|_fused_dropout|bernoulli_?|arange|_amp_.*",
    ),
)

_KERNELS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _KERNEL_NAMES)
_OPS = tuple((name, re.compile(f"^(?:{pattern})$")) for name, pattern in _OP_NAMES)

_TENSOR_CORE = re.compile(
    # the names that Kineto's TensorBoard plug-in goes by (tc_allowlist.py), and what came after it: GMMA, nvjet, FlashAttention
    r"[hs]884|[hs]1688|i8816|16816|16832|[hs]gmma|wgmma|hmma|imma|qmma|tensorop|xmma_|nvjet|conv2d_c1_k1|c1_k1|dgrad_1x1_stride_2x2"
    r"|first_layer_wgrad_kernel|flash_(fwd|bwd)|flash.*(fprop|bprop)|FlashAtt\w*(Fwd|Bwd|Forward|Backward)Sm|fmha_cutlass[FB]_(f16|bf16)",
    re.IGNORECASE,
)
_ON_CUDA_CORES = re.compile(r"simt|xmma_\w*?_(f32f32_)+f32|_sgemm|flash_bwd_(dot|convert)|combine|splitkreduce", re.IGNORECASE)


@lru_cache(maxsize=4096)
def class_of_kernel(name: str) -> OpClassName:
    """By a GPU kernel's name; `other` where it says nothing."""
    return next((found for found, pattern in _KERNELS if pattern.search(name)), "other")


@lru_cache(maxsize=4096)
def class_of_op(name: str) -> OpClassName:
    """By an operator's name, its namespace taken off; `other` where it says nothing (views, allocation, autograd's own nodes)."""
    if name.startswith(("c10d::", "_c10d_functional::", "gloo:", "nccl:")):
        return "communication"
    if name.startswith(COMPILED_GRAPH):
        return "fused"
    space, _, plain = name.rpartition("::")
    if not space:
        return "other"
    if plain.startswith("_fused_") and plain.endswith("_"):
        return "optimizer"
    return next((found for found, pattern in _OPS if pattern.match(plain)), "other")


@lru_cache(maxsize=4096)
def on_tensor_cores(name: str) -> bool:
    """Whether a GPU kernel's name says that it computes on tensor cores."""
    return bool(_TENSOR_CORE.search(name)) and not _ON_CUDA_CORES.search(name)
