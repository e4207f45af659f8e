"""hw.power: the power limit, or a brake from outside, costs the GPU a good part of its clock."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _gpu
from gpuconsole.model.finding import Finding

TIME = Threshold("power_time", 0.10, "ratio", "a tenth of the time (DIAGNOSIS T39)")
LOSS = Threshold(
    "clock_loss", 0.05, "ratio", "at full load a power cap is normal on an H100; below 5 % of the clock it is no matter (DIAGNOSIS T39)"
)
RAISABLE = 0.99
"""A limit below this share of the highest one is a setting that somebody has made."""


class HwPower(Rule):
    id = "hw.power"
    title = "The power limit lowers the GPU clock"
    clear_title = "The power limit costs little GPU clock"
    subject = "hardware"
    thresholds = (TIME, LOSS)
    text = """Large matrix products draw all the power that a board may have, and the driver then lowers the clock a little: that is how an H100 works
at full load, and not a fault. What counts is the clock that it costs: 5 % or more under load. Where the limit is below the highest that
the board allows, somebody has set it so; where it is not, this is for information. A brake from outside is another matter: the power
supply or the server's management asks for it."""

    def check(self, case: Case) -> Finding:
        if not _gpu.on_gpu(case):
            return self.not_on_gpu()
        held, loss = _gpu.held_by_power(case), _gpu.clock_loss(case)
        evidence = (
            case.evidence("hw.power_cap_time_ratio", TIME.value),
            case.evidence("hw.sm_clock_ratio", 1 - LOSS.value),
            *case.if_known("hw.power_brake_time_ratio", "hw.power_ratio", "hw.power_limit_w", "hw.power_limit_max_w"),
        )
        level = min(held / TIME.value, loss / LOSS.value)
        if level < 1:
            return self.clear(level, evidence)
        cure = _cure(case)
        return self.fires(
            f"power holds clocks down for {held:.0%} of the time; under load the SM clock is {1 - loss:.0%} of its maximum. "
            + (cure or "The limit is as high as it goes, so this is what the board can do"),
            recoverable=_gpu.lost_to_power(case) if cure else 0.0,
            confidence="medium",
            evidence=evidence,
            level=level,
            note=not cure,
        )


def _cure(case: Case) -> str:
    """What can be done about it; empty where nothing can, or where nobody says what the highest limit is."""
    if case.get("hw.power_brake_time_ratio", 0.0) >= TIME.value:
        return "A brake signal from outside does it: see to the power supply, and to a cap for the whole server (BMC)"
    limit, most = case.get("hw.power_limit_w", 0.0), case.get("hw.power_limit_max_w", 0.0)
    if 0 < limit < RAISABLE * most:
        return f"The limit of {limit:.0f} W may be raised to {most:.0f} W: nvidia-smi -pl {most:.0f} (root)"
    return ""
