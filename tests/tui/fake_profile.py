"""A scripted profiler window of a GPU, for tests only."""

from __future__ import annotations

import msgspec

from gpuconsole.model.profile import CopyKind, Gap, OpClass, ProfileReport, Stalls, TopOp
from gpuconsole.session.api import View
from tests.tui.fake_session import gpu_view

GPU_PROFILE = ProfileReport(
    steps=3,
    wall_s=1.32,
    clock="kernels and copies on the GPU clock (CUPTI)",
    busy_s=1.19,
    busy_ratio=0.90,
    kernels=4200,
    kernels_per_s=3181.8,
    mean_kernel_s=283e-6,
    classes=[
        OpClass("gemm", 0.58, 0.69, 900, 3.9e14, 2.1e12, 0.69),
        OpClass("attention", 0.17, 0.20, 72, 8.0e13, 1.1e11, 0.20),
        OpClass("elementwise", 0.13, 0.155, 1800, 9.5e10, 5.4e11, 0.155),
        OpClass("normalization", 0.06, 0.07, 294, 3.0e10, 2.6e11, 0.07),
        OpClass("optimizer", 0.04, 0.05, 36, 3.0e9, 1.0e11, 0.05),
        OpClass("copy", 0.015, 0.018, 120, 0.0, 4.0e9, 0.018),
        OpClass("other", 0.005, 0.006, 978),
    ],
    top=[
        TopOp(
            "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNN",
            "gemm",
            0.41,
            0.34,
            420,
            2.5e14,
            8.0e11,
            0.41,
            "aten::addmm",
            7.8,
            0.19,
        ),
        TopOp(
            (
                "void at::native::vectorized_elementwise_kernel<4,"
                " at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>"
            ),
            "elementwise",
            0.08,
            0.07,
            288,
            4.0e10,
            3.1e11,
            0.08,
            "aten::gelu",
            186.2,
            1.0,
        ),
    ],
    tensor_core_ratio=0.74,
    tensor_core_note="share of kernel time in tensor core kernels, by name",
    copies=[
        CopyKind("H2D", "pageable", 6, 1.2e9, 0.11),
        CopyKind("D2H", "pageable", 3, 12.0, 9e-6),
    ],
    gaps=[Gap(0.4, 0.021, "Memcpy HtoD (Pageable -> Device)", "nvjet_hsh_128x256")],
    stalls=Stalls(
        busy_s=1.19,
        gaps_s=0.13,
        after_sync_s=0.06,
        syncs=6,
        where="aten::item at train.py:42 train",
    ),
    attention=["flash", "math, without a fused kernel"],
    trace="/home/me/gpuconsole-trace-train-gpt-20261121-110755.json.gz",
)


def profiled_view(report: ProfileReport | None = GPU_PROFILE, **changes: object) -> View:
    """A run in bf16 on an H200, with its profile."""
    shown = gpu_view()
    run = msgspec.structs.replace(
        shown.runs[-1], knobs={**shown.runs[-1].knobs, "precision": "bf16"}, profile=report
    )
    return msgspec.structs.replace(shown, runs=(shown.runs[0], run), **changes)
