"""The torch device of a run, on accelerators that no test machine has: stand-ins for what torch says of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpuconsole.agent.account import StepAccount
from gpuconsole.agent.probes import ProbeError
from gpuconsole.agent.world import World
from gpuconsole.workloads import device as subject
from gpuconsole.workloads.calibration.stages import prepare
from gpuconsole.workloads.device import DeviceError, account_for, refuse_unless_tested, refusing, torch_device
from gpuconsole.workloads.device_memory import allocator_stats
from gpuconsole.workloads.profiling.window import Recorder
from tests.agent.test_account import Timeline

MPS = torch.device("mps")


def world_of(size: int) -> World:
    world = World()
    world.size = size
    return world


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the device's choice sets it


def torch_has(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: bool(kind))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))


def test_apples_gpu_trains_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_has(monkeypatch, "mps")
    assert torch_device("gpu:0", "", World()) == MPS and torch_device("cpu", "", World()) == torch.device("cpu")
    with pytest.raises(DeviceError, match="several processes cannot train on mps: --set nproc=1"):
        torch_device("gpu:0", "", world_of(2))
    with pytest.raises(DeviceError, match="gemm has no sizes for mps; run on the host with --device cpu"):
        refuse_unless_tested(MPS, "gemm")


@pytest.mark.parametrize(("kind", "reason"), [("xpu", "torch's accelerator here is xpu"), ("", "cannot use gpu:0")])
def test_an_accelerator_that_nobody_could_test_is_named(monkeypatch: pytest.MonkeyPatch, kind: str, reason: str) -> None:
    torch_has(monkeypatch, kind)
    with pytest.raises(DeviceError, match=f"{reason}.*run on the host with --device cpu"):
        torch_device("gpu:0", "", World())


def test_rocm_is_torch_cuda_with_the_gpus_index(monkeypatch: pytest.MonkeyPatch) -> None:
    made_current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert torch_device("gpu:1", "", World()) == torch.device("cuda", 0) == made_current[0]
    assert subject.os.environ["CUDA_VISIBLE_DEVICES"] == "1", "HIP obeys it, too"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert subject.build() == "ROCm 7.0"


def test_calibration_of_another_accelerator_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch_has(monkeypatch, "mps")
    try:
        with pytest.raises(RuntimeError, match="mps is not calibrated; the host is calibrated with --device cpu"):
            prepare("gpu:0", "", 1.0, tmp_path)
    finally:
        torch.set_grad_enabled(True)


def test_steps_on_mps_are_timed_by_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline()
    event = timeline.event_type()
    monkeypatch.setattr(torch.mps, "event", SimpleNamespace(Event=lambda enable_timing: event(enable_timing, False)))
    account = account_for(MPS)
    account.mark(2)
    account.end(4, 0, None, 0, 0)
    timeline.reached = timeline.recorded
    account.finish()  # how long a step takes is known from here on
    assert len(account.take()) == 1
    for _ in range(3):
        account.mark(2)
        account.end(4, 0, None, 0, 0)
    assert account.take() == [], "the host does not wait"
    timeline.reached = timeline.recorded
    account.finish()
    assert len(account.take()) == 3
    assert type(account_for(torch.device("cpu"))) is StepAccount


def test_what_is_not_measured_on_mps_says_so(tmp_path: Path) -> None:
    assert allocator_stats(MPS) == {}, "the heap of the host is not the device's memory"
    assert Recorder(MPS, tmp_path / "trace").error == "torch.profiler does not see what runs on mps"
    with pytest.raises(ProbeError, match="not tested on this kind of device"):
        refusing(["launch"])["launch"]()
