"""The training cases: what runs, with sizes drawn from ranges that differ between the halves, and the cause that was put in.

Thresholds may be tuned on the tuning half only. The reporting half has other sizes, and most of its causes sit in another model.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpuconsole.model.knobs import Knobs

Half = Literal["tuning", "reporting"]
Made = tuple[str, Knobs]
"""A scenario, and what differs from it."""


@dataclass(frozen=True)
class Case:
    """`truth`: the rules that name its cause; none where nothing is wrong. `fix`: the knobs that cure it, where one does."""

    id: str
    name: str
    truth: tuple[str, ...]
    make: Callable[[random.Random, Half], Made]
    fix: tuple[str, ...] = ()
    neighbours: int = 0
    gpu_neighbours: int = 0
    serving: bool = False
    watch_s: float = 4.0
    """Least time in steady state: what grows slowly must have grown."""

    @property
    def family(self) -> str:
        return self.truth[0].partition(".")[0] if self.truth else "healthy"

    def drawn(self, half: Half, seed: int) -> Made:
        return self.make(random.Random(f"{self.id} {half} {seed}"), half)


def gpt(chance: random.Random, half: Half, **knobs: object) -> Made:
    """A transformer whose sizes fill the device."""
    sizes: Knobs = (
        {"d_model": chance.choice((128, 160)), "n_layer": chance.choice((3, 4)), "seq_len": chance.choice((112, 128)), "batch_size": 12}
        if half == "tuning"
        else {
            "d_model": chance.choice((192, 256)),
            "n_layer": chance.choice((3, 4)),
            "seq_len": chance.choice((128, 144)),
            "batch_size": chance.choice((8, 10, 12)),
        }
    )
    return "train-gpt", {**sizes, **knobs}  # type: ignore[dict-item]


def vision(chance: random.Random, half: Half, **knobs: object) -> Made:
    """A ResNet that its loader feeds well."""
    sizes: Knobs = (
        {"width": chance.choice((28, 32)), "image_size": 64, "batch_size": chance.choice((16, 20))}
        if half == "tuning"
        else {"width": chance.choice((36, 40)), "image_size": chance.choice((48, 56)), "batch_size": chance.choice((16, 20, 24))}
    )
    return "vision-healthy", {**sizes, **knobs}  # type: ignore[dict-item]


def either(
    tuned_on: Callable[..., Made], reported_on: Callable[..., Made], **draw: Callable[[random.Random], object]
) -> Callable[..., Made]:
    """The same cause in one model for the tuning half and in another for the reporting half. `draw`: its strength."""

    def make(chance: random.Random, half: Half) -> Made:
        base = tuned_on if half == "tuning" else reported_on
        return base(chance, half, **{name: drawn(chance) for name, drawn in draw.items()})

    return make


def fixed(value: object) -> Callable[[random.Random], object]:
    return lambda chance: value


def one_of(*values: object) -> Callable[[random.Random], object]:
    return lambda chance: chance.choice(values)


def between(low: float, high: float) -> Callable[[random.Random], object]:
    return lambda chance: round(chance.uniform(low, high), 2)


def epochs(chance: random.Random, half: Half) -> Made:
    scenario, knobs = vision(chance, half, persistent_workers=False)
    return scenario, {**knobs, "batch_size": 16, "max_train_samples": 16 * chance.randint(6, 10)}


def tail(chance: random.Random, half: Half) -> Made:
    """A loader that is fast enough on average, and one batch in eight that holds a sample which takes 0.4 s."""
    sizes: Knobs = {"width": 64 if half == "tuning" else chance.choice((60, 72)), "batch_size": 16, "image_size": 64}
    latency_ms = round(chance.uniform(3.5, 4.5), 1)
    return "vision-healthy", {**sizes, "num_workers": 1, "prefetch_factor": 1, "slow_sample_ratio": 0.008, "storage_latency_ms": latency_ms}


def checkpointed(chance: random.Random, half: Half, **knobs: object) -> Made:
    """Many parameters for the tokens of a step, so that a checkpoint weighs."""
    sizes: Knobs = {"d_model": 320 if half == "tuning" else chance.choice((384, 448)), "n_layer": 4, "batch_size": 8, "seq_len": 64}
    return "train-gpt", {**sizes, **knobs}  # type: ignore[dict-item]


def chatty(chance: random.Random, half: Half) -> Made:
    """Histograms of every gradient, each step, of a model that has little to do in one."""
    sizes: Knobs = (
        {"d_model": 192, "n_layer": 4} if half == "tuning" else {"d_model": chance.choice((256, 320)), "n_layer": chance.choice((5, 6))}
    )
    return "chatty-logging", {**sizes, "batch_size": chance.choice((2, 4)), "seq_len": 64, "log_every": 1, "log_gradients": True}


def many_lengths(chance: random.Random, half: Half) -> Made:
    """Batches as long as their longest verse, of all that there are: cut off shorter they would soon be all alike."""
    width = 128 if half == "tuning" else chance.choice((96, 160))
    return "dynamic-shapes", {"d_model": width, "batch_size": chance.choice((128, 192, 256))}


def saturated(chance: random.Random, half: Half) -> Made:
    """A model that is done long before its one core of loading is."""
    sizes: Knobs = {"width": 16, "batch_size": 32} if half == "tuning" else {"width": chance.choice((12, 20)), "batch_size": 24}
    return "vision-healthy", {**sizes, "num_workers": 1, "transform_cost": chance.choice((12, 16, 20))}


def tiny(chance: random.Random, half: Half) -> Made:
    sizes: Knobs = {"d_model": 128, "n_layer": 4} if half == "tuning" else {"d_model": chance.choice((64, 96)), "n_layer": 6}
    return "train-gpt", {**sizes, "batch_size": chance.choice((1, 2)), "seq_len": chance.choice((16, 24, 32))}


def deep(chance: random.Random, half: Half) -> Made:
    layers = chance.randint(16, 20) if half == "tuning" else chance.randint(24, 32)
    return "train-gpt", {"d_model": 32, "n_layer": layers, "batch_size": chance.choice((2, 4)), "seq_len": 32}


def many_parameters(chance: random.Random, half: Half) -> Made:
    width = 448 if half == "tuning" else chance.choice((512, 576))
    return "optimizer-heavy", {"d_model": width, "n_layer": chance.choice((4, 5)), "seq_len": chance.choice((48, 64))}


def replicas(chance: random.Random, half: Half, **knobs: object) -> Made:
    """Two processes that exchange gradients."""
    sizes: Knobs = {"d_model": 320 if half == "tuning" else chance.choice((384, 448)), "n_layer": chance.choice((4, 6))}
    return "ddp-small-batch", {**sizes, **knobs}  # type: ignore[dict-item]


def well_matched(chance: random.Random, half: Half, **knobs: object) -> Made:
    """Two processes with little to exchange and much to compute."""
    sizes: Knobs = {"d_model": 128 if half == "tuning" else 96, "n_layer": 4, "batch_size": 16, "seq_len": 128}
    return "ddp-small-batch", {**sizes, **knobs}  # type: ignore[dict-item]


HEALTHY = (
    Case("C01", "gpt_healthy", (), gpt),
    Case("C02", "vision_healthy", (), vision),
    Case("C03", "decoy_log_each_step", (), either(vision, gpt, log_every=fixed(1))),
    Case("C04", "decoy_rare_log_and_checkpoint", (), either(vision, gpt, log_every=fixed(50), save_every=fixed(200))),
    Case("C05", "decoy_foreign_load", (), either(gpt, vision), neighbours=1),
    Case("C06", "decoy_compiles_first", (), either(vision, gpt, torch_compile=fixed("default"))),
    Case("C31", "decoy_busy_loader", (), either(vision, vision, num_workers=fixed(1), transform_cost=fixed(1))),
    Case("C32", "decoy_accumulates", (), either(vision, gpt, gradient_accumulation_steps=fixed(2))),
    Case("C33", "decoy_rare_evaluation", (), either(gpt, vision, eval_every=fixed(200))),
    Case("C34", "decoy_percentiles", (), either(vision, gpt, gradient_percentiles=fixed("torch"))),
    Case("C35", "decoy_sleeping_workers", (), either(vision, vision, num_workers=fixed(2), storage_latency_ms=between(0.5, 1.0))),
    Case("C36", "decoy_short_epochs", (), either(vision, vision, max_train_samples=fixed(512), persistent_workers=fixed(True))),
    Case("C37", "decoy_rare_collection", (), either(vision, gpt, gc_collect_every=fixed(200))),
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
        "C10",
        "transform_w0",
        ("input.too_few_workers",),
        either(vision, vision, num_workers=fixed(0), transform_cost=one_of(3, 4, 5)),
        ("num_workers",),
    ),
    Case("C11", "transform_saturated", ("input.cpu_transform",), saturated, ("transform_cost",)),
    Case("C13", "epoch_restart", ("input.epoch_restart",), epochs, ("persistent_workers",)),
    Case("C14", "jitter_tail", ("input.jitter",), tail, ("prefetch_factor", "num_workers")),
    Case("C15", "tiny_batch", ("gpu.small_batch",), tiny, ("batch_size",)),
    Case("C16", "deep_small_layers", ("gpu.small_batch",), deep, ("batch_size",)),
    Case("C17", "log_fsync", ("host.logging_io",), chatty, ("log_every", "log_gradients")),
    Case(
        "C18",
        "metrics_in_python",
        ("host.python_overhead",),
        either(vision, vision, gradient_percentiles=fixed("python")),
        ("gradient_percentiles",),
    ),
    Case("C19", "gc_storm", ("host.python_overhead",), either(vision, gpt, gc_collect_every=fixed(1)), ("gc_collect_every",)),
    Case(
        "C20a", "checkpoint_each_step", ("host.checkpoint_stall",), either(checkpointed, checkpointed, save_every=fixed(1)), ("save_every",)
    ),
    Case(
        "C20b",
        "checkpoint_often",
        ("host.checkpoint_stall",),
        either(checkpointed, checkpointed, save_every=one_of(3, 4, 5)),
        ("save_every",),
    ),
    Case(
        "C21",
        "evaluation_heavy",
        ("host.eval_stall",),
        either(gpt, vision, eval_every=one_of(4, 6, 8), eval_batch_size=fixed(1)),
        ("eval_every", "eval_batch_size"),
    ),
    Case(
        "C22",
        "too_many_threads",
        ("host.cpu_contention",),
        either(gpt, gpt, num_threads=one_of(8, 12, 16)),
        ("num_threads",),
    ),
    Case("C23", "optimizer_loop", ("gpu.optimizer_unfused",), many_parameters, ("optim",)),
    Case("C25", "host_leak", ("mem.leak_host",), either(gpt, vision, leak_mb=between(3.0, 6.0)), watch_s=20.0),
    Case("C27", "ddp_allreduce", ("comm.exposed",), replicas, ("gradient_accumulation_steps", "comm_hook")),
    Case(
        "C28",
        "ddp_accumulates_without_no_sync",
        ("comm.accum_without_no_sync",),
        either(replicas, replicas, gradient_accumulation_steps=one_of(4, 6), sync_each_batch=fixed(True)),
        ("sync_each_batch",),
    ),
    Case("C29", "ddp_straggler_backward", ("comm.straggler",), either(well_matched, well_matched, straggler_ms=between(60, 110))),
    Case(
        "C30",
        "ddp_straggler_forward",
        ("comm.straggler",),
        either(well_matched, well_matched, straggler_ms=between(60, 110), straggler_phase=fixed("forward")),
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
