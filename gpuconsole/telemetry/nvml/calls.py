"""Which NVML call yields which metric, and how its number becomes the catalogue's unit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.telemetry.nvml.library import ARGUMENT_VERSION_MISMATCH, FUNCTION_NOT_FOUND, NOT_SUPPORTED, CallFailed, call

# Constants of the NVML ABI, by value: an older binding may lack the names.
_MEMORY_V2 = 0x02000028
_SENSOR_GPU = 0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_PCIE_TX, _PCIE_RX = 0, 1

_NOT_A_VALUE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # what NVML leaves in a field that it did not fill
GARBAGE = "the driver reported an impossible value"

# What a healthy device can report, by unit: beyond is garbage. Generous, since it only has to catch nonsense.
_LIMITS = {
    "ratio": (0.0, 1.05),  # counters that are not read at one instant may come out a little above 1
    "bytes": (0.0, 1e15),
    "bytes/s": (0.0, 1e15),
    "W": (0.0, 1e5),
    "J": (0.0, 1e15),
    "°C": (-100.0, 300.0),
    "Hz": (0.0, 1e11),
}


class Variant(NamedTuple):
    """One way to ask: the binding's function and its arguments after the device handle."""

    function: str
    arguments: tuple[int, ...] = ()


class Call(NamedTuple):
    """One question to the driver, the metrics that its answer holds, and how they are taken from it.

    The variants are tried in order: a driver that lacks the newest gets the next.
    """

    metrics: tuple[str, ...]
    variants: tuple[Variant, ...]
    convert: Callable[[Any], tuple[float, ...]]


def _scaled(factor: float) -> Callable[[Any], tuple[float, ...]]:
    return lambda raw: (_number(raw) * factor,)


def _fields(factor: float, *names: str) -> Callable[[Any], tuple[float, ...]]:
    return lambda answer: tuple(_number(getattr(answer, name)) * factor for name in names)


def _number(raw: float) -> float:
    return math.nan if raw in _NOT_A_VALUE else float(raw)


CALLS = (
    Call(
        ("gpu.utilization_ratio", "gpu.memory_utilization_ratio"),
        (Variant("nvmlDeviceGetUtilizationRates"),),
        _fields(0.01, "gpu", "memory"),  # percent
    ),
    Call(
        ("gpu.hbm_used_bytes", "gpu.hbm_total_bytes"),
        # Version 2 keeps the driver's own reserve apart from what processes use; version 1 counts it as used.
        (Variant("nvmlDeviceGetMemoryInfo", (_MEMORY_V2,)), Variant("nvmlDeviceGetMemoryInfo")),
        _fields(1.0, "used", "total"),
    ),
    Call(("gpu.power_w",), (Variant("nvmlDeviceGetPowerUsage"),), _scaled(1e-3)),  # mW
    Call(("gpu.power_limit_w",), (Variant("nvmlDeviceGetEnforcedPowerLimit"),), _scaled(1e-3)),  # mW
    Call(("gpu.energy_j",), (Variant("nvmlDeviceGetTotalEnergyConsumption"),), _scaled(1e-3)),  # mJ
    Call(
        ("gpu.temperature_c",),
        # The second is deprecated, and all that drivers before 555 have.
        (Variant("nvmlDeviceGetTemperatureV", (_SENSOR_GPU,)), Variant("nvmlDeviceGetTemperature", (_SENSOR_GPU,))),
        _scaled(1.0),
    ),
    Call(("gpu.sm_clock_hz",), (Variant("nvmlDeviceGetClockInfo", (_CLOCK_SM,)),), _scaled(1e6)),  # MHz
    Call(("gpu.memory_clock_hz",), (Variant("nvmlDeviceGetClockInfo", (_CLOCK_MEMORY,)),), _scaled(1e6)),  # MHz
    # The driver watches the bus for 20 ms in each of these two, so they are asked only where GPM has no answer.
    Call(("gpu.pcie_rx_bytes_per_s",), (Variant("nvmlDeviceGetPcieThroughput", (_PCIE_RX,)),), _scaled(1e3)),  # KB/s
    Call(("gpu.pcie_tx_bytes_per_s",), (Variant("nvmlDeviceGetPcieThroughput", (_PCIE_TX,)),), _scaled(1e3)),  # KB/s
)


def ask(question: Call, handle: Any) -> dict[str, float]:
    """The question's metrics in catalogue units, unchecked. Raises CallFailed."""
    *newer, oldest = question.variants
    for variant in newer:
        try:
            return _answer(question, variant, handle)
        except CallFailed as failure:
            if failure.code not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED):
                raise
    return _answer(question, oldest, handle)


def _answer(question: Call, variant: Variant, handle: Any) -> dict[str, float]:
    answer = call(variant.function, handle, *variant.arguments)
    return dict(zip(question.metrics, question.convert(answer), strict=True))


def is_plausible(metric: str, value: float) -> bool:
    low, high = _LIMITS[CATALOGUE[metric].unit]
    return math.isfinite(value) and low <= value <= high
