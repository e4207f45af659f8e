"""The data of a run: one JSON line each."""

from __future__ import annotations

import math

import msgspec

from benchmarks.diagbench.knobs import FAULTS
from gpuconsole.model.experiments import Speedup
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs

WORTH = 1.05
"""A knob that promises or gains less is no cause."""
UNTOLD = 1.5
UNDOES = {*FAULTS, "transform_cost"}
"""Knobs that no user's job has."""


class Realised(msgspec.Struct, omit_defaults=True):
    """The measured effect of a change, and the prediction."""

    changes: Knobs
    rule: str = ""
    predicted: Interval | None = None
    speedup: Speedup | None = None
    verdict: str = ""
    error: str = ""
    short: Speedup | None = None
    """What a short look had said, where this is the longer one."""


class Row(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One run of a case. Times are seconds since its first step."""

    case: str
    name: str
    half: str
    seed: int
    neighbours: int
    scenario: str
    sets: Knobs
    truth: tuple[str, ...]
    fix: tuple[str, ...] = ()
    offer: bool = False
    fired: tuple[str, ...] = ()
    """Rules that fired when the diagnosis stood, best first, without notes and without what says
    that all is well; of an offer's case with those notes that promise something."""
    notes: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()
    """Notes whose suggestion promises 5 % or more."""
    accused: tuple[str, ...] = ()
    """Whatever else fired at any look: what a user saw, also where it was withdrawn."""
    undecided: tuple[str, ...] = ()
    """Rules that still lacked a signal which a probe was to bring, and had not refused."""
    confidence: str = ""
    steady_from_s: float | None = None
    steady_known_s: float | None = None
    found_s: float | None = None
    stood_s: float | None = None
    diagnosed_s: float | None = None
    """The same by the clock on the wall, from the command to start the run."""
    top: Realised | None = None
    nulls: list[Realised] = []
    """Changes of a knob that has no effect on a CPU, put on trial like any other."""
    oracle: list[Realised] = []
    error: str = ""
    elapsed_s: float = 0.0
    signals: dict[str, float] = {}
    commit: str = ""
    blind: bool = True
    """Whether the rules say the same when they are not shown the knobs that put the fault in."""

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.case, self.half, self.seed, self.neighbours


def relative_error(realised: Realised) -> float | None:
    """|ln(predicted / realised)|: the middle of the predicted interval against the estimate."""
    if realised.predicted is None or realised.speedup is None:
        return None
    return abs(math.log(realised.predicted.middle / realised.speedup.estimate))


def untold(one: Realised) -> bool:
    """Whether the trial has no usable result: undecided, with interval ends further apart than
    UNTOLD."""
    assert one.speedup is not None
    return one.verdict == "undecided" and one.speedup.high / one.speedup.low > UNTOLD


def covered(one: Realised) -> bool:
    """Whether the measured gain lies in the predicted interval."""
    assert one.predicted is not None and one.speedup is not None
    return one.predicted.low <= one.speedup.estimate <= one.predicted.high


def meets(one: Realised) -> bool:
    """Whether the predicted and the measured interval overlap: the measured value is uncertain,
    too."""
    assert one.predicted is not None and one.speedup is not None
    return one.predicted.low <= one.speedup.high and one.speedup.low <= one.predicted.high


def best(row: Row) -> Realised | None:
    """The knob with the largest gain in the oracle: a certain gain of at least 5 %. The longer
    trial of the first suggestion gives that change's own gain."""
    others = [one for one in row.oracle if row.top is None or one.changes != row.top.changes]
    sure = [
        one
        for one in (*others, *([row.top] if row.top else []))
        if one.speedup
        and one.speedup.low > 1
        and one.speedup.estimate >= WORTH
        and (UNDOES - set(row.fix)).isdisjoint(one.changes)
    ]
    return max(sure, key=lambda one: one.speedup.estimate if one.speedup else 0.0, default=None)
