"""The training cases: the workload with sizes from ranges that differ between the halves, and the
known cause.

Thresholds may be tuned on the tuning half only. The reporting half has other sizes and, if a cause
can occur in more than one model, another model: C18, C19, C20a, C21, C22, C25 and most decoys.
Almost no two seeds have the same sizes, so a run that a rule was corrected on does not occur again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpuconsole.model.knobs.catalogue import Knobs

Half = Literal["tuning", "reporting"]
Made = tuple[str, Knobs]
"""A scenario and the changes to it."""


@dataclass(frozen=True)
class Case:
    """`truth`: the rules that name its cause; empty for a healthy case. `fix`: the knobs that
    remove the cause, if there are such knobs."""

    id: str
    name: str
    truth: tuple[str, ...]
    make: Callable[[random.Random, Half], Made]
    fix: tuple[str, ...] = ()
    neighbours: int = 0
    gpu_neighbours: int = 0
    serving: bool = False
    watch_s: float = 4.0
    """Shortest time in steady state in seconds: slow growth needs time."""
    offer: bool = False
    """The right answer is a note that promises a gain: the case has no fault, but a knob gains."""
    needs: tuple[str, ...] = ()
    """The CPU must have one of these features."""

    @property
    def family(self) -> str:
        return self.truth[0].partition(".")[0] if self.truth else "healthy"

    def drawn(self, half: Half, seed: int) -> Made:
        return self.make(random.Random(f"{self.id} {half} {seed}"), half)


def width(chance: random.Random, low: int, high: int) -> int:
    """A `d_model` that divides into heads of about 64."""
    drawn = chance.randint(low, high)
    return drawn - drawn % max(1, drawn // 64)


def gpt(chance: random.Random, half: Half, **knobs: object) -> Made:
    """A transformer whose sizes fill the device."""
    sizes: Knobs = (
        {
            "d_model": width(chance, 112, 176),
            "n_layer": chance.choice((3, 4)),
            "seq_len": chance.randint(104, 128),
            "batch_size": 12,
        }
        if half == "tuning"
        else {
            "d_model": width(chance, 192, 288),
            "n_layer": chance.choice((3, 4)),
            "seq_len": chance.randint(112, 160),
            "batch_size": chance.randint(8, 12),
        }
    )
    return "train-gpt", {**sizes, **knobs}  # type: ignore[dict-item]


NHWC: Knobs = {"channels_last": True}


def vision(chance: random.Random, half: Half, **knobs: object) -> Made:
    """A ResNet that its loader feeds fast enough, in the best layout for the device. So a knob that
    gains is a cause, and there is at most one cause."""
    sizes: Knobs = (
        {"width": chance.randint(26, 33), "image_size": 64, "batch_size": chance.randint(16, 20)}
        if half == "tuning"
        else {
            "width": chance.randint(34, 42),
            "image_size": 2 * chance.randint(24, 30),
            "batch_size": chance.randint(16, 24),
        }
    )
    return "vision-healthy", {**NHWC, **sizes, **knobs}  # type: ignore[dict-item]


def either(
    tuned_on: Callable[..., Made],
    reported_on: Callable[..., Made],
    **draw: Callable[[random.Random], object],
) -> Callable[..., Made]:
    """The same cause in one model for the tuning half and in another model for the reporting half.
    `draw`: its strength."""

    def make(chance: random.Random, half: Half) -> Made:
        base = tuned_on if half == "tuning" else reported_on
        return base(chance, half, **{name: drawn(chance) for name, drawn in draw.items()})

    return make


def fixed(value: object) -> Callable[[random.Random], object]:
    return lambda chance: value


def integer(low: int, high: int) -> Callable[[random.Random], object]:
    return lambda chance: chance.randint(low, high)


def between(low: float, high: float) -> Callable[[random.Random], object]:
    return lambda chance: round(chance.uniform(low, high), 2)


def epochs(chance: random.Random, half: Half) -> Made:
    scenario, knobs = vision(chance, half, persistent_workers=False)
    batch = chance.randint(14, 18)
    return scenario, {
        **knobs,
        "batch_size": batch,
        "max_train_samples": batch * chance.randint(6, 10),
    }


def tail(chance: random.Random, half: Half) -> Made:
    """A loader that is fast enough on average. One batch in eight contains a sample that takes 0.4
    s.

    A workload has the same order in every run: with epochs of one size, the same batches would
    always be late.
    """
    sizes: Knobs = {
        "width": 64 if half == "tuning" else chance.randint(60, 72),
        "batch_size": 16,
        "image_size": 64,
    }
    latency_ms = round(chance.uniform(3.5, 4.5), 2)
    return "vision-healthy", {
        **NHWC,
        **sizes,
        "max_train_samples": chance.randint(4000, 8000),
        "num_workers": 1,
        "prefetch_factor": 1,
        "slow_sample_ratio": 0.008,
        "storage_latency_ms": latency_ms,
    }


def checkpointed(chance: random.Random, half: Half, **knobs: object) -> Made:
    """Many parameters compared with the tokens of a step, so that a checkpoint takes long."""
    sizes: Knobs = {"d_model": 320 if half == "tuning" else width(chance, 368, 464), "n_layer": 4}
    return "train-gpt", {
        **sizes,
        "batch_size": chance.randint(7, 9),
        "seq_len": chance.randint(56, 72),
        **knobs,
    }  # type: ignore[dict-item]


def chatty(chance: random.Random, half: Half) -> Made:
    """Histograms of every gradient in each step of a model with short steps."""
    sizes: Knobs = (
        {"d_model": 192, "n_layer": 4}
        if half == "tuning"
        else {"d_model": width(chance, 256, 336), "n_layer": chance.choice((5, 6))}
    )
    few: Knobs = {"batch_size": chance.randint(2, 4), "seq_len": chance.randint(56, 72)}
    return "chatty-logging", {**sizes, **few, "log_every": 1, "log_gradients": True}


def many_lengths(chance: random.Random, half: Half) -> Made:
    """Batches as long as their longest verse, over the whole text: a shorter maximum would make
    most lengths equal."""
    wide = 128 if half == "tuning" else width(chance, 96, 168)
    return "dynamic-shapes", {"d_model": wide, "batch_size": chance.randint(128, 256)}


def saturated(chance: random.Random, half: Half) -> Made:
    """A model that finishes long before its single core of loading."""
    sizes: Knobs = (
        {"width": 16, "batch_size": 32}
        if half == "tuning"
        else {"width": chance.randint(12, 20), "batch_size": chance.randint(20, 28)}
    )
    return "vision-healthy", {
        **NHWC,
        **sizes,
        "num_workers": 1,
        "transform_cost": chance.randint(12, 20),
    }


def unpacked(chance: random.Random, half: Half) -> Made:
    """Samples of many tensors. Each tensor travels to the training process alone."""
    scenario, knobs = vision(chance, half)
    return scenario, {
        **knobs,
        "collate_fn": "list",
        "tensors_per_sample": chance.randint(6, 12),
        "num_workers": chance.choice((1, 2)),
    }


def products(chance: random.Random, half: Half) -> Made:
    """Large matrix products on all cores, almost nothing else."""
    wide = width(chance, 320, 448) if half == "tuning" else width(chance, 512, 640)
    return "train-gpt", {
        "d_model": wide,
        "n_layer": 3,
        "seq_len": 128,
        "batch_size": chance.randint(6, 10),
        "num_threads": 2,
    }


def tiny(chance: random.Random, half: Half) -> Made:
    sizes: Knobs = (
        {"d_model": 128, "n_layer": 4}
        if half == "tuning"
        else {"d_model": width(chance, 64, 104), "n_layer": chance.choice((5, 6))}
    )
    return "train-gpt", {
        **sizes,
        "batch_size": chance.choice((1, 2)),
        "seq_len": chance.randint(16, 32),
    }


def deep(chance: random.Random, half: Half) -> Made:
    layers = chance.randint(16, 20) if half == "tuning" else chance.randint(24, 32)
    few: Knobs = {"batch_size": chance.randint(2, 4), "seq_len": chance.randint(28, 36)}
    return "train-gpt", {"d_model": chance.randint(32, 40), "n_layer": layers, **few}


def many_parameters(chance: random.Random, half: Half) -> Made:
    wide = width(chance, 432, 480) if half == "tuning" else width(chance, 496, 592)
    return "optimizer-heavy", {
        "d_model": wide,
        "n_layer": chance.choice((4, 5)),
        "seq_len": chance.randint(48, 64),
    }


def replicas(chance: random.Random, half: Half, **knobs: object) -> Made:
    """Two processes that exchange gradients."""
    sizes: Knobs = {
        "d_model": 320 if half == "tuning" else width(chance, 368, 464),
        "n_layer": chance.randint(4, 6),
    }
    return ("ddp-small-batch"), {**sizes, "seq_len": chance.randint(56, 72), **knobs}  # type: ignore[dict-item]


def well_matched(chance: random.Random, half: Half, **knobs: object) -> Made:
    """Two processes with a small exchange and much computation."""
    sizes: Knobs = {"d_model": 128 if half == "tuning" else width(chance, 88, 104), "n_layer": 4}
    return "ddp-small-batch", {
        **sizes,
        "batch_size": chance.randint(14, 18),
        "seq_len": chance.randint(112, 136),
        **knobs,
    }  # type: ignore[dict-item]


HEALTHY = (
    Case("C01", "gpt_healthy", (), gpt),
    Case("C02", "vision_healthy", (), vision),
    Case("C03", "decoy_log_each_step", (), either(vision, gpt, log_every=fixed(1))),
    Case(
        "C04",
        "decoy_rare_log_and_checkpoint",
        (),
        either(vision, gpt, log_every=fixed(50), save_every=fixed(200)),
    ),
    Case("C05", "decoy_foreign_load", (), either(gpt, vision), neighbours=1),
    Case("C06", "decoy_compiles_first", (), either(vision, gpt, torch_compile=fixed("default"))),
    Case(
        "C31",
        "decoy_busy_loader",
        (),
        either(vision, vision, num_workers=fixed(1), transform_cost=fixed(1)),
    ),
    Case("C32", "decoy_accumulates", (), either(vision, gpt, gradient_accumulation_steps=fixed(2))),
    Case("C33", "decoy_rare_evaluation", (), either(gpt, vision, eval_every=fixed(200))),
    Case("C34", "decoy_percentiles", (), either(vision, gpt, gradient_percentiles=fixed("torch"))),
    Case(
        "C35",
        "decoy_sleeping_workers",
        (),
        either(vision, vision, num_workers=fixed(2), storage_latency_ms=between(0.5, 1.0)),
    ),
    Case(
        "C36",
        "decoy_short_epochs",
        (),
        either(vision, vision, max_train_samples=fixed(512), persistent_workers=fixed(True)),
    ),
    Case("C37", "decoy_rare_collection", (), either(vision, gpt, gc_collect_every=fixed(200))),
    Case(
        "C38",
        "decoy_many_tensors_stacked",
        (),
        either(vision, vision, num_workers=fixed(2), tensors_per_sample=integer(3, 6)),
    ),
    Case(
        "C39",
        "decoy_hidden_reads",
        (),
        either(vision, vision, num_workers=fixed(2), storage_reads=integer(1, 3)),
    ),
)

FAULTY = (
    Case(
        "C07",
        "storage_w0",
        ("input.slow_storage",),
        either(vision, vision, num_workers=fixed(0), storage_latency_ms=between(4.0, 9.0)),
        ("num_workers",),
    ),
    Case(
        "C08",
        "storage_w1",
        ("input.slow_storage",),
        either(vision, vision, num_workers=fixed(1), storage_latency_ms=between(9.0, 14.0)),
        ("num_workers",),
    ),
    Case(
        "C09",
        "storage_real",
        ("input.slow_storage",),
        either(vision, vision, num_workers=fixed(0), storage_reads=integer(18, 36)),
        ("num_workers",),
    ),
    Case(
        "C10",
        "transform_w0",
        ("input.too_few_workers",),
        either(vision, vision, num_workers=fixed(0), transform_cost=integer(3, 5)),
        ("num_workers",),
    ),
    Case("C11", "transform_saturated", ("input.cpu_transform",), saturated, ("transform_cost",)),
    Case("C12", "collate_slow", ("input.ipc_collate",), unpacked, ("collate_fn",)),
    Case("C13", "epoch_restart", ("input.epoch_restart",), epochs, ("persistent_workers",)),
    Case("C14", "jitter_tail", ("input.jitter",), tail, ("prefetch_factor", "num_workers")),
    Case("C15", "tiny_batch", ("gpu.small_batch",), tiny, ("batch_size",)),
    Case("C16", "deep_small_layers", ("gpu.small_batch",), deep, ("batch_size",)),
    Case("C17", "log_fsync", ("host.logging_io",), chatty, ("log_every", "log_gradients")),
    Case(
        "C18",
        "metrics_in_python",
        ("host.python_overhead",),
        either(gpt, vision, gradient_percentiles=fixed("python")),
        ("gradient_percentiles",),
    ),
    Case(
        "C19",
        "gc_storm",
        ("host.python_overhead",),
        either(vision, gpt, gc_collect_every=fixed(1)),
        ("gc_collect_every",),
    ),
    Case(
        "C20a",
        "checkpoint_each_step",
        ("host.checkpoint_stall",),
        either(checkpointed, vision, save_every=fixed(1)),
        ("save_every",),
    ),
    Case(
        "C20b",
        "checkpoint_often",
        ("host.checkpoint_stall",),
        either(checkpointed, checkpointed, save_every=integer(3, 5)),
        ("save_every",),
    ),
    Case(
        "C21",
        "evaluation_heavy",
        ("host.eval_stall",),
        either(gpt, vision, eval_every=integer(4, 8), eval_batch_size=fixed(1)),
        ("eval_every", "eval_batch_size"),
    ),
    Case(
        "C22",
        "too_many_threads",
        ("host.cpu_contention",),
        either(gpt, vision, num_threads=integer(8, 16)),
        ("num_threads",),
    ),
    Case("C23", "optimizer_loop", ("gpu.optimizer_unfused",), many_parameters, ("optim",)),
    Case(
        "C26",
        "fp32_on_a_cpu_with_bf16",
        ("gpu.fp32_no_tensor_core",),
        products,
        ("precision",),
        offer=True,
        needs=("avx512_bf16", "amx_bf16"),
    ),
    Case(
        "C25",
        "host_leak",
        ("mem.leak_host",),
        either(gpt, vision, leak_mb=between(3.0, 6.0)),
        watch_s=20.0,
    ),
    Case(
        "C27",
        "ddp_allreduce",
        ("comm.exposed",),
        replicas,
        ("gradient_accumulation_steps", "comm_hook"),
    ),
    Case(
        "C28",
        "ddp_accumulates_without_no_sync",
        ("comm.accum_without_no_sync",),
        either(
            replicas,
            replicas,
            gradient_accumulation_steps=integer(4, 6),
            sync_each_batch=fixed(True),
        ),
        ("sync_each_batch",),
    ),
    Case(
        "C29",
        "ddp_straggler_backward",
        ("comm.straggler",),
        either(well_matched, well_matched, straggler_ms=between(60, 110)),
    ),
    Case(
        "C30",
        "ddp_straggler_forward",
        ("comm.straggler",),
        either(
            well_matched,
            well_matched,
            straggler_ms=between(60, 110),
            straggler_phase=fixed("forward"),
        ),
    ),
    Case(
        "C24",
        "recompiles",
        ("host.recompile_graphbreak",),
        many_lengths,
        ("pad_to_multiple_of", "compile_dynamic"),
    ),
)

TRAINING = HEALTHY + FAULTY
