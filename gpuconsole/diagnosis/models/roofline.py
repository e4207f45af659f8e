"""The roofline model (Williams et al. 2009): the rate that hardware could reach for a piece of
work, and the waterfall down to the reached rate.

Memory limits a computation below the ridge, arithmetic limits it above: time = max(FLOPs / peak
FLOP/s, bytes / bandwidth). Bytes are the fewest that must move. Work that runs one after another
(passes and optimizer update; prefill and decoding) takes the sum of its times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from gpuconsole.model.figures import Bound, TimePart
from gpuconsole.session.figures.peak import Peak

Side = Literal["memory", "compute"]


def ridge(peak_flops_per_s: float, bytes_per_s: float) -> float:
    """The lowest intensity in FLOP/byte at which the peak is attainable."""
    return peak_flops_per_s / bytes_per_s


def attainable(intensity: float, peak_flops_per_s: float, bytes_per_s: float) -> float:
    """Maximum FLOP/s at this intensity."""
    return min(peak_flops_per_s, intensity * bytes_per_s)


def side(intensity: float, peak_flops_per_s: float, bytes_per_s: float) -> Side:
    """What limits a computation of this intensity."""
    return "memory" if intensity < ridge(peak_flops_per_s, bytes_per_s) else "compute"


COMPUTE: Bound = "compute"
MEMORY: Bound = "memory bandwidth"
OFFERED: Bound = "offered load"
CALIBRATE = "`gpuconsole calibrate` measures it"
TOO_LOW = (
    "more than 100 %: the peaks in use are too low for this run (data in caches, or a calibration"
    " on a busy machine); calibrate again"
)
ROUNDING = 1e-9
"""A difference of times below this share of them is the rounding of the calculation."""


class Ceilings(NamedTuple):
    """FLOP/s and bytes/s of all devices of a run together, each with its source. None: not
    known."""

    flops: Peak | None
    bytes: Peak | None


class Least(NamedTuple):
    """The shortest possible time of some work, and what limits it."""

    time_s: float
    bound: Bound


class TimeLoss(NamedTuple):
    """Time beyond the shortest possible time. A negative loss needs a `note` with its reason."""

    name: str
    title: str
    time_s: float
    note: str = ""


def least(flops: float, moved: float, ceilings: Ceilings) -> Least | None:
    """max(FLOPs / peak, bytes / bandwidth). Work of one kind needs only the ceiling of this kind;
    None where a ceiling is not known."""
    if (flops and ceilings.flops is None) or (moved and ceilings.bytes is None):
        return None
    computing = flops / ceilings.flops[0] if flops and ceilings.flops else 0.0
    moving = moved / ceilings.bytes[0] if moved and ceilings.bytes else 0.0
    return Least(computing, COMPUTE) if computing >= moving else Least(moving, MEMORY)


def decode_iteration(
    weight_bytes: float, kv_bytes: float, flops: float, sequences: float, ceilings: Ceilings
) -> Least | None:
    """The shortest iteration that gives each of `sequences` one token: all weights are read once,
    the keys and values of each sequence once.

    `kv_bytes`: of the context of one sequence. `flops`: of one token. Few sequences are limited by
    the bandwidth, many by arithmetic.
    """
    return least(flops * sequences, weight_bytes + sequences * kv_bytes, ceilings)


def prefill(weight_bytes: float, flops: float, sharing: float, ceilings: Ceilings) -> Least | None:
    """The shortest prefill of one prompt. `flops`: of the prompt. `sharing`: prompts that share a
    reading of the weights."""
    return least(flops, weight_bytes / max(1.0, sharing), ceilings)


def waterfall(amount: float, least_s: float, losses: Iterable[TimeLoss]) -> tuple[TimePart, ...]:
    """The parts of the time for `amount` of work (in the unit of the main rate): the shortest
    possible time, then each loss. The times add up to the time of the run.

    The rate after some parts is `amount` over the sum of their times, and `lost_per_s` is the
    difference that a part makes. So the losses of the rate add up, too: to the attainable rate
    minus the reached rate. Negative losses come last, so that all sums are positive.
    """
    parts = [TimePart("attainable", "at the hardware limit", least_s)]
    total, known_losses = least_s, list(losses)
    rounding = ROUNDING * (least_s + sum(abs(loss.time_s) for loss in known_losses))
    for loss in sorted(
        (loss for loss in known_losses if abs(loss.time_s) > rounding),
        key=lambda loss: loss.time_s < 0,
    ):
        lost = amount / total - amount / (total + loss.time_s)
        total += loss.time_s
        parts.append(TimePart(loss.name, loss.title, loss.time_s, lost, loss.note))
    return tuple(parts)
