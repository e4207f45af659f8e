"""torch.compile as the knobs say."""

from __future__ import annotations

import torch

from gpuconsole.model.knobs import Knobs

DYNAMIC = {"auto": None, "true": True, "false": False}


def compiled(model: torch.nn.Module, knobs: Knobs) -> torch.nn.Module:
    """`model`, compiled unless `torch_compile` is off. Nothing is compiled before its first forward pass."""
    mode = str(knobs.get("torch_compile", "off"))
    if mode == "off":
        return model
    dynamic = DYNAMIC[str(knobs.get("compile_dynamic", "auto"))]
    result: torch.nn.Module = torch.compile(model, mode=mode, dynamic=dynamic)  # type: ignore[assignment]
    return result
