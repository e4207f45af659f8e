"""The optimizer that the `optim` knob names, changeable between two steps with its state carried over where that fits."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch

LEARNING_RATE = 3e-4
MOMENTUM = 0.9
EIGHT_BIT = {"torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}
"""Packages that have an `AdamW8bit`, in the order of preference, and where in them it is."""


def make_optimizer(model: torch.nn.Module, optim: str, before: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
    """A new optimizer over the parameters that are trained. From one AdamW to another the moments are carried on.

    Between AdamW, SGD and 8-bit moments mean different things, so a change between those begins with none.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if optim == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
    if optim == "adamw_8bit":
        return _adamw_8bit(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=optim == "adamw_foreach", fused=optim == "adamw_fused")
    if type(before) is torch.optim.AdamW:
        _carry(before, optimizer, on_device=optim == "adamw_fused")
    return optimizer


def check_optimizer(optim: str) -> None:
    """Raise ValueError, one line that says what to install, where `optim` is not to be had here."""
    if optim == "adamw_8bit" and not _eight_bit_package():
        raise ValueError(f"optim adamw_8bit needs one of {', '.join(EIGHT_BIT)}: pip install torchao")


def _eight_bit_package() -> str:
    return next((name for name in EIGHT_BIT if find_spec(name) is not None), "")


def _adamw_8bit(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    check_optimizer("adamw_8bit")
    optimizer: torch.optim.Optimizer = importlib.import_module(EIGHT_BIT[_eight_bit_package()]).AdamW8bit(parameters, lr=LEARNING_RATE)
    return optimizer


def _carry(before: torch.optim.Optimizer, after: torch.optim.Optimizer, on_device: bool) -> None:
    """The state and rates of `before` under the implementation of `after`."""
    own: list[dict[str, Any]] = [{name: group[name] for name in ("foreach", "fused")} for group in after.param_groups]
    after.load_state_dict(before.state_dict())
    for group, flags in zip(after.param_groups, own, strict=True):
        group.update(flags)
    for parameter, values in after.state.items():
        # the fused kernel reads `step` on the device, the others on the host
        values["step"] = values["step"].to(parameter.device if on_device else "cpu")
