"""The profiler window of a running workload: a few ordinary steps. Another process analyses the
trace while training continues."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from gpuconsole.agent.clock import now
from gpuconsole.agent.loop import Loop, Signals
from gpuconsole.agent.protocol import PROBE, Profile, Signal
from gpuconsole.model import finding
from gpuconsole.model.profile import ProfileReport
from gpuconsole.wire.events import Profiled
from gpuconsole.workloads.profiling.summary import Update, summarize
from gpuconsole.workloads.profiling.trace import TraceError, read_trace

# --- the profiler window of a running workload ----------------------------------------------------

ANALYSIS_S = 120.0
"""Time limit of an analysis in seconds, longer than the analysis of the largest known trace."""


class Profiling:
    """Takes profiler windows of one worker, one at a time.

    With several processes all train the steps of the window. Only the leading process (`leads`) is
    profiled and answers.
    """

    def __init__(
        self, loop: Loop, answer: Callable[[Profiled], None], leads: bool = True, note: str = ""
    ) -> None:
        """`note` is added to every report."""
        self._loop = loop
        self._note = note
        self._answer = answer
        self._leads = leads
        self._pending: Analysis | None = None

    def take(self, command: Profile) -> None:
        """Train `command.steps` steps under the profiler. These steps and the settling steps after
        them do not count."""
        start, loop = now(), self._loop
        # the console requests one window at a time; a second request still gets an answer
        if self._pending is not None:
            self._pending.kill()
            self._answer(self._pending.answer())
            self._pending = None
        path = loop.scratch / "window.json"
        recorder = ProfileRecorder(loop.device, path, command.steps) if self._leads else None
        usual, loop.kind = loop.kind, PROBE
        try:
            for n in range(command.steps + 1):
                loop.step()
                if n in (0, command.steps):
                    synchronize(loop.device)
                if recorder is not None:
                    recorder.step()
        finally:
            loop.kind = usual
            if recorder is not None:
                recorder.stop()
        loop.settle()
        if recorder is None:
            return
        if recorder.error:
            self._answer(Profiled(now(), command.request, None, recorder.error, now() - start))
        else:
            options = ["--note", self._note] if self._note else []
            options += ["--gpu"] if loop.device.type == "cuda" else []
            self._pending = Analysis(
                command, path, update_of(loop.optimizer), now() - start, options
            )

    def poll(self) -> None:
        """Send the answer if the analysis has finished."""
        if self._pending is not None and self._pending.done():
            pending, self._pending = self._pending, None
            self._answer(pending.answer())

    def close(self) -> None:
        """Abandon a running analysis."""
        if self._pending is not None:
            self._pending.kill()
            self._pending = None


class Analysis:
    """The process that analyses a trace and stores it for the user."""

    def __init__(
        self, command: Profile, path: Path, update: Update, cost_s: float, options: list[str]
    ) -> None:
        self._command = command
        self._cost_s = cost_s
        self._report = path.with_name("report.json")
        self._output = path.with_name("analysis.txt")
        self._report.unlink(missing_ok=True)
        arguments = [
            str(path),
            str(self._report),
            "--keep",
            command.keep,
            "--update",
            str(update.elements),
            str(update.bytes),
            *options,
        ]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gpuconsole.workloads.profiling.analyse", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._deadline = now() + ANALYSIS_S

    def done(self) -> bool:
        return self._process.poll() is not None or now() > self._deadline

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def answer(self) -> Profiled:
        """The report of the process, or the last line of its stderr."""
        report, error = None, None
        if self._process.poll() is None:
            self.kill()
            error = f"the trace was not read within {ANALYSIS_S:.0f} s"
        else:
            try:
                report = msgspec.json.decode(self._report.read_bytes(), type=ProfileReport)
            except (OSError, msgspec.DecodeError):
                lines = self._output.read_text(errors="replace").strip().splitlines()
                error = (
                    "the trace could not be read:"
                    f" {lines[-1] if lines else f'exit code {self._process.returncode}'}"
                )
        return Profiled(now(), self._command.request, report, error, self._cost_s)


def update_of(optimizer: torch.optim.Optimizer | None) -> Update:
    """Minimum bytes of one step of `optimizer`: parameters, gradients and states are read;
    parameters and states are written."""
    if optimizer is None:
        return Update(0.0, 0.0)
    elements = moved = 0.0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                own = float(parameter.numel() * parameter.element_size())
                states = [
                    value
                    for value in optimizer.state.get(parameter, {}).values()
                    if isinstance(value, torch.Tensor) and value.dim()
                ]
                elements += parameter.numel()
                moved += own + 2 * (
                    own + sum(state.numel() * state.element_size() for state in states)
                )
    return Update(elements, moved)


# --- torch.profiler -------------------------------------------------------------------------------


class ProfileError(RuntimeError):
    """There is no profile; the message is the reason."""


class ProfileRecorder:
    """A profiler that never raises. `error` holds the first failure; later actions are then
    skipped."""

    def __init__(self, device: torch.device, path: Path, steps: int = 0) -> None:
        """The trace goes to `path`. With `steps`: one warm-up step, then this number of recorded
        steps, as marked by `step`."""
        self.error = ""
        self._path = path
        self._stepwise = steps > 0
        self._profile: profile | None = None
        activities = [ProfilerActivity.CPU] + (
            [ProfilerActivity.CUDA] if device.type == "cuda" else []
        )
        plan: dict[str, Any] = (
            {
                "schedule": schedule(wait=0, warmup=1, active=steps, repeat=1),
                "on_trace_ready": self._write,
            }
            if steps
            else {}
        )
        self._guarded(lambda: self._begin(activities, plan))

    def step(self) -> None:
        """Mark the end of a step. The device is synchronized where the window begins or ends."""
        if self._profile is not None:
            self._guarded(self._profile.step)

    def stop(self) -> None:
        recorder, self._profile = self._profile, None
        if recorder is None:
            return
        self._guarded(recorder.stop)
        if not self._stepwise:
            self._guarded(lambda: self._write(recorder))
        if not self.error and not self._path.exists():
            self.error = "torch.profiler wrote no trace"

    def _begin(self, activities: list[ProfilerActivity], plan: dict[str, Any]) -> None:
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("another profiler is running in this process")
        _let_cupti_go_afterwards()
        self._profile = profile(activities=activities, record_shapes=True, **plan)
        self._profile.start()

    def _write(self, recorder: profile) -> None:
        recorder.export_chrome_trace(str(self._path))

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as problem:  # errors of Kineto and CUPTI go to the user unchanged
            line = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
            self.error = self.error or f"torch.profiler cannot profile here: {line}"


def _let_cupti_go_afterwards() -> None:
    """Make Kineto detach CUPTI at its end. Otherwise the job stays some percent slower
    (pytorch#144455, #146604). Before CUDA 12.6 the setting crashes jobs with CUDA graphs, so it is
    not used there."""
    version = tuple(int(part) for part in (torch.version.cuda or "0").split("."))
    if version >= (12, 6):
        os.environ.setdefault("TEARDOWN_CUPTI", "1")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def as_probe(signals: Mapping[str, finding.Signal]) -> Signals:
    """The signals of a report as a probe's."""
    return {
        name: Signal(signal.value, signal.unit, signal.source, signal.place)
        for name, signal in signals.items()
    }


def profile_passes(
    one_pass: Callable[[], None], passes: int, device: torch.device, scratch: Path
) -> ProfileReport:
    """Run `one_pass` several times under the profiler and analyse the trace in this process: for a
    probe. Raises ProfileError."""
    path = scratch / "passes.json"
    synchronize(device)
    recorder = ProfileRecorder(device, path)
    try:
        for _ in range(passes):
            one_pass()
        synchronize(device)
        recorder.stop()
        if recorder.error:
            raise ProfileError(recorder.error)
        return summarize(read_trace(path), steps=passes, gpu=device.type == "cuda")
    except TraceError as error:
        raise ProfileError(str(error)) from None
    finally:
        recorder.stop()
        path.unlink(missing_ok=True)
