"""Facts about a workload, from which the analytical models and the rules start."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.calibration.measures import best_copy_bytes_per_s, dense_flops_per_s
from gpuconsole.workloads.device import Kind

MEASURED_AGAIN = ("seq_len", "varied_lengths", "precision", "num_threads")
"""Knobs whose change makes a new measurement of the peaks and a new count of FLOPs necessary."""


class Described(Protocol):
    """A task or a piece of repeated work. A method `facts(knobs)`, where it has one, gives further
    facts."""

    model: nn.Module
    dense_kind: Kind

    def flops_per_sample(self, knobs: Knobs) -> float: ...


class WorkloadFacts:
    """The facts of one workload on one device. Facts that take time to measure are kept for each
    setting of the knobs."""

    def __init__(self, task: Described, device: torch.device, processes: int) -> None:
        self._task = task
        self._device = device
        self._processes = processes
        self._measured: dict[object, dict[str, float]] = {}

    def under(self, knobs: Knobs) -> dict[str, float]:
        """All facts under `knobs`. Unit in each name; `peak_flops_per_s` is the sum over all
        processes."""
        facts = model_facts(self._task, knobs)
        key = tuple(knobs.get(name) for name in MEASURED_AGAIN)
        if key not in self._measured:
            precision = str(knobs.get("precision", "fp32"))
            self._measured[key] = {
                "flops_per_sample": self._task.flops_per_sample(knobs),
                "peak_flops_per_s": dense_flops_per_s(
                    self._task.dense_kind, self._device, precision
                )
                * self._processes,
            }
            if "bytes_per_sample" in facts:
                self._measured[key]["peak_bytes_per_s"] = best_copy_bytes_per_s(self._device)
        if self._task.dense_kind == "3x3 convolution":
            facts["dense_is_convolution"] = 1.0
        here = {"threads": float(torch.get_num_threads()), "world_size": float(self._processes)}
        return {**self._measured[key], **facts, **here}


def model_facts(task: Described, knobs: Knobs) -> dict[str, float]:
    """Numbers of parameters: all, trained, and in Linear layers (the head counts, embeddings do
    not); and the workload's further facts."""
    parameters = list(task.model.parameters())
    linear = sum(
        module.weight.numel() for module in task.model.modules() if isinstance(module, nn.Linear)
    )
    own = getattr(task, "facts", None)
    return {
        "parameters": float(sum(parameter.numel() for parameter in parameters)),
        "trainable_parameters": float(
            sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        ),
        "linear_parameters": float(linear),
        **(own(knobs) if own is not None else {}),
    }
