"""The figures of a training run, and its attainable rate with the parts of a step that keep the run
below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuconsole.diagnosis.models.bandwidth import bandwidth_figures, bytes_of_step, needed
from gpuconsole.diagnosis.models.flops import flops_figures, flops_per_sample, recomputed_per_sample
from gpuconsole.diagnosis.models.inputs import NOT_STEADY, ModelInputs
from gpuconsole.diagnosis.models.memory import memory_figures
from gpuconsole.diagnosis.models.roofline import (
    CALIBRATE,
    MEMORY,
    TOO_LOW,
    Ceilings,
    Least,
    TimeLoss,
    least,
    waterfall,
)
from gpuconsole.model.figures import Attainable, Figure, RatePair
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Peaks, Published
from gpuconsole.model.run import Summary
from gpuconsole.session.figures.peak import ceilings, measured_bandwidth, measured_flops
from gpuconsole.session.side_work import SIDE_WORK


def training_figures(
    knobs: Knobs,
    facts: Mapping[str, float],
    signals: Mapping[str, Signal],
    summary: Summary,
    device_peaks: Peaks,
    calibration: Mapping[str, float],
    is_gpu: bool,
    published: Sequence[Published] = (),
) -> list[Figure]:
    """Memory by part, FLOPs, MFU, bandwidth, collectives and the roofline. `note` gives the reason
    for a missing value.

    Every argument except `knobs` may be empty. `published`: published training throughput of this
    device.
    """
    inputs = ModelInputs(
        knobs, facts, signals, summary, device_peaks, calibration, is_gpu, published
    )
    return [*memory_figures(inputs), *flops_figures(inputs), *bandwidth_figures(inputs)]


# --- the attainable rate --------------------------------------------------------------------------

NO_SAMPLES = "the number of samples of a step is not known"
NO_WORK = "the run has counted neither the FLOPs nor the bytes of a sample"
FORMULA = (
    "forward and backward: max(FLOPs / peak, bytes / bandwidth); optimizer: bytes / bandwidth;"
    " bytes: each value moved once"
)
CACHED = "faster than its bytes over the memory bandwidth: a part of its data stays in caches"
FASTER = "faster than its FLOPs over the peak: the peak in use is too low"
PASSES, UPDATE = ("forward", "loss", "backward"), "optimizer"
TITLES = {
    "data_wait": "data wait",
    "h2d": "copy to GPU",
    "generation": "generation",
    "comm": "exposed communication",
    "logging": "logging",
    "checkpoint": "checkpoints",
    "eval": "evaluation",
    "other": "other host work",
}
"""Phases that are a loss as a whole."""


def training_attainable(inputs: ModelInputs) -> Attainable:
    """The attainable rate of a training run at its shapes and precision, with the waterfall of a
    step. `reason` where it is not known."""
    rate, samples, shares = inputs.summary.samples_per_s, inputs.samples_per_step, _shares(inputs)
    if rate is None or not rate.mean or not samples or inputs.value("step_s") is None:
        return Attainable(
            reason=NOT_STEADY if samples or inputs.value("step_s") is None else NO_SAMPLES
        )
    work = _work(inputs, samples)
    if isinstance(work, str):
        return Attainable(reason=work)
    step_s = samples / rate.mean
    if shares:
        losses = list(
            _losses(inputs, work, {name: share * step_s for name, share in shares.items()})
        )
    else:
        losses = [_beyond("step", "not split into phases", step_s - work.time_s, work.passes)]
    rates = tuple(_rates(inputs, work, samples, rate.mean))
    return Attainable(
        rates=rates,
        bound=work.passes.bound if work.passes.time_s >= work.update.time_s else work.update.bound,
        source=work.source,
        formula=FORMULA,
        parts=waterfall((rates[0].reached_per_s or 0.0) * step_s, work.time_s, losses),
        notes=(*work.notes, *([TOO_LOW] if step_s < work.time_s else [])),
    )


@dataclass(frozen=True)
class _Work:
    """The least times of a step's work. `notes`: what the calculation leaves out.

    `again_s`: time of the recomputation, which is no model FLOP. `threads_s`: time that the passes
    need because the run uses few CPU threads.
    """

    passes: Least
    update: Least
    again_s: float
    threads_s: float
    flops: float
    moved: float
    source: str
    notes: tuple[str, ...]

    @property
    def time_s(self) -> float:
        return self.passes.time_s + self.update.time_s


def _work(inputs: ModelInputs, samples: float) -> _Work | str:
    """The least times of a step of `samples`, or the reason why they are not known."""
    limits = Ceilings(
        *ceilings(
            inputs.knobs, inputs.facts, inputs.peaks, inputs.is_gpu, calibration=inputs.calibration
        )
    )
    counted = inputs.facts.get("flops_per_sample")
    each = counted if counted is not None else flops_per_sample(inputs) or inputs.estimated_flops
    counted_bytes, states = bytes_of_step(inputs), needed(inputs)
    if not each and counted_bytes is None:
        return NO_WORK
    updated = states.optimizer if states is not None and inputs.trains else 0.0
    # Both ceilings are sums over all processes, so the bytes of all processes count.
    moved = (counted_bytes[0] - updated) * inputs.world if counted_bytes else 0.0
    flops = (each or 0.0) * samples
    notes = (
        []
        if each
        else ["the FLOPs of a sample are not known: only its bytes count"]
        if each is None
        else []
    )
    if flops and limits.flops is None:
        return f"the peak of this device in {inputs.precision} is not known: {CALIBRATE}"
    if limits.bytes is None:
        if not flops:
            return f"the memory bandwidth of this device is not known: {CALIBRATE}"
        notes.append(f"only arithmetic counts: the memory bandwidth is not known ({CALIBRATE})")
        moved = updated = 0.0
    elif counted_bytes is None:
        notes.append("only arithmetic counts: the bytes of a step are not known")
    passes, update = least(flops, moved, limits), least(0.0, updated * inputs.world, limits)
    if passes is None or update is None or not passes.time_s:
        return NO_WORK
    if inputs.trains and not update.time_s:
        notes.append(
            "all time of the optimizer counts as a loss: its bytes or the memory bandwidth are not"
            " known"
        )
    again = recomputed_per_sample(inputs) * samples / limits.flops[0] if limits.flops else 0.0
    own = _own_limits(inputs, limits)
    slower = least(flops, moved, own)
    threads_s = slower.time_s - passes.time_s if slower is not None else 0.0
    used = [
        ceiling
        for ceiling, uses in ((limits.flops, flops), (limits.bytes, moved or updated))
        if ceiling is not None and uses
    ]
    return _Work(
        passes,
        update,
        again,
        threads_s,
        flops,
        moved + updated * inputs.world,
        "; ".join(ceiling[1] for ceiling in used),
        tuple(notes),
    )


def _own_limits(inputs: ModelInputs, limits: Ceilings) -> Ceilings:
    """What the CPU threads of the run can reach, as measured at its start. The same as `limits`
    where every core has a thread, and on a GPU."""
    threads, cores = inputs.facts.get("threads"), inputs.value("cores")
    if inputs.is_gpu or threads is None or cores is None or threads * inputs.world >= cores:
        return limits
    flops = measured_flops(inputs.knobs, inputs.facts, serves=False)
    moved = measured_bandwidth(inputs.knobs, inputs.facts, inputs.is_gpu, serves=False)
    return Ceilings(flops or limits.flops, moved or limits.bytes)


def _shares(inputs: ModelInputs) -> dict[str, float]:
    """The share of each phase in the time of a step, with `runq`: the wait for a CPU core. The
    shares sum to 1; empty where they are not known.

    On a CPU the rules see each phase without the wait for a core, and this wait is a part of its
    own. The shares of side work are those of all steady steps; the other phases divide the rest as
    in the last steps.
    """
    phases = {
        name: value
        for name in inputs.summary.phases_ratio
        if (value := inputs.value(f"{name}_ratio")) is not None
    }
    side_work = sum(phases.get(name, 0.0) for name in SIDE_WORK)
    others = sum(phases.values()) - side_work
    if others <= 0 or side_work >= 1:
        return inputs.summary.phases_ratio
    scale = (1 - side_work) / others
    waited = min(0.99, inputs.value("runq_ratio") or 0.0) if not inputs.is_gpu else 0.0
    shares = {name: value * (1.0 if name in SIDE_WORK else scale) for name, value in phases.items()}
    return {**{name: share * (1 - waited) for name, share in shares.items()}, "runq": waited}


def _losses(inputs: ModelInputs, work: _Work, time_s: Mapping[str, float]) -> Iterator[TimeLoss]:
    """Every part of the step beyond its least time. `time_s`: the time of each phase."""
    for name, title in TITLES.items():
        yield TimeLoss(name, title, time_s.get(name, 0.0))
    yield TimeLoss("runq", "wait for a CPU core", time_s.get("runq", 0.0))
    yield _beyond(
        UPDATE,
        "optimizer below the roofline",
        time_s.get(UPDATE, 0.0) - work.update.time_s,
        work.update,
    )
    slower = sum(time_s.get(name, 0.0) for name in PASSES) - work.passes.time_s
    for loss in _known_causes(inputs, work, slower + work.passes.time_s):
        if 0 < loss.time_s <= slower:
            slower -= loss.time_s
            yield loss
    yield _beyond("kernels", "kernels below the roofline", slower, work.passes)


def _known_causes(inputs: ModelInputs, work: _Work, passes_s: float) -> Iterator[TimeLoss]:
    """Parts of the passes' loss whose time is known: gaps between kernels on a GPU (probe P9),
    cores without a thread, recomputation."""
    alone, whole = inputs.value("probe.pass_gpu_s"), inputs.value("probe.pass_s")
    if alone is not None and whole:
        yield TimeLoss("launch_gaps", "launch gaps", passes_s * (1 - min(1.0, alone / whole)))
    threads, cores = inputs.facts.get("threads", 1.0) * inputs.world, inputs.value("cores") or 0.0
    yield TimeLoss("threads", f"{threads:.0f} of {cores:.0f} cores compute", work.threads_s)
    yield TimeLoss("recomputation", "recomputation of activations", work.again_s)


def _beyond(name: str, title: str, time_s: float, limit: Least) -> TimeLoss:
    """The time beyond `limit`, or a negative time with its reason."""
    return TimeLoss(
        name, title, time_s, "" if time_s >= 0 else CACHED if limit.bound == MEMORY else FASTER
    )


def _rates(inputs: ModelInputs, work: _Work, samples: float, reached: float) -> Iterator[RatePair]:
    """All rates of the run. They have the same share, because each is an amount of work per step
    over the time of a step."""
    tokens = inputs.summary.tokens_per_s
    amounts = (
        ("tokens", "tokens/s", samples * tokens.mean / reached if tokens else 0.0),
        ("samples", "samples/s", samples),
        ("steps", "steps/s", 1.0),
        ("arithmetic", "FLOP/s", work.flops),
        ("memory", "bytes/s", work.moved),
    )
    for name, unit, amount in amounts:
        if amount:
            yield RatePair(name, name, unit, amount * reached / samples, amount / work.time_s)
