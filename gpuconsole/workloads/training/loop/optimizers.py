"""The optimizer of the knob `optim`. It can change between two steps; the state is carried over where both optimizers share it."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch

from gpuconsole.workloads.training.parallel.plan import Parameters

LEARNING_RATE = 3e-4
MOMENTUM = 0.9
EIGHT_BIT = {"torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}
"""Packages with an `AdamW8bit`, in the order of preference, and the module that holds it."""


def make_optimizer(parameters: Parameters, optim: str) -> torch.optim.Optimizer:
    """The optimizer `optim` over `parameters`."""
    if optim == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
    if optim == "adamw_8bit":
        return _adamw_8bit(parameters)
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=optim == "adamw_foreach", fused=optim == "adamw_fused")


def carry_state(before: torch.optim.Optimizer, after: torch.optim.Optimizer) -> None:
    """Copy the moments of one AdamW into another.

    Between AdamW, SGD and 8-bit states the moments differ in meaning, so they start again.
    """
    if not (type(before) is type(after) is torch.optim.AdamW):
        return
    own: list[dict[str, Any]] = [{name: group[name] for name in ("foreach", "fused")} for group in after.param_groups]
    after.load_state_dict(before.state_dict())
    for group, flags in zip(after.param_groups, own, strict=True):
        group.update(flags)
    for parameter, values in after.state.items():
        # the fused kernel reads `step` on the device, the others on the host
        values["step"] = values["step"].to(parameter.device if own[0]["fused"] else "cpu")


def check_optimizer(optim: str) -> None:
    """Raise ValueError, one line that names the package to install, where `optim` is not available here."""
    if optim == "adamw_8bit" and not _eight_bit_package():
        raise ValueError(f"optim adamw_8bit needs one of {', '.join(EIGHT_BIT)}: pip install torchao")


def _eight_bit_package() -> str:
    return next((name for name in EIGHT_BIT if find_spec(name) is not None), "")


def _adamw_8bit(parameters: Parameters) -> torch.optim.Optimizer:
    check_optimizer("adamw_8bit")
    package = importlib.import_module(EIGHT_BIT[_eight_bit_package()])
    optimizer: torch.optim.Optimizer = package.AdamW8bit(parameters, lr=LEARNING_RATE)
    return optimizer
