"""hw.power: the power limit, or an external brake, lowers the GPU clock noticeably."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

TIME = Threshold("power_time", 0.10, "ratio", "10 % of the time (survey T39)")
LOSS = Threshold(
    "clock_loss",
    0.05,
    "ratio",
    (
        "at full load a power cap is normal on an H100; a loss below 5 % of the clock is ignored"
        " (survey T39)"
    ),
)
LOWERED = 0.99
"""A limit below this share of the default limit was set by a person."""


class HwPower(Rule):
    id = "hw.power"
    title = "The power limit lowers the GPU clock"
    clear_title = "The power limit costs little GPU clock"
    subject = "hardware"
    gpu_only = True
    thresholds = (TIME, LOSS)
    reads = (
        "is_gpu", "hw.power_cap_time_ratio", "hw.power_brake_time_ratio", "hw.sm_clock_ratio",
        "hw.power_ratio", "hw.power_limit_w", "hw.power_limit_max_w", "hw.power_limit_default_w",
        "hw.thermal_time_ratio", "hw.clock_unsure",
    )  # fmt: skip
    ignore = (
        "The power limit is a decision of your site: then compare runs only under the same limit."
    )
    text = """Large matrix products draw all the power that a board may use, and the driver then
lowers the clock a little. An H100 works like this at full load; it is no fault. The lost clock
decides: 5 % or more under load, compared with the highest clock, or on GeForce and workstation
cards with the boost clock of the datasheet (their highest clock needs more power than they have).
If the limit is below the board's default, a person has lowered it. Otherwise the finding is a note,
also where the limit could be raised above its default: that gains a few per cent of the clock for
much power. An external brake is different: the power supply or the management of the server
requests it."""

    def judge(self, case: Case) -> Finding:
        held, loss = device.held_by_power(case), device.clock_loss(case)
        evidence = case.evidence(
            ("hw.power_cap_time_ratio", TIME), ("hw.sm_clock_ratio", 1 - LOSS)
        ) + case.if_known(
            "hw.power_brake_time_ratio",
            "hw.power_ratio",
            "hw.power_limit_w",
            "hw.power_limit_default_w",
            "hw.power_limit_max_w",
        )
        level = min(held / TIME, loss / LOSS)
        if level < 1:
            return self.clear(level, evidence)
        cure = _cure(case)
        summary = (
            f"power lowers the clock for {percent(held)} of the time; under load the SM clock is"
            f" {percent(1 - loss)} of its usual value. "
        )
        summary += cure or _as_sold(case)
        fault = bool(cure) and device.loss_is_sure(case)
        recoverable = device.lost_to_power(case) if fault else 0.0
        return self.fires(
            level, evidence, summary, recoverable=recoverable, confidence="medium", note=not fault
        )


def _cure(case: Case) -> str:
    """The advice where a person or a brake has lowered the power; "" otherwise, and if the limits
    are not known."""
    if case.get("hw.power_brake_time_ratio", 0.0) >= TIME:
        return (
            "An external brake signal is the cause: check the power supply, and a cap for the whole"
            " server (BMC)"
        )
    limit, default = case.get("hw.power_limit_w", 0.0), case.get("hw.power_limit_default_w", 0.0)
    if 0 < limit < LOWERED * default:
        return (
            f"The limit of {limit:.0f} W is below the default of {default:.0f} W: nvidia-smi -pl"
            f" {default:.0f} resets it (root)"
        )
    return ""


def _as_sold(case: Case) -> str:
    """What is said of a limit that nobody has lowered, as far as the driver reports the limits."""
    limit, default, most = (
        case.get(f"hw.power_limit_{name}", 0.0) for name in ("w", "default_w", "max_w")
    )
    if not limit or not most:
        return "The driver does not report the limits of the board"
    if limit >= LOWERED * most:
        return "The limit is at its maximum, so the board cannot do more"
    if not default:
        return (
            f"The limit is {limit:.0f} W, and up to {most:.0f} W can be set. The driver does not"
            " report the default"
        )
    named = (
        "the default of the board"
        if limit < 1.01 * default
        else f"above the default of {default:.0f} W"
    )
    return f"The limit of {limit:.0f} W is {named}; up to {most:.0f} W can be set"
