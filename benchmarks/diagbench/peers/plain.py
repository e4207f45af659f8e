"""A case of the benchmark as an ordinary training script: a DataLoader, a model whose forward pass
returns its loss, an optimizer.

    python -m benchmarks.diagbench.peers.plain --case C07 --half reporting --seed 0 --seconds 12

Model, data, optimizer and side work are those of our own loop with the same knobs. The loop itself
is a usual one, without a phase account or probes, in one CPU process. `--hook` adds the lines that
a tool needs in a script.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from benchmarks.diagbench.cases import Half
from benchmarks.diagbench.peers.peer import CASES
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device_memory import set_up_allocator
from gpuconsole.workloads.training import settings
from gpuconsole.workloads.training.loader import as_they_are
from gpuconsole.workloads.training.loop import (
    EVAL_BATCHES,
    RunLog,
    largest_gradient_percentiles,
    save_checkpoint,
)
from gpuconsole.workloads.training.parallel.plan import trained
from gpuconsole.workloads.training.settings import Schedule, make_optimizer
from gpuconsole.workloads.training.task import Batch, Stream, Task
from gpuconsole.workloads.training.vision import VisionTask, in_one_piece

CPU = torch.device("cpu")
AroundStep = Callable[[nn.Module], AbstractContextManager[Any]]


class WithLoss(nn.Module):
    """A model whose forward pass ends with its loss, so that tools which time `forward` see all of
    it."""

    def __init__(self, task: Task, precision: str) -> None:
        super().__init__()
        self.net = task.model
        self._task = task
        self._precision = precision

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        with settings.autocast(CPU, self._precision):
            return self._task.loss(batch)


class Endless(IterableDataset[Batch]):
    """Whole batches from a stream that has no end."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self._stream.next()


class SideWork:
    """The work after an optimizer step, as often as the knobs say."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        knobs: Knobs,
        scratch: Path,
    ) -> None:
        self._net, self._model, self._optimizer = task.model, model, optimizer
        self._knobs = knobs
        self._scratch = scratch
        self._log = RunLog(scratch)
        self._eval_batch = task.eval_batch(knobs)
        self._leaked: list[torch.Tensor] = []

    def do(self, step: int, loss: torch.Tensor) -> None:
        """`step`: from 0."""
        how = str(self._knobs["gradient_percentiles"])
        if how != "off":
            largest_gradient_percentiles(self._net, how)
        if self._due("gc_collect_every", step):
            gc.collect()
        leak = int(float(self._knobs.get("leak_mb", 0.0)) * 1e6)
        if leak:
            self._leaked.append(torch.ones(leak, dtype=torch.uint8))
        if self._due("log_every", step):
            self._log.write(step, loss.item(), self._net, bool(self._knobs["log_gradients"]))
        if self._due("save_every", step):
            save_checkpoint(self._scratch, step, self._net, self._optimizer)
        if self._due("eval_every", step):
            self._evaluate()

    def close(self) -> None:
        self._log.close()

    @torch.inference_mode()
    def _evaluate(self) -> None:
        rows = len(self._eval_batch[0])
        size = int(self._knobs["eval_batch_size"]) or rows
        for _ in range(EVAL_BATCHES):
            for start in range(0, rows, size):
                self._model(*(tensor[start : start + size] for tensor in self._eval_batch))

    def _due(self, knob: str, step: int) -> bool:
        every = int(self._knobs[knob])
        return every > 0 and (step + 1) % every == 0


def make_loader(task: Task, knobs: Knobs, seed: int) -> DataLoader[Any]:
    """A loader with the knobs of the case for photographs, sample by sample. Text comes in whole
    batches and costs almost nothing."""
    if not isinstance(task, VisionTask):
        return DataLoader(Endless(task.open_stream(knobs)), batch_size=None)
    workers = int(knobs["num_workers"])
    parallel: dict[str, Any] = {}
    if workers:
        parallel = {
            "prefetch_factor": int(knobs["prefetch_factor"]),
            "persistent_workers": bool(knobs["persistent_workers"]),
        }
    return DataLoader(
        task.photographs(knobs),
        batch_size=int(knobs["batch_size"]),
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        in_order=bool(knobs["in_order"]),
        generator=torch.Generator().manual_seed(seed),
        collate_fn=as_they_are if knobs["collate_fn"] == "list" else None,
        **parallel,
    )


def in_tensors(task: Task, knobs: Knobs, batch: Any) -> Batch:
    """A batch of tensors from the loader's output, stacked here if the loader's processes did not
    stack it."""
    if not isinstance(task, VisionTask):
        return tuple(batch)
    return in_one_piece(default_collate(batch) if knobs["collate_fn"] == "list" else batch)


def train(
    workload: str, knobs: Knobs, seed: int, seconds: float, most_steps: int, around_step: AroundStep
) -> int:
    """Train for `seconds` from the first batch on, or for `most_steps` optimizer steps (0: no
    limit). Returns the steps done."""
    set_up_allocator(knobs)
    torch.manual_seed(seed)
    task: Task = importlib.import_module(f"gpuconsole.workloads.{workload}").create(
        knobs, CPU, seed
    )
    settings.apply_model_knobs(task.model, knobs)
    task.model = settings.compiled(task.model, knobs)
    model = WithLoss(task, str(knobs["precision"]))
    optimizer = make_optimizer(trained(task.model), str(knobs["optim"]))
    settings.set_memory_format(task.model, optimizer, bool(knobs.get("channels_last")))
    schedule = Schedule(optimizer, knobs)
    passes = int(knobs["gradient_accumulation_steps"])
    steps = batches = 0
    until: float | None = None
    with (
        tempfile.TemporaryDirectory() as scratch,
        contextlib.closing(SideWork(task, model, optimizer, knobs, Path(scratch))) as side_work,
    ):
        loader = make_loader(task, knobs, seed)
        while True:
            for drawn_batch in loader:
                batch = in_tensors(task, knobs, drawn_batch)
                if until is None:
                    until = time.monotonic() + seconds
                with around_step(model):
                    if batches % passes == 0:
                        optimizer.zero_grad()
                    loss = model(*batch)
                    (loss / passes).backward()
                    batches += 1
                    if batches % passes == 0:
                        optimizer.step()
                        schedule.step()
                        side_work.do(steps, loss.detach())
                        steps += 1
                if time.monotonic() >= until or (most_steps and steps >= most_steps):
                    return steps


@contextlib.contextmanager
def hooked(hook: str) -> Iterator[AroundStep]:
    """A context for the whole training that yields a context for each pass, as the tool needs them.
    The tool is imported by name, because no tool is a dependency."""
    if hook == "traceml":
        traceml = importlib.import_module("traceml_ai")
        traceml.init(mode="auto")
        yield traceml.trace_step
    elif hook == "gpuprof":
        with importlib.import_module("gpuprof").profile("case", summary=False):
            yield _nothing
    else:
        yield _nothing


def _nothing(model: nn.Module) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", required=True, choices=[case.id for case in CASES])
    parser.add_argument("--half", choices=("tuning", "reporting"), default="reporting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=12.0, help="from the first batch on")
    parser.add_argument(
        "--steps", type=int, default=0, help="end after so many optimizer steps, if that is sooner"
    )
    parser.add_argument("--hook", choices=("none", "traceml", "gpuprof"), default="none")
    args = parser.parse_args(arguments)
    workload, knobs = drawn(args.case, args.half, args.seed)
    with hooked(args.hook) as around_step:
        train(workload, knobs, args.seed, args.seconds, args.steps, around_step)


def drawn(case: str, half: Half, seed: int) -> tuple[str, Knobs]:
    """The workload of a case and all of its knobs, the same for every tool and for gpuconsole."""
    scenario, sets = next(one for one in CASES if one.id == case).drawn(half, seed)
    chosen = find_scenario(scenario)
    return chosen.workload.name, {**chosen.knobs_for("cpu"), **sets}


if __name__ == "__main__":
    main()
