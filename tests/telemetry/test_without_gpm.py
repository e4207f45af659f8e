"""GPUs without the counters of GPM: why, and what the overview shows in their place."""

from __future__ import annotations

import pytest

from gpuconsole.telemetry.nvml.gpm import NEEDS_HOPPER, NOT_OFFERED
from tests.conftest import Machine
from tests.telemetry.overview import row_of, screen, view_of
from tests.telemetry.sampling import SamplerChild


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("gpm_support 0", "architecture 10"), NOT_OFFERED),
        (("gpm_support 0", "architecture 7"), NEEDS_HOPPER),
        (("error nvmlGpmQueryDeviceSupport 13", "architecture 5"), NEEDS_HOPPER),
        (
            ("gpm_support 0", "error nvmlDeviceGetArchitecture 13", "capability_major 7"),
            NEEDS_HOPPER,
        ),
        (("error nvmlGpmQueryDeviceSupport 13",), "this driver is too old for the call"),
    ],
)
def test_why_there_is_no_gpm(machine: Machine, lines: tuple[str, ...], reason: str) -> None:
    _, environment = machine("gpus 1", *(f"gpu 0 {line}" for line in lines))
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.reasons("gpu:0")["gpu.sm_active_ratio"] == reason


@pytest.mark.parametrize("width", [80, 120, 170])
def test_without_gpm_the_overview_shows_the_utilization_of_nvidia_smi(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    _, environment = machine(
        "gpus 2", "gpu * gpm_support 0", "gpu * architecture 7", "gpu * utilization_pct 96"
    )
    view = view_of(environment, monkeypatch)
    (heads,) = (row for row in screen(view, width) if "state" in row and "power" in row)
    assert "GPU-Util" in heads and " SM" not in heads.replace("SM clock", "")
    assert " 96 %" in row_of(view, "gpu:0", width)


@pytest.mark.parametrize("width", [60, 80, 120, 170])
def test_a_gpu_without_gpm_beside_one_with_it_has_the_utilization_under_its_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    _, environment = machine(
        "gpus 2", "gpu * gpm 2 41", "gpu 1 gpm_support 0", "gpu * utilization_pct 96"
    )
    view = view_of(environment, monkeypatch)
    (heads,) = (row for row in screen(view, width) if "state" in row and "power" in row)
    if width == 60:  # no room for both
        assert "SM or util" in heads
        assert " 41 %" in row_of(view, "gpu:0", width) and "util" not in row_of(
            view, "gpu:0", width
        )
        assert "util 96 %" in row_of(view, "gpu:1", width)
    else:
        at = heads.index("GPU-Util") + len("GPU-Util")
        assert row_of(view, "gpu:1", width)[:at].endswith(" n/a      96 %")
        assert " 41 % " in row_of(view, "gpu:0", width)[: at - len("GPU-Util")]


def test_slices_with_gpm_do_not_give_its_name_to_the_utilization_of_a_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = (
        "gpu 1 mig 1",
        "gpu 1 mig_slice 3 19000000000 1000000",
        "gpu 1 mig_gpm 3 2 41",
        "gpu 1 error nvmlDeviceGetUtilizationRates 3",
    )
    _, environment = machine("gpus 2", "gpu * gpm_support 0", "gpu 0 utilization_pct 96", *slices)
    view = view_of(environment, monkeypatch)
    assert "util 96 %" in row_of(view, "gpu:0") and " 41 %" in row_of(view, "gpu:1/mig:0")
