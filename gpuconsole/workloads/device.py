"""The device of a workload as torch sees it, and dense arithmetic as every workload sets it up:
kinds, number types, matrix precision and threads."""

from __future__ import annotations

import os
from typing import Literal

import torch

from gpuconsole.agent.clock import ThreadTimes
from gpuconsole.agent.protocol import PlainError
from gpuconsole.agent.step_breakdown import CudaStepBreakdown, StepBreakdown
from gpuconsole.agent.world import World
from gpuconsole.host.cores import cores
from gpuconsole.host.torch_build import Card, Driver, TorchBuild, lacks_code, why_unusable
from gpuconsole.workloads.driver import installed_driver

# --- arithmetic -----------------------------------------------------------------------------------

Kind = Literal["matrix product", "3x3 convolution"]
"""The dense arithmetic that a workload mostly consists of. Its speed is compared with the device's
speed at the same kind."""
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""The number type of the operands at each value of the knob `precision`."""


def set_matmul_precision(precision: str) -> None:
    """Use TF32 for fp32 matrix products and convolutions where `precision` is tf32 and the device
    has it. A CPU ignores the setting."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    # torch uses it for fp32 convolutions by default
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def set_threads(num_threads: int) -> int:
    """Set the number of threads within an operator; 0 leaves one core to loader, console and other
    processes. Returns the number in use."""
    # processes that torchrun started on this machine
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = num_threads or max(1, (cores() - 1) // sharing)
    torch.set_num_threads(threads)
    return threads


# --- the device -----------------------------------------------------------------------------------

ON_HOST = "run on the host with --device cpu"


class DeviceError(PlainError):
    """The device exists, but this torch or this workload cannot use it."""


def torch_device(chosen: str, uuid: str, world: World) -> torch.device:
    """The device of this process, made current. `chosen`: `cpu` or `gpu:N`; `uuid` names that GPU
    to CUDA. Raises DeviceError."""
    if chosen == "cpu":
        return torch.device("cpu")
    # NVML counts by PCI bus and sees every GPU; CUDA counts by speed and obeys
    # CUDA_VISIBLE_DEVICES. The uuid is unambiguous.
    if world.size == 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid or chosen.partition(":")[2]
    if torch.cuda.is_available():
        if world.size > 1 and world.local_rank >= torch.cuda.device_count():
            raise DeviceError(
                f"every process needs a GPU, and torch sees {torch.cuda.device_count()} here: --set"
                " nproc=N"
            )
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
        refuse_without_code(device)
        return device
    raise DeviceError(without_cuda(chosen))


def without_cuda(chosen: str) -> str:
    """Why torch cannot use the GPU `chosen`, and what to do, in one line."""
    why = "" if torch.version.hip else why_unusable(installed_build(), installed_driver())
    return (
        f"torch {torch.__version__} ({build()}) cannot use {chosen}{f': {why}. Or' if why else ';'}"
        f" {ON_HOST}"
    )


def installed_build() -> TorchBuild:
    """The torch of this process."""
    return TorchBuild(
        torch.__version__, torch.version.cuda or "", tuple(torch.cuda.get_arch_list())
    )


def refuse_without_code(device: torch.device) -> None:
    """Raises DeviceError where this torch has no code for the GPU. Its first kernel would fail with
    "no kernel image is available"."""
    if not torch.version.cuda:
        return
    major, minor = torch.cuda.get_device_capability(device)
    card = Card(torch.cuda.get_device_name(device), f"{major}.{minor}")
    if lacks_code(installed_build(), card):
        driver = installed_driver()
        driver = (
            driver if driver.version else Driver(cuda=torch.version.cuda)
        )  # it runs this torch, so it is new enough for its CUDA version
        raise DeviceError(f"{why_unusable(installed_build(), driver, card)}. Or {ON_HOST}")


def build() -> str:
    """What this torch is built for."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "a CPU build"


def breakdown_for(device: torch.device) -> StepBreakdown:
    """The account that reads the device's own clock."""
    if device.type == "cpu":
        return StepBreakdown(ThreadTimes())
    return CudaStepBreakdown(ThreadTimes())
