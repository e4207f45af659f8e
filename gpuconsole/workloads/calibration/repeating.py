"""The loop of workloads that train nothing: one piece of work, again and again, so that it can be watched, diagnosed and tried like a job."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch

from gpuconsole.agent import account as phase
from gpuconsole.agent.account import CudaStepAccount, StepAccount
from gpuconsole.agent.clock import ThreadTimes
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.run import COUNTS, SETTLING
from gpuconsole.workloads.calibration.dense import Kind
from gpuconsole.workloads.training.loop import memory, settings


class Work(Protocol):
    """What is repeated. A module of `workloads/` that has `create_work(knobs, device, seed) -> Work` runs in this loop."""

    model: torch.nn.Module
    """Without parameters: there is nothing to train."""
    dense_kind: Kind

    def do(self, knobs: Knobs) -> int:
        """One step's block of work, issued; how many samples it is."""
        ...

    def flops_per_sample(self, knobs: Knobs) -> float: ...

    def facts(self, knobs: Knobs) -> dict[str, float]: ...


class RepeatingLoop:
    """Owns the work; `step()` does one block of it. To the worker it has the face of a TrainingLoop; its steps are all `forward`."""

    def __init__(self, work: Work, knobs: Knobs, device: torch.device, scratch: Path) -> None:
        self.task = work
        self.knobs = dict(knobs)
        self.device = device
        self.scratch = scratch
        self.arm = 0
        self.kind = COUNTS
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(0))])  # over nothing: the profiler window asks for one
        self._settling = 1
        memory.enforce_limit(device, knobs)
        self._put_in_force()
        self.account: StepAccount = (CudaStepAccount if device.type == "cuda" else StepAccount)(ThreadTimes())

    def step(self) -> None:
        with torch.no_grad():
            samples = self.task.do(self.knobs)
        self.account.mark(phase.FORWARD)
        kind = SETTLING if self._settling and self.kind == COUNTS else self.kind
        self._settling = 0
        self.account.end(samples, 0, None, self.arm, kind)

    def set_knobs(self, changes: Knobs, arm: int) -> None:
        """Put hot `changes` in force for the next step."""
        cold = [name for name in changes if CATALOGUE[name].apply == "cold"]
        if cold:
            raise ValueError(f"{', '.join(cold)} needs a restart of the worker")
        self.knobs = {**self.knobs, **changes}
        self._put_in_force()
        self.set_arm(arm)
        self.settle()

    def _put_in_force(self) -> None:
        settings.set_matmul_precision(str(self.knobs.get("precision", "fp32")))
        settings.set_threads(int(self.knobs["num_threads"]))

    def counters(self) -> dict[str, float]:
        """Nothing happens beside its steps."""
        return {}

    def settle(self) -> None:
        """A new timeline whose first step does not count."""
        self._settling = 1
        self.account.restart()

    def set_arm(self, arm: int) -> None:
        self.arm = arm
        self.account.sample_all = arm != 0

    def close(self) -> None:
        """Nothing to give back."""

    def peak_memory_bytes(self) -> float:
        return memory.peak_bytes(self.device)

    def forget_peak_memory(self) -> None:
        memory.forget_peak(self.device)

    def restart_peak_memory(self) -> None:
        memory.restart_peak(self.device)

    def beside_the_peak(self) -> AbstractContextManager[None]:
        """Nothing is: it has no probes."""
        return nullcontext()

    def release_cached_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
