"""The loop of workloads that train nothing: it repeats one piece of work, so that the work can be
watched, diagnosed and tried like a job."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch

from gpuconsole.agent import step_breakdown as phase
from gpuconsole.agent.loop import Probe
from gpuconsole.agent.protocol import COUNTS, SETTLING
from gpuconsole.agent.step_breakdown import StepBreakdown
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.workloads import device_memory
from gpuconsole.workloads.device import Kind, breakdown_for, set_matmul_precision, set_threads


class Work(Protocol):
    """What is repeated. A module of `workloads/` that has
    `create_work(knobs, device, seed) -> Work` runs in this loop."""

    model: torch.nn.Module
    """Without parameters, because nothing is trained."""
    dense_kind: Kind

    def do(self, knobs: Knobs) -> int:
        """Issue one step's block of work. Returns its number of samples."""
        ...

    def flops_per_sample(self, knobs: Knobs) -> float: ...

    def facts(self, knobs: Knobs) -> dict[str, float]: ...


class RepeatingLoop:
    """Owns the work; `step()` does one block of it. All time of a step is `forward`. There is no
    optimizer and there are no probes."""

    optimizer = None
    exchanges = False

    def __init__(self, work: Work, knobs: Knobs, device: torch.device, scratch: Path) -> None:
        self.task = work
        self.knobs = dict(knobs)
        self.device = device
        self.scratch = scratch
        self.arm = 0
        self.kind = COUNTS
        self.probes: Mapping[str, Probe] = {}
        self._settling = 1
        device_memory.enforce_limit(device, knobs)
        self._put_in_force()
        self.breakdown: StepBreakdown = breakdown_for(device)

    def step(self) -> None:
        with torch.no_grad():
            samples = self.task.do(self.knobs)
        self.breakdown.mark(phase.FORWARD)
        kind = SETTLING if self._settling and self.kind == COUNTS else self.kind
        self._settling = 0
        self.breakdown.end(samples, 0, None, self.arm, kind)

    def set_knobs(self, changes: Knobs, arm: int) -> None:
        """Put hot `changes` in force for the next step. Raises ValueError for cold knobs."""
        cold = [name for name in changes if CATALOGUE[name].apply == "cold"]
        if cold:
            raise ValueError(f"{', '.join(cold)} needs a restart of the worker")
        self.knobs = {**self.knobs, **changes}
        self._put_in_force()
        self.set_variant(arm)
        self.settle()

    def _put_in_force(self) -> None:
        set_matmul_precision(str(self.knobs.get("precision", "fp32")))
        set_threads(int(self.knobs["num_threads"]))

    def try_out(self) -> None:
        self.step()

    def recover(self) -> None:
        """Nothing can break off halfway."""

    def counters(self) -> dict[str, float]:
        """No counters: nothing happens beside the steps."""
        return {}

    def settle(self) -> None:
        """Begin a new timeline whose first step does not count."""
        self._settling = 1
        self.breakdown.restart()

    def set_variant(self, arm: int) -> None:
        self.arm = arm
        self.breakdown.sample_all = arm != 0

    def close(self) -> None:
        """Nothing to close."""

    def peak_memory_bytes(self) -> float:
        return device_memory.peak_bytes(self.device)

    def forget_peak_memory(self) -> None:
        device_memory.forget_peak(self.device)

    def restart_peak_memory(self) -> None:
        device_memory.restart_peak(self.device)

    def beside_the_peak(self) -> AbstractContextManager[None]:
        """No probe uses memory here."""
        return nullcontext()

    def release_cached_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
