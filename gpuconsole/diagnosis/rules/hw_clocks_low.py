"""hw.clocks_low: the SM clock is low under load, and neither heat nor power is why."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _gpu
from gpuconsole.model.finding import Finding

CLOCK = Threshold("clock", 0.90, "ratio", "9 tenths of the highest SM clock (DIAGNOSIS T40)")
HELD = Threshold("held", 0.10, "ratio", "heat, power or another cause for a tenth of the time explains a low clock: theirs is another rule")
SET = 0.5


class HwClocksLow(Rule):
    id = "hw.clocks_low"
    title = "The GPU clock is set too low"
    clear_title = "The GPU clock is not set too low"
    subject = "hardware"
    thresholds = (CLOCK, HELD)
    text = """The driver says why clocks are low: nothing to do, heat, power, sync boost, voltage, or a setting of application clocks. Where they are
below nine tenths under load and it names a setting, or nothing at all (locked clocks have no reason of their own), somebody has set
them, for a benchmark or to save power, and has not set them back. Readings without load are left out."""

    def check(self, case: Case) -> Finding:
        if not _gpu.on_gpu(case):
            return self.not_on_gpu()
        clock, loss = case.value("hw.sm_clock_ratio"), _gpu.clock_loss(case)
        causes = {
            "heat": case.value("hw.thermal_time_ratio"),
            "power": _gpu.held_by_power(case),
            "other": case.value("hw.other_hold_time_ratio"),
        }
        by_setting = case.value("hw.app_clocks_ratio") >= SET
        evidence = (
            case.evidence("hw.sm_clock_ratio", CLOCK.value),
            case.evidence("hw.app_clocks_ratio"),
            case.evidence("hw.thermal_time_ratio", HELD.value),
            case.evidence("hw.power_cap_time_ratio", HELD.value),
            case.evidence("hw.other_hold_time_ratio", HELD.value),
        )
        level = loss / (1 - CLOCK.value)
        if clock >= CLOCK.value:
            return self.clear(min(0.99, level), evidence)
        if max(causes.values()) >= HELD.value:
            return self.clear(0.5, evidence, "clocks are held down by what the driver names: heat, power, sync boost or voltage")
        why = (
            "a setting of application clocks holds it: nvidia-smi -rac takes it back (root)"
            if by_setting
            else "the driver names no reason, as with locked clocks: nvidia-smi -q -d CLOCK,PERFORMANCE shows them, nvidia-smi -rgc unlocks (root)"
        )
        return self.fires(
            f"under load the SM clock is {clock:.0%} of its maximum; {why}",
            recoverable=min(_gpu.MOST, loss),
            confidence="high" if by_setting else "medium",
            evidence=evidence,
            level=level,
        )
