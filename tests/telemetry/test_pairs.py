"""Values that contradict each other. The cases are of public issues: nvtop 411 432 436, beszel
1589."""

from __future__ import annotations

import pytest

from gpuconsole.telemetry.nvml.calls import BELOW_ZERO, MORE_THAN_ALL, NO_TOTAL
from tests.conftest import Machine
from tests.telemetry.sampling import SamplerChild


@pytest.mark.parametrize(
    ("lines", "wrong", "reason"),
    [
        (("memory_used_bytes 1.6e11",), {"hbm_used_bytes", "hbm_reserved_bytes"}, MORE_THAN_ALL),
        (
            ("memory_total_bytes 0", "memory_used_bytes 0", "memory_reserved_bytes 0"),
            {"hbm_used_bytes", "hbm_free_bytes", "hbm_reserved_bytes", "hbm_total_bytes"},
            NO_TOTAL,
        ),
        (
            ("power_mw 590000", "power_limit_mw 160000", "field 186 209000"),
            {"power_w"},
            "the driver reports 590 W at a limit of 160 W",
        ),
        (("temperature_c -1",), {"temperature_c"}, BELOW_ZERO),
        (
            ("temperature_c 0", "utilization_pct 22"),
            {"temperature_c"},
            "the driver reports 0 degrees at a utilization of 22 %",
        ),
        (
            ("sm_clock_mhz 0", "utilization_pct 22"),
            {"sm_clock_hz"},
            "the driver reports an SM clock of 0 at a utilization of 22 %",
        ),
        (
            ("power_mw 0", "utilization_pct 22"),
            {"power_w"},
            "the driver reports 0 W at a utilization of 22 %",
        ),
        (("power_mw 0", "sm_clock_mhz 0", "utilization_pct 0"), set(), ""),
        (("power_mw 900000", "power_limit_mw 700000"), set(), ""),
    ],
)
def test_of_two_values_that_contradict_each_other_the_wrong_one_is_unknown(
    machine: Machine, lines: tuple[str, ...], wrong: set[str], reason: str
) -> None:
    _, environment = machine("gpus 1", *(f"gpu 0 {line}" for line in lines))
    metrics = {f"gpu.{name}" for name in wrong}
    with SamplerChild(environment) as child:
        child.rounds(3)
        assert {name for name, why in child.reasons("gpu:0").items() if why == reason} == metrics
        assert not metrics & child.values("gpu:0").keys()
        if not wrong:
            assert {"gpu.power_w", "gpu.sm_clock_hz"} <= child.values("gpu:0").keys()
