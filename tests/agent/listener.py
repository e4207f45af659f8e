"""A stand-in for the console: it starts a command with the agent injected, and collects what the
agents send."""

from __future__ import annotations

import os
import socketserver
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuconsole.engine.children.job import JobFolder
from gpuconsole.model.run import PHASES, Step
from gpuconsole.model.stacks import StackSample
from gpuconsole.session.segments import SegmentFold
from gpuconsole.wire.events import (
    AgentOff,
    AnyEvent,
    Command,
    JobKnown,
    JobProcess,
    KnobsSet,
    ProbeDone,
    Profiled,
    Segments,
    Stacks,
    Started,
    Steps,
    decode_event,
    encode,
)

TOKEN = "a token"


@dataclass
class Watched:
    """What the agent of one process has sent."""

    first: JobProcess
    events: list[AnyEvent] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    asked: int = 0
    answered: bool = False

    @property
    def off(self) -> AgentOff | None:
        return next(
            (event for event in self.events if isinstance(event, AgentOff) and event.where), None
        )

    @property
    def started(self) -> Started:
        return next(event for event in reversed(self.events) if isinstance(event, Started))

    @property
    def last(self) -> Steps:
        return next(event for event in reversed(self.events) if isinstance(event, Steps))

    @property
    def samples(self) -> list[StackSample]:
        """All stack samples."""
        return [
            sample for event in self.events if isinstance(event, Stacks) for sample in event.samples
        ]

    def shares(self, skipped: int) -> dict[str, float]:
        """The share of each phase in the steps from `skipped` on."""
        counted = self.steps[skipped:]
        total = sum(step.wall_s for step in counted)
        return {
            name: sum(step.phases[i] for step in counted) / total for i, name in enumerate(PHASES)
        }


class Listener:
    """The console's end of the socket of one job. `watched`: one entry for each connection.

    `asks`: commands for the first process that trains, each with the step from which on it is sent.
    The next one waits for the answer. `leaves`: close the connection after the last answer, as a
    console that is killed.
    """

    def __init__(
        self, folder: Path, asks: Sequence[tuple[int, Command]] = (), leaves: bool = False
    ) -> None:
        waiting = list(asks)
        self.folder = JobFolder(folder)
        self.watched: list[Watched] = []
        listener = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                first = decode_event(self.rfile.readline())
                assert isinstance(first, JobProcess) and first.token == TOKEN
                one = Watched(first)
                listener.watched.append(one)
                fold, raw = SegmentFold(), list[Segments]()
                for line in self.rfile:
                    event = decode_event(line)
                    if isinstance(event, JobKnown | Stacks):
                        fold.learn(event)
                    if isinstance(event, Segments):
                        raw.append(event)
                        event = fold.add(event)
                        one.steps += event.steps
                    one.events.append(event)
                    answer = (
                        isinstance(event, ProbeDone | KnobsSet | Profiled) and event.request > 0
                    )
                    answered = not one.asked or answer
                    if (
                        waiting
                        and one.steps
                        and one.steps[-1].index >= waiting[0][0]
                        and (answered or one.answered)
                    ):
                        one.asked, one.answered = one.asked + 1, False
                        self.wfile.write(encode(waiting.pop(0)[1]) + b"\n")
                        listener.folder.ring()
                    elif answer:
                        one.answered = True
                        if leaves and not waiting:
                            return
                # what samples show is known after some seconds: a short loop of a test is to have
                # it, too
                again = SegmentFold()
                again.on_device, again.torch_ratio, again.after_step_ratio = (
                    fold.on_device,
                    fold.torch_ratio,
                    fold.after_step_ratio,
                )
                one.steps = [step for event in raw for step in again.add(event).steps]

        self._server = socketserver.ThreadingUnixStreamServer(str(self.folder.socket), Handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}
        )
        self._thread.start()

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a command under the agent."""
        env = {**os.environ, **more}
        path = os.pathsep.join(filter(None, (str(self.folder.path), env.get("PYTHONPATH", ""))))
        return {**env, **self.folder.environment(TOKEN), "PYTHONPATH": path}

    def run(
        self,
        *command: str,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 270.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` under the agent, and wait for the end of its connections."""
        env = self.environment(**(environment or {}))
        try:
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=env,
                cwd=cwd,
                check=False,
                timeout=timeout_s,
            )
        finally:
            self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()  # waits for the threads of the connections
        self._thread.join()

    def by_script(self) -> dict[str, Watched]:
        """The processes that trained, by the name of their script."""
        return {one.first.script: one for one in self.watched if one.steps}
