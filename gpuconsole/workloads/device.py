"""The torch device of a run. CUDA and AMD's ROCm build share `torch.cuda`; Apple's GPU is `mps`. ROCm and MPS are untested on hardware."""

from __future__ import annotations

import os

import torch

from gpuconsole.agent.account import CudaStepAccount, StepAccount
from gpuconsole.agent.clock import ThreadTimes
from gpuconsole.agent.loop import Probe, Signals
from gpuconsole.agent.world import PlainError, World

ON_HOST = "run on the host with --device cpu"
NO_PROBES = "probes are not tested on this kind of device (mps)"


class DeviceError(PlainError):
    """The device exists, but this torch or this workload cannot use it."""


def torch_device(chosen: str, uuid: str, world: World) -> torch.device:
    """The device of this process, made current. `chosen`: `cpu` or `gpu:N`; `uuid` names that GPU to CUDA. Raises DeviceError."""
    if chosen == "cpu":
        return torch.device("cpu")
    # NVML counts by PCI bus and sees every GPU; CUDA counts by speed and obeys CUDA_VISIBLE_DEVICES (so does ROCm). The uuid is unambiguous.
    if world.size == 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid or chosen.partition(":")[2]
    if torch.cuda.is_available():
        if world.size > 1 and world.local_rank >= torch.cuda.device_count():
            raise DeviceError(f"every process needs a GPU, and torch sees {torch.cuda.device_count()} here: --set nproc=N")
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
        return device
    kind = accelerator()
    if kind == "mps" and world.size == 1:
        return torch.device("mps")
    if kind == "mps":
        raise DeviceError(f"several processes cannot train on mps: --set nproc=1, or {ON_HOST}")
    if kind:
        raise DeviceError(f"torch's accelerator here is {kind}; gpuconsole knows cuda (NVIDIA, AMD) and mps: {ON_HOST}")
    raise DeviceError(f"torch {torch.__version__} ({build()}) cannot use {chosen}; {ON_HOST}")


def accelerator() -> str:
    """The kind of accelerator that torch can use, such as cuda, mps or xpu; empty where there is none."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else ""


def build() -> str:
    """What this torch is built for."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "a CPU build"


def refuse_unless_tested(device: torch.device, workload: str) -> None:
    """Raises DeviceError for a workload whose sizes exist for CUDA and the CPU only."""
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"{workload} has no sizes for {device.type}; {ON_HOST}")


def account_for(device: torch.device) -> StepAccount:
    """The account that reads the device's own clock."""
    if device.type == "cpu":
        return StepAccount(ThreadTimes())
    return CudaStepAccount(ThreadTimes(), mps_event if device.type == "mps" else None)


def mps_event() -> torch.mps.event.Event:
    """An event of Metal's command queue, with the methods of a CUDA event."""
    return torch.mps.event.Event(enable_timing=True)


def refusing(names: list[str]) -> dict[str, Probe]:
    """Probes that say why they do not run."""
    from gpuconsole.agent.probes import ProbeError

    def refuse() -> Signals:
        raise ProbeError(NO_PROBES)

    return dict.fromkeys(names, refuse)
