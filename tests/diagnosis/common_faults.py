"""The common faults of GPU jobs on five cards, each beside a healthy job that looks like it, by
hand-made signals (gpu_jobs.py).

`python -m tests.diagnosis.common_faults` prints the table of benchmarks/results/README.md: what is
on top for each fault, and the cards on which the healthy job is accused. H100 and B200 report GPM;
A100, L4 and RTX 4090 do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuconsole.model.peaks import peaks_of
from tests.diagnosis.gpu_jobs import (
    A100,
    B200,
    CARDS,
    CNN_KNOBS,
    EXCHANGE,
    GPT2_FLOPS,
    GPT_FACTS,
    H100,
    L4,
    NO_SYNC,
    RTX_4090,
    GpuJob,
    Watched,
    cnn,
    gpt,
    phases,
    watched,
)  # fmt: skip

IMAGES_PER_S = 2500.0
"""ResNet-50 in bf16 on a busy H100; other cards by their peak."""
L4_STEP_S = 8 * GPT2_FLOPS / (0.22 * 121e12)
"""The step of which EXCHANGE tells."""


class Card(NamedTuple):
    """`busy`: MFU in bf16 of a GPT that keeps the card busy."""

    name: str
    short: str
    busy: float = 0.3

    @property
    def bf16(self) -> float:
        return peaks_of(self.name).bf16_flops_per_s or 0.0

    @property
    def fp32(self) -> float:
        return peaks_of(self.name).fp32_flops_per_s or 0.0

    @property
    def images_per_s(self) -> float:
        return IMAGES_PER_S * self.bf16 / 989.4e12


H100_CARD = Card(H100, "H100")
COLUMNS = (
    H100_CARD,
    Card(B200, "B200"),
    Card(A100, "A100"),
    Card(L4, "L4"),
    Card(RTX_4090, "RTX 4090"),
)


@dataclass(frozen=True)
class Fault:
    """`job`: the job with the fault on a card; `rules`: those that name it. `twin`: a healthy job
    that looks like it, and in words what makes it so. `probes`: the job allows probes."""

    name: str
    rules: tuple[str, ...]
    job: Callable[[Card], GpuJob]
    twin_name: str
    twin: Callable[[Card], GpuJob]
    probes: bool = False


def busy(card: Card, **changes: object) -> GpuJob:
    """GPT-2 small in bf16 that keeps the card busy."""
    return gpt(card.name, card.busy, card.bf16, **changes)  # type: ignore[arg-type]


def counted(job: GpuJob, **facts: float) -> GpuJob:
    return replace(job, facts={**GPT_FACTS, "flops_per_sample": GPT2_FLOPS, **facts})


def waits(job: GpuJob, calls: float, ratio: float) -> GpuJob:
    """The job that waits for the GPU so many times in a step, for this share of it."""
    return replace(
        job,
        caught_up=0.97,
        observed={**NO_SYNC, "sync.calls": calls, "sync.wait_s": ratio * job.step_s},
    )


def starved(card: Card) -> GpuJob:
    rate = 0.36 * card.images_per_s
    job = cnn(
        card.name,
        rate,
        knobs={**CNN_KNOBS, "precision": "bf16"},
        activity=(0.27, 0.06, 0.15),
        caught_up=1.0,
    )
    step = phases(256 / rate, data_wait=0.65, optimizer=0.005)
    return replace(
        job,
        step=step,
        counters={"loader.workers_cpu_s": 7.6 * 256 / rate},
        gpu={"utilization_ratio": 0.3},
    )


def fed(card: Card) -> GpuJob:
    """Workers that compute all the time, and are fast enough."""
    job = cnn(
        card.name,
        card.images_per_s,
        knobs={**CNN_KNOBS, "precision": "bf16"},
        activity=(0.9, 0.2, 0.2),
    )
    return replace(job, counters={"loader.workers_cpu_s": 7.6 * job.step_s})


def copies(card: Card, ratio: float, copied_bytes: float) -> GpuJob:
    """ResNet-50 of which `ratio` of the step lies between a batch and its pass; `copied_bytes` of
    it are pageable."""
    rate = 0.6 * card.images_per_s
    job = cnn(card.name, rate, knobs={**CNN_KNOBS, "precision": "bf16", "pin_memory": False})
    observed = {
        **NO_SYNC,
        "h2d.pageable_copies": 2.0,
        "h2d.pageable_bytes": copied_bytes,
        "h2d.pinned_bytes": 0.0,
    }
    return replace(
        job,
        step=phases(256 / rate, h2d=ratio, optimizer=0.01),
        observed=observed,
        gpu={"utilization_ratio": 1 - ratio},
    )


def exchanging(card: Card, exposed: float) -> GpuJob:
    """DDP in four processes, of whose step the exchange takes this share where no computation hides
    it."""
    job = busy(
        card,
        batch=8,
        processes=4,
        knobs={"batch_size": 8, "sharding": "ddp", "bucket_cap_mb": 25.0},
        activity=(0.6, 0.2, 0.2),
    )
    scale = job.step_s / L4_STEP_S
    timed = {
        name: value * scale if name.endswith("_s") else value for name, value in EXCHANGE.items()
    }
    alone = timed["comm.pass_alone_s"]
    return replace(
        job,
        observed={
            **NO_SYNC,
            **timed,
            "comm.exposed_s": exposed * job.step_s,
            "comm.pass_s": alone + exposed * job.step_s,
        },
    )


def gathering(card: Card, exposed: float) -> GpuJob:
    """FSDP 2 in four processes, of whose step the computation waits this share for gathered
    parameters."""
    job = busy(
        card,
        batch=8,
        processes=4,
        knobs={"batch_size": 8, "sharding": "zero3"},
        activity=(0.6, 0.2, 0.2),
    )
    told = {
        "comm.exposed_s": exposed * job.step_s,
        "comm.pass_s": job.step_s,
        "comm.pass_alone_s": (1 - exposed) * job.step_s,
    }
    return replace(job, observed={**NO_SYNC, **told, "comm.bytes_per_step": 496e6})


def limited(card: Card, default_w: float, clock: float) -> GpuJob:
    """A board whose limit of power is the card's, of `default_w` as it is sold, at this share of
    its usual clock."""
    values = CARDS[card.name]
    usual = min(
        peaks_of(card.name).boost_clock_hz or values["sm_clock_max_hz"], values["sm_clock_max_hz"]
    )
    limit = values["power_limit_w"]
    slowed = {
        "sm_clock_hz": clock * usual,
        "power_cap_time_ratio": 0.95,
        "clocks_power_cap": 1.0,
        "power_w": limit - 1,
    }
    return busy(
        card, gpu={**slowed, "power_limit_default_w": default_w, "power_limit_max_w": default_w}
    )


def hot(card: Card, held: float) -> GpuJob:
    """A board of 85 °C that heat slows for this share of the time."""
    most = CARDS[card.name]["sm_clock_hz"]
    return busy(
        card,
        gpu={
            "temperature_c": 85.0,
            "sm_clock_hz": (0.7 if held else 1.0) * most,
            "thermal_time_ratio": held,
        },
    )


def filled(card: Card, allocated: float, reserved: float) -> GpuJob:
    """Tensors take this share of the memory at their peak; the allocator has reserved that
    share."""
    return busy(card, memory=(0.05, 0.05, 0.1, allocated, reserved, reserved + 0.03))


FAULTS = (
    Fault(
        "data starvation",
        ("input.too_few_workers",),
        starved,
        "workers that are busy and fast enough",
        fed,
    ),
    Fault(
        "launch-bound",
        ("host.launch_bound",),
        lambda card: gpt(
            card.name,
            0.03,
            card.bf16,
            batch=1,
            knobs={"batch_size": 1},
            activity=(0.1, 0.03, 0.06),
            caught_up=1.0,
        ),
        "a hidden wait in each step of a busy GPU, few active SMs",
        lambda card: busy(card, caught_up=1.0, ahead=0.5, activity=(0.4, 0.15, 0.2)),
    ),
    Fault(
        "`.item()` in the loop",
        ("host.sync_stall",),
        lambda card: waits(gpt(card.name, 0.1, card.bf16, activity=(0.45, 0.1, 0.2)), 24, 0.25),
        "the loss is read once in each step",
        lambda card: waits(busy(card), 2, 0.65),
    ),
    Fault(
        "fp32 without TF32",
        ("gpu.fp32_no_tensor_core",),
        lambda card: gpt(
            card.name,
            0.62,
            card.fp32,
            knobs={"precision": "fp32", "batch_size": 16},
            activity=(0.93, 0.0, 0.2),
        ),
        "bf16 within the model, counted",
        lambda card: counted(busy(card), flops_bf16_ratio=1.0),
    ),
    Fault(
        "small batch",
        ("gpu.small_batch",),
        lambda card: gpt(
            card.name,
            0.12,
            card.bf16,
            batch=2,
            knobs={"batch_size": 2},
            activity=(0.45, 0.1, 0.15),
            probed={"probe.batch_cost_ratio": 0.4},
        ),
        "a batch of 2 that fills the GPU",
        lambda card: busy(card, batch=2, knobs={"batch_size": 2}),
        probes=True,
    ),
    Fault(
        "DDP exchange exposed",
        ("comm.exposed", "comm.slow_link"),
        lambda card: exchanging(card, 0.35),
        "the exchange is hidden",
        lambda card: exchanging(card, 0.01),
    ),
    Fault(
        "FSDP 2 gather exposed",
        ("comm.exposed", "comm.slow_link"),
        lambda card: gathering(card, 0.35),
        "the gathers are hidden",
        lambda card: gathering(card, 0.01),
    ),
    Fault(
        "lowered power limit",
        ("hw.power",),
        lambda card: limited(card, 1.5 * CARDS[card.name]["power_limit_w"], 0.75),
        "the power cap as it is sold",
        lambda card: limited(card, CARDS[card.name]["power_limit_w"], 0.9),
    ),
    Fault(
        "heat",
        ("hw.thermal",),
        lambda card: hot(card, 0.6),
        "85 °C and no clock is lost",
        lambda card: hot(card, 0.0),
    ),
    Fault(
        "memory near its limit",
        ("mem.near_capacity", "mem.activation_capped"),
        lambda card: filled(card, 0.93, 0.95),
        "the allocator's cache fills the memory",
        lambda card: filled(card, 0.7, 0.95),
    ),
    Fault(
        "pageable copies",
        ("h2d.pageable_or_serial",),
        lambda card: copies(card, 0.25, 0.25 * 4e9 * 256 / (0.6 * card.images_per_s)),
        "augmentation on the GPU, of a small batch",
        lambda card: copies(card, 0.27, 65e3),
    ),
)


def main() -> None:
    print(
        "| fault | "
        + " | ".join(card.short for card in COLUMNS)
        + " | looks like it and is healthy | accused on |"
    )
    print("|---" * (3 + len(COLUMNS)) + "|")
    for fault in FAULTS:
        cells = [_cell(watched(fault.job(card), fault.probes)) for card in COLUMNS]
        accused = [card.short for card in COLUMNS if watched(fault.twin(card), fault.probes).faults]
        print(
            f"| {fault.name} | "
            + " | ".join(cells)
            + f" | {fault.twin_name} | {', '.join(accused) or 'none'} |"
        )


def _cell(seen: Watched) -> str:
    """The rule on top, the share of the step that it promises back, and its confidence."""
    if not seen.faults:
        return "-"
    finding = seen.of(seen.faults[0])
    return f"{finding.rule}, {finding.recoverable_ratio:.0%}, {finding.confidence}"


if __name__ == "__main__":
    main()
