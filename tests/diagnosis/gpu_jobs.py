"""Jobs of a user's own on a GPU as the console hears of them: messages of the agent, samples of
NVML, the list of processes.

Each job has the values that such a job typically shows, with every signal that a job can send
without a probe. `python -m tests.diagnosis.gpu_jobs` prints for each job which rules conclude,
without probes and with the probes that a job allows.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import dataclass, field, replace

from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.rule import Case
from gpuconsole.diagnosis.signals.hardware import HardwareWatch
from gpuconsole.diagnosis.signals.run import run_signals
from gpuconsole.model.finding import CodePlace, Finding, Signal
from gpuconsole.model.job import JobFacts
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Link, Process
from gpuconsole.model.peaks import peaks_of
from gpuconsole.model.profile import ProfileReport
from gpuconsole.model.run import PHASES, Run, Step
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import (
    Devices,
    Event,
    JobKnown,
    ProbeDone,
    Processes,
    Profiled,
    RankJoined,
    RunOpened,
    Sample,
    Started,
    Steps,
    Topology,
)

GB = 1e9
SECONDS = 40
"""Length of the synthetic jobs. One message and one sample of NVML come each second."""
FIRST_STEP_S = 5.0
H100, B200, A100, L4, RTX_4090, RTX_4060, RTX_A6000, RTX_4000_ADA = (
    "NVIDIA H100 80GB HBM3",
    "NVIDIA B200",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA L4",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 4060",
    "NVIDIA RTX A6000",
    "NVIDIA RTX 4000 Ada Generation",
)
CARDS: dict[str, dict[str, float]] = {
    H100: {
        "sm_clock_max_hz": 1980e6,
        "sm_clock_hz": 1905e6,
        "power_limit_w": 700,
        "hbm_total_bytes": 85.5 * GB,
        "gen": 5,
    },
    B200: {
        "sm_clock_max_hz": 1965e6,
        "sm_clock_hz": 1920e6,
        "power_limit_w": 1000,
        "hbm_total_bytes": 192.0 * GB,
        "gen": 5,
    },
    A100: {
        "sm_clock_max_hz": 1410e6,
        "sm_clock_hz": 1380e6,
        "power_limit_w": 400,
        "hbm_total_bytes": 85.9 * GB,
        "gen": 4,
    },
    L4: {
        "sm_clock_max_hz": 2040e6,
        "sm_clock_hz": 1995e6,
        "power_limit_w": 72,
        "hbm_total_bytes": 24.0 * GB,
        "gen": 4,
    },
    RTX_4090: {
        "sm_clock_max_hz": 3105e6,
        "sm_clock_hz": 2715e6,
        "power_limit_w": 450,
        "power_limit_max_w": 600,
        "hbm_total_bytes": 25.7 * GB,
        "gen": 4,
    },
    RTX_4060: {
        "sm_clock_max_hz": 3105e6,
        "sm_clock_hz": 2460e6,
        "power_limit_w": 115,
        "hbm_total_bytes": 8.6 * GB,
        "gen": 4,
    },
    RTX_A6000: {
        "sm_clock_max_hz": 2100e6,
        "sm_clock_hz": 1800e6,
        "power_limit_w": 300,
        "hbm_total_bytes": 51.5 * GB,
        "gen": 4,
    },
    RTX_4000_ADA: {
        "sm_clock_max_hz": 3105e6,
        "sm_clock_hz": 2100e6,
        "power_limit_w": 130,
        "hbm_total_bytes": 20.0 * GB,
        "gen": 4,
    },
}
"""What NVML says of each card under load. `gen`: the PCIe generation of 16 lanes."""
WITH_GPM = (H100, B200)
GPT2_FLOPS = 8.78e11
"""FLOPs of a sequence of GPT-2 small (124 M parameters, 12 layers, width 768) with 1024 tokens: 6 N
T + 12 L d T^2."""
RESNET_FLOPS = 2.46e10
"""FLOPs of an image of 224 x 224 in ResNet-50: three times a forward pass of 4.1 G
multiply-adds."""
KNOBS: Knobs = {
    "batch_size": 16, "num_workers": 8, "prefetch_factor": 2, "pin_memory": True,
    "persistent_workers": True, "precision": "bf16", "torch_compile": "off",
    "optim": "adamw_fused", "gradient_accumulation_steps": 1, "num_threads": 8, "nproc": 1,
    "log_every": 10,
}  # fmt: skip
GPT_FACTS = {
    "threads": 8.0, "world_size": 1.0, "parameters": 124e6, "trainable_parameters": 124e6,
    "linear_parameters": 124e6, "optimizer_on_host_ratio": 0.0, "layers": 12.0, "width": 768.0,
    "causal": 1.0, "tf32_convolutions": 1.0, "tf32_matmul": 0.0,
    "environment.CUDA_LAUNCH_BLOCKING": 0.0,
}  # fmt: skip
CNN_FACTS = {
    "threads": 8.0, "world_size": 1.0, "parameters": 25.6e6, "trainable_parameters": 25.6e6,
    "linear_parameters": 2.05e6, "optimizer_on_host_ratio": 0.0, "convolution_flops_ratio": 0.998,
    "flops_per_sample": RESNET_FLOPS, "tf32_convolutions": 1.0, "tf32_matmul": 0.0,
    "environment.CUDA_LAUNCH_BLOCKING": 0.0,
}  # fmt: skip
CNN_KNOBS: Knobs = {
    "batch_size": 256,
    "channels_last": True,
    "cudnn_benchmark": True,
    "optim": "sgd",
}
BUSY = {"utilization_ratio": 0.99, "memory_utilization_ratio": 0.5}
QUIET_HOLDS = (
    "clocks_idle", "clocks_app_setting", "clocks_sync_boost", "clocks_hw_slowdown",
    "clocks_sw_thermal", "clocks_hw_thermal", "clocks_power_cap", "clocks_power_brake",
    "thermal_time_ratio", "sw_thermal_time_ratio", "hw_thermal_time_ratio", "power_cap_time_ratio",
    "power_brake_time_ratio", "sync_boost_time_ratio", "board_limit_time_ratio",
    "reliability_time_ratio", "xid_errors", "ecc_uncorrected", "row_remap_pending",
    "row_remap_failed", "pcie_replays",
)  # fmt: skip
NO_SYNC = {
    "sync.calls": 0.0,
    "sync.wait_s": 0.0,
    "cache.emptied_calls": 0.0,
    "cache.emptied_s": 0.0,
}
NO_SLOW_FUNCTION = {
    "stack.thread_ratio": 0.0,
    "stack.function_ratio": 0.02,
    "stack.function_python_ratio": 0.5,
    "stack.function_waits_ratio": 0.0,
    "stack.no_grad_ratio": 0.0,
    "stack.outside_ratio": 0.02,
    "stack.update_ratio": 0.0,
}
LINE = "train.py:41"


@dataclass(frozen=True)
class GpuJob:
    """A job on `card`. `step`: seconds of a step by phase, on the stream's timeline. `samples`: of
    a step of one process.

    `gpu`: what NVML reports of the card in addition to CARDS, without the prefix `gpu.`.
    `activity`: SM, tensor and DRAM active (GPM), where the card has them. `caught_up`: the share of
    sampled steps at whose end the GPU had nothing left to do; `ahead`: how far the host was ahead
    of the GPU within these, as a share of the step. `runq`: the share of time in which the training
    thread waits for a core. `observed`: what the agent observes in a few steps. `memory`: shares of
    the memory of the card: parameters, gradients, optimizer, allocated peak, reserved peak, in use
    by NVML. `others`: share of the cores that other programs use. `on_cores`: the cores on which
    the processes may run; 0-15 are beside the GPUs.
    """

    card: str
    step: dict[str, float]
    samples: int = 16
    tokens: int = 0
    knobs: Knobs = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    gpu: dict[str, float] = field(default_factory=dict)
    activity: tuple[float, float, float] = (0.85, 0.4, 0.4)
    caught_up: float = 0.0
    ahead: float = 0.0
    runq: float = 0.01
    counters: dict[str, float] = field(default_factory=dict)
    observed: dict[str, float] = field(default_factory=lambda: dict(NO_SYNC))
    probed: dict[str, float] = field(default_factory=dict)
    memory: tuple[float, float, float, float, float, float] = (0.006, 0.006, 0.012, 0.3, 0.35, 0.37)
    split: float = 0.02
    processes: int = 1
    profile: ProfileReport | None = None
    cores: int = 16
    on_cores: str = "0-15"
    others: float | None = None

    @property
    def step_s(self) -> float:
        return sum(self.step.values())


@dataclass(frozen=True)
class Watched:
    """What the console knows of a job, and the conclusions of all rules."""

    run: Run
    case: Case
    findings: list[Finding]

    def of(self, rule: str) -> Finding:
        return next(finding for finding in self.findings if finding.rule == rule)

    @property
    def faults(self) -> list[str]:
        """The rules that accuse the job, the first one most."""
        return [
            finding.rule
            for finding in self.findings
            if finding.state == "fires" and not finding.note
        ]

    @property
    def notes(self) -> list[str]:
        return [
            finding.rule for finding in self.findings if finding.state == "fires" and finding.note
        ]

    @property
    def undecided(self) -> dict[str, str]:
        """The rules without a conclusion, and why."""
        return {
            finding.rule: finding.summary
            for finding in self.findings
            if finding.state == "cant_tell"
        }


def watched(
    job: GpuJob, probes: bool = False, other_gpu: bool = False, later: tuple[Event, ...] = ()
) -> Watched:
    """The session after SECONDS of this job. `probes`: with the results of the probes that a job
    allows. `other_gpu`: the machine has a second GPU, and nothing says which one is the job's.
    `later`: what the agent sends after its first observations."""
    state = SessionState()
    total = CARDS[job.card]["hbm_total_bytes"]
    near = {"numa_node": "0", "cpu_affinity": "0-15"}
    cards = [
        Device(f"gpu:{n}", job.card, int(total), f"GPU-{n + 1}", peaks_of(job.card), facts=near)
        for n in range(max(job.processes, 1 + other_gpu))
    ]
    state.apply(Devices(0.0, cards, cuda="13.0"))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "gpu:0"))
    for rank in range(job.processes):
        state.apply(RankJoined(1.0, rank, "host", rank + 1, rank == 0, world_size=job.processes))
        uuid = "" if other_gpu else f"{rank + 1}"
        state.apply(
            JobKnown(
                1.0,
                rank,
                JobFacts("train.py", device=f"cuda:{rank}", device_uuid=uuid, cores=job.on_cores),
            )
        )
    knobs: Knobs = {**KNOBS, "nproc": job.processes, **job.knobs}
    state.apply(Started(1.0, knobs, {**job.facts, "world_size": float(job.processes)}))
    if not other_gpu:
        state.apply(
            Processes(
                1.0,
                [
                    Process(rank + 1, f"gpu:{rank}", memory_bytes=int(job.memory[5] * total))
                    for rank in range(job.processes)
                ],
            )
        )
    state.apply(
        Topology(
            1.0,
            [
                Link(f"gpu:{a}", f"gpu:{b}", "PHB")
                for a, b in itertools.combinations(range(job.processes), 2)
            ],
        )
    )
    for second in range(1, SECONDS):
        _second(state, job, float(second))
    _answers(state, job, probes)
    for event in later:
        state.apply(event)
    record = state.record
    assert record is not None and record.steady_t is not None
    record.others_ratio = job.others
    memory = state.memory_used(record.run.device)
    run = run_now(state, record)
    hardware = HardwareWatch(lambda process: process.pid <= job.processes).signals(state, record)
    signals = run_signals(record, run.summary, job.cores, memory, 30.0) | hardware
    case = Case.of(record.run, signals)
    return Watched(run, case, evaluate(case))


def _second(state: SessionState, job: GpuJob, t: float) -> None:
    """One sample of NVML, and one message of each process with the steps of the last second (at
    least one step)."""
    state.apply(Sample(t, "gpu:0", _telemetry(job)))
    done, before = (int(max(0.0, at - FIRST_STEP_S) / job.step_s) for at in (t, t - 1))
    if done == before:
        return
    phases = tuple(job.step.get(name, 0.0) for name in PHASES)
    for rank in range(job.processes):
        steps = [
            Step(
                index,
                FIRST_STEP_S + (index + 1) * job.step_s,
                job.step_s,
                job.samples,
                job.tokens,
                phases,
            )
            for index in range(before, done)
        ]
        counters = {
            "work.steps": float(done),
            "mode.looks": float(done),
            "stream.steps": float(done),
            "stream.caught_up": job.caught_up * done,
            "stream.caught_up_s": job.caught_up * done * job.step_s,
            "stream.ahead_steps": job.caught_up * done,
            "stream.ahead_s": job.ahead * job.caught_up * done * job.step_s,
            "gc.collections": 0.0,
            "gc.pause_s": 0.0,
            "host.private_bytes": 4e9,
            **_loader(job, done),
            **{name: value * done for name, value in job.counters.items()},
        }
        total = CARDS[job.card]["hbm_total_bytes"]
        state.apply(
            Steps(
                t,
                steps,
                0.5 * t,
                job.runq * t + 0.001,
                1e-5 * done,
                job.memory[3] * total,
                0,
                rank,
                counters,
            )
        )


def _loader(job: GpuJob, done: int) -> dict[str, float]:
    """Counters of a loader whose workers compute; `counters` of the job may say otherwise."""
    wait = job.step.get("data_wait", 0.0)
    per_step = {
        "here_s": wait,
        "here_cpu_s": min(wait, 5e-4),
        "workers_s": 8 * job.step_s,
        "workers_cpu_s": 0.5 * job.step_s,
    }
    return {f"loader.{name}": value * done for name, value in per_step.items()} | {
        "loader.restarts": 0.0,
        "loader.restart_s": 0.0,
    }


def _telemetry(job: GpuJob) -> dict[str, float]:
    card = dict(CARDS[job.card])
    generation, total = card.pop("gen"), card["hbm_total_bytes"]
    used = job.memory[5] * total
    values = {
        **dict.fromkeys(QUIET_HOLDS, 0.0), "power_limit_max_w": card["power_limit_w"],
        "power_limit_default_w": card["power_limit_w"], **card, **BUSY,
        "power_w": 0.8 * card["power_limit_w"], "temperature_c": 60.0, "hbm_used_bytes": used,
        "hbm_free_bytes": total - used, "hbm_reserved_bytes": 5e8,
        "pcie_link_generation": generation, "pcie_link_generation_max": generation,
        "pcie_link_width": 16.0, "pcie_link_width_max": 16.0, "pcie_rx_bytes_per_s": 1e8,
        "pcie_tx_bytes_per_s": 1e7,
    }  # fmt: skip
    if job.card in WITH_GPM:
        values |= dict(
            zip(
                ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"),
                job.activity,
                strict=True,
            )
        )
    return {f"gpu.{name}": value for name, value in (values | job.gpu).items()}


def _answers(state: SessionState, job: GpuJob, probes: bool) -> None:
    """What the agent observes without a probe, the profiler window, and the answers of the allowed
    probes."""
    total = CARDS[job.card]["hbm_total_bytes"]
    names = ("parameters", "gradients", "optimizer", "allocated_peak", "reserved_peak")
    parts = {
        f"memory.{name}_bytes": share * total
        for name, share in zip(names, job.memory, strict=False)
    }
    parts["memory.activations_bytes"] = parts["memory.allocated_peak_bytes"] - sum(
        parts[f"memory.{name}_bytes"] for name in ("parameters", "gradients", "optimizer")
    )
    parts["memory.limit_bytes"] = total
    parts["memory.inactive_split_bytes"] = job.split * total
    parts["memory.others_bytes"] = max(0.0, job.memory[5] - job.memory[4]) * total
    t = float(SECONDS)
    for observed in (
        parts,
        NO_SLOW_FUNCTION,
        {"h2d.pageable_copies": 0.0, "h2d.pageable_bytes": 0.0},
        job.observed,
    ):
        signals = {
            name: Signal(value, "", "calls that wait for the GPU in 3 steps", CodePlace(LINE))
            for name, value in observed.items()
        }
        state.apply(ProbeDone(t, 0, "observed", signals))
    if job.profile is not None:
        state.apply(Profiled(t, 1, job.profile))
    # a pass of one process of several would disturb their exchange
    if probes and job.processes == 1:
        defaults = {
            "probe.cached_pass_s": 0.95 * job.step_s, "probe.batch_cost_ratio": 0.97,
            "probe.batch_factor": 4.0, "probe.batch_cost_spread": 0.02,
            "probe.optim_present_step_s": 1e-3, "probe.optim_fused_step_s": 1e-3,
        }  # fmt: skip
        measured = {
            name: Signal(value, "", "probe") for name, value in (defaults | job.probed).items()
        }
        state.apply(ProbeDone(t, 2, "batch_elasticity", measured))
    # the step after a probe: the totals begin a new interval
    _second(state, job, t + 1)
    _second(state, job, t + 2)


def phases(step_s: float, **shares: float) -> dict[str, float]:
    """Seconds of each phase of a step; what the shares leave is divided over forward (a third) and
    backward."""
    rest = 1 - sum(shares.values())
    return {
        name: share * step_s
        for name, share in {"forward": rest / 3, "backward": 2 * rest / 3, **shares}.items()
    }


def gpt(card: str, mfu: float, peak: float, batch: int = 16, **changes: object) -> GpuJob:
    """GPT-2 small on `card` that reaches `mfu` of `peak` FLOP/s (full count of attention)."""
    step_s = batch * GPT2_FLOPS / (mfu * peak)
    optimizer = min(0.1, 0.004 / step_s)
    job = GpuJob(
        card, phases(step_s, optimizer=optimizer, data_wait=0.002), batch, batch * 1024,
        {"batch_size": batch}, {**GPT_FACTS, "flops_per_sample": GPT2_FLOPS},
    )  # fmt: skip
    return replace(job, **changes)  # type: ignore[arg-type]


def cnn(card: str, images_per_s: float, batch: int = 256, **changes: object) -> GpuJob:
    """ResNet-50 on `card` at this rate."""
    job = GpuJob(
        card,
        phases(batch / images_per_s, optimizer=0.01, data_wait=0.003),
        batch,
        0,
        {**CNN_KNOBS, "batch_size": batch},
        CNN_FACTS,
    )
    return replace(job, **changes)  # type: ignore[arg-type]


FP32_GPT = gpt(
    H100, 0.62, 66.9e12, knobs={"batch_size": 16, "precision": "fp32"}, activity=(0.93, 0.0, 0.2)
)
BF16_CONVOLUTIONS = cnn(
    H100,
    2500,
    knobs={**CNN_KNOBS, "precision": "bf16", "channels_last": False},
    activity=(0.9, 0.15, 0.55),
)
EXCHANGE = {
    "comm.exposed_s": 0.105, "comm.pass_s": 0.27, "comm.pass_alone_s": 0.165,
    "comm.bytes_per_step": 496e6, "comm.exposed_spread_s": 0.005, "comm.straggler_ratio": 1.01,
    "comm.straggler_spread": 0.01, "comm.late_s": 0.001, "comm.slowest_rank": 2.0,
    "comm.late_in_backward_ratio": 0.5,
}  # fmt: skip
"""What DDP's own timer says of four L4 without NVLink: half of the backward pass is the exchange of
gradients."""
DDP_OVER_PCIE = gpt(
    L4,
    0.22,
    121e12,
    batch=8,
    processes=4,
    knobs={"batch_size": 8, "sharding": "ddp", "bucket_cap_mb": 25.0},
)
LAUNCH_BOUND = gpt(
    H100,
    0.03,
    989.4e12,
    batch=1,
    knobs={"batch_size": 1},
    activity=(0.1, 0.03, 0.06),
    caught_up=1.0,
)

SYNTHETIC = {
    "fp32 GPT-2 on an H100": FP32_GPT,
    "bf16 convolutions on an H100": BF16_CONVOLUTIONS,
    "DDP over PCIe on four L4": replace(DDP_OVER_PCIE, observed={**NO_SYNC, **EXCHANGE}),
    "launch-bound, batch 1, on an H100": LAUNCH_BOUND,
}


def main() -> None:
    """Print how many rules conclude for each job; with `-v`, which do not, and why."""
    never = set[str]()
    for name, job in SYNTHETIC.items():
        for probes in (False, True):
            seen = watched(job, probes)
            states = Counter(finding.state for finding in seen.findings)
            how = "with probes" if probes else "no probes"
            print(
                f"{name}, {how}: {states['fires'] + states['clear']} of {len(seen.findings)}"
                f" conclude; {seen.faults} notes {seen.notes}"
            )
            if probes:
                never |= seen.undecided.keys()
            if "-v" in sys.argv:
                for rule, why in seen.undecided.items():
                    print(f"    {rule}: {why}")
    print(
        f"without a conclusion in one of them, with probes: {len(never)}:"
        f" {', '.join(sorted(never))}"
    )


if __name__ == "__main__":
    main()
