"""Measured peak rates of a machine: the second reference next to datasheets."""

from __future__ import annotations

import msgspec

UNITS = {"_flops_per_s": "FLOP/s", "_bytes_per_s": "bytes/s", "_latency_s": "s"}


def unit_of(name: str) -> str:
    """The unit that belongs to the suffix of a figure's name."""
    return next(unit for ending, unit in UNITS.items() if name.endswith(ending))


def sustained_name(name: str) -> str:
    """The name of the sustained rate of a figure: `gemm_fp32_sustained_flops_per_s`."""
    ending = next(ending for ending in UNITS if name.endswith(ending))
    return f"{name.removesuffix(ending)}_sustained{ending}"


class Reached(msgspec.Struct, frozen=True, omit_defaults=True):
    """One figure: the best of `n` repeats, which is the rate of an undisturbed machine; or the reason why there is no figure.

    `sustained` is the rate that a quarter of the repeats exceed: on a machine with other tenants a job can keep it up, and not the best rate.
    `spread_ratio` is the interquartile range over the median, None for fewer than two repeats. `detail` describes the measurement
    (size, threads). `reason` is set where `value` is None.
    """

    name: str
    unit: str
    value: float | None = None
    median: float | None = None
    spread_ratio: float | None = None
    n: int = 0
    detail: str = ""
    reason: str = ""
    sustained: float | None = None


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine and software that a calibration is valid for. `devices`: name and UUID of each device."""

    host: str
    cpu: str
    cores: int
    devices: tuple[tuple[str, str], ...]
    driver: str | None = None
    torch: str | None = None


class CalibrationRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """All figures of one device, with the time and the load of the machine.

    `created`: UTC, ISO 8601. `load_1min`: the system's load average at the start. `others_cores`: number of the cores allowed to this
    process that other processes used during the calibration.
    """

    machine: Machine
    device: str
    created: str
    reached: list[Reached]
    load_1min: float | None = None
    others_cores: float = 0.0

    @property
    def figures(self) -> dict[str, float]:
        """The measured values by name, without missing values; sustained rates under `sustained_name`."""
        best = {one.name: one.value for one in self.reached if one.value is not None}
        return best | {sustained_name(one.name): one.sustained for one in self.reached if one.sustained is not None}
