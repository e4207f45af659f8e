"""The real sampler child at the other end of a real socket, and everything that it has said so
far."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from gpuconsole.model.machine import Link
from gpuconsole.wire.events import (
    AnyEvent,
    Command,
    DeviceLost,
    Devices,
    Event,
    Sample,
    SourceState,
    Topology,
    Unavailable,
    decode_event,
    encode,
)

DEADLINE_S = 15.0

E = TypeVar("E", bound=Event)


class Heard:
    """What a sampler has said, of all or of some."""

    def __init__(self, events: list[AnyEvent]) -> None:
        self.events = events

    @property
    def round_count(self) -> int:
        return sum(isinstance(event, Sample) and event.device == "sampler" for event in self.events)

    @property
    def devices(self) -> Devices:
        return next(event for event in self.events if isinstance(event, Devices))

    @property
    def losses(self) -> list[DeviceLost]:
        return [event for event in self.events if isinstance(event, DeviceLost)]

    def values(self, device: str) -> dict[str, float]:
        """What is known of a device: the newest value of each metric that has not become
        unavailable since."""
        found: dict[str, float] = {}
        for event in self.events:
            match event:
                case Sample() if event.device == device:
                    found |= event.values
                case Unavailable() if event.device == device:
                    found = {
                        metric: value
                        for metric, value in found.items()
                        if metric not in event.reasons
                    }
        return found

    def substitutes(self, device: str) -> dict[str, str]:
        """The source of each value that did not come from the catalogued one, as of the last
        sample."""
        return next(
            (
                event.sources
                for event in reversed(self.events)
                if isinstance(event, Sample) and event.device == device
            ),
            {},
        )

    def reasons(self, device: str) -> dict[str, str]:
        """What the device was last said to be unable to report."""
        return next(
            (
                event.reasons
                for event in reversed(self.events)
                if isinstance(event, Unavailable) and event.device == device
            ),
            {},
        )

    def last(self, kind: type[E]) -> E:
        """The newest event of a kind."""
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    @property
    def links(self) -> list[Link] | None:
        """The newest topology; None before the first, which comes from a beat of its own."""
        return next(
            (event.links for event in reversed(self.events) if isinstance(event, Topology)), None
        )

    def state(self, source: str) -> SourceState | None:
        """How a source last said it was doing."""
        return next(
            (
                event
                for event in reversed(self.events)
                if isinstance(event, SourceState) and event.source == source
            ),
            None,
        )


class SamplerChild(Heard):
    """`events` grows while the child lives; `wait` returns once a condition on this object
    holds."""

    def __init__(
        self,
        environment: dict[str, str],
        interval_s: float = 0.1,
        *arguments: str,
        piped: bool = False,
    ) -> None:
        super().__init__([])
        self.ended = False
        self._news = threading.Condition()
        self.socket, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "gpuconsole.telemetry.sampler",
            "--fd",
            str(theirs.fileno()),
            "--interval",
            str(interval_s),
            *arguments,
        ]
        with theirs:
            self.process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdout=subprocess.PIPE if piped else None,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> SamplerChild:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        self.socket.close()

    def send(self, command: Command) -> None:
        self.socket.sendall(encode(command) + b"\n")

    def wait(self, condition: Callable[[SamplerChild], object], what: str = "") -> SamplerChild:
        with self._news:
            done = self._news.wait_for(lambda: condition(self) or self.ended, DEADLINE_S)
            assert done, f"not within {DEADLINE_S} s: {what}"
            assert condition(self), f"the sampler ended before: {what}"
        return self

    def rounds(self, count: int = 1) -> SamplerChild:
        """Wait until `count` more whole rounds have come."""
        before = self.round_count
        return self.wait(lambda child: child.round_count >= before + count, f"{count} rounds")

    def forget(self) -> None:
        """Drop what has been said so far, but for the list of devices and what they cannot
        report."""
        with self._news:
            self.events = [
                event for event in self.events if isinstance(event, Devices | Unavailable)
            ]

    def by_device(self) -> dict[str, Heard]:
        """What it has said of each device."""
        found: dict[str, Heard] = {}
        with self._news:
            for event in self.events:
                if isinstance(event, Sample | Unavailable | DeviceLost):
                    found.setdefault(event.device, Heard([])).events.append(event)
        return found

    def _read(self) -> None:
        pending = b""
        while chunk := self._receive():
            *lines, pending = (pending + chunk).split(b"\n")
            events = [decode_event(line) for line in lines]
            with self._news:
                self.events += events
                self._news.notify_all()
        with self._news:
            self.ended = True
            self._news.notify_all()

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except OSError:  # the test has closed or cut the socket
            return b""
