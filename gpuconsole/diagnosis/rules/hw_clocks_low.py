"""hw.clocks_low: the SM clock is low under load, and neither heat nor power is why."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, Threshold, clear, fires
from gpuconsole.diagnosis.rules import _gpu
from gpuconsole.model.finding import Finding

ID = "hw.clocks_low"
TITLE = "The GPU's clock is set low"
CLOCK = Threshold("clock", 0.90, "ratio", "9 tenths of the highest SM clock (DIAGNOSIS T40)")
HELD = Threshold("held", 0.10, "ratio", "heat, power or another cause for a tenth of the time explains a low clock: theirs is another rule")
SET = 0.5


def check(case: Case) -> Finding:
    if not _gpu.on_gpu(case):
        return _gpu.not_on_gpu(ID, TITLE)
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
        return clear(ID, TITLE, min(0.99, level), evidence)
    if max(causes.values()) >= HELD.value:
        return clear(ID, TITLE, 0.5, evidence, "clocks are held down by what the driver names: heat, power, sync boost or voltage")
    why = (
        "a setting of application clocks holds it: nvidia-smi -rac takes it back (root)"
        if by_setting
        else "the driver names no reason, as with locked clocks: nvidia-smi -q -d CLOCK,PERFORMANCE shows them, nvidia-smi -rgc unlocks (root)"
    )
    return fires(
        ID,
        TITLE,
        f"under load the SM clock is {clock:.0%} of its maximum; {why}",
        recoverable=min(_gpu.MOST, loss),
        confidence="high" if by_setting else "medium",
        evidence=evidence,
        level=level,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=(
        "is_gpu",
        "hw.sm_clock_ratio",
        "hw.thermal_time_ratio",
        "hw.power_cap_time_ratio",
        "hw.other_hold_time_ratio",
        "hw.app_clocks_ratio",
    ),
    thresholds=(CLOCK, HELD),
    text="""The driver says why clocks are low: nothing to do, heat, power, sync boost, voltage, or a setting of application clocks. Where they are
below nine tenths under load and it names a setting, or nothing at all (locked clocks have no reason of their own), somebody has set
them, for a benchmark or to save power, and has not set them back. Readings without load are left out.""",
    check=check,
    shared=True,
)
