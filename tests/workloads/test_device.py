"""What torch says where it cannot use a GPU of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpuconsole.agent.world import World
from gpuconsole.workloads import device as subject
from gpuconsole.workloads.calibration.stages import prepare
from gpuconsole.workloads.device import DeviceError, torch_device


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the device's choice sets it


def test_a_torch_that_cannot_use_the_gpu_says_how_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert subject.build() == "ROCm 7.0"
    with pytest.raises(DeviceError, match="cannot use gpu:0; run on the host with --device cpu"):
        torch_device("gpu:0", "", World())
    assert torch_device("cpu", "", World()) == torch.device("cpu")


def test_calibration_on_such_a_gpu_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    try:
        with pytest.raises(
            RuntimeError, match="cannot use gpu:0; the host is calibrated with --device cpu"
        ):
            prepare("gpu:0", "", 1.0, tmp_path)
    finally:
        torch.set_grad_enabled(True)
