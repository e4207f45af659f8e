"""Labelled jobs on a GPU: the cause on top, no healthy job accused, and "healthy" never for a
faulty job. See gpu_jobs.py for what they send."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from gpuconsole.diagnosis.claims import unexplained
from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.families.device import MFU, MFU_CAUSAL, capped_clock
from gpuconsole.model.finding import HEALTHY, CodePlace, Signal
from gpuconsole.model.machine import UNKNOWN_GPU
from gpuconsole.model.peaks import peaks_of
from gpuconsole.model.profile import OP_CLASSES, OpClass, ProfileReport, Stalls, TopOp
from gpuconsole.model.run import Run
from gpuconsole.report.run.figures import in_row
from gpuconsole.session.figures.flops import ESTIMATED
from gpuconsole.session.figures.peak import flops_peak
from gpuconsole.session.figures.summary import GPU_NOT_KNOWN
from gpuconsole.wire.events import MemoryOwners
from tests.diagnosis.gpu_jobs import (
    A100,
    BF16_CONVOLUTIONS,
    CARDS,
    CNN_FACTS,
    CNN_KNOBS,
    DDP_OVER_PCIE,
    EXCHANGE,
    FP32_GPT,
    GPT2_FLOPS,
    GPT_FACTS,
    H100,
    L4,
    LAUNCH_BOUND,
    LINE,
    NO_SYNC,
    RTX_4000_ADA,
    RTX_4060,
    RTX_4090,
    RTX_A6000,
    SECONDS,
    GpuJob,
    cnn,
    gpt,
    phases,
    watched,
)  # fmt: skip

BF16_H100, BF16_A100, BF16_L4, BF16_4090 = 989.4e12, 312e12, 121e12, 165.2e12
EAGER = gpt(H100, 0.23, BF16_H100, activity=(0.85, 0.2, 0.15))
"""GPT-2 small in bf16, uncompiled. Its memory traffic is that of a model whose elementwise
operations are no large part."""
COMPILED = gpt(
    H100,
    0.45,
    BF16_H100,
    activity=(0.92, 0.4, 0.35),
    knobs={"batch_size": 16, "torch_compile": "default"},
)
ONE_ITEM = {"sync.calls": 1.0, "sync.wait_s": 0.7 * EAGER.step_s}
CARDS_THAT_ARE_SLOW_BY_POWER = {
    "power_limit_w": 300.0,
    "sm_clock_hz": 1900e6,
    "power_cap_time_ratio": 0.95,
    "clocks_power_cap": 1.0,
    "power_w": 299.0,
}
L4_AT_ITS_POWER_CAP = {
    "sm_clock_hz": 1224e6,
    "power_cap_time_ratio": 0.95,
    "clocks_power_cap": 1.0,
    "power_w": 71.9,
}


def syncing(job: GpuJob, calls: float, waited: float) -> GpuJob:
    """The job with so many calls per step that wait for the GPU for a share `waited` of the step.
    The host is the limit."""
    return replace(
        job, caught_up=0.97, observed={"sync.calls": calls, "sync.wait_s": waited * job.step_s}
    )


def window(tensor_core: float = 0.3, top: tuple[TopOp, ...] = (), **shares: float) -> ProfileReport:
    """A profiler window of three steps in which classes of kernels have these shares, and matrix
    products the rest."""
    shares = {"gemm": 1 - sum(shares.values()), **shares}
    classes = [
        OpClass(name, shares[name], shares[name], 100) for name in OP_CLASSES if name in shares
    ]
    stalls = Stalls(busy_s=0.27, gaps_s=0.03, after_sync_s=0.0, syncs=3, where="")
    return ProfileReport(
        3,
        0.3,
        "GPU time",
        0.27,
        0.9,
        900,
        3000.0,
        9e-5,
        classes,
        list(top),
        tensor_core,
        pass_classes=classes,
        stalls=stalls,
    )


@dataclass(frozen=True)
class Label:
    """`cause`: the rule on top; empty for a healthy job. `probes`: the job was allowed to be
    probed. `note`: the cause is a note."""

    job: GpuJob
    cause: str
    probes: bool = False
    note: bool = False


IN_FORWARD = replace(
    EAGER,
    step=phases(EAGER.step_s, forward=0.7),
    observed={
        **NO_SYNC,
        "stack.function_ratio": 0.78,
        "stack.function_python_ratio": 0.94,
        "stack.function_waits_ratio": 0.0,
        "stack.no_grad_ratio": 0.0,
    },
)
"""Most stack samples are in one function of the program, and the host is ahead of the GPU at the
end of each step."""


def between_phases(
    name: str, cause: str, util: float = 0.97, runq: float = 0.01, **shares: float
) -> dict[str, Label]:
    """A job with such shares of a step beside its passes, on cards with and without GPM. The
    samples find the script's own line there. `util`: GPU-Util."""
    jobs = {}
    for card, peak in ((H100, BF16_H100), (A100, BF16_A100)):
        job = gpt(card, 0.15, peak, activity=(util * 0.9, 0.2, 0.15))
        jobs[f"{name}, {card}"] = Label(
            replace(
                job,
                step=phases(job.step_s, **shares),
                gpu={"utilization_ratio": util},
                runq=runq,
                observed={
                    **NO_SYNC,
                    "sync.calls": 1.0,
                    "sync.wait_s": 0.1 * job.step_s,
                    "stack.script_ratio": 0.6,
                    "stack.line_ratio": 0.55,
                    "stack.line_cpu_ratio": 0.03,
                },
            ),
            cause,
            note=cause == "host.cpu_contention",
        )
    return jobs


STARVED = replace(
    cnn(
        H100,
        900,
        knobs={**CNN_KNOBS, "precision": "bf16"},
        activity=(0.27, 0.06, 0.15),
        caught_up=1.0,
        gpu={"utilization_ratio": 0.3},
    ),
    step=phases(256 / 900, data_wait=0.65, optimizer=0.005),
    counters={"loader.workers_cpu_s": 7.6 * 256 / 900},
)
WRITTEN_OUT = gpt(H100, 0.08, BF16_H100, activity=(0.88, 0.06, 0.8))
WRITTEN_OUT = replace(
    WRITTEN_OUT, observed={**NO_SYNC, "attention.scores_bytes": 0.6 * 3352e9 * WRITTEN_OUT.step_s}
)
"""softmax(q k^T) v operator by operator: its scores take 60 % of the step at the full bandwidth of
the memory."""
LONG = replace(
    gpt(H100, 0.40, BF16_H100, batch=4),
    facts={
        **GPT_FACTS,
        "layers": 24.0,
        "width": 2048.0,
        "parameters": 1.31e9,
        "linear_parameters": 1.31e9,
        "trainable_parameters": 1.31e9,
    },
)
"""Width 2048 and 8192 tokens: attention is a third of the FLOPs, and half of it is masked."""
LONG_FLOPS = (6 * 1.31e9 + 12 * 24 * 2048 * 8192) * 8192
LONG = replace(
    LONG,
    facts={**LONG.facts, "flops_per_sample": LONG_FLOPS},
    tokens=4 * 8192,
    step=phases(4 * LONG_FLOPS / (0.405 * BF16_H100), optimizer=0.01),
)
UNCOUNTED = {name: value for name, value in GPT_FACTS.items() if name != "flops_per_sample"}
FULL_L4 = gpt(L4, 0.3, BF16_L4, batch=8)
JOBS = {
    "launch-bound, GPM": Label(LAUNCH_BOUND, "host.launch_bound"),
    "launch-bound, no GPM": Label(
        gpt(L4, 0.03, BF16_L4, batch=1, caught_up=1.0), "host.launch_bound"
    ),
    "launch-bound, reads the loss": Label(syncing(LAUNCH_BOUND, 1, 0.01), "host.launch_bound"),
    "fp32, GPM": Label(FP32_GPT, "gpu.fp32_no_tensor_core"),
    "fp32, probed": Label(FP32_GPT, "gpu.fp32_no_tensor_core", probes=True),
    "fp32, no GPM": Label(
        gpt(A100, 0.62, 19.5e12, knobs={"precision": "fp32", "batch_size": 16}),
        "gpu.fp32_no_tensor_core",
        probes=True,
    ),
    "fp32 convolutions, TF32 switched off": Label(
        cnn(
            A100,
            400,
            knobs={**CNN_KNOBS, "precision": "fp32"},
            facts={**CNN_FACTS, "tf32_convolutions": 0.0},
        ),
        "gpu.fp32_no_tensor_core",
    ),
    "data-starved": Label(STARVED, "input.too_few_workers"),
    "DDP over PCIe": Label(
        replace(DDP_OVER_PCIE, observed={**NO_SYNC, **EXCHANGE}), "comm.exposed"
    ),
    "activations fill the memory": Label(
        replace(FULL_L4, memory=(0.05, 0.05, 0.1, 0.93, 0.95, 0.97)), "mem.activation_capped"
    ),
    "states fill the memory": Label(
        replace(FULL_L4, memory=(0.17, 0.17, 0.34, 0.82, 0.85, 0.87)), "mem.state_capped"
    ),
    "fragments fill the memory": Label(
        replace(FULL_L4, memory=(0.05, 0.05, 0.1, 0.5, 0.9, 0.93), split=0.39), "mem.fragmentation"
    ),
    "sync in the loop, GPM": Label(
        syncing(gpt(H100, 0.1, BF16_H100, activity=(0.45, 0.1, 0.2)), 24, 0.25), "host.sync_stall"
    ),
    "sync in the loop, no GPM": Label(
        syncing(gpt(A100, 0.12, BF16_A100), 24, 0.3), "host.sync_stall"
    ),
    "small batch": Label(
        gpt(
            H100,
            0.12,
            BF16_H100,
            batch=2,
            knobs={"batch_size": 2},
            activity=(0.45, 0.1, 0.15),
            probed={"probe.batch_cost_ratio": 0.4},
        ),
        "gpu.small_batch",
        probes=True,
    ),
    "launch-bound, and waits for a core": Label(
        replace(LAUNCH_BOUND, runq=0.4, cores=8), "host.launch_bound"
    ),
    "waits for a core": Label(
        replace(LAUNCH_BOUND, runq=0.4, cores=8, activity=(0.45, 0.1, 0.1)),
        "host.cpu_contention",
        note=True,
    ),
    "unfused elementwise operations": Label(
        replace(
            EAGER,
            activity=(0.85, 0.2, 0.55),
            profile=window(elementwise=0.3, normalization=0.12, reduction=0.05),
        ),
        "gpu.elementwise_membw",
    ),
    "a chain of elementwise operations, no window": Label(
        gpt(H100, 0.05, BF16_H100, activity=(0.77, 0.04, 0.7)), "gpu.elementwise_membw"
    ),
    "attention written out": Label(WRITTEN_OUT, "gpu.attention_math"),
    "attention written out, no GPM": Label(
        gpt(
            A100,
            0.08,
            BF16_A100,
            observed={
                **NO_SYNC,
                "attention.scores_bytes": 0.5 * 2039e9 * gpt(A100, 0.08, BF16_A100).step_s,
            },
        ),
        "gpu.attention_math",
    ),
    "attention written out in a small part, and a chain of elementwise operations": Label(
        replace(
            WRITTEN_OUT,
            observed={**NO_SYNC, "attention.scores_bytes": 0.1 * 3352e9 * WRITTEN_OUT.step_s},
        ),
        "gpu.elementwise_membw",
    ),
    "bf16 convolutions in NCHW": Label(
        replace(
            BF16_CONVOLUTIONS,
            profile=window(
                convolution=0.5,
                gemm=0.02,
                elementwise=0.16,
                normalization=0.12,
                copy=0.2,
                top=(
                    TopOp(
                        "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>", "copy", 0.1, 0.1, 100
                    ),
                    TopOp(
                        "void cudnn::ops::nhwcToNchwKernel<__nv_bfloat16>", "copy", 0.08, 0.08, 100
                    ),
                ),
            ),
        ),
        "gpu.conv_layout_autotune",
    ),
    "pageable copies": Label(
        replace(
            cnn(H100, 1500, knobs={**CNN_KNOBS, "precision": "bf16", "pin_memory": False}),
            step=phases(256 / 1500, h2d=0.2, optimizer=0.01),
            gpu={"utilization_ratio": 0.79},
            observed={
                **NO_SYNC,
                "h2d.pageable_copies": 2.0,
                "h2d.pageable_bytes": 1.5e8,
                "h2d.pinned_bytes": 0.0,
            },
        ),
        "h2d.pageable_or_serial",
    ),
    "healthy: augmentation on the GPU, of a small batch": Label(
        replace(
            cnn(H100, 1500, knobs={**CNN_KNOBS, "precision": "bf16", "pin_memory": False}),
            step=phases(256 / 1500, h2d=0.27, optimizer=0.01),
            observed={
                **NO_SYNC,
                "h2d.pageable_copies": 2.0,
                "h2d.pageable_bytes": 65e3,
                "h2d.pinned_bytes": 0.0,
            },
        ),
        "",
    ),
    "a checkpoint in every fifth step": Label(
        replace(EAGER, step=phases(EAGER.step_s, checkpoint=0.3), caught_up=1.0),
        "host.checkpoint_stall",
    ),
    "the script's own lines": Label(
        replace(
            EAGER,
            step=phases(EAGER.step_s, other=0.35),
            caught_up=1.0,
            gpu={"utilization_ratio": 0.66},
            activity=(0.57, 0.13, 0.1),
            observed={
                **NO_SYNC,
                "stack.script_ratio": 0.3,
                "stack.line_ratio": 0.28,
                "stack.line_cpu_ratio": 0.98,
            },
        ),
        "host.python_overhead",
    ),
    **between_phases("healthy: an average of the weights, with loss.item()", "", other=0.2),
    **between_phases("healthy: a batch made on the GPU", "", data_wait=0.15),
    **between_phases("healthy: a static buffer and augmentation on the GPU", "", h2d=0.23),
    **between_phases(
        "the script waits, and the GPU has no work", "host.python_overhead", 0.62, other=0.35
    ),
    **between_phases(
        "the same on a machine that is full", "host.cpu_contention", 0.5, 0.85, other=0.5
    ),
    "Python at the start of a forward pass, and a long backward pass": Label(
        replace(
            IN_FORWARD,
            gpu={"utilization_ratio": 0.38},
            activity=(0.35, 0.14, 0.1),
        ),
        "host.slow_function",
    ),
    "healthy: the same samples where the launch queue is full": Label(IN_FORWARD, ""),
    "reads of values after each step": Label(
        replace(
            syncing(gpt(H100, 0.12, BF16_H100, activity=(0.45, 0.1, 0.1)), 146, 0.45),
            caught_up=0.1,
            gpu={"utilization_ratio": 0.5},
        ),
        "host.sync_stall",
    ),
    "RTX 4090 limited to 300 W": Label(
        gpt(
            RTX_4090,
            0.4,
            BF16_4090,
            gpu={**CARDS_THAT_ARE_SLOW_BY_POWER, "power_limit_default_w": 450.0},
        ),
        "hw.power",
    ),
    "H100 with locked clocks": Label(
        gpt(H100, 0.3, BF16_H100, gpu={"sm_clock_hz": 1200e6}), "hw.clocks_low"
    ),
    "H100 that is too hot": Label(
        gpt(
            H100,
            0.3,
            BF16_H100,
            gpu={"sm_clock_hz": 1400e6, "thermal_time_ratio": 0.6, "clocks_sw_thermal": 1.0},
        ),
        "hw.thermal",
    ),
    "the optimizer is not fused": Label(
        replace(
            gpt(H100, 0.2, BF16_H100, batch=2, knobs={"batch_size": 2, "optim": "adamw"}),
            step=phases(0.05, optimizer=0.3),
            probed={"probe.optim_present_step_s": 0.015, "probe.optim_fused_step_s": 0.004},
        ),
        "gpu.optimizer_unfused",
        probes=True,
    ),
    "healthy: bf16 GPT, compiled": Label(COMPILED, "", probes=True),
    "healthy: bf16 GPT, compiled, not probed": Label(COMPILED, ""),
    "healthy: bf16 GPT, eager": Label(EAGER, ""),
    "healthy: bf16 GPT, eager, fused attention": Label(
        replace(EAGER, observed={**NO_SYNC, "attention.scores_bytes": 0.0}), ""
    ),
    "healthy: bf16 GPT, eager, much traffic, no window": Label(
        replace(EAGER, activity=(0.9, 0.2, 0.62)), ""
    ),
    "healthy: reads the loss in each step, GPM": Label(
        replace(EAGER, caught_up=1.0, observed=ONE_ITEM), ""
    ),
    "healthy: reads the loss in each step, no GPM": Label(
        syncing(gpt(A100, 0.25, BF16_A100), 2, 0.65), ""
    ),
    "healthy: many waits, and the GPU is busy": Label(syncing(EAGER, 48, 0.6), ""),
    "healthy: many waits, and the GPU is busy, no GPM": Label(
        syncing(gpt(A100, 0.25, BF16_A100), 48, 0.6), ""
    ),
    "healthy: reads the loss of each of eight passes": Label(
        syncing(
            gpt(A100, 0.25, BF16_A100, knobs={"batch_size": 16, "gradient_accumulation_steps": 8}),
            9,
            0.4,
        ),
        "",
    ),
    "healthy: autocast inside of the model, which is not seen": Label(
        gpt(A100, 0.25, BF16_A100, knobs={"precision": "fp32"}), "", probes=True
    ),
    "healthy: autocast within the model, counted": Label(
        gpt(
            A100,
            0.25,
            BF16_A100,
            knobs={"precision": "bf16"},
            facts={**GPT_FACTS, "flops_per_sample": GPT2_FLOPS, "flops_bf16_ratio": 1.0},
        ),
        "",
    ),
    "healthy: a mask in each step, a busy A100": Label(
        gpt(A100, 0.25, BF16_A100, caught_up=1.0, ahead=0.5), ""
    ),
    "healthy: a mask in each step, a busy L4": Label(
        gpt(L4, 0.25, BF16_L4, batch=4, caught_up=1.0, ahead=0.4), ""
    ),
    "healthy: operators of another library": Label(
        gpt(
            A100,
            0.06,
            BF16_A100,
            caught_up=1.0,
            facts={**GPT_FACTS, "flops_per_sample": GPT2_FLOPS, "operators_without_formula": 2.0},
        ),
        "",
    ),
    "healthy: blocks computed again": Label(
        gpt(
            A100,
            0.33,
            BF16_A100,
            probed={"probe.batch_cost_ratio": 0.98},
            facts={
                **GPT_FACTS,
                "flops_per_sample": GPT2_FLOPS,
                "recomputed_flops_per_sample": GPT2_FLOPS / 3,
            },
        ),
        "",
        probes=True,
    ),
    "CUDA_LAUNCH_BLOCKING": Label(
        replace(
            LAUNCH_BOUND, facts={**LAUNCH_BOUND.facts, "environment.CUDA_LAUNCH_BLOCKING": 1.0}
        ),
        "host.environment",
    ),
    "cores of another NUMA node": Label(
        gpt(H100, 0.45, BF16_H100, on_cores="16-31,48-63"), "host.numa_node", note=True
    ),
    "fp32 and a mask, no GPM": Label(
        gpt(
            A100,
            0.62,
            19.5e12,
            knobs={"precision": "fp32", "batch_size": 16},
            caught_up=1.0,
            ahead=0.6,
        ),
        "gpu.fp32_no_tensor_core",
    ),
    "healthy: convolutions with TF32 by default": Label(
        cnn(A100, 938, knobs={**CNN_KNOBS, "precision": "fp32"}), "", probes=True
    ),
    "healthy: convolutions with TF32 on an H100": Label(
        cnn(H100, 1700, knobs={**CNN_KNOBS, "precision": "fp32"}, activity=(0.9, 0.12, 0.2)),
        "",
        probes=True,
    ),
    "healthy: bf16 convolutions in NHWC": Label(
        cnn(H100, 2900, knobs={**CNN_KNOBS, "precision": "bf16"}, activity=(0.9, 0.2, 0.2)), ""
    ),
    "healthy: a long sequence": Label(LONG, "", probes=True),
    "healthy: RTX 4090 as it is sold": Label(
        gpt(
            RTX_4090,
            0.45,
            BF16_4090,
            gpu={"power_cap_time_ratio": 0.9, "clocks_power_cap": 1.0, "power_w": 449.0},
        ),
        "",
    ),
    "healthy: RTX 4090 below its limit": Label(
        gpt(RTX_4090, 0.45, BF16_4090, gpu={"sm_clock_hz": 2745e6}), ""
    ),
    "healthy: RTX A6000": Label(
        gpt(RTX_A6000, 0.45, 154.8e12, gpu={"power_cap_time_ratio": 0.9, "clocks_power_cap": 1.0}),
        "",
    ),
    "healthy: L4 at its power cap": Label(
        gpt(
            L4,
            0.27,
            BF16_L4,
            gpu=L4_AT_ITS_POWER_CAP,
            knobs={"batch_size": 16, "torch_compile": "default"},
        ),
        "",
        probes=True,
    ),
    "healthy: L4 at its power cap, many waits": Label(
        syncing(gpt(L4, 0.27, BF16_L4, gpu=L4_AT_ITS_POWER_CAP), 48, 0.1), ""
    ),
    "healthy: the allocator's cache fills the memory": Label(
        replace(FULL_L4, memory=(0.05, 0.05, 0.1, 0.7, 0.92, 0.95)), ""
    ),
    "healthy: H100 at full load": Label(
        gpt(H100, 0.45, BF16_H100, gpu={"sm_clock_hz": 1650e6, "power_cap_time_ratio": 0.9}), ""
    ),
    "healthy: DDP over NVLink": Label(
        gpt(
            H100,
            0.45,
            BF16_H100,
            processes=4,
            knobs={"sharding": "ddp", "bucket_cap_mb": 25.0, "torch_compile": "default"},
            observed={
                **NO_SYNC,
                **EXCHANGE,
                "comm.exposed_s": 0.001,
                "comm.pass_s": 0.03,
                "comm.pass_alone_s": 0.029,
            },
        ),
        "",
    ),
    "healthy: waits for a core while the GPU works": Label(replace(COMPILED, runq=0.4), ""),
    "healthy: waits for a core, other programs use the rest": Label(
        replace(COMPILED, runq=0.4, cores=2, others=0.9), ""
    ),
}


@pytest.mark.parametrize("label", JOBS.values(), ids=JOBS)
def test_the_cause_is_on_top_and_no_healthy_job_is_accused(label: Label) -> None:
    seen = watched(label.job, label.probes)
    healthy = [rule for rule in seen.notes if rule.endswith(HEALTHY)]
    assert not [finding for finding in seen.findings if "the rule failed" in finding.summary]
    if label.note:
        assert label.cause in seen.notes and not seen.faults and not healthy
    else:
        assert seen.faults[:1] == ([label.cause] if label.cause else [])
    if label.cause:
        assert not healthy, "a faulty job is never called healthy"


def test_what_is_called_healthy() -> None:
    """Only with the probe of a larger batch; a compiled model that is not counted, and a long
    sequence by the causal count, are not. Blocks that are computed again keep the GPU busy."""
    called = {
        name
        for name, label in JOBS.items()
        if any(rule.endswith(HEALTHY) for rule in watched(label.job, label.probes).notes)
    }
    assert called == {
        "healthy: bf16 GPT, compiled",
        "healthy: blocks computed again",
        "healthy: L4 at its power cap",
    }


def test_the_thresholds_of_mfu_follow_a_clock_that_the_power_cap_lowers() -> None:
    """The datasheet's peak of an L4 needs 2040 MHz, which its 72 W allow in no large product. MFU
    itself stays that of the datasheet."""
    seen = watched(JOBS["healthy: L4 at its power cap"].job, probes=True)
    assert seen.case.value("mfu_ratio") == pytest.approx(0.27, rel=0.05)
    assert seen.case.value("hw.datasheet_clock_ratio") == pytest.approx(0.6)
    evidence = {entry.signal: entry for entry in seen.of("gpu.compute_bound_healthy").evidence}
    assert evidence["mfu_causal_ratio"].threshold == pytest.approx(0.6 * MFU_CAUSAL)
    assert evidence["hw.power_cap_time_ratio"].value == 0.95
    hot = watched(
        replace(
            JOBS["healthy: L4 at its power cap"].job,
            gpu={**L4_AT_ITS_POWER_CAP, "power_cap_time_ratio": 0.0},
        ),
        probes=True,
    )
    assert capped_clock(hot.case) == 1 and not hot.notes.count("gpu.compute_bound_healthy")
    above = {**L4_AT_ITS_POWER_CAP, "sm_clock_hz": 2100e6}
    assert (
        capped_clock(watched(replace(JOBS["healthy: L4 at its power cap"].job, gpu=above)).case)
        == 1
    )
    limited = {**L4_AT_ITS_POWER_CAP, "power_limit_w": 40.0, "power_limit_default_w": 72.0}
    lowered = watched(replace(JOBS["healthy: L4 at its power cap"].job, gpu=limited), probes=True)
    assert lowered.faults == ["hw.power"] and not [
        rule for rule in lowered.notes if rule.endswith(HEALTHY)
    ]


def test_fragments_that_come_late_are_found() -> None:
    """The agent sends the peaks again with the owners of the memory."""
    job = replace(FULL_L4, memory=(0.05, 0.05, 0.1, 0.5, 0.55, 0.6))
    total = CARDS[L4]["hbm_total_bytes"]
    peaks = {"memory.allocated_peak_bytes": 0.5 * total, "memory.reserved_peak_bytes": 0.9 * total}
    peaks["memory.inactive_split_bytes"] = 0.4 * total
    later = MemoryOwners(
        SECONDS + 0.5,
        0,
        {"total": total},
        {name: Signal(value, "B", "later") for name, value in peaks.items()},
    )
    early, late = watched(job), watched(job, later=(later,))
    assert early.of("mem.fragmentation").state == "clear" and late.faults == ["mem.fragmentation"]
    elsewhere = MemoryOwners(SECONDS + 0.5, 1, {"total": total}, later.signals)
    assert not watched(job, later=(elsewhere,)).faults, "rules judge the leading process"


def test_memory_is_nearly_full_by_what_tensors_need_and_others_hold() -> None:
    """The cache of the allocator has room for tensors; what other processes hold has not."""
    cached = watched(replace(FULL_L4, memory=(0.05, 0.05, 0.1, 0.6, 0.92, 0.95)))
    assert cached.case.value("memory_used_ratio") == pytest.approx(0.95)
    assert cached.of("mem.near_capacity").state == "clear"
    crowded = watched(replace(FULL_L4, memory=(0.05, 0.05, 0.1, 0.6, 0.62, 0.95))).of(
        "mem.near_capacity"
    )
    assert (crowded.state, crowded.evidence[0].value) == ("fires", pytest.approx(0.6 + 0.33))


@pytest.mark.parametrize(
    ("forward", "trained", "state"),
    [(0.55, 124e6, "fires"), (0.33, 124e6, "clear"), (0.55, 1e6, "clear")],
    ids=["idle", "as long as its work", "a frozen model"],
)
@pytest.mark.parametrize("card", [A100, H100])
def test_waits_in_the_forward_pass_count_although_the_host_is_ahead_at_the_end(
    card: str, forward: float, trained: float, state: str
) -> None:
    facts = {**GPT_FACTS, "flops_per_sample": GPT2_FLOPS, "trainable_parameters": trained}
    peak = BF16_H100 if card == H100 else BF16_A100
    job = replace(
        syncing(gpt(card, 0.15, peak, activity=(0.5, 0.1, 0.2)), 12, 0.25),
        caught_up=0.1,
        facts=facts,
    )
    step_s = job.step_s
    job = replace(
        job,
        step={
            "forward": forward * step_s,
            "backward": (0.9 - forward) * step_s,
            "optimizer": 0.1 * step_s,
        },
    )
    finding = watched(job).of("host.sync_stall")
    assert finding.state == state
    if state == "fires":
        assert finding.recoverable_ratio == pytest.approx(0.25, abs=0.01)
        assert finding.confidence == ("medium" if card == H100 else "low")


def test_the_line_that_waits_is_named() -> None:
    summary = watched(JOBS["sync in the loop, GPM"].job).of("host.sync_stall").summary
    assert f"mostly in {LINE}" in summary and "24 times per step, 25 % of its time" in summary


HIDDEN = "489 stack samples of ordinary steps: outside of Python in one line of the program"
MASKED = CodePlace("loss.py:12", "masked_loss")


@pytest.mark.parametrize(
    ("outside", "calls", "named"),
    [(0.4, 0.0, "loss.py:12 masked_loss, by stack samples"), (0.2, 0.0, LINE), (0.3, 0.4, LINE)],
    ids=["samples show where", "samples show another line", "the timed calls are the waits"],
)
def test_a_wait_in_a_function_that_is_not_timed_has_its_line_from_the_samples(
    outside: float, calls: float, named: str
) -> None:
    """CUDA events say that the host was half a step ahead of the GPU, and then waited."""
    seen = watched(syncing(gpt(A100, 0.25, BF16_A100, caught_up=1.0, ahead=0.5), 2, calls))
    case = replace(
        seen.case,
        signals={
            **seen.case.signals,
            "stack.outside_ratio": Signal(outside, "ratio", HIDDEN, MASKED),
        },
    )
    finding = next(finding for finding in evaluate(case) if finding.rule == "host.sync_stall")
    assert (
        finding.state == "clear"
        and f"mostly in {named}, and the GPU works meanwhile" in finding.summary
    )
    assert "stack.outside_ratio" in {entry.signal for entry in finding.evidence}


def test_a_finding_about_waits_names_the_hidden_one_that_takes_most() -> None:
    job = syncing(gpt(H100, 0.03, BF16_H100, batch=4, activity=(0.3, 0.1, 0.2)), 6, 0.05)
    seen = watched(replace(job, caught_up=1.0, ahead=0.4))
    case = replace(
        seen.case,
        signals={**seen.case.signals, "stack.outside_ratio": Signal(0.35, "ratio", HIDDEN, MASKED)},
    )
    finding = next(finding for finding in evaluate(case) if finding.rule == "host.sync_stall")
    assert (
        finding.state == "fires"
        and "mostly in loss.py:12 masked_loss, by stack samples" in finding.summary
    )


def test_idle_time_of_the_gpu_that_no_finding_names_has_the_line_that_waits() -> None:
    seen = watched(
        gpt(A100, 0.25, BF16_A100, caught_up=1.0, ahead=0.5, gpu={"utilization_ratio": 0.7})
    )
    seen.run.signals = {
        **seen.case.signals,
        "stack.outside_ratio": Signal(0.4, "ratio", HIDDEN, MASKED),
    }
    seen.run.findings = seen.findings
    rest = unexplained(seen.run)
    assert rest is not None and "passes without work on the GPU" in rest.time
    assert rest.fits.endswith(
        "waits for the GPU (most of them in loss.py:12 masked_loss, by stack samples)"
    )


def test_waits_and_launches_claim_no_time_twice() -> None:
    """Many small kernels, and many reads of values: without the reads a step takes as long as the
    host's own work."""
    seen = watched(
        syncing(gpt(H100, 0.03, BF16_H100, batch=1, activity=(0.08, 0.02, 0.04)), 40, 0.2)
    )
    claims = {
        rule: seen.of(rule).recoverable_ratio for rule in ("host.launch_bound", "host.sync_stall")
    }
    assert claims["host.sync_stall"] == pytest.approx(0.2)
    assert claims["host.launch_bound"] == pytest.approx(1 - 0.2 - 0.2 - 0.002 - 0.01, abs=0.005), (
        "the GPU works while the host waits for it"
    )


def test_fp32_predicts_the_gain_of_tensor_cores_and_asks_for_permission() -> None:
    finding = watched(FP32_GPT).of("gpu.fp32_no_tensor_core")
    assert [suggestion.changes for suggestion in finding.suggestions] == [
        {"precision": "bf16"},
        {"precision": "tf32"},
    ]
    bf16, tf32 = finding.suggestions
    assert bf16.predicted_speedup is not None and tf32.predicted_speedup is not None
    assert bf16.predicted_speedup.low < 5 < bf16.predicted_speedup.high, (
        "five to seven times as fast, measured by others"
    )
    assert tf32.predicted_speedup.high < bf16.predicted_speedup.high
    assert all("needs your permission" in suggestion.why for suggestion in finding.suggestions)


def test_an_fp32_job_whose_host_is_the_limit_is_launch_bound_only() -> None:
    job = gpt(
        H100,
        0.05,
        66.9e12,
        batch=1,
        knobs={"batch_size": 1, "precision": "fp32"},
        activity=(0.1, 0.0, 0.03),
        caught_up=1.0,
    )
    assert watched(job).faults == ["host.launch_bound"]


def test_convolutions_in_fp32_are_compared_with_the_peak_of_tf32() -> None:
    run = watched(JOBS["healthy: convolutions with TF32 by default"].job).run
    assert run.summary.mfu_ratio == pytest.approx(938 * 2.46e10 / 156e12, rel=0.02)
    assert "tf32 for convolutions (cuDNN's default) dense" in run.summary.mfu_peak_source
    off = watched(JOBS["fp32 convolutions, TF32 switched off"].job).run
    assert off.summary.mfu_ratio == pytest.approx(400 * 2.46e10 / 19.5e12, rel=0.01)


def test_a_vision_transformer_has_a_convolution_and_its_products_are_fp32() -> None:
    """Its one convolution embeds the patches. The share of convolutions was not counted."""
    facts = {
        name: value for name, value in CNN_FACTS.items() if name != "convolution_flops_ratio"
    } | {"linear_parameters": 25.0e6}
    seen = watched(
        cnn(
            H100,
            1500,
            knobs={**CNN_KNOBS, "precision": "fp32"},
            facts=facts,
            activity=(0.93, 0.0, 0.2),
        )
    )
    assert seen.faults == ["gpu.fp32_no_tensor_core"]
    assert seen.run.summary.mfu_peak_source.startswith("fp32 dense")


def test_a_card_before_ampere_has_no_tf32() -> None:
    facts = {**CNN_FACTS, "world_size": 1.0}
    peak = flops_peak({"precision": "fp32"}, facts, peaks_of("Tesla T4"), True)
    assert peak is not None and peak[0] == 8.1e12 and peak[1].startswith("fp32 dense")


@pytest.mark.parametrize("edition", ["Server", "Max-Q Workstation"])
def test_convolutions_that_may_use_tf32_have_no_peak_where_that_of_tf32_is_not_known(
    edition: str,
) -> None:
    """The peak of fp32 is not theirs: MFU would be more than twice what it is."""
    peaks = peaks_of(f"NVIDIA RTX PRO 6000 Blackwell {edition} Edition")
    assert flops_peak({"precision": "fp32"}, {**CNN_FACTS, "world_size": 1.0}, peaks, True) is None
    products = flops_peak({"precision": "fp32"}, {**GPT_FACTS, "world_size": 1.0}, peaks, True)
    assert products is not None and products[0] == peaks.fp32_flops_per_s


def test_mfu_of_a_compiled_model_comes_from_its_parameters() -> None:
    counted = watched(COMPILED).run.summary
    estimated = watched(replace(COMPILED, facts=UNCOUNTED)).run.summary
    assert estimated.mfu_ratio == pytest.approx(counted.mfu_ratio, rel=0.01)
    assert estimated.mfu_causal_ratio == pytest.approx(counted.mfu_causal_ratio, rel=0.02)
    assert ESTIMATED in estimated.mfu_peak_source and ESTIMATED not in counted.mfu_peak_source


@pytest.mark.parametrize(
    "facts",
    [
        # tables of embeddings
        {"parameters": 9e9, "linear_parameters": 2e6, "trainable_parameters": 9e9},
        {},
    ],
)
def test_flops_are_not_estimated_where_the_model_is_no_transformer(facts: dict[str, float]) -> None:
    assert watched(replace(COMPILED, facts=facts)).run.summary.mfu_ratio is None


def test_frozen_weights_need_no_weight_gradient() -> None:
    frozen = watched(
        replace(COMPILED, facts={**UNCOUNTED, "trainable_parameters": 1e6})
    ).run.summary
    whole = watched(replace(COMPILED, facts=UNCOUNTED)).run.summary
    assert frozen.flops_per_s is not None and whole.flops_per_s is not None
    # 4 N and 12 L d T instead of 6 N and 12 L d T, with N = 124 M
    attention = 12 * 12 * 768 * 1024
    assert frozen.flops_per_s / whole.flops_per_s == pytest.approx(
        (4 * 124e6 + 2e6 + attention) / (6 * 124e6 + attention), rel=0.01
    )


def test_both_counts_of_attention_are_named_and_the_causal_one_decides() -> None:
    seen = watched(LONG, probes=True)
    summary = seen.run.summary
    assert summary.mfu_ratio is not None and summary.mfu_causal_ratio is not None
    assert (
        summary.mfu_ratio > MFU
        and summary.mfu_causal_ratio == pytest.approx(0.32, abs=0.01)
        and summary.mfu_causal_ratio < MFU_CAUSAL
    )
    finding = seen.of("gpu.compute_bound_healthy")
    assert finding.state == "clear" and [entry.signal for entry in finding.evidence[:2]] == [
        "mfu_causal_ratio",
        "mfu_ratio",
    ]
    assert "attention counted in full" in summary.mfu_peak_source


def test_a_counted_job_needs_no_shape_of_its_attention() -> None:
    """Any script: the agent counts what a causal mask leaves out."""
    shape = {"layers", "width", "causal"}
    facts = {name: value for name, value in COMPILED.facts.items() if name not in shape} | {
        "causal_flops_per_sample": 0.9 * GPT2_FLOPS
    }
    summary = watched(replace(COMPILED, facts=facts)).run.summary
    assert summary.mfu_ratio is not None and summary.mfu_causal_ratio == pytest.approx(
        0.9 * summary.mfu_ratio
    )


def test_mfu_of_a_process_is_compared_with_one_card() -> None:
    """The samples of a job are those of its leading process, so the peak of four cards would read a
    quarter."""
    assert watched(DDP_OVER_PCIE).run.summary.mfu_ratio == pytest.approx(0.22, rel=0.03)


def test_without_gpm_the_same_rules_conclude() -> None:
    """SM, tensor and DRAM active are missing before Hopper. Only a low memory traffic needs
    them."""
    with_gpm = watched(COMPILED).undecided.keys()
    without = watched(
        gpt(A100, 0.45, BF16_A100, knobs={"batch_size": 16, "torch_compile": "default"})
    ).undecided.keys()
    assert with_gpm == without


def test_activity_is_that_of_the_steady_steps_with_its_source() -> None:
    signals = watched(EAGER).case.signals
    assert signals["gpu.sm_active_ratio"].value == pytest.approx(0.85)
    assert signals["gpu.sm_active_ratio"].source.startswith("nvml.gpm, mean of")
    assert "gpu.sm_active_ratio" not in watched(FULL_L4).case.signals
    assert watched(FULL_L4).case.signals["gpu.util_ratio"].value == pytest.approx(0.99)


def test_a_program_that_does_not_say_what_it_waits_for_needs_the_probes() -> None:
    """The agent of an older version, or one whose hook of the waits is off."""
    seen = watched(replace(LAUNCH_BOUND, observed={}))
    assert seen.of("host.launch_bound").missing == ("probe.issue_s",)
    assert seen.of("host.sync_stall").missing == ("probe.sync_gaps_s",)


def test_probes_win_over_what_is_only_seen() -> None:
    measured = {"probe.issue_s": 0.005, "probe.pass_gpu_s": 0.0295, "probe.pass_s": 0.03}
    assert (
        watched(replace(LAUNCH_BOUND, probed=measured), probes=True).of("host.launch_bound").state
        == "clear"
    )


def test_a_limit_below_the_default_is_a_fault_with_the_clock_that_it_costs() -> None:
    finding = watched(JOBS["RTX 4090 limited to 300 W"].job).of("hw.power")
    assert finding.recoverable_ratio == pytest.approx(1 - 1900 / 2520)
    assert "below the default of 450 W" in finding.summary
    higher = watched(
        gpt(RTX_4090, 0.4, BF16_4090, gpu={**CARDS_THAT_ARE_SLOW_BY_POWER, "power_limit_w": 450.0})
    ).of("hw.power")
    assert (higher.note, higher.recoverable_ratio) == (
        True,
        0.0,
    ) and "up to 600 W can be set" in higher.summary


def test_a_workstation_card_without_a_known_boost_clock_is_not_accused() -> None:
    seen = watched(replace(FULL_L4, card=RTX_4000_ADA))
    assert seen.faults == [] and seen.of("hw.clocks_low").note


def test_the_memory_limit_of_a_job_is_known_without_the_agent() -> None:
    """An agent that sends no limit: NVML has the memory of the card. Fragments need the agent's
    peaks."""
    signals = watched(JOBS["activations fill the memory"].job).case.signals
    assert signals["memory.limit_bytes"].value == pytest.approx(24e9)


@pytest.mark.parametrize(
    ("job", "before", "now"),
    [(FP32_GPT, 6, 1), (BF16_CONVOLUTIONS, 8, 2), (LAUNCH_BOUND, 7, 0)],
    ids=["fp32", "bf16 convolutions", "launch-bound"],
)
def test_how_many_rules_cannot_tell_with_the_allowed_probes(
    job: GpuJob, before: int, now: int
) -> None:
    """`before`: with the agent and the rules that needed a probe for each of these causes. Steps of
    0.3 s are too few for a trend in this time."""
    assert len(watched(job, probes=True).undecided) <= now < before


def test_a_window_decides_what_is_left() -> None:
    job = replace(
        BF16_CONVOLUTIONS, profile=window(convolution=0.6, elementwise=0.15, normalization=0.1)
    )
    assert watched(job, probes=True).undecided == {}


# --- what MFU is made of --------------------------------------------------------------------------


def counted(job: GpuJob, **facts: float) -> Run:
    return watched(replace(job, facts={**GPT_FACTS, "flops_per_sample": GPT2_FLOPS, **facts})).run


def test_the_peak_is_that_of_the_number_types_that_were_counted() -> None:
    job = gpt(A100, 0.25, BF16_A100, knobs={"precision": "bf16", "batch_size": 16})
    assert counted(job, flops_bf16_ratio=1.0).summary.mfu_ratio == pytest.approx(0.25, rel=0.01)
    mixed = counted(job, flops_bf16_ratio=0.8, flops_fp32_ratio=0.2)
    assert mixed.summary.mfu_ratio == pytest.approx(
        0.25 * (0.8 + 0.2 * BF16_A100 / 19.5e12), rel=0.01
    )
    assert mixed.summary.mfu_peak_source.startswith("bf16 (80 %) and fp32 (20 %) dense")
    changed = counted(
        replace(job, knobs={"precision": "bf16", "batch_size": 16}), flops_fp32_ratio=1.0
    )
    assert changed.summary.mfu_ratio == pytest.approx(0.25, rel=0.01), (
        "the count was made before the precision was changed"
    )


def test_no_utilization_is_above_the_peak() -> None:
    """The reader's case: bf16 that is set within the model, and nothing was counted by type. It
    read as MFU 400 %."""
    run = watched(JOBS["healthy: autocast inside of the model, which is not seen"].job).run
    assert run.summary.mfu_ratio is None and run.summary.mfu_above_peak
    assert "4.0 times the peak (fp32 dense" in run.unavailable["workload.mfu_ratio"]


def test_what_is_computed_again_is_shown_apart() -> None:
    run = watched(JOBS["healthy: blocks computed again"].job, probes=True).run
    assert run.summary.mfu_ratio == pytest.approx(0.33, rel=0.01)
    assert run.summary.hfu_ratio == pytest.approx(0.44, rel=0.01)


def test_a_count_that_is_not_whole_is_a_lower_bound() -> None:
    seen = watched(JOBS["healthy: operators of another library"].job)
    assert seen.run.summary.mfu_at_least and in_row(seen.run, "mfu_ratio").startswith(
        "MFU at least 6 % of bf16 dense"
    )
    assert seen.of("host.launch_bound").state == "cant_tell", "nobody knows how busy the GPU is"


@pytest.mark.parametrize(("util", "state"), [(0.45, "fires"), (0.97, "cant_tell")])
def test_on_a_card_whose_peak_is_not_known_a_low_gpu_util_proves_idle_time(
    util: float, state: str
) -> None:
    """GPU-Util counts any kernel, so the GPU works for at most this share. A high one says
    nothing."""
    job = gpt(RTX_4060, 0.03, 60e12, batch=1, caught_up=1.0, gpu={"utilization_ratio": util})
    seen = watched(job)
    finding = seen.of("host.launch_bound")
    assert seen.run.summary.mfu_ratio is None and finding.state == state
    if state == "fires":
        assert "GPU-Util is 45 %" in finding.summary and finding.confidence == "low"
        assert seen.faults == ["host.launch_bound"] and finding.recoverable_ratio == pytest.approx(
            0.5, abs=0.06
        )
    stalled = watched(syncing(job, 24, 0.3)).of("host.sync_stall")
    assert stalled.state == state


@pytest.mark.parametrize(("late", "exposed"), [(0.0, 0.3), (0.25, 0.225), (0.6, None)])
def test_what_a_sharded_model_waits_for_is_told_without_the_steps_in_which_a_host_is_late(
    late: float, exposed: float | None
) -> None:
    """In those the computation may wait for the late host of another process. Where they are many,
    nothing is said."""
    job = gpt(H100, 0.2, BF16_H100, processes=2, knobs={"sharding": "zero3"}, caught_up=late)
    seen = watched(replace(job, step=phases(job.step_s, comm=0.3, optimizer=0.03)))
    signal, finding = seen.case.signals.get("comm.exposed_s"), seen.of("comm.exposed")
    assert finding.state == ("cant_tell" if exposed is None else "fires")
    assert (signal and signal.value) == (exposed and pytest.approx(exposed * job.step_s, rel=0.01))
    if late and signal is not None:
        assert "without the 25 % of the steps" in signal.source


def test_without_gpm_the_confidence_in_launches_is_low() -> None:
    assert watched(JOBS["launch-bound, no GPM"].job).of("host.launch_bound").confidence == "low"
    assert watched(JOBS["launch-bound, GPM"].job).of("host.launch_bound").confidence == "high"


def test_a_job_whose_gpu_is_not_known_is_judged_by_no_other_gpu() -> None:
    """The card runs too hot, and the job may run on the other one."""
    hot = JOBS["H100 that is too hot"].job
    seen = watched(hot, other_gpu=True)
    assert seen.run.device == UNKNOWN_GPU and seen.run.summary.mfu_ratio is None
    assert seen.run.unavailable["workload.mfu_ratio"] == GPU_NOT_KNOWN
    assert not [
        finding.rule
        for finding in seen.findings
        if finding.rule.startswith("hw.") and finding.state == "fires"
    ]
    assert not [finding for finding in seen.findings if "the rule failed" in finding.summary]
    assert not [name for name in seen.run.signals if name.startswith(("gpu.", "hw.", "link."))]
