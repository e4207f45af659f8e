"""Baselines: finished runs that the user kept, by scenario, hardware and software; and the comparison of a run with them."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

import msgspec

from gpuconsole.model.knobs.knob import Knobs

SCHEMA = "gpuconsole.baseline/1"
MOST_RUNS = 20
"""Runs kept per key; the oldest run is deleted first."""

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d(T[\d:.]+Z)?$")]
"""UTC in ISO 8601."""

BaselineVerdict = Literal["faster", "same", "slower", "undecided"]


class BaselineKey(msgspec.Struct, frozen=True):
    """What two runs must have in common to be compared.

    `changed`: the knobs that differ from the scenario's own values. `device` and `cpu`: model names. `driver`: the major version of the GPU
    driver. A part that does not exist is empty.
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
        """The stem of the file name: the scenario, and a digest of all parts."""
        digest = hashlib.blake2s(msgspec.json.encode(self, order="deterministic"), digest_size=4).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.scenario).strip(".-")[:60]
        return f"{plain or 'scenario'}-{digest}"

    def parts(self) -> dict[str, str]:
        """Hardware and software in words, to name the parts that differ."""
        return {
            "device": self.device,
            "cpu": self.cpu,
            "cores": f"{self.cores} cores",
            "torch": f"torch {self.torch}",
            "driver": f"driver {self.driver}" if self.driver else "no GPU driver",
        }


class BaselineRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kept run over its steady steps.

    `rates`: tokens/s (or samples/s) of successive blocks of steps, on the wall clock. `seconds`: the length of each block; empty in files of
    earlier versions, whose blocks count alike. `on_cpu`: the device of the run is the CPU, so a comparison leaves out the time in which the training thread
    waited for a core. `step_time_s` is the median. Load during the run: `waiting_ratio` is the share of time in
    which some task of the host waited for a CPU, `others_ratio` the share of the CPUs that other programs kept busy.
    """

    date: Date
    gpuconsole: str
    rates: Annotated[tuple[Rate, ...], msgspec.Meta(min_length=1)]
    seconds: tuple[Rate, ...] = ()
    on_cpu: bool = False
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
        """Work over wall time."""
        seconds = self.block_seconds
        return sum(rate * of_block for rate, of_block in zip(self.rates, seconds, strict=True)) / sum(seconds)

    @property
    def block_seconds(self) -> tuple[float, ...]:
        """The length of each block."""
        return self.seconds if len(self.seconds) == len(self.rates) else (1.0,) * len(self.rates)


class Baseline(msgspec.Struct, kw_only=True, frozen=True):
    """All runs kept under one key, the oldest first. `knobs`: all knob values of the runs. `unit`: the unit of their rates."""

    schema: str = SCHEMA
    key: BaselineKey
    knobs: Knobs
    unit: str
    runs: Annotated[tuple[BaselineRun, ...], msgspec.Meta(min_length=1)]

    @property
    def rate(self) -> float:
        return sum(run.rate for run in self.runs) / len(self.runs)


class RateChange(msgspec.Struct, frozen=True):
    """Throughput divided by the throughput of the baseline, minus 1, with its 95 % interval: -0.083 is 8.3 % slower."""

    estimate: float
    low: float
    high: float


class BaselineComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """The comparison of a run with its baseline, or the reason why there is no comparison (`verdict` None).

    `words`: the result as a sentence; `short`: the result for a title. `rate`: the mean rate of the baseline's `runs` on the wall clock, in
    `unit`; `since` and `until`: the dates of the oldest and the newest run. `live`: the run is still going on, and the interval is valid at
    every moment.
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
