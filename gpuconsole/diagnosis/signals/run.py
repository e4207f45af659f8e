"""Signals of a run from its step breakdown, from the trend of the step time over the whole run, or
from the requests of a server. Most rules read these signals.

Of the trend there are signals whether the run is steady or not: `session.figures.trend` says what a
trend is.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from gpuconsole.diagnosis.signals.communication import communication_signals
from gpuconsole.diagnosis.signals.job import job_signals
from gpuconsole.model.finding import Signal
from gpuconsole.model.run import PHASES, Step, Summary
from gpuconsole.model.text import percent
from gpuconsole.session.figures.peak import (
    COUNTED_TYPES,
    TF32_FACTS,
    Peak,
    convolved_ratio,
    tf32_ratio,
)
from gpuconsole.session.figures.totals import Totals
from gpuconsole.session.figures.trend import StepBlock, StepBlocks, Trend
from gpuconsole.session.places import StackRecord, growing
from gpuconsole.session.run import RunRecord
from gpuconsole.session.side_work import SideWork

# --- the trend of the step time -------------------------------------------------------------------

PER = 100
"""Steps: a slope per step has too many zeros to be read."""
WORTH_PHASES = 0.1
"""The least growth for which the growth of each phase and of each function is computed. That costs
more than the trend."""


def trend_signals(blocks: StepBlocks, stacks: StackRecord) -> dict[str, Signal]:
    """Empty while there are too few steps. The phases and the function only where the step time
    grows."""
    trend = blocks.trend()
    if trend is None:
        return {}
    first, last = trend.blocks[0], trend.blocks[-1]
    source = (
        f"medians of {len(trend.blocks)} blocks of steps, steps {first.step:.0f} to {last.step:.0f}"
        f" in {last.t - first.t:.0f} s"
    )
    slope = f"{source}: slope by Theil and Sen"
    parts = f"{source}: differences between the medians of eighths"
    signals = {
        "trend.per_100_steps_s": Signal(trend.slope.middle * PER, "s", slope),
        "trend.per_100_steps_low_s": Signal(
            trend.slope.low * PER, "s", f"{slope}, lower end of the 95 % interval"
        ),
        "trend.per_100_steps_high_s": Signal(
            trend.slope.high * PER, "s", f"{slope}, upper end of the 95 % interval"
        ),
        "trend.growth_ratio": Signal(trend.growth, "ratio", f"{slope}, growth since the start"),
        "trend.start_s": Signal(trend.start_s, "s", f"{slope}, step time at the start"),
        "trend.steps": Signal(trend.steps, "steps", source),
        "trend.rises_ratio": Signal(
            trend.rises, "ratio", f"{parts}: share of the quarters that keep on rising"
        ),
        "trend.jump_ratio": Signal(
            trend.jump,
            "ratio",
            f"{parts}: the largest growth within a quarter, as a share of all growth",
        ),
        "trend.fall_ratio": Signal(
            trend.fall, "ratio", f"{parts}: the largest fall, as a share of all growth"
        ),
        "trend.late_ratio": Signal(
            trend.late, "ratio", f"{source}: slope of the second half over that of the first half"
        ),
        "trend.work_ratio": Signal(
            trend.work,
            "ratio",
            (
                f"{source}: log growth of the samples or tokens of a step over the log growth of"
                " the step time"
            ),
        ),
    }
    if trend.growth < WORTH_PHASES:
        return signals
    for phase, of_phase in trend.phases().items():
        signals[f"trend.{phase}_s"] = Signal(of_phase.middle * PER, "s", f"{slope}, of this phase")
    return signals | _place(trend, stacks)


def _place(trend: Trend, stacks: StackRecord) -> dict[str, Signal]:
    """The function that takes most of the growth: samples of the first third of the time against
    those of the last third."""
    begun, ended = max(trend.blocks[0].t, stacks.first_t), trend.blocks[-1].t
    third = (ended - begun) / 3
    if third <= 0:
        return {}
    early_s, late_s = (
        _step_s(trend.blocks, since, since + third) for since in (begun, ended - third)
    )
    grown = growing(
        stacks.between(begun, begun + third), stacks.between(ended - third, ended), early_s, late_s
    )
    if grown is None or late_s <= early_s:
        return {}
    place, seconds = grown
    source = (
        "stack samples of the last third against those of the first third: the function that grows"
        " most"
    )
    share = min(1.0, seconds / (late_s - early_s))
    return {"trend.place_ratio": Signal(share, "ratio", source, place.code)}


def _step_s(blocks: Sequence[StepBlock], begun: float, ended: float) -> float:
    """The step time in this stretch of time; 0 without a block in it."""
    inside = [block.wall_s for block in blocks if begun < block.t <= ended]
    return statistics.fmean(inside) if inside else 0.0


# --- all signals of a run -------------------------------------------------------------------------

DATA_WAIT = PHASES.index("data_wait")


def run_signals(
    record: RunRecord,
    summary: Summary,
    cores: int,
    memory: tuple[float, float] | None,
    window_s: float | None = None,
    bandwidth: Peak | None = None,
    host_memory: tuple[float, float] | None = None,
) -> dict[str, Signal]:
    """The signals that rules read, over the steady steps of the last `window_s` (None: all). Before
    the run is steady there are few.

    `summary`: of the same run. `cores`: CPU cores that this console may use. `memory`: bytes in use
    and in all on the device of the run. `bandwidth`: bytes/s of the memory of one device of the
    run. `host_memory`: as `memory`, of the host.
    """
    run, steps = record.run, record.steady_steps(since_s=window_s)
    signals = record.compiled.signals()
    if record.first_step_t is not None and record.steps:
        waited = 0.0 if record.steady_t is not None else record.steps[-1].t - record.first_step_t
        signals["seconds_not_steady"] = Signal(waited, "s", "step breakdown")
    # of the whole run, whether it is steady or not: a step time that grows is not steady
    if run.is_job:
        signals |= trend_signals(record.blocks, record.stacks)
    if record.serving is not None and record.serving.outages.current is not None:
        # while a server does not answer, its last reports describe another situation
        return signals
    if not steps:
        return signals | record.probe_signals
    if record.serving is not None:
        for name, ratio, source in (
            ("mfu_ratio", summary.mfu_ratio, summary.mfu_peak_source),
            ("mbu_ratio", summary.mbu_ratio, summary.mbu_peak_source),
        ):
            if ratio is not None:
                signals[name] = Signal(ratio, "ratio", f"the server's counters over {source}")
        served = record.serving.signals(
            steps[0].t - steps[0].wall_s, run.settings, run.server_numbers
        )
        for name, fact in run.server.known().items() if run.server is not None else ():
            if name not in record.facts and f"server.{name}" in served:
                served[f"server.{name}"] = dataclasses.replace(
                    served[f"server.{name}"], source=f"the server, {fact.source}"
                )
        return signals | _server_bandwidth(record, bandwidth) | served | record.probe_signals
    n = len(steps)
    on_cpu = run.device == "cpu"
    # on a GPU the step breakdown follows the CUDA stream, where most of the host's run-queue delay
    # is hidden
    clock = (
        f"step breakdown, run-queue delay taken off, n={n}"
        if on_cpu
        else f"step breakdown on the CUDA stream, n={n}"
    )
    totals = Totals(steps)
    shares = totals.contention_free_shares() if on_cpu else totals.shares()
    for name, share in shares.items():
        signals[f"{name}_ratio"] = Signal(share, "ratio", clock)
    if any(record.ranks.exchanges.values()):
        for name in ("backward_ratio", "comm_ratio"):
            signals[name] = dataclasses.replace(
                signals[name],
                source=(
                    f"{signals[name].source}; the wait for exchanges by DistributedDataParallel's"
                    " own timer"
                ),
            )
    delay = totals.runq_ratio
    # a GPU's sampled steps have events in place of readings
    of_thread = record.work.runq_ratio(steps[0].t) if delay is None else None
    if delay is not None:
        signals["runq_ratio"] = Signal(
            delay, "ratio", "/proc/thread-self/schedstat on sampled steps"
        )
    elif of_thread is not None:
        signals["runq_ratio"] = of_thread
    signals |= _waits(steps)
    mean_s = totals.wall_s / n
    lost_to_others = (delay or 0.0) if on_cpu else 0.0
    signals["step_s"] = Signal(mean_s * (1 - lost_to_others), "s", f"{clock}, mean")
    signals |= _side_work(record.side_work, shares, signals["step_s"], on_cpu)
    signals["samples_per_step"] = Signal(totals.samples / n, "samples", "step breakdown")
    signals["cores"] = Signal(
        cores, "cores", "os.sched_getaffinity and the CPU limit of the container"
    )
    threads = record.facts.get("threads", 1.0) if on_cpu else 1.0
    if record.others_ratio is not None:
        signals["host.others_cpu_ratio"] = Signal(
            record.others_ratio, "ratio", "/proc: busy cores without this console and its children"
        )
    signals["threads"] = Signal(
        threads, "threads", "torch.get_num_threads" if on_cpu else "the thread that feeds the GPU"
    )
    if record.facts.get("local_processes", 1.0) > 1:
        signals["host.processes"] = Signal(
            record.facts["local_processes"],
            "",
            "processes of the job on this host (LOCAL_WORLD_SIZE)",
        )
    signals["is_gpu"] = Signal(float(run.device != "cpu"), "", "device")
    if summary.mfu_ratio is not None:
        mfu = summary.mfu_ratio / max(0.05, 1 - lost_to_others)
        signals["mfu_ratio"] = Signal(
            mfu, "ratio", f"step breakdown over {summary.mfu_peak_source}"
        )
    if summary.mfu_causal_ratio is not None:
        mfu = summary.mfu_causal_ratio / max(0.05, 1 - lost_to_others)
        signals["mfu_causal_ratio"] = Signal(
            mfu, "ratio", "the same without the masked half of attention"
        )
    if summary.hfu_ratio is not None:
        signals["hfu_ratio"] = Signal(
            summary.hfu_ratio, "ratio", "MFU with what the backward pass computes a second time"
        )
    if "operators_per_step" in record.facts:
        signals["operators_per_step"] = Signal(
            record.facts["operators_per_step"], "", "operators in the passes of the counted step"
        )
    if summary.mfu_at_least:
        signals["mfu_at_least"] = Signal(
            1.0, "", "FLOPs of other libraries' operators, or of attention, are not known"
        )
    if summary.mfu_above_peak:
        signals["mfu_above_peak"] = Signal(1.0, "", "the FLOP/s are above the peak")
    if any(f"flops_{name}_ratio" in record.facts for name in COUNTED_TYPES):
        double = record.facts.get("flops_fp64_ratio", 0.0)
        signals["precision.fp64_ratio"] = Signal(
            double, "ratio", "FLOPs of the counted step by number type"
        )
    if not on_cpu and TF32_FACTS[0] in record.facts:
        convolved = convolved_ratio(run.knobs, record.facts)
        source = (
            f"torch's settings of TF32 for convolutions ({percent(convolved)} of the FLOPs) and for"
            " other products"
        )
        signals["precision.tf32_ratio"] = Signal(
            tf32_ratio(run.knobs, record.facts), "ratio", source
        )
    if summary.mbu_ratio is not None:
        mbu = summary.mbu_ratio / max(0.05, 1 - lost_to_others)
        signals["mbu_ratio"] = Signal(
            mbu, "ratio", f"step breakdown over {summary.mbu_peak_source}"
        )
    for name, value in record.facts.items():
        if name.startswith("embedding."):
            signals[name] = Signal(
                value, "ratio" if name.endswith("_ratio") else "B", "the workload"
            )
        elif name.startswith("environment."):
            signals[name] = Signal(
                value,
                "",
                "the environment of the job: 1 where the variable is set to what slows a job",
            )
    if memory is not None:
        signals["memory_used_ratio"] = Signal(
            memory[0] / memory[1], "ratio", "device memory in use, all processes"
        )
        if run.is_job and not on_cpu:
            signals["memory.limit_bytes"] = Signal(memory[1], "B", "NVML, memory of the device")
    if (host := memory if on_cpu else host_memory) is not None:
        signals["host.memory_available_bytes"] = Signal(
            host[1] - host[0], "B", "host memory minus used memory"
        )
    signals |= record.work.signals(steps[0].t, record.steady_t)
    signals |= record.ranks.signals()
    if run.is_job:
        signals |= job_signals(record, steps, signals)
        signals |= communication_signals(record, signals)
    return signals | record.probe_signals


def _server_bandwidth(record: RunRecord, bandwidth: Peak | None) -> dict[str, Signal]:
    """Bytes/s at which a server that gpuconsole started can read its weights. All its GPUs read
    their parts at the same time."""
    if bandwidth is None or "max_num_seqs" not in record.facts:
        return {}
    count = int(record.run.knobs.get("tensor_parallel_size", 1))
    source = f"{count} x {bandwidth[1]}" if count > 1 else bandwidth[1]
    return {"server.peak_bytes_per_s": Signal(bandwidth[0] * count, "B/s", source)}


def _side_work(
    side_work: SideWork, shares: dict[str, float], step_s: Signal, on_cpu: bool
) -> dict[str, Signal]:
    """Return the shares of logging, checkpoints and evaluation over all steady steps, and the mean
    step with these shares. Their shares in the window (`shares`) go with the other signals of the
    window.

    `step_s`: the mean step of the window. Its other parts are as long as in the window.
    """
    source = (
        f"step breakdown, {'run-queue delay taken off' if on_cpu else 'on the CUDA stream'}, all"
        f" {side_work.totals.steps} steady steps"
    )
    signals, ratios = {}, side_work.ratios(on_cpu)
    for name, ratio in ratios.items():
        signals[f"recent.{name}_ratio"] = Signal(
            shares[name], "ratio", step_s.source.removesuffix(", mean")
        )
        signals[f"{name}_ratio"] = Signal(ratio, "ratio", source)
    rest, rest_now = 1 - sum(ratios.values()), 1 - sum(shares[name] for name in ratios)
    if rest > 0 and rest_now > 0:
        mean_s = step_s.value * rest_now / rest
        signals["step_with_side_work_s"] = Signal(
            mean_s,
            "s",
            f"{step_s.source}; logging, checkpoints and evaluation as in all steady steps",
        )
    return signals


def _waits(steps: list[Step]) -> dict[str, Signal]:
    """The distribution of the wait for data over the steps: the wait of the median step, and the
    sum of the waits beyond it."""
    waits = [step.phases[DATA_WAIT] for step in steps]
    typical, wall = statistics.median(waits), sum(step.wall_s for step in steps)
    beyond = [max(0.0, wait - typical) for wait in waits]
    excess = sum(beyond)
    source = f"step breakdown, n={len(steps)}"
    signals = {
        "data_wait_typical_ratio": Signal(
            typical * len(steps) / wall, "ratio", f"{source}: wait of the median step"
        ),
        "data_wait_excess_ratio": Signal(
            excess / wall,
            "ratio",
            f"{source}: sum over all steps of the wait beyond the median wait",
        ),
    }
    if excess:
        # mean length of the long waits, weighted by length
        long_s = sum(wait**2 for wait in beyond) / excess
        signals["data_wait_long_s"] = Signal(
            long_s, "s", f"{source}: mean length of the long waits, weighted by length"
        )
        signals["data_wait_long_steps"] = Signal(
            excess / long_s, "steps", f"{source}: sum of the long waits over their mean length"
        )
    return signals
