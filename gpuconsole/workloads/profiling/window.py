"""The profiler window of a running workload: a few ordinary steps. Another process analyses the trace while training continues."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from gpuconsole.agent.clock import now
from gpuconsole.agent.loop import Loop
from gpuconsole.agent.protocol import PROBE, Profile
from gpuconsole.model.profile import ProfileReport
from gpuconsole.wire.events import Profiled
from gpuconsole.workloads.profiling.recorder import Recorder, synchronize
from gpuconsole.workloads.profiling.summary import Update

ANALYSIS_S = 120.0
"""Time limit of an analysis in seconds, longer than the analysis of the largest known trace."""


class Profiling:
    """Takes profiler windows of one worker, one at a time.

    With several processes all train the steps of the window. Only the leading process (`leads`) is profiled and answers.
    """

    def __init__(self, loop: Loop, answer: Callable[[Profiled], None], leads: bool = True, note: str = "") -> None:
        """`note` is added to every report."""
        self._loop = loop
        self._note = note
        self._answer = answer
        self._leads = leads
        self._pending: Analysis | None = None

    def take(self, command: Profile) -> None:
        """Train `command.steps` steps under the profiler. These steps and the settling steps after them do not count."""
        start, loop = now(), self._loop
        if self._pending is not None:  # the console requests one window at a time; a second request still gets an answer
            self._pending.kill()
            self._answer(self._pending.answer())
            self._pending = None
        path = loop.scratch / "window.json"
        recorder = Recorder(loop.device, path, command.steps) if self._leads else None
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
            self._pending = Analysis(command, path, update_of(loop.optimizer), now() - start, options)

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

    def __init__(self, command: Profile, path: Path, update: Update, cost_s: float, options: list[str]) -> None:
        self._command = command
        self._cost_s = cost_s
        self._report = path.with_name("report.json")
        self._words = path.with_name("analysis.txt")
        self._report.unlink(missing_ok=True)
        arguments = [str(path), str(self._report), "--keep", command.keep, "--update", str(update.elements), str(update.bytes), *options]
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gpuconsole.workloads.profiling.analyse", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=words,
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
                words = self._words.read_text(errors="replace").strip().splitlines()
                error = f"the trace could not be read: {words[-1] if words else f'exit code {self._process.returncode}'}"
        return Profiled(now(), self._command.request, report, error, self._cost_s)


def update_of(optimizer: torch.optim.Optimizer | None) -> Update:
    """Minimum bytes of one step of `optimizer`: parameters, gradients and states are read; parameters and states are written."""
    if optimizer is None:
        return Update(0.0, 0.0)
    elements = moved = 0.0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                own = float(parameter.numel() * parameter.element_size())
                states = [value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, torch.Tensor) and value.dim()]
                elements += parameter.numel()
                moved += own + 2 * (own + sum(state.numel() * state.element_size() for state in states))
    return Update(elements, moved)
