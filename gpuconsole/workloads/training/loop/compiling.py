"""torch.compile as the knobs say."""

from __future__ import annotations

import torch

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.training import GRAPH_MODES

DYNAMIC = {"auto": None, "true": True, "false": False}


def check_compile(knobs: Knobs, device: torch.device) -> None:
    """Raise ValueError, one line, for CUDA graphs with accumulation: a replay overwrites the gradients that the one before it left
    (torch/_inductor/cudagraph_trees.py says so of tensors that outlive a replay; pytorch#169545). Several processes keep theirs in buckets."""
    mode, passes = str(knobs.get("torch_compile", "off")), int(knobs.get("gradient_accumulation_steps", 1))
    if device.type == "cuda" and mode in GRAPH_MODES and passes > 1 and knobs.get("sharding", "none") == "none":
        raise ValueError(
            f"torch_compile {mode} replays CUDA graphs, which lose the gradients of all but the last of {passes} passes; try default"
        )


def compiled(model: torch.nn.Module, knobs: Knobs) -> torch.nn.Module:
    """`model`, compiled unless `torch_compile` is off. Nothing is compiled before its first forward pass."""
    mode = str(knobs.get("torch_compile", "off"))
    if mode == "off":
        return model
    dynamic = DYNAMIC[str(knobs.get("compile_dynamic", "auto"))]
    result: torch.nn.Module = torch.compile(model, mode=mode, dynamic=dynamic)  # type: ignore[assignment]
    return result
