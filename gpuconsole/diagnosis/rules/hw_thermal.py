"""hw.thermal: heat lowers the GPU clock."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent

TIME = Threshold(
    "thermal_time",
    0.05,
    "ratio",
    "the driver counts the time in which heat lowers clocks; a healthy GPU has none (survey T38)",
)
LOSS = Threshold("clock_loss", 0.03, "ratio", "two healthy boards differ by up to 3 % of the clock")
SURE = 0.5


class HwThermal(Rule):
    id = "hw.thermal"
    title = "The GPU is too hot and lowers its clock"
    clear_title = "Heat does not lower the GPU clock"
    subject = "hardware"
    gpu_only = True
    thresholds = (TIME, LOSS)
    reads = (
        "is_gpu", "hw.thermal_time_ratio", "hw.sm_clock_ratio", "hw.temperature_c",
        "hw.power_cap_time_ratio", "hw.power_brake_time_ratio",
    )  # fmt: skip
    ignore = (
        "You cannot change the cooling: then compare runs only after the GPU has reached the same"
        " temperature."
    )
    text = """The driver counts the time in which the GPU or its memory was too hot for its clocks
and was slowed by the driver or by the hardware. This counter decides together with the SM clock
under load. The temperature does not decide: 85 °C is no problem while no clock is lost. Readings
without load are left out, since an idle GPU lowers its clocks to save power. Memory-bound work
loses less than the clock suggests."""

    def judge(self, case: Case) -> Finding:
        held, loss = case.value("hw.thermal_time_ratio"), device.clock_loss(case)
        evidence = case.evidence(
            ("hw.thermal_time_ratio", TIME), ("hw.sm_clock_ratio", 1 - LOSS)
        ) + case.if_known("hw.temperature_c")
        level = min(held / TIME, loss / LOSS)
        if level < 1:
            return self.clear(level, evidence)
        summary = (
            f"heat lowers the clock for {percent(held)} of the time; under load the SM clock is"
            f" {percent(1 - loss)} of its usual value. Check the cooling: airflow, fans, dust,"
            " inlet temperature, hot air from other devices. No setting of the job helps"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=device.lost_to_heat(case),
            confidence=high_if(held >= SURE),
        )
