"""Which torch runs on which driver and card, and what to install where it does not."""

from __future__ import annotations

import pytest

from gpuconsole.host.torch_build import Card, Driver, TorchBuild, lacks_code, why_unusable

PYPI = TorchBuild("2.13.0+cu130", "13.0")
OLD = Driver("535.104.05", "12.2")
NEW = Driver("580.159.03", "13.0")
H100, V100, B200 = (
    Card("NVIDIA H100", "9.0"),
    Card("Tesla V100-SXM2-16GB", "7.0"),
    Card("NVIDIA B200", "10.0"),
)
CU126 = "--index-url https://download.pytorch.org/whl/cu126"
CU130_CODE = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")


def test_the_driver_is_too_old_for_the_wheel_of_pypi() -> None:
    assert why_unusable(PYPI, OLD, H100) == (
        "driver 535.104.05 is too old for torch 2.13.0 (CUDA 13.0), which needs driver 580 or"
        f" newer: pip install --force-reinstall torch==2.13.0 {CU126}"
    )


@pytest.mark.parametrize(
    ("torch", "driver"),
    [
        (PYPI, NEW),
        (TorchBuild("2.13.0+cu126", "12.6"), OLD),  # CUDA 12.x runs on every driver of CUDA 12
        (TorchBuild("2.13.0+cu126", "12.6"), NEW),
        (PYPI, Driver("535.104.05", "13.0")),  # with cuda-compat
        (PYPI, Driver()),  # nothing is known
    ],
)
def test_what_runs_is_not_accused(torch: TorchBuild, driver: Driver) -> None:
    assert why_unusable(torch, driver, H100) == ""


@pytest.mark.parametrize(
    ("torch", "driver", "card", "command"),
    [
        (
            PYPI,
            Driver("570.133.20", "12.8"),
            B200,
            "'torch<2.12' --index-url https://download.pytorch.org/whl/cu128",
        ),
        (
            PYPI,
            Driver("470.57.02", "11.4"),
            H100,
            "'torch<2.8' --index-url https://download.pytorch.org/whl/cu118",
        ),
        (TorchBuild("2.15.0+cu132", "13.2"), OLD, H100, f"'torch<2.15' {CU126}"),
        (TorchBuild("2.13.0+cpu"), NEW, H100, "torch==2.13.0"),
        (TorchBuild("2.13.0+cpu"), OLD, H100, f"torch==2.13.0 {CU126}"),
        (TorchBuild("2.6.0+cu118", "11.8"), NEW, B200, "'torch>=2.11'"),
    ],
)
def test_what_to_install(torch: TorchBuild, driver: Driver, card: Card, command: str) -> None:
    assert why_unusable(torch, driver, card).endswith(f": pip install --force-reinstall {command}")


def test_a_driver_for_which_no_torch_is_made() -> None:
    assert why_unusable(PYPI, Driver("390.157", "9.1"), H100).endswith(
        "no build of torch runs on this driver and card; install a newer driver"
    )


def test_a_card_that_the_wheel_has_no_code_for() -> None:
    asked = PYPI._replace(archs=CU130_CODE)
    for torch in (PYPI, asked):
        assert why_unusable(torch, NEW, V100) == (
            "torch 2.13.0 (CUDA 13.0) has no code for Tesla V100-SXM2-16GB (compute capability"
            f" 7.0): pip install --force-reinstall torch==2.13.0 {CU126}"
        )


@pytest.mark.parametrize(
    ("archs", "capability", "lacks"),
    [
        (CU130_CODE, "8.9", False),  # code for 8.6 runs on 8.9
        (CU130_CODE, "12.1", False),
        (CU130_CODE, "7.0", True),
        (("sm_80", "sm_90a"), "9.0", False),
        (("sm_80", "sm_90a"), "10.0", True),
        (("sm_80", "compute_80"), "10.0", False),  # the driver compiles PTX
        (("sm_86",), "8.0", True),
    ],
)
def test_code_for_a_card(archs: tuple[str, ...], capability: str, lacks: bool) -> None:
    assert lacks_code(PYPI._replace(archs=archs), Card("", capability)) is lacks
