"""Baselines: finished runs that were kept, by scenario, hardware and software; and a run held against them."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

import msgspec

from gpuconsole.model.knobs.knob import Knobs

SCHEMA = "gpuconsole.baseline/1"
MOST_RUNS = 20
"""Runs kept per key; the oldest makes room."""

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d(T[\d:.]+Z)?$")]
"""UTC in ISO 8601."""

BaselineVerdict = Literal["faster", "same", "slower", "undecided"]


class BaselineKey(msgspec.Struct, frozen=True):
    """What two runs must share to be held against each other.

    `changed` are the knobs that differ from the scenario's own values. `device` and `cpu` are names of models, `driver` is the major
    version of the GPU's; what there is not stays empty.
    """

    scenario: str
    changed: Knobs
    device: str
    cpu: str
    cores: int
    torch: str
    driver: str = ""

    @property
    def name(self) -> str:
        """A file's stem: the scenario, and a digest of all of it."""
        digest = hashlib.blake2s(msgspec.json.encode(self, order="deterministic"), digest_size=4).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.scenario).strip(".-")[:60]
        return f"{plain or 'scenario'}-{digest}"

    def parts(self) -> dict[str, str]:
        """Hardware and software in words, for telling which parts differ."""
        return {
            "device": self.device,
            "cpu": self.cpu,
            "cores": f"{self.cores} cores",
            "torch": f"torch {self.torch}",
            "driver": f"driver {self.driver}" if self.driver else "no GPU driver",
        }


class BaselineRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kept run over its steady steps.

    `rates` are tokens/s (or samples/s) of successive blocks of steps on the wall clock; `contention_free` the same with the training
    thread's run-queue delay taken off, where it was read. `waiting_ratio` is the share of time in which some task of the host waited
    for a core, `others_ratio` that of the host's cores which other programs kept busy: the load beside which it was measured. `step_time_s` is the median.
    """

    date: Date
    gpuconsole: str
    rates: Annotated[tuple[Rate, ...], msgspec.Meta(min_length=1)]
    contention_free: tuple[Rate, ...] = ()
    duration_s: float = 0.0
    step_time_s: float | None = None
    phases_ratio: dict[str, float] = {}
    mfu_ratio: float | None = None
    memory_peak_bytes: float | None = None
    energy_per_token_j: float | None = None
    run_queue_ratio: float | None = None
    waiting_ratio: float | None = None
    others_ratio: float | None = None

    @property
    def rate(self) -> float:
        """Work per second, the mean over the blocks."""
        return sum(self.rates) / len(self.rates)


class Baseline(msgspec.Struct, kw_only=True, frozen=True):
    """All runs kept under one key, the oldest first. `knobs` are all that they ran with, `unit` is that of their rates."""

    schema: str = SCHEMA
    key: BaselineKey
    knobs: Knobs
    unit: str
    runs: Annotated[tuple[BaselineRun, ...], msgspec.Meta(min_length=1)]

    @property
    def rate(self) -> float:
        return sum(run.rate for run in self.runs) / len(self.runs)


class RateChange(msgspec.Struct, frozen=True):
    """Throughput over the baseline's, less 1, with its 95 % interval: -0.083 is 8.3 % slower."""

    estimate: float
    low: float
    high: float


class BaselineComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run beside its baseline, or the reason why there is nothing to hold it against (`verdict` None).

    `words` says all of it in a sentence, `short` what there is room for in a title. `rate` is the baseline's, in `unit`, the mean of its `runs` on the wall clock; `since` and
    `until` are the dates of the oldest and the newest of them. `live`: the run goes on, and the interval is one that may be looked at all the time.
    """

    key: str
    words: str
    short: str = ""
    verdict: BaselineVerdict | None = None
    change: RateChange | None = None
    rate: float | None = None
    unit: str = ""
    runs: int = 0
    since: str = ""
    until: str = ""
    clock: Literal["wall", "contention_free"] = "wall"
    blocks: int = 0
    live: bool = False
