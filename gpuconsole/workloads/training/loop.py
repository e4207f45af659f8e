"""The training loop: plain, instrumented, with knobs that change between any two steps."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from gpuconsole.agent import step_breakdown as phase
from gpuconsole.agent.counters import ProcessCounters, compile_counters
from gpuconsole.agent.loop import Probe
from gpuconsole.agent.probes import ProbeError, timed_pass, untouched
from gpuconsole.agent.protocol import COUNTS, PROBE, SETTLING
from gpuconsole.agent.step_breakdown import Moment, StepBreakdown
from gpuconsole.agent.world import World
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.workloads import device_memory
from gpuconsole.workloads.device import breakdown_for
from gpuconsole.workloads.training.loader import Copier, Streams, settle_steps
from gpuconsole.workloads.training.parallel import check_precision
from gpuconsole.workloads.training.parallel.plan import ParallelPlan
from gpuconsole.workloads.training.settings import (
    Schedule,
    apply_model_knobs,
    autocast,
    carry_state,
    check_compile,
    check_float8,
    check_optimizer,
    compiled,
    in_float8,
    make_optimizer,
    make_scaler,
    set_memory_format,
)
from gpuconsole.workloads.training.task import Batch, Task

# --- a fault for exercises: the last process is slower, like one with a hot GPU or a busy core ----


def lost_s(phase: str, knobs: Knobs, world: World) -> float:
    """The extra seconds of this process in `phase` of a pass."""
    slow = world.size > 1 and world.rank == world.size - 1 and knobs.get("straggler_phase") == phase
    return float(knobs.get("straggler_ms", 0.0)) / 1000 if slow else 0.0


def lose(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)


def losing_backward(loss: torch.Tensor, seconds: float) -> torch.Tensor:
    """`loss` with a backward pass that takes `seconds` longer."""
    return _Slow.apply(loss, seconds) if seconds else loss


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


# --- side work of a training script: logs, gradient statistics, checkpoints in the scratch folder
# ---

HISTOGRAM_BINS = 64


class RunLog:
    """JSON lines, flushed after each record; optionally with a histogram of each parameter's
    gradient, as experiment trackers log it."""

    def __init__(self, scratch: Path) -> None:
        self._file = (scratch / "log.jsonl").open("w", encoding="utf-8")

    def write(self, step: int, loss: float, model: torch.nn.Module, gradients: bool) -> None:
        record: dict[str, object] = {"step": step, "loss": loss}
        if gradients:
            record["gradients"] = {
                name: _describe(p.grad)
                for name, p in model.named_parameters()
                if p.grad is not None
            }
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _describe(gradient: torch.Tensor) -> dict[str, object]:
    detached = gradient.detach()
    # of a sparse gradient: its rows
    flat = (detached.coalesce().values() if detached.is_sparse else detached).float()
    low, high = flat.min().item(), flat.max().item()
    counts = torch.histc(flat, HISTOGRAM_BINS, low, high).tolist()
    return {
        "norm": flat.norm().item(),
        "mean": flat.mean().item(),
        "low": low,
        "high": high,
        "histogram": counts,
    }


def largest_gradient_percentiles(model: torch.nn.Module, how: str) -> list[float]:
    """The 1st, 50th and 99th percentile of the largest gradient: from a Python list (`python`) or
    by a tensor operation (`torch`)."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None and not p.grad.is_sparse]
    if not gradients:
        return []
    values = max(gradients, key=torch.Tensor.numel).detach().flatten()
    places = [round(share * (values.numel() - 1)) for share in (0.01, 0.5, 0.99)]
    if how == "python":
        ordered = sorted(values.tolist())
        return [ordered[place] for place in places]
    return [values.kthvalue(place + 1).values.item() for place in places]


def save_checkpoint(
    scratch: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Model and optimizer in one file, on disk before this returns; the previous checkpoint is
    replaced."""
    path = scratch / "checkpoint.pt"
    partial = scratch / "checkpoint.pt.partial"
    with open(partial, "wb") as file:
        torch.save(
            {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file
        )
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


# --- the loop -------------------------------------------------------------------------------------

EVAL_BATCHES = 4
"""Passes over the held-out batch in one evaluation."""


class TrainingLoop:
    """Owns the model, its optimizer and its data; `step()` trains one optimizer step (the agent's
    `Loop` and `Subject`).

    `side_work` False skips logging, checkpoints and evaluation (probe P3).
    """

    longest_hold_s = float("inf")
    pass_note = ""

    def __init__(
        self,
        task: Task,
        knobs: Knobs,
        device: torch.device,
        scratch: Path,
        plan: ParallelPlan | None = None,
    ) -> None:
        self.task = task
        self.plan = plan or ParallelPlan(World())
        self.knobs = dict(knobs)
        self.device = device
        self.scratch = scratch
        self.arm = 0
        self.kind = COUNTS
        self.side_work = True
        self.last_batch: Batch | None = None
        check_compile(knobs, device)
        check_float8(knobs, device)
        device_memory.enforce_limit(device, knobs)
        apply_model_knobs(task.model, knobs)
        if knobs.get("float8_linear"):
            task.model = in_float8(task.model)
        task.model = self.plan.wrap(compiled(task.model, knobs), knobs, device)
        self.optimizer = self._make_optimizer()
        self._schedule = Schedule(self.optimizer, knobs)
        self._scaler = make_scaler(device, str(knobs["precision"]))
        self.lay_out()
        self.breakdown: StepBreakdown = breakdown_for(device)
        self._streams = Streams(task)
        self._stream = self._streams.open(self.knobs)
        self._copier = Copier(device, self.knobs)
        self._process = ProcessCounters()
        self._exchanges = 0
        self._leaked: list[torch.Tensor] = []
        self._eval_batch = self._copier.to_device(task.eval_batch(self.knobs))
        self._log = RunLog(scratch)
        self._settling = 1
        self.peaks = device_memory.MemoryPeaks(device)
        self._buckets_ready: Moment | None = None
        self.plan.on_last_bucket = self._bucket_ready
        self.probes: Mapping[str, Probe] = {}

    # --- one step ---------------------------------------------------------------------------------

    def step(self) -> None:
        mark = self.breakdown.mark
        samples = tokens = 0
        loss = None
        self.optimizer.zero_grad(set_to_none=True)
        mark(phase.OPTIMIZER)
        passes = self.passes_per_step
        for index in range(passes):
            lose(lost_s("data_wait", self.knobs, self.plan.world))
            batch = self._copier.take(self._stream, mark)
            with self.plan.backward_pass(
                self.task.model, last=index == passes - 1 or bool(self.knobs.get("sync_each_batch"))
            ):
                loss = self.forward(batch) / passes
                mark(phase.FORWARD)
                self._scaler.scale(loss).backward()
            # after the last bucket this process waits for the others
            if self._buckets_ready is not None:
                mark(phase.BACKWARD, self._buckets_ready)
                self._buckets_ready = None
                self._exchanges += 1
                mark(phase.COMM)
            else:
                mark(phase.BACKWARD)
            self._copier.fetch_ahead(self._stream, mark)
            n_samples, n_tokens = self.task.sizes(batch)
            samples, tokens = samples + n_samples, tokens + n_tokens
        self.last_batch = batch
        self._update()
        mark(phase.OPTIMIZER)
        assert loss is not None
        value = self._do_side_work(loss.detach() * passes)
        kind = self.kind
        if self._settling and kind == COUNTS:
            self._settling -= 1
            kind = SETTLING
        replicas = self.plan.replicas  # each of them trains on as many samples in this step
        self.breakdown.end(samples * replicas, tokens * replicas, value, self.arm, kind)

    def fresh_batch(self) -> Batch:
        """The next batch, on the device, outside of a step."""
        return self._copier.take(self._stream, self.breakdown.mark)

    # --- passes outside of a step (probes, rehearsals) --------------------------------------------

    @property
    def world(self) -> World:
        return self.plan.world

    @property
    def model(self) -> torch.nn.Module:
        return self.task.model

    @property
    def exchanges(self) -> bool:
        return self.plan.exchanges

    @property
    def batch(self) -> Batch:
        """The batch of the last step, on the device. Raises ProbeError before the first step."""
        if self.last_batch is None:
            raise ProbeError("no step has run yet")
        return self.last_batch

    @property
    def passes_per_step(self) -> int:
        return int(self.knobs["gradient_accumulation_steps"])

    def repeated(self, batch: Batch, factor: int) -> Batch:
        repeated = tuple(torch.cat([tensor] * factor) for tensor in batch)
        if factor > 1 and self.task.sizes(repeated)[0] == self.task.sizes(batch)[0]:
            raise ProbeError("a sample of this run is not a row of a batch")
        return repeated

    def make_room(self, factor: int) -> bool:
        """Not known here: a pass that does not fit ends with an error, which costs a run of ours
        nothing."""
        return True

    @contextmanager
    def under(self, changes: Knobs) -> Iterator[None]:
        """Passes in this block run under `changes`; the block must not take a step."""
        before = self.knobs
        try:
            self.knobs = {**before, **changes}
            self._apply_to_passes(changes)
            yield
        finally:
            self.knobs = before
            self._apply_to_passes(changes)

    def _apply_to_passes(self, changes: Knobs) -> None:
        apply_model_knobs(self.task.model, self.knobs)
        if "channels_last" in changes:
            self.lay_out()

    def run_pass(self, batch: Batch) -> None:
        self.forward(batch).backward()

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def silence(self) -> AbstractContextManager[Any]:
        return self.plan.silence(self.task.model)

    def preserved(self) -> AbstractContextManager[None]:
        # few tasks keep anything
        preserved: Callable[[], AbstractContextManager[None]] = getattr(
            self.task, "preserved", nullcontext
        )
        return preserved()

    def try_out(self) -> None:
        if self.exchanges:
            # what does not fit fails here, where no other process waits for this process
            self._pass_alone(self.fresh_batch)
        else:
            self.step()

    def recover(self) -> None:
        if self.last_batch is not None:
            # FSDP2 then has its shards where the other processes have theirs
            self._pass_alone(lambda: self.batch)

    def _pass_alone(self, batch: Callable[[], Batch]) -> None:
        """A pass outside of a step, without communication."""
        with untouched(self):
            timed_pass(self, batch())
        self.breakdown.restart()

    def _bucket_ready(self) -> None:
        self._buckets_ready = self.breakdown.moment()

    def forward(self, batch: Batch) -> torch.Tensor:
        """The loss of `batch`, a scalar tensor."""
        lose(lost_s("forward", self.knobs, self.plan.world))
        with autocast(self.device, str(self.knobs["precision"])):
            loss = self.task.loss(batch)
        return losing_backward(loss, lost_s("backward", self.knobs, self.plan.world))

    def _update(self) -> None:
        """One optimizer step.

        With fp16 torch skips it after an overflow; the schedule then does not move, except with a
        fused optimizer on CUDA.
        """
        if not self._scaler.is_enabled():
            self.optimizer.step()
            self._schedule.step()
            return
        if self.knobs["log_gradients"]:
            self._scaler.unscale_(self.optimizer)  # so that the log holds unscaled gradients
        # Reading the scale makes the host wait for the GPU. Other optimizers wait in any case, a
        # fused optimizer does not: so do not read it there.
        blind = self.device.type == "cuda" and any(
            group.get("fused") for group in self.optimizer.param_groups
        )
        before = 0.0 if blind else self._scaler.get_scale()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        if blind or self._scaler.get_scale() >= before:
            self._schedule.step()

    def _do_side_work(self, loss: torch.Tensor) -> float | None:
        """Log, save and evaluate where due.

        Returns the loss: on a CPU at every step, else only when it is logged (reading it
        synchronises).
        """
        mark, index = self.breakdown.mark, self.breakdown.index
        due = self._due if self.side_work else _never
        value = loss.item() if self.device.type == "cpu" else None
        self.script_work()
        if due("log_every"):
            value = loss.item()
            self._log.write(index, value, self.task.model, bool(self.knobs["log_gradients"]))
            mark(phase.LOGGING)
        if due("save_every"):
            save_checkpoint(self.scratch, index, self.task.model, self.plan.local(self.optimizer))
            mark(phase.CHECKPOINT)
        if due("eval_every"):
            with torch.inference_mode():
                for batch in self.eval_batches():
                    self.forward(batch)
            mark(phase.EVAL)
        return value

    def script_work(self) -> None:
        """Work of a training script outside of the named phases; its time is in `other`."""
        how = str(self.knobs["gradient_percentiles"])
        if how != "off":
            largest_gradient_percentiles(self.task.model, how)
        if self._due("gc_collect_every"):
            gc.collect()
        leak = int(float(self.knobs.get("leak_mb", 0.0)) * 1e6)
        if leak:
            self._leaked.append(torch.ones(leak, dtype=torch.uint8, device=self.device))

    def eval_batches(self) -> Iterator[Batch]:
        """The held-out batch EVAL_BATCHES times, in pieces of `eval_batch_size` rows."""
        rows = len(self._eval_batch[0])
        size = int(self.knobs["eval_batch_size"]) or rows
        for _ in range(EVAL_BATCHES):
            for start in range(0, rows, size):
                yield tuple(tensor[start : start + size] for tensor in self._eval_batch)

    def counters(self) -> dict[str, float]:
        """`loader.restart_s`: seconds from an epoch's end to the next epoch's first batch.
        `comm.exchanges`: passes that exchanged gradients.

        Also the process's counters, and where the model is compiled those of torch.compile.
        """
        restarts, restart_s = self._streams.restarts()
        own = {
            "work.steps": float(self.breakdown.index),
            "loader.restarts": float(restarts),
            "loader.restart_s": restart_s,
            "comm.exchanges": float(self._exchanges),
        }
        compiler = compile_counters() if self.knobs.get("torch_compile", "off") != "off" else {}
        return compiler | self._process.read() | own

    def _due(self, knob: str) -> bool:
        every = int(self.knobs[knob])
        return every > 0 and (self.breakdown.index + 1) % every == 0

    # --- changes between steps --------------------------------------------------------------------

    def set_knobs(self, changes: Knobs, arm: int) -> None:
        """Put hot `changes` in force for the next step. Raises what goes wrong; everything is then
        as before."""
        cold = [name for name in changes if CATALOGUE[name].apply == "cold"]
        if cold:
            raise ValueError(f"{', '.join(cold)} needs a restart of the worker")
        before = self.knobs
        self.task.check({**before, **changes})
        check_optimizer(str(changes.get("optim", before["optim"])))
        check_precision({**before, **changes})
        check_compile({**before, **changes}, self.device)
        check_float8({**before, **changes}, self.device)
        self.knobs = {**before, **changes}
        try:
            self._put_in_force(before)
        except Exception:
            self.knobs = before
            self._put_in_force({**before, **changes})
            raise
        self.set_variant(arm)
        self.settle()

    def settle(self) -> None:
        """Begin a new timeline whose first steps do not count: after a change, a probe or a pause
        queues and caches are not in their usual state."""
        self._settling = settle_steps(self.knobs)
        self.breakdown.restart()

    def set_variant(self, arm: int) -> None:
        """Mark the next steps as one side of a trial (0: none). After a trial its unused stream is
        closed."""
        self.arm = arm
        self.breakdown.sample_all = arm != 0
        if arm == 0:
            self._streams.close_others(self._stream)

    def _put_in_force(self, before: Knobs) -> None:
        apply_model_knobs(self.task.model, self.knobs)
        changed = {name for name, value in self.knobs.items() if value != before.get(name)}
        if "optim" in changed:
            self.optimizer = self._make_optimizer(self.optimizer)
        if changed & {"optim", "lr_scheduler", "warmup_steps"}:
            self._schedule.rebuild(self.optimizer, self.knobs)
        if "precision" in changed:
            self._scaler = make_scaler(self.device, str(self.knobs["precision"]))
        self.lay_out()
        self._copier.knobs = self.knobs
        stream = self._streams.open(self.knobs)
        if stream is not self._stream:
            self._copier.forget()
        self._stream = stream

    def _make_optimizer(self, before: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
        optim = str(self.knobs["optim"])
        # a workload may need another optimizer for some of its parameters
        make = getattr(self.task, "make_optimizer", make_optimizer)
        optimizer = self.plan.optimizer(self.task.model, lambda parameters: make(parameters, optim))
        if before is not None:
            carry_state(self.plan.local(before), self.plan.local(optimizer))
        return optimizer

    def lay_out(self) -> None:
        """Bring weights and their optimizer state into the memory format of the knob
        `channels_last`."""
        if "channels_last" in self.knobs:
            set_memory_format(self.task.model, self.optimizer, bool(self.knobs["channels_last"]))

    def without_side_work(self, run: Callable[[], None]) -> None:
        """Call `run` without logging, checkpoints and evaluation; its steps count as a probe's."""
        self.side_work, self.kind = False, PROBE
        try:
            run()
        finally:
            self.side_work, self.kind = True, COUNTS

    def close(self) -> None:
        self._streams.close()
        self._log.close()
        self._process.close()

    def peak_memory_bytes(self) -> float:
        """Peak memory in bytes.

        On a GPU: of the steps since the start or the last change, without probes. On a CPU: of the
        whole process.
        """
        return self.peaks.allocated_bytes()

    def forget_peak_memory(self) -> None:
        self.peaks.forget()

    def restart_peak_memory(self) -> None:
        """After a change: the peak of earlier steps no longer applies."""
        self.peaks.restart()

    def beside_the_peak(self) -> AbstractContextManager[None]:
        """On a GPU the memory that is used in this block does not count for the peak."""
        return self.peaks.beside()

    def release_cached_memory(self) -> None:
        """Drop gradients and the allocator's cache: after an error, after a probe, or where another
        process needs the memory."""
        self.drop_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _never(knob: str) -> bool:
    return False
