"""The NVML calls: the metrics of each call, the conversion into the catalogue's units, and the
intervals of slow calls.

And values of a GPU that contradict each other: each is plausible by itself, and at least one of the
two is wrong.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.model.units import percent
from gpuconsole.telemetry.nvml.library import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    CallFailed,
    Meter,
    call,
)

# --- calls ----------------------------------------------------------------------------------------

# Constants of the NVML ABI, by value: an older binding may lack the names.
_MEMORY_V2 = 0x02000028
_SENSOR_GPU = 0
_THRESHOLD_SLOWDOWN = 1
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_PCIE_TX, _PCIE_RX = 0, 1

_NOT_A_VALUE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # NVML's value for an unset field
GARBAGE = "the driver reported an impossible value"

# The range of plausible values by unit. The ranges are generous: they only catch impossible values.
_LIMITS = {
    # counters that are read at different times can give a value slightly above 1
    "ratio": (0.0, 1.05),
    "bytes": (0.0, 1e15),
    "bytes/s": (0.0, 1e15),
    "W": (0.0, 1e5),
    "J": (0.0, 1e15),
    "°C": (-100.0, 300.0),
    "Hz": (0.0, 1e11),
    "0/1": (0.0, 1.0),
    "lanes": (0.0, 64.0),
    "links": (0.0, 64.0),
    "": (0.0, 1e18),
}

# nvmlClocksEventReasons by bit.
CLOCKS_REASONS = {
    0x01: "gpu.clocks_idle",
    0x02: "gpu.clocks_app_setting",
    0x04: "gpu.clocks_power_cap",
    0x08: "gpu.clocks_hw_slowdown",
    0x10: "gpu.clocks_sync_boost",
    0x20: "gpu.clocks_sw_thermal",
    0x40: "gpu.clocks_hw_thermal",
    0x80: "gpu.clocks_power_brake",
}


class Variant(NamedTuple):
    """One variant of a call: the binding's function and its arguments after the device handle."""

    function: str
    arguments: tuple[int, ...] = ()


class DriverCall(NamedTuple):
    """One driver call, the metrics in its answer, and the functions that read them from the answer.

    The reader tries the variants in order, the newest first. None: the answer of this variant does
    not contain the metric.
    """

    metrics: tuple[str, ...]
    variants: tuple[Variant, ...]
    convert: Callable[[Any], tuple[float | None, ...]]


def _scaled(factor: float) -> Callable[[Any], tuple[float | None, ...]]:
    return lambda raw: (_number(raw) * factor,)


def _fields(factor: float, *names: str) -> Callable[[Any], tuple[float | None, ...]]:
    return lambda answer: tuple(_number(getattr(answer, name)) * factor for name in names)


def _item(position: int, factor: float) -> Callable[[Any], tuple[float | None, ...]]:
    return lambda answer: (_number(answer[position]) * factor,)


def _memory(answer: Any) -> tuple[float | None, ...]:
    """Version 1 of the answer has no `reserved`; its `used` includes the driver's reserve."""
    parts = (getattr(answer, name, None) for name in ("used", "free", "reserved", "total"))
    return tuple(None if part is None else _number(part) for part in parts)


def _bits(mask: int) -> tuple[float | None, ...]:
    return tuple(float(bool(mask & bit)) for bit in CLOCKS_REASONS)


def _number(raw: float) -> float:
    return math.nan if raw in _NOT_A_VALUE else float(raw)


def _one(metric: str, factor: float, function: str, *arguments: int) -> DriverCall:
    return DriverCall((metric,), (Variant(function, arguments),), _scaled(factor))


def _first_of_two(metric: str, function: str) -> DriverCall:
    """The answer is [percent, sampling period]."""
    return DriverCall((metric,), (Variant(function),), _item(0, 0.01))


def _performance_state(answer: Any) -> tuple[float | None]:
    """The driver answers 32 where it does not know the state."""
    return (float(answer) if answer <= _LAST_STATE else None,)


_LAST_STATE = 15
MEMORY = DriverCall(
    ("gpu.hbm_used_bytes", "gpu.hbm_free_bytes", "gpu.hbm_reserved_bytes", "gpu.hbm_total_bytes"),
    # Version 2 reports the driver's reserve separately; version 1 counts the reserve as used.
    (Variant("nvmlDeviceGetMemoryInfo", (_MEMORY_V2,)), Variant("nvmlDeviceGetMemoryInfo")),
    _memory,
)

VITAL_CALLS = (
    DriverCall(
        ("gpu.utilization_ratio", "gpu.memory_utilization_ratio"),
        (Variant("nvmlDeviceGetUtilizationRates"),),
        _fields(0.01, "gpu", "memory"),  # percent
    ),
    MEMORY,
    _one("gpu.power_w", 1e-3, "nvmlDeviceGetPowerUsage"),  # mW
    DriverCall(
        ("gpu.temperature_c",),
        # The second call is deprecated; drivers before 555 have only this call.
        (
            Variant("nvmlDeviceGetTemperatureV", (_SENSOR_GPU,)),
            Variant("nvmlDeviceGetTemperature", (_SENSOR_GPU,)),
        ),
        _scaled(1.0),
    ),
)
"""The calls that a slow GPU is asked: its vital readings."""

_CLOCKS = (
    _one("gpu.sm_clock_hz", 1e6, "nvmlDeviceGetClockInfo", _CLOCK_SM),  # MHz
    DriverCall(
        tuple(CLOCKS_REASONS.values()),
        # The second call is the old name of the first call.
        (
            Variant("nvmlDeviceGetCurrentClocksEventReasons"),
            Variant("nvmlDeviceGetCurrentClocksThrottleReasons"),
        ),
        _bits,
    ),
)
_POWER_LIMIT = _one("gpu.power_limit_w", 1e-3, "nvmlDeviceGetEnforcedPowerLimit")  # mW
BRIEF_CALLS = (*VITAL_CALLS, *_CLOCKS, _POWER_LIMIT)
"""The calls that one line for each GPU needs."""

FAST_CALLS = (
    *VITAL_CALLS,
    *_CLOCKS,
    _one("gpu.energy_j", 1e-3, "nvmlDeviceGetTotalEnergyConsumption"),  # mJ
    _one("gpu.memory_clock_hz", 1e6, "nvmlDeviceGetClockInfo", _CLOCK_MEMORY),  # MHz
    # Each of these two calls observes the bus for 20 ms, so they are made only where no other
    # source has a value.
    _one("gpu.pcie_rx_bytes_per_s", 1e3, "nvmlDeviceGetPcieThroughput", _PCIE_RX),  # KB/s
    _one("gpu.pcie_tx_bytes_per_s", 1e3, "nvmlDeviceGetPcieThroughput", _PCIE_TX),  # KB/s
)
"""Calls made in every round."""

SLOW_CALLS = (
    _POWER_LIMIT,
    _one("gpu.power_limit_default_w", 1e-3, "nvmlDeviceGetPowerManagementDefaultLimit"),  # mW
    # [least, most] mW
    DriverCall(
        ("gpu.power_limit_max_w",),
        (Variant("nvmlDeviceGetPowerManagementLimitConstraints"),),
        _item(1, 1e-3),
    ),
    _one(
        "gpu.temperature_slowdown_c", 1.0, "nvmlDeviceGetTemperatureThreshold", _THRESHOLD_SLOWDOWN
    ),
    _one("gpu.fan_ratio", 0.01, "nvmlDeviceGetFanSpeed"),  # percent
    DriverCall(
        ("gpu.performance_state",), (Variant("nvmlDeviceGetPerformanceState"),), _performance_state
    ),
    _one("gpu.sm_clock_max_hz", 1e6, "nvmlDeviceGetMaxClockInfo", _CLOCK_SM),  # MHz
    _one("gpu.memory_clock_max_hz", 1e6, "nvmlDeviceGetMaxClockInfo", _CLOCK_MEMORY),  # MHz
    DriverCall(
        ("gpu.bar1_used_bytes", "gpu.bar1_total_bytes"),
        (Variant("nvmlDeviceGetBAR1MemoryInfo"),),
        _fields(1.0, "bar1Used", "bar1Total"),
    ),
    _one("gpu.pcie_link_generation", 1.0, "nvmlDeviceGetCurrPcieLinkGeneration"),
    _one("gpu.pcie_link_generation_max", 1.0, "nvmlDeviceGetMaxPcieLinkGeneration"),
    _one("gpu.pcie_link_width", 1.0, "nvmlDeviceGetCurrPcieLinkWidth"),
    _one("gpu.pcie_link_width_max", 1.0, "nvmlDeviceGetMaxPcieLinkWidth"),
    _one("gpu.pcie_replays", 1.0, "nvmlDeviceGetPcieReplayCounter"),
    _first_of_two("gpu.encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization"),
    _first_of_two("gpu.decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization"),
    _first_of_two("gpu.jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization"),
    _first_of_two("gpu.optical_flow_utilization_ratio", "nvmlDeviceGetOfaUtilization"),
)
"""Calls for metrics that change rarely or matter little: made every few seconds."""


def ask(question: DriverCall, handle: Any) -> dict[str, float]:
    """The metrics of the call in catalogue units, unchecked. Raises CallFailed."""
    *newer, oldest = question.variants
    for variant in newer:
        try:
            return _answer(question, variant, handle)
        except CallFailed as failure:
            if failure.code not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED):
                raise
    return _answer(question, oldest, handle)


def _answer(question: DriverCall, variant: Variant, handle: Any) -> dict[str, float]:
    answer = call(variant.function, handle, *variant.arguments)
    pairs = zip(question.metrics, question.convert(answer), strict=True)
    return {metric: value for metric, value in pairs if value is not None}


_TIME_SHARES = (0.0, 1.5)
"""Time counters with steps of some tens of ms: a permanent condition sometimes reads slightly more
than 1."""
_LIMITS_OF = {
    name: _TIME_SHARES if name.endswith("_time_ratio") else _LIMITS[metric.unit]
    for name, metric in CATALOGUE.items()
    if name.startswith("gpu.")
}


def is_plausible(metric: str, value: float) -> bool:
    low, high = _LIMITS_OF[metric]
    return low <= value <= high  # which excludes NaN and infinity


class CallReader:
    """Makes a list of calls for one device. Unsupported calls are not repeated."""

    source = "nvml"

    def __init__(
        self,
        handle: Any,
        questions: tuple[DriverCall, ...],
        may_ask: Callable[[DriverCall], bool] = lambda _: True,
    ) -> None:
        self._handle = handle
        self._questions = questions
        self._may_ask = may_ask
        self._never: dict[str, CallFailed] = {}
        self.waiting: list[str] = []
        """Metrics whose slow call was not due in the last reading."""

    def read(self, have: Container[str]) -> tuple[dict[str, float], dict[str, CallFailed]]:
        """Values and failures of the metrics that are not in `have`. Metrics of a call that is
        not due are in `waiting`.

        Raises CallFailed for a loss only.
        """
        values: dict[str, float] = {}
        failures: dict[str, CallFailed] = {}
        self.waiting = []
        for question in self._questions:
            wanted = [name for name in question.metrics if name not in have]
            if not wanted:
                continue
            if wanted[0] in self._never:
                failures.update(dict.fromkeys(wanted, self._never[wanted[0]]))
            elif not self._may_ask(question):
                self.waiting += wanted
            else:
                try:
                    answer = ask(question, self._handle)
                    values.update(answer)
                    failures.update(
                        {
                            name: CallFailed(FUNCTION_NOT_FOUND)
                            for name in wanted
                            if name not in answer
                        }
                    )
                except CallFailed as failure:
                    if failure.is_loss:
                        raise
                    failures.update(dict.fromkeys(wanted, failure))
                    if failure.is_permanent:
                        self._never.update(dict.fromkeys(wanted, failure))
        return values, failures


# --- slow calls -----------------------------------------------------------------------------------

SLOW_CALL_S = 0.004
"""Calls above this duration are slow. Answers from the driver's memory take microseconds."""
SHARE = 0.2
"""Maximum share of a round's period for slow calls."""
MIN_S = 0.02


class SlowCalls:
    """`may_ask` decides whether a call is due. Slow calls take turns within the budget, equally
    often for each device. A GPU with a slow driver takes no part: see `forget`."""

    def __init__(self, meter: Meter, interval_s: float) -> None:
        self._meter = meter
        self._budget_s = max(MIN_S, SHARE * interval_s)
        self._interval_s = interval_s
        self._asked: dict[tuple[str, str], float] = {}
        self._slow: dict[tuple[str, str], float] = {}
        """The usual seconds of the slow calls, by device and function."""
        self._spent_s = 0.0
        self._round = 0.0

    def begin_round(self) -> None:
        self._spent_s, self._round = 0.0, time.monotonic()
        for key in list(self._slow):
            if (cost_s := self._meter.typical_s(*key)) >= SLOW_CALL_S:
                self._slow[key] = cost_s
            else:
                self._slow.pop(key, None)

    def forget(self, device: str) -> None:
        """Forget the calls about a device. It is asked little, and by itself."""
        for calls in (self._asked, self._slow):
            for key in [key for key in list(calls) if key[0] == device]:
                calls.pop(key, None)

    def may_ask(self, device: str, question: DriverCall) -> bool:
        if question in VITAL_CALLS:
            return True
        function = question.variants[0].function
        cost_s = self._meter.typical_s(device, function)
        if cost_s < SLOW_CALL_S:
            return True
        self._slow[device, function] = cost_s
        key = (device, question.metrics[0])
        due = self._asked.setdefault(key, float("-inf")) + self.turn_s()
        if self._round < due or (self._spent_s and self._spent_s + cost_s > self._budget_s):
            return False
        self._asked[key] = self._round
        self._spent_s += cost_s
        return True

    def turn_s(self) -> float:
        """Seconds until the next turn of a slow call: half a round less than the rounds that all
        slow calls need."""
        per_round = max(
            1, int(self._budget_s / max(list(self._slow.values()), default=SLOW_CALL_S))
        )
        return (-(-len(self._asked) // per_round) - 0.5) * self._interval_s

    def words(self) -> str:
        """A description of the slow calls and their interval; empty when no call is slow."""
        slow = self._slow.copy()  # the calling threads continue meanwhile
        if not slow:
            return ""
        (_, name), cost_s = max(slow.items(), key=lambda item: item[1])
        return (
            f"{name} takes {cost_s * 1e3:.0f} ms: read every"
            f" {self.turn_s() + 0.5 * self._interval_s:.1f} s"
        )


# --- values that contradict each other ------------------------------------------------------------

MAX_POWER_RATIO = 1.5
"""A board may draw more than its limit for some ms, but not so many times its limit (a laptop with
a limit of 160 W reported 590 W: beszel issue 1589)."""
WORKS_RATIO = 0.02
"""Above this utilization a GPU surely runs."""
NO_TOTAL = "the driver reports a memory of 0 bytes"
MORE_THAN_ALL = "the driver reports more used than total memory"
BELOW_ZERO = "the driver reports a temperature below 0"

_MEMORY = (
    "gpu.hbm_used_bytes",
    "gpu.hbm_free_bytes",
    "gpu.hbm_reserved_bytes",
    "gpu.hbm_total_bytes",
)
_NOT_ZERO_AT_WORK = {
    "gpu.power_w": "0 W",
    "gpu.sm_clock_hz": "an SM clock of 0",
    "gpu.memory_clock_hz": "a memory clock of 0",
    "gpu.temperature_c": "0 degrees",
}


def contradictions(values: Mapping[str, float], limit_w: float = 0.0) -> dict[str, str]:
    """The metrics in `values` that cannot be true beside the others, with the reason. `limit_w`:
    the power limit, which is read rarely; 0: not known."""
    found: dict[str, str] = {}
    total = values.get("gpu.hbm_total_bytes")
    if total == 0:
        found |= dict.fromkeys(_MEMORY, NO_TOTAL)
    elif total is not None and values.get("gpu.hbm_used_bytes", 0.0) > total:
        found |= dict.fromkeys(_MEMORY[:3], MORE_THAN_ALL)
    for metric in ("gpu.power_w", "gpu.power_instant_w"):
        if limit_w > 0 and (power := values.get(metric, 0.0)) > MAX_POWER_RATIO * limit_w:
            found[metric] = f"the driver reports {power:.0f} W at a limit of {limit_w:.0f} W"
    if values.get("gpu.temperature_c", 0.0) < 0:
        found["gpu.temperature_c"] = BELOW_ZERO
    share = values.get("gpu.utilization_ratio", 0.0)
    if share > WORKS_RATIO:
        said = {
            metric: f"the driver reports {zero} at a utilization of {percent(share).strip()}"
            for metric, zero in _NOT_ZERO_AT_WORK.items()
        }
        found |= {metric: why for metric, why in said.items() if values.get(metric) == 0}
    return {metric: why for metric, why in found.items() if metric in values}
