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
    """A task, or a piece of repeated work. If its class has a method `facts(knobs)`, that method
    returns further facts."""

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
        """Return all facts with the values of `knobs`. The name of a fact contains its unit;
        `peak_flops_per_s` is the sum over all processes."""
        facts = model_facts(self._task, knobs)
        setting = tuple(knobs.get(name) for name in MEASURED_AGAIN)
        if setting not in self._measured:
            precision = str(knobs.get("precision", "fp32"))
            flops = self._task.flops_per_sample(knobs)
            peak = dense_flops_per_s(self._task.dense_kind, self._device, precision)
            self._measured[setting] = {
                "flops_per_sample": flops,
                "peak_flops_per_s": peak * self._processes,
            }
            if "bytes_per_sample" in facts:
                self._measured[setting]["peak_bytes_per_s"] = best_copy_bytes_per_s(self._device)
        if self._task.dense_kind == "3x3 convolution":
            facts["dense_is_convolution"] = 1.0
        of_job = {"threads": float(torch.get_num_threads()), "world_size": float(self._processes)}
        return {**self._measured[setting], **facts, **of_job}


def model_facts(task: Described, knobs: Knobs) -> dict[str, float]:
    """Return the numbers of parameters, and the further facts of the task. The numbers are of all
    parameters, of the trained ones, and of those in Linear layers: the head is a Linear layer, an
    embedding is not."""
    parameters = list(task.model.parameters())
    linear = sum(
        module.weight.numel() for module in task.model.modules() if isinstance(module, nn.Linear)
    )
    further_facts = getattr(task, "facts", None)
    return {
        "parameters": float(sum(parameter.numel() for parameter in parameters)),
        "trainable_parameters": float(
            sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        ),
        "linear_parameters": float(linear),
        **(further_facts(knobs) if further_facts is not None else {}),
    }
