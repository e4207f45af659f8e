"""Facts about a workload that the analytical models and the rules start from."""

from __future__ import annotations

from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.calibration.repeating import Work
from gpuconsole.workloads.training.task import Task


def model_facts(task: Task | Work, knobs: Knobs) -> dict[str, float]:
    """Parameters in all, trained, and in Linear layers (the head counts, embeddings do not); and what the workload itself has to say."""
    parameters = list(task.model.parameters())
    linear = sum(module.weight.numel() for module in task.model.modules() if isinstance(module, nn.Linear))
    own = getattr(task, "facts", None)
    return {
        "parameters": float(sum(parameter.numel() for parameter in parameters)),
        "trainable_parameters": float(sum(parameter.numel() for parameter in parameters if parameter.requires_grad)),
        "linear_parameters": float(linear),
        **(own(knobs) if own is not None else {}),
    }
