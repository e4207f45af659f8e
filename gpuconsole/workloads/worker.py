"""The worker process: imports torch ahead of time, waits for a Start, then runs one workload and answers commands.

Started by the runtime as `python -m gpuconsole.workloads.worker --fd N --scratch DIR`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from gpuconsole import __version__
from gpuconsole.agent.clock import now
from gpuconsole.agent.inbox import Inbox
from gpuconsole.agent.world import Torn, World
from gpuconsole.model.knobs.catalogue import CATALOGUE, show
from gpuconsole.model.knobs.knob import NO_EFFECT
from gpuconsole.wire.channel import ChildChannel, die_with_parent, kill_own_group
from gpuconsole.wire.events import (
    AnyCommand,
    Event,
    Failed,
    Hello,
    KnobsSet,
    MarkedSteps,
    Note,
    Pause,
    Paused,
    ProbeDone,
    Profile,
    Profiled,
    Progress,
    Resume,
    RunProbe,
    SetKnobs,
    Start,
    Started,
    Stop,
)

if TYPE_CHECKING:
    from gpuconsole.workloads.calibration.repeating import RepeatingLoop
    from gpuconsole.workloads.profiling.window import Profiling
    from gpuconsole.workloads.training.loop.loop import TrainingLoop

FLUSH_S = 0.25
"""While a run is new, or was just asked for something: findings wait for what is sent. A message costs a training thread some 0.3 to 0.5 ms
between two steps: 0.1 to 0.2 % of its time."""

LOW_RATE_FLUSH_S = 0.5
"""As often as the screen is painted anew."""

LOW_RATE_AFTER_S = 20.0
"""From the first message on, or from the first after a command; by then a run's first findings are told."""

TRIAL_FLUSH_S = 0.05
"""A block of a trial takes 0.35 s and more: to learn of its end a quarter of a second late would make it half as long again. At 0.3 to 0.5 ms a
message it costs a trial's both sides about 1 % of their time."""


FULL_PIPE_S = 0.01
"""Between two attempts to send what a full pipe has no room for."""


class DeviceError(RuntimeError):
    """The device is there, but this torch cannot use it."""


class Worker:
    """Runs one workload and talks to the console between its steps. In a world of several, one answers for all."""

    def __init__(
        self, channel: ChildChannel, inbox: Inbox, loop: TrainingLoop | RepeatingLoop, start: Start, world: World | None = None
    ) -> None:
        self._channel = channel
        self._world = world or World()
        self._inbox = inbox
        self._loop = loop
        self._max_steps = start.max_steps
        self._stopping = False
        self._sending_s = 0.0
        self._flushed = now()
        self._stirred: float | None = None  # until the first message
        self._facts_of: dict[object, dict[str, float]] = {}
        self._profiling: Profiling | None = None
        self._told: set[str] = set()

    def run(self) -> None:
        self._announce()
        self._loop.forget_peak_memory()
        self._loop.account.restart()
        while not self._stopping and not (self._max_steps and self._loop.account.index >= self._max_steps):
            command = self._inbox.poll()
            if command is not None:
                self._serve(command)
                continue
            self._loop.step()
            if now() - self._flushed >= self._flush_period_s():
                self._flush()
                if self._profiling is not None:
                    self._profiling.poll()
        if self._profiling is not None:
            self._profiling.close()
        self._loop.account.finish()
        self._flush()

    def _flush_period_s(self) -> float:
        if self._loop.arm:
            return TRIAL_FLUSH_S
        return LOW_RATE_FLUSH_S if self._loop.account.low_rate else FLUSH_S

    def _serve(self, command: AnyCommand) -> None:
        self._loop.account.finish()  # so that no step from before it is told after it
        self._flush()
        if isinstance(command, Stop):
            self._stopping = True
        elif isinstance(command, SetKnobs):
            self._set_knobs(command)
        elif isinstance(command, RunProbe):
            self._probe(command)
        elif isinstance(command, Profile):
            self._profile(command)
        elif isinstance(command, Pause):
            self._wait_for_resume(command)
        elif isinstance(command, Resume):
            self._loop.set_arm(command.arm)
        self._stirred, self._loop.account.low_rate = None, False  # from its end on: it may have taken long

    def _set_knobs(self, command: SetKnobs) -> None:
        """Answered once a first step has run with the change: what does not fit is refused, and the run goes on as before."""
        loop, error = self._loop, None
        before, arm, first = dict(loop.knobs), loop.arm, loop.account.index
        try:
            loop.set_knobs(command.changes, command.arm)
            self._try_out()
        except Exception as problem:  # whatever torch objects to is the user's answer
            error = explain(problem, loop.knobs)
        failed = {rank: one for rank, one in enumerate(self._world.gather(error)) if one is not None}
        error = next((one if len(failed) == self._world.size else f"rank {rank}: {one}" for rank, one in failed.items()), None)
        if error is None and self._exchanges:
            loop.step()
            self._announce()
        elif error is not None:
            loop.release_cached_memory()
            loop.set_knobs({name: before[name] for name in command.changes if name in before and CATALOGUE[name].apply == "hot"}, arm)
            self._recover()
            first = loop.account.index
        self._answer(KnobsSet(now(), command.request, first, loop.knobs, error))
        loop.restart_peak_memory()
        loop.account.restart()

    def _try_out(self) -> None:
        """A step with a change; where processes wait for each other in it, first a pass that each makes by itself."""
        from gpuconsole.workloads.training.loop.loop import TrainingLoop
        from gpuconsole.workloads.training.probes.measure import rehearse

        if isinstance(self._loop, TrainingLoop) and self._exchanges:
            rehearse(self._loop)
        else:
            self._loop.step()
            self._announce()

    def _recover(self) -> None:
        from gpuconsole.workloads.training.loop.loop import TrainingLoop
        from gpuconsole.workloads.training.probes.measure import recover

        if isinstance(self._loop, TrainingLoop) and self._exchanges and self._loop.last_batch is not None:
            recover(self._loop)

    @property
    def _exchanges(self) -> bool:
        plan = getattr(self._loop, "plan", None)
        return plan is not None and bool(plan.exchanges)

    def _probe(self, command: RunProbe) -> None:
        from gpuconsole.workloads.training.loop.loop import TrainingLoop
        from gpuconsole.workloads.training.probes.catalog import PROBES
        from gpuconsole.workloads.training.probes.measure import ProbeError

        start = now()
        signals, error = {}, None
        with self._loop.beside_the_peak():
            try:
                if not isinstance(self._loop, TrainingLoop):
                    raise ProbeError("this workload trains nothing: there is no pass to experiment with")
                signals = PROBES[command.probe](self._loop)
            except Exception as problem:  # a probe must not end the run that it looks at; what went wrong is its answer
                error = explain(problem, self._loop.knobs)
                self._loop.release_cached_memory()
        error = self._world.outcome(error)
        if error is not None:
            self._recover()
        self._loop.account.finish()
        self._flush()
        self._answer(ProbeDone(now(), command.request, command.probe, signals, error, now() - start))
        self._loop.settle()

    def _profile(self, command: Profile) -> None:
        from gpuconsole.workloads.profiling.window import Profiling

        world = self._world
        note = f"process {world.rank} of {world.size}" if world.size > 1 else ""
        self._profiling = self._profiling or Profiling(self._loop, self._channel.send, world.leads, note)
        self._profiling.take(command)

    def _wait_for_resume(self, command: AnyCommand) -> None:
        """Stand still. `_serve` has waited for the device, ahead of which nothing else bounds the host."""
        self._loop.release_cached_memory()  # the other side of a trial may need it
        self._world.gather(None)  # each of the processes has come as far
        while True:
            if isinstance(command, Pause):
                self._answer(Paused(now(), command.request))
            while not self._channel.flush():  # nothing is sent after an answer that would take it along
                time.sleep(FULL_PIPE_S)
            command = self._inbox.wait()
            if isinstance(command, Stop):
                self._stopping = True
            if isinstance(command, Resume | Stop):
                break
            if isinstance(command, SetKnobs):
                self._answer(KnobsSet(now(), command.request, 0, self._loop.knobs, "the worker is paused"))
            elif isinstance(command, RunProbe):
                self._answer(ProbeDone(now(), command.request, command.probe, error="the worker is paused"))
            elif isinstance(command, Profile):
                self._answer(Profiled(now(), command.request, error="the worker is paused"))
        if isinstance(command, Resume):
            self._loop.set_arm(command.arm)
        self._loop.settle()

    def _flush(self) -> None:
        """Send the steps done so far. What it costs is counted as overhead and lies in the next step's `other`."""
        from gpuconsole.agent.compile_state import compile_counters

        start = now()
        steps = self._loop.account.take()
        times = self._loop.account.times
        overhead = self._loop.account.overhead_s + self._sending_s
        self._channel.send(
            MarkedSteps(
                start,
                steps,
                times.cpu_s(),
                times.runq_s(),
                overhead,
                self._loop.peak_memory_bytes(),
                self._channel.dropped,
                self._world.rank,
                compile_counters(self._loop.knobs) | self._loop.counters(),
            )
        )
        self._flushed = now()
        if self._stirred is None:
            self._stirred = self._flushed
        self._loop.account.low_rate = self._flushed - self._stirred >= LOW_RATE_AFTER_S
        self._sending_s += self._flushed - start

    def _answer(self, event: Event) -> None:
        if self._world.leads:
            self._channel.send(event)

    def _announce(self) -> None:
        if not self._world.leads:
            return
        from gpuconsole.workloads.training.loop.effects import without_effect

        notes = {"peak": f"{self._loop.knobs.get('precision', 'fp32')} {self._loop.task.dense_kind}"}
        for name, why in without_effect(self._loop.knobs, self._loop.device).items():
            notes[NO_EFFECT + name] = why
            if self._loop.knobs[name] != CATALOGUE[name].default and name not in self._told:
                self._told.add(name)
                self._channel.send(Note(now(), f"{name} {show(self._loop.knobs[name])} has no effect: {why}"))
        self._channel.send(Started(now(), self._loop.knobs, self._facts(), notes))

    def _facts(self) -> dict[str, float]:
        """Facts about the workload as its knobs now are; those that take time are remembered."""
        import torch

        from gpuconsole.workloads.calibration.dense import dense_flops_per_s
        from gpuconsole.workloads.calibration.memory import best_copy_bytes_per_s
        from gpuconsole.workloads.training.loop.facts import model_facts

        loop, knobs = self._loop, self._loop.knobs
        facts = model_facts(loop.task, knobs)
        key = tuple(knobs.get(name) for name in ("seq_len", "varied_lengths", "precision", "num_threads"))
        if key not in self._facts_of:
            precision = str(knobs.get("precision", "fp32"))
            self._facts_of[key] = {
                "flops_per_sample": loop.task.flops_per_sample(knobs),
                "peak_flops_per_s": dense_flops_per_s(loop.task.dense_kind, loop.device, precision) * self._world.size,
            }
            if "bytes_per_sample" in facts:
                self._facts_of[key]["peak_bytes_per_s"] = best_copy_bytes_per_s(loop.device)
        here = {"threads": float(torch.get_num_threads()), "world_size": float(self._world.size)}
        return {**self._facts_of[key], **facts, **here}


def explain(error: BaseException, knobs: dict[str, object] | object) -> str:
    """An error as one line for people."""
    if isinstance(error, DeviceError | Torn):
        return str(error)
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    memory_words = ("out of memory", "can't allocate memory", "not enough memory", "DefaultCPUAllocator")
    if isinstance(error, MemoryError) or any(word in str(error) for word in memory_words):
        batch = knobs.get("batch_size") if isinstance(knobs, dict) else None
        return f"out of memory at batch_size {batch}: {line}"
    return f"{type(error).__name__}: {line}"


def build(start: Start, scratch: Path, channel: ChildChannel, world: World | None = None) -> TrainingLoop | RepeatingLoop:
    """The workload that `start` asks for, ready for its first step."""
    world = world or World()
    import torch

    from gpuconsole.workloads.calibration.repeating import RepeatingLoop
    from gpuconsole.workloads.training.loop.loop import TrainingLoop
    from gpuconsole.workloads.training.loop.memory import set_up_allocator
    from gpuconsole.workloads.training.parallel.choose import plan_for

    channel.send(Progress(now(), "building", start.workload))
    device = torch.device("cpu") if start.device == "cpu" else torch.device("cuda", world.local_rank)
    set_up_allocator(start.knobs)
    if device.type == "cuda":
        # NVML counts by PCI bus and sees every GPU; CUDA counts by speed and obeys CUDA_VISIBLE_DEVICES. The uuid is unmistakable.
        if world.size == 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = start.uuid or start.device.partition(":")[2]
        if not torch.cuda.is_available():
            build_of = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
            raise DeviceError(f"torch {torch.__version__} ({build_of}) cannot use {start.device}; run on the host with --device cpu")
        if world.size > 1 and world.local_rank >= torch.cuda.device_count():
            raise DeviceError(f"every process needs a GPU, and torch sees {torch.cuda.device_count()} here: --set nproc=N")
        torch.cuda.set_device(device)
    torch.manual_seed(start.seed)
    module = importlib.import_module(f"gpuconsole.workloads.{start.workload}")
    if hasattr(module, "create_work"):
        work = module.create_work(start.knobs, device, start.seed)
        return RepeatingLoop(work, start.knobs, device, scratch)
    plan = plan_for(start.knobs, world)
    task = module.create(start.knobs, device, start.seed + plan.replica)
    channel.send(Progress(now(), "warming", "first steps"))
    return TrainingLoop(task, start.knobs, device, scratch, plan)


def warm_up(channel: ChildChannel) -> None:
    """Import what every workload needs: torch, and torch._dynamo, which the first optimizer would import."""
    channel.send(Progress(now(), "importing", "torch"))
    import torch
    import torch.optim

    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    channel.send(Progress(now(), "ready", torch.__version__ + (f" cuda {torch.version.cuda}" if torch.version.cuda else "")))


def serve(channel: ChildChannel, inbox: Inbox, scratch: Path) -> int:
    """The worker's life. Returns its exit code; a failure has been told to the console by then."""
    start: AnyCommand | None = None
    loop = None
    try:
        warm_up(channel)
        start = inbox.wait()
        if not isinstance(start, Start):
            return 0
        loop = build(start, scratch, channel)
        Worker(channel, inbox, loop, start).run()
    except ModuleNotFoundError as error:
        hint = f'{error.name} is not installed: pip install "gpuconsole[torch]"'
        channel.send(Failed(now(), hint))
        return 1
    except Exception as error:  # the last line of defence: whatever ended the workload is shown to the user
        knobs = loop.knobs if loop else start.knobs if isinstance(start, Start) else {}
        channel.send(Failed(now(), explain(error, knobs), "".join(traceback.format_exception(error)[-6:])))
        return 1
    finally:
        if loop is not None:
            loop.close()
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description="worker process of gpuconsole; not for people")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the console's to handle
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(args.scratch / "inductor"))
    # torch takes all cores, and each of its compile processes imports torch: leave one for the rest
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, min(8, (os.cpu_count() or 1) - 1))))
    channel = ChildChannel(args.fd)
    inbox = Inbox()
    channel.listen(inbox.put, kill_own_group)
    channel.send(Hello(now(), "worker", os.getpid(), __version__, time.time()))
    code = serve(channel, inbox, args.scratch)
    channel.drain(2.0)
    sys.stdout.flush()
    os._exit(code)  # torch's and the loader's own shutdown can take seconds and has nothing left to save


if __name__ == "__main__":
    main()
