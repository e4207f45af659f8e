"""hw.clocks_low: the SM clock is low under load, and neither heat nor power explains it."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    Case,
    Finding,
    Rule,
    Threshold,
    high_if,
    percent,
    short_of,
)

CLOCK = Threshold("clock", 0.90, "ratio", "90 % of the highest SM clock (survey T40)")
HELD = Threshold(
    "held",
    0.10,
    "ratio",
    (
        "heat, power or another cause for 10 % of the time explains a low clock; other rules report"
        " these"
    ),
)
SET = 0.5


class HwClocksLow(Rule):
    id = "hw.clocks_low"
    title = "The GPU clock is set too low"
    clear_title = "The GPU clock is not set too low"
    subject = "hardware"
    gpu_only = True
    thresholds = (CLOCK, HELD)
    reads = (
        "is_gpu", "hw.sm_clock_ratio", "hw.thermal_time_ratio", "hw.power_cap_time_ratio",
        "hw.power_brake_time_ratio", "hw.other_hold_time_ratio", "hw.app_clocks_ratio",
        "hw.clock_unsure",
    )  # fmt: skip
    ignore = "The clock is locked on purpose, for example to compare runs."
    text = """The driver reports why clocks are low: no load, heat, power, sync boost, voltage, or a
setting of application clocks. If the clock is below 90 % of its maximum under load (GeForce and
workstation cards: of the boost clock of the datasheet) and the driver names a setting or no reason
at all (the driver has no reason for locked clocks), a person has set the clock low, for a benchmark
or to save power, and has not restored it. Readings without load are left out."""

    def judge(self, case: Case) -> Finding:
        clock, loss = case.value("hw.sm_clock_ratio"), device.clock_loss(case)
        held = max(
            case.value("hw.thermal_time_ratio"),
            device.held_by_power(case),
            case.value("hw.other_hold_time_ratio"),
        )
        by_setting = case.value("hw.app_clocks_ratio") >= SET
        holds = (
            (f"hw.{cause}_time_ratio", HELD) for cause in ("thermal", "power_cap", "other_hold")
        )
        evidence = case.evidence(("hw.sm_clock_ratio", CLOCK), "hw.app_clocks_ratio", *holds)
        level = loss / (1 - CLOCK)
        if clock >= CLOCK:
            return self.clear(short_of(level), evidence)
        if held >= HELD:
            return self.clear(
                0.5,
                evidence,
                "the driver names the cause of the low clock: heat, power, sync boost or voltage",
            )
        why = (
            "a setting of application clocks is the cause: nvidia-smi -rac resets it (root)"
            if by_setting
            else (
                "the driver names no reason, as with locked clocks: nvidia-smi -q -d"
                " CLOCK,PERFORMANCE shows locks, nvidia-smi -rgc removes them (root)"
            )
        )
        summary = f"under load the SM clock is {percent(clock)} of its usual value; {why}"
        if not by_setting and not device.loss_is_sure(case):
            return self.note(
                level,
                evidence,
                (
                    f"{summary}. The boost clock of this card is not known, and its maximum is"
                    " rarely reached"
                ),
                confidence="low",
            )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=min(MAX_SHARE, loss),
            confidence=high_if(by_setting),
        )
