"""Figures of the analytical models: predictions next to measurements, and the attainable rate of a run."""

from __future__ import annotations

from typing import Literal

import msgspec


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One quantity with its predicted and its measured value. Either value may be missing; `note` then holds the reason.

    `formula` is the model in one line with its source. `source` names the source of the measurement.
    """

    name: str
    title: str
    unit: str
    predicted: float | None = None
    measured: float | None = None
    formula: str = ""
    source: str = ""
    note: str = ""

    @property
    def error_ratio(self) -> float | None:
        """The error of the prediction over the measurement, 0..1; None where one of the two values is missing."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1


Bound = Literal["compute", "memory bandwidth", "offered load"]
"""What limits a run at its attainable rate. `offered load`: the clients send fewer requests than the hardware could answer."""


class TimePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of the time of a step, or of an output token. `name` is stable; `title` is for people.

    `time_s` is negative where the run is faster than the calculation; `note` then holds the reason. `lost_per_s`: how much of the rate the part
    costs, after the parts before it.
    """

    name: str
    title: str
    time_s: float
    lost_per_s: float = 0.0
    note: str = ""


class RatePair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reached rate next to the attainable rate, in `unit`. None: not known."""

    name: str
    title: str
    unit: str
    reached_per_s: float | None = None
    attainable_per_s: float | None = None

    @property
    def share_ratio(self) -> float | None:
        """The reached rate over the attainable rate; None where one of the two is not known."""
        return self.reached_per_s / self.attainable_per_s if self.reached_per_s is not None and self.attainable_per_s else None


class Attainable(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rate that the hardware could reach for the work of a run, by the roofline of its FLOPs and bytes.

    `rates`: the main rate of the run first. Empty: not known, and `reason` says why. `bound`: what limits the run at the attainable rate.
    `source`: the peaks in use. `parts`: the time `per` step or output token; the first part is the time at the attainable rate, and the sum is
    the time at the reached rate. `notes`: the limits of the calculation, in sentences.
    """

    rates: tuple[RatePair, ...] = ()
    bound: Bound | None = None
    source: str = ""
    formula: str = ""
    per: Literal["step", "output token"] = "step"
    parts: tuple[TimePart, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def main(self) -> RatePair | None:
        """The main rate of the run, reached and attainable."""
        return self.rates[0] if self.rates else None

    @property
    def share_ratio(self) -> float | None:
        """The reached share of the attainable rate. More than 1: the peaks in use are too low."""
        return self.main.share_ratio if self.main is not None else None
