"""Which device a run uses."""

from __future__ import annotations

import pytest

from gpuconsole.engine.devices import (
    DeviceChoiceError,
    choose_devices,
    cuda_names,
    visible_gpus,
)
from gpuconsole.model.machine import Device

CPU = Device("cpu", "host")
GPUS = [Device("gpu:0", "H200"), Device("gpu:1", "H200")]
SLICED = [
    Device("gpu:0", "H200"),
    Device("gpu:0/mig:0", "H200 MIG"),
    Device("gpu:0/mig:1", "H200 MIG"),
    Device("gpu:1", "H200"),
]


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
def test_the_first_usable_gpu_else_the_cpu(
    devices: list[Device], lost: tuple[str, ...], expected: str
) -> None:
    assert choose_devices(devices, None, lost)[0].id == expected


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(
        DeviceChoiceError, match=r"there is no device 'gpu:9'; there are: gpu:0, gpu:1, cpu"
    ):
        choose_devices([*GPUS, CPU], "gpu:9", ())


BOX = [*(Device(f"gpu:{n}", "H200", uuid=f"GPU-{n}{n}{n}{n}-aaaa") for n in range(4)), CPU]


@pytest.mark.parametrize(
    ("restriction", "expected"),
    [
        (None, ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]),
        ("3", ["gpu:3"]),
        ("2,0", ["gpu:2", "gpu:0"]),
        ("GPU-2222,GPU-1111-aaaa", ["gpu:2", "gpu:1"]),
        ("1,9,2", ["gpu:1"]),  # CUDA stops at the first entry that names no device
        ("1,1", ["gpu:1"]),
        ("-1", []),
        ("", []),
    ],
)
def test_the_user_restricts_the_gpus(
    restriction: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [device.id for device in visible_gpus(BOX, restriction)] == expected
    assert [device.id for device in choose_devices(BOX, None, (), restriction)] == (
        expected or ["cpu"]
    )


def test_further_processes_use_further_visible_gpus() -> None:
    assert (
        cuda_names(choose_devices(BOX, "gpu:2", ("gpu:1",), "0,1,2")[:2])
        == "GPU-2222-aaaa,GPU-0000-aaaa"
    )
    assert cuda_names([BOX[1], Device("gpu:2", "H200")]) == "1,2" and cuda_names([CPU]) == ""


def test_a_device_that_the_user_has_hidden() -> None:
    with pytest.raises(
        DeviceChoiceError, match="gpu:0 is hidden from CUDA programs by CUDA_VISIBLE_DEVICES=3"
    ):
        choose_devices(BOX, "gpu:0", (), "3")
    assert choose_devices(BOX, "cpu", (), "3") == [CPU]


def test_a_gpu_in_slices_is_no_device_of_a_run() -> None:
    with pytest.raises(
        DeviceChoiceError,
        match="gpu:0 is in MIG mode, and programs run on its slices: gpu:0/mig:0, gpu:0/mig:1",
    ):
        choose_devices([*SLICED, CPU], "gpu:0", ())
    slices = [
        Device("gpu:0", "H200", uuid="GPU-1"),
        Device("gpu:0/mig:0", "slice", uuid="MIG-a"),
        Device("gpu:0/mig:1", "slice", uuid="MIG-b"),
    ]
    assert [one.id for one in visible_gpus(slices, "MIG-b")] == ["gpu:0/mig:1"]
    assert [one.id for one in visible_gpus(slices, "0")] == ["gpu:0/mig:0"], (
        "CUDA takes the first slice"
    )
