"""The training loop: plain, instrumented, and changeable between any two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from gpuconsole.model.knobs import CATALOGUE, Knobs
from gpuconsole.workloads import account as phase
from gpuconsole.workloads.account import CudaStepAccount, StepAccount
from gpuconsole.workloads.clock import ThreadTimes
from gpuconsole.workloads.training import settings
from gpuconsole.workloads.training.loader import LOADER_KNOBS, settle_steps
from gpuconsole.workloads.training.side_work import RunLog, save_checkpoint
from gpuconsole.workloads.training.task import Batch, Stream, Task

EVAL_BATCHES = 4
COUNTS, SETTLING, PROBE = 0, 1, 2


class TrainingLoop:
    """Owns the model, its optimizer and its data; `step()` trains one optimizer step.

    `arm` marks the steps of a trial's side; `side_work` off skips logging, checkpoints and evaluation (probe P3).
    """

    def __init__(self, task: Task, knobs: Knobs, device: torch.device, scratch: Path) -> None:
        self.task = task
        self.knobs = dict(knobs)
        self.device = device
        self.scratch = scratch
        self.arm = 0
        self.kind = COUNTS
        self.side_work = True
        self.last_batch: Batch | None = None
        settings.apply_model_knobs(task.model, knobs)
        if knobs.get("torch_compile", "off") != "off":
            task.model = torch.compile(task.model, mode=None if knobs["torch_compile"] == "default" else str(knobs["torch_compile"]))  # type: ignore[assignment]
        self.optimizer = settings.make_optimizer(task.model, str(knobs["optim"]))
        self._lay_out()
        self.account: StepAccount = (CudaStepAccount if device.type == "cuda" else StepAccount)(ThreadTimes())
        self._streams: dict[tuple[object, ...], Stream] = {}
        self._stream = self._open_stream()
        self._eval_batch = self.to_device(task.eval_batch(self.knobs))
        self._log = RunLog(scratch)
        self._settling = 1

    # --- one step -------------------------------------------------------------------------------------------

    def step(self) -> None:
        mark = self.account.mark
        samples = tokens = 0
        loss = None
        self.optimizer.zero_grad(set_to_none=True)
        mark(phase.OPTIMIZER)
        passes = int(self.knobs["gradient_accumulation_steps"])
        for _ in range(passes):
            host_batch = self._stream.next()
            mark(phase.DATA_WAIT)
            batch = self.to_device(host_batch)
            mark(phase.H2D)
            loss = self.forward(batch) / passes
            mark(phase.FORWARD)
            loss.backward()
            mark(phase.BACKWARD)
            n_samples, n_tokens = self.task.sizes(batch)
            samples, tokens = samples + n_samples, tokens + n_tokens
        self.last_batch = batch
        self.optimizer.step()
        mark(phase.OPTIMIZER)
        assert loss is not None
        value = self._do_side_work(loss.detach() * passes)
        kind = self.kind
        if self._settling and kind == COUNTS:
            self._settling -= 1
            kind = SETTLING
        self.account.end(samples, tokens, value, self.arm, kind)

    def forward(self, batch: Batch) -> torch.Tensor:
        with settings.autocast(self.device, str(self.knobs["precision"])):
            return self.task.loss(batch)

    def to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cpu" and not self.knobs.get("channels_last"):
            return batch
        channels_last = bool(self.knobs.get("channels_last"))
        return tuple(
            tensor.to(self.device, non_blocking=True, memory_format=torch.channels_last)
            if channels_last and tensor.dim() == 4
            else tensor.to(self.device, non_blocking=True)
            for tensor in batch
        )

    def _do_side_work(self, loss: torch.Tensor) -> float | None:
        """Log, save and evaluate as due. The loss as a number: every step where that is free, else when it is logged."""
        mark, index = self.account.mark, self.account.index
        due = self._due if self.side_work else _never
        value = loss.item() if self.device.type == "cpu" else None
        if due("log_every"):
            value = loss.item()
            self._log.write(index, value, self.task.model, bool(self.knobs["log_gradients"]))
            mark(phase.LOGGING)
        if due("save_every"):
            save_checkpoint(self.scratch, index, self.task.model, self.optimizer)
            mark(phase.CHECKPOINT)
        if due("eval_every"):
            with torch.inference_mode():
                for _ in range(EVAL_BATCHES):
                    self.forward(self._eval_batch)
            mark(phase.EVAL)
        return value

    def _due(self, knob: str) -> bool:
        every = int(self.knobs[knob])
        return every > 0 and (self.account.index + 1) % every == 0

    # --- changes between steps ------------------------------------------------------------------------------

    def set_knobs(self, changes: Knobs, arm: int) -> None:
        """Put hot `changes` in force for the next step; on an error everything is as before, and it is raised."""
        cold = [name for name in changes if CATALOGUE[name].apply == "cold"]
        if cold:
            raise ValueError(f"{', '.join(cold)} needs a restart of the worker")
        before = self.knobs
        self.task.check({**before, **changes})
        self.knobs = {**before, **changes}
        try:
            self._put_in_force(before)
        except Exception:
            self.knobs = before
            self._put_in_force({**before, **changes})
            raise
        self.set_arm(arm)
        self.settle()

    def settle(self) -> None:
        """A new timeline whose first steps do not count: after a change, a probe or a pause queues and caches are not as usual."""
        self._settling = settle_steps(self.knobs)
        self.account.restart()

    def set_arm(self, arm: int) -> None:
        """Mark the steps to come as one side of a trial (0: none). After a trial its idle stream is given back."""
        self.arm = arm
        self.account.sample_all = arm != 0
        if arm == 0:
            self._close_idle_streams()

    def _put_in_force(self, before: Knobs) -> None:
        settings.apply_model_knobs(self.task.model, self.knobs)
        if self.knobs["optim"] != before["optim"]:
            self.optimizer = settings.make_optimizer(self.task.model, str(self.knobs["optim"]), self.optimizer.state_dict())
        self._lay_out()
        self._stream = self._open_stream()

    def _lay_out(self) -> None:
        if "channels_last" in self.knobs:
            settings.set_memory_format(self.task.model, self.optimizer, bool(self.knobs["channels_last"]))

    def _open_stream(self) -> Stream:
        """The stream for the knobs in force. The one before stays open, so that a trial can switch to and fro."""
        names = ("batch_size", "seq_len", *LOADER_KNOBS)
        key = tuple(self.knobs.get(name) for name in names)
        stream = self._streams.pop(key, None) or self.task.open_stream(self.knobs)
        self._streams[key] = stream
        while len(self._streams) > 2:
            self._streams.pop(next(iter(self._streams))).close()
        return stream

    def _close_idle_streams(self) -> None:
        """Give back what a finished trial kept open."""
        for key in [key for key, stream in self._streams.items() if stream is not self._stream]:
            self._streams.pop(key).close()

    def without_side_work(self, run: Callable[[], None]) -> None:
        """Call `run` with logging, checkpoints and evaluation off, its steps marked as a probe's."""
        self.side_work, self.kind = False, PROBE
        try:
            run()
        finally:
            self.side_work, self.kind = True, COUNTS

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._log.close()

    def peak_memory_bytes(self) -> float:
        """Peak device memory allocated by this process; on a CPU its peak resident set."""
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device))
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0

    def forget_peak_memory(self) -> None:
        """Calibration's buffers are not the workload's (CUDA only: a process's peak resident set cannot be reset)."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def release_cached_memory(self) -> None:
        """After an out-of-memory error: drop gradients and the allocator's cache."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _never(knob: str) -> bool:
    return False
