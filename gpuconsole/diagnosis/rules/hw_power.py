"""hw.power: the power limit, or an external brake, lowers the GPU clock noticeably."""

from __future__ import annotations

from gpuconsole.diagnosis.families import clocks
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

TIME = Threshold("power_time", 0.10, "ratio", "10 % of the time (survey T39)")
LOSS = Threshold(
    "clock_loss", 0.05, "ratio", "at full load a power cap is normal on an H100; a loss below 5 % of the clock is ignored (survey T39)"
)
RAISABLE = 0.99
"""A limit below this share of the highest limit was set by a person."""


class HwPower(Rule):
    id = "hw.power"
    title = "The power limit lowers the GPU clock"
    clear_title = "The power limit costs little GPU clock"
    subject = "hardware"
    gpu_only = True
    thresholds = (TIME, LOSS)
    reads = (
        "is_gpu", "hw.power_cap_time_ratio", "hw.power_brake_time_ratio", "hw.sm_clock_ratio", "hw.power_ratio", "hw.power_limit_w",
        "hw.power_limit_max_w", "hw.thermal_time_ratio",
    )  # fmt: skip
    text = """Large matrix products draw all the power that a board may use, and the driver then lowers the clock a little. An H100 works like this at full
load; it is no fault. The lost clock decides: 5 % or more under load. If the limit is below the highest limit of the board, a person has
set it. Otherwise the finding is a note. An external brake is different: the power supply or the management of the server requests it."""

    def judge(self, case: Case) -> Finding:
        held, loss = clocks.held_by_power(case), clocks.clock_loss(case)
        evidence = case.evidence(("hw.power_cap_time_ratio", TIME), ("hw.sm_clock_ratio", 1 - LOSS)) + case.if_known(
            "hw.power_brake_time_ratio", "hw.power_ratio", "hw.power_limit_w", "hw.power_limit_max_w"
        )
        level = min(held / TIME, loss / LOSS)
        if level < 1:
            return self.clear(level, evidence)
        cure = _cure(case)
        summary = (
            f"power lowers the clock for {percent(held)} of the time; under load the SM clock is {percent(1 - loss)} of its maximum. "
            + (cure or "The limit is at its maximum, so the board cannot do more")
        )
        recoverable = clocks.lost_to_power(case) if cure else 0.0
        return self.fires(level, evidence, summary, recoverable=recoverable, confidence="medium", note=not cure)


def _cure(case: Case) -> str:
    """The advice; "" if nothing helps, or if the highest limit is not known."""
    if case.get("hw.power_brake_time_ratio", 0.0) >= TIME:
        return "An external brake signal is the cause: check the power supply, and a cap for the whole server (BMC)"
    limit, most = case.get("hw.power_limit_w", 0.0), case.get("hw.power_limit_max_w", 0.0)
    if 0 < limit < RAISABLE * most:
        return f"The limit of {limit:.0f} W may be raised to {most:.0f} W: nvidia-smi -pl {most:.0f} (root)"
    return ""
