"""What a machine reaches, measured: the second yardstick beside datasheets."""

from __future__ import annotations

import msgspec

UNITS = {"_flops_per_s": "FLOP/s", "_bytes_per_s": "bytes/s", "_latency_s": "s"}


def unit_of(name: str) -> str:
    """The unit that the end of a figure's name says."""
    return next(unit for ending, unit in UNITS.items() if name.endswith(ending))


class Reached(msgspec.Struct, frozen=True, omit_defaults=True):
    """One figure: the best of `n` repeats, which is what the machine does when nobody disturbs it; or why there is none.

    `spread_ratio` is the interquartile range over the median, None below two repeats; `detail` says what was measured
    (size, threads); `reason` stands where `value` is None.
    """

    name: str
    unit: str
    value: float | None = None
    median: float | None = None
    spread_ratio: float | None = None
    n: int = 0
    detail: str = ""
    reason: str = ""


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a calibration holds for: figures of another machine, driver or torch are no yardstick. `devices`: name and uuid of each."""

    host: str
    cpu: str
    cores: int
    devices: tuple[tuple[str, str], ...]
    driver: str | None = None
    torch: str | None = None


class CalibrationRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """All figures of one device, with when they were taken and what else ran.

    `created`: UTC, ISO 8601. `load_1min`: the system's load average at the start. `others_cores`: CPU cores that other
    processes used meanwhile, of those allowed to us.
    """

    machine: Machine
    device: str
    created: str
    reached: list[Reached]
    load_1min: float | None = None
    others_cores: float = 0.0

    @property
    def figures(self) -> dict[str, float]:
        """By name, those that have a value."""
        return {one.name: one.value for one in self.reached if one.value is not None}
