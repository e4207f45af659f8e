"""A real worker process at the other end of a real socket, driven by plain blocking calls."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import TypeVar

from gpuconsole.engine.catalog import find_scenario
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Step
from gpuconsole.wire.events import (
    AnyEvent,
    Command,
    Event,
    Start,
    Steps,
    Stop,
    decode_event,
    encode,
)

E = TypeVar("E", bound=Event)


def knobs_of(scenario: str, **changes: object) -> Knobs:
    """A scenario's CPU values with some changed; `log_every` and the like as they are."""
    return {**find_scenario(scenario).knobs_for("cpu"), **changes}  # type: ignore[dict-item]


class RunningWorker:
    """Use as a context manager: the worker is killed at the end whatever happens."""

    def __init__(
        self,
        workload: str = "",
        knobs: Knobs | None = None,
        max_steps: int = 0,
        env: dict[str, str] | None = None,
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(90)
        self.scratch = tempfile.TemporaryDirectory()
        command = [
            sys.executable,
            "-m",
            "gpuconsole.workloads.worker",
            "--fd",
            str(theirs.fileno()),
            "--scratch",
            self.scratch.name,
        ]
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stderr=subprocess.PIPE,
            env=env,
        )
        theirs.close()
        self._lines = self.socket.makefile("rb")
        self.steps: list[Step] = []
        self.events: list[AnyEvent] = []
        if workload:
            assert knobs is not None
            self.send(Start(workload, knobs, "cpu", max_steps=max_steps))

    def __enter__(self) -> RunningWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait(10)
        if self.process.stderr:
            self.process.stderr.close()
        self._lines.close()
        self.socket.close()
        self.scratch.cleanup()

    def send(self, command: Command) -> None:
        self.socket.sendall(encode(command) + b"\n")

    def next(self) -> AnyEvent | None:
        """The next event; None when the worker has closed its end."""
        line = self._lines.readline()
        if not line:
            return None
        event = decode_event(line)
        self.events.append(event)
        if isinstance(event, Steps):
            self.steps += event.steps
        return event

    def wait_for(self, kind: type[E]) -> E:
        """Read on until an event of that kind."""
        while (event := self.next()) is not None:
            if isinstance(event, kind):
                return event
        raise AssertionError(
            f"the worker ended without {kind.__name__}; it said {self.events[-3:]}"
        )

    def run_until(self, enough: Callable[[list[Step]], bool]) -> list[Step]:
        while not enough(self.steps):
            assert self.next() is not None, f"the worker ended early: {self.events[-2:]}"
        return self.steps

    def finish(self) -> list[Step]:
        """Stop it and read what is left."""
        self.send(Stop())
        return self.read_to_end()

    def read_to_end(self) -> list[Step]:
        while self.next() is not None:
            pass
        return self.steps
