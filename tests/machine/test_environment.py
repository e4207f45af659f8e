"""Which device a run uses."""

from __future__ import annotations

import pytest

from gpuconsole.machine.environment import DeviceChoiceError, choose_device
from gpuconsole.model.machine.device import Device

CPU = Device("cpu", "host")
GPUS = [Device("gpu:0", "H200"), Device("gpu:1", "H200")]
SLICED = [Device("gpu:0", "H200"), Device("gpu:0/mig:0", "H200 MIG"), Device("gpu:0/mig:1", "H200 MIG"), Device("gpu:1", "H200")]


@pytest.mark.parametrize(
    ("devices", "lost", "expected"),
    [
        ([], (), "cpu"),
        ([CPU], (), "cpu"),
        ([*GPUS, CPU], (), "gpu:0"),
        ([*GPUS, CPU], ("gpu:0",), "gpu:1"),
        ([*GPUS, CPU], ("gpu:0", "gpu:1"), "cpu"),
        ([*SLICED, CPU], (), "gpu:0/mig:0"),  # a GPU in MIG mode runs programs only on its slices
    ],
)
def test_the_first_usable_gpu_else_the_cpu(devices: list[Device], lost: tuple[str, ...], expected: str) -> None:
    assert choose_device(devices, None, lost).id == expected


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceChoiceError, match=r"there is no device 'gpu:9'; there are: gpu:0, gpu:1, cpu"):
        choose_device([*GPUS, CPU], "gpu:9", ())
