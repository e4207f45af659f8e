"""One look at all devices, by way of a sampler child, so that a driver call that hangs costs a timeout and no more."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuconsole.model.machine.device import Device, Link
from gpuconsole.model.machine.process import Process
from gpuconsole.telemetry.source import NOT_YET
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceLost,
    Devices,
    Hello,
    Processes,
    Sample,
    SourceState,
    Stop,
    Topology,
    Unavailable,
    decode_event,
    encode,
)

ALWAYS = "gpu.utilization_ratio"
"""A metric that every GPU has: the device that cannot even say this one says nothing."""
NO_ANSWER = "the driver does not answer"
_NOT_STARTED = "the sampler does not start"
_ROUNDS = 2  # rates need two readings; the second round spans a whole interval
_LEAVE_S = 1.0


@dataclass
class Look:
    """What the sampler said. `error` is one line, empty when all went well; what came before it is kept."""

    devices: list[Device] = field(default_factory=list)
    driver: str | None = None
    no_gpu: str = ""
    cuda: str = ""
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    substitutes: dict[str, dict[str, str]] = field(default_factory=dict)
    unavailable: dict[str, dict[str, str]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    sources: dict[str, SourceState] = field(default_factory=dict)
    error: str = ""
    greeted: bool = False
    rounds: int = 0

    @property
    def complete(self) -> bool:
        """Whether every device has spoken, and rates have had their two readings."""
        told = self.values.keys() | self.lost.keys() | {device for device, reasons in self.unavailable.items() if ALWAYS in reasons}
        return self.rounds >= _ROUNDS and all(device.id in told for device in self.devices) and self.no_gpu != NOT_YET

    def take(self, event: AnyEvent) -> None:
        match event:
            case Hello():
                self.greeted = True
            case Devices():
                self.devices, self.driver, self.no_gpu, self.cuda = event.devices, event.driver, event.reason, event.cuda
                self.rounds = 0  # those before were without the GPUs
            case Unavailable():
                self.unavailable[event.device] = event.reasons
                for gone in event.reasons:
                    self.values.get(event.device, {}).pop(gone, None)
            case Sample(device="sampler"):
                self.rounds += 1
            case Sample():
                self.values.setdefault(event.device, {}).update(event.values)
                self.substitutes[event.device] = self.substitutes.get(event.device, {}) | event.sources
            case Topology():
                self.links = event.links
            case Processes():
                self.processes = event.processes
            case SourceState():
                self.sources[event.source] = event
            case DeviceLost():
                self.lost[event.device] = event.reason


def look(timeout_s: float = 10.0, interval_s: float = 0.3, dcgm: str | None = None) -> Look:
    """Start a sampler (with the address of a dcgm-exporter), wait for two rounds of samples and end it. Never raises for what the driver does.

    Raises OSError when this machine cannot start a process.
    """
    seen = Look()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = _start(theirs.fileno(), interval_s, dcgm)
        try:
            for event in _events(ours, time.monotonic() + timeout_s):
                seen.take(event)
                if seen.complete:
                    break
            if not seen.complete:
                seen.error = _what_went_wrong(seen, child)
            else:
                with contextlib.suppress(OSError):  # it may have gone already
                    ours.sendall(encode(Stop()) + b"\n")
        finally:
            _end(child, patience_s=0.0 if seen.error else _LEAVE_S)
    return seen


def _start(fd: int, interval_s: float, dcgm: str | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gpuconsole.telemetry.sampler", "--fd", str(fd), "--interval", str(interval_s)]
    command += ["--dcgm", dcgm] if dcgm else []
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[fd], start_new_session=True
    )


def _events(channel: socket.socket, deadline: float) -> Iterator[AnyEvent]:
    """Events until the deadline or the child's end, whichever comes first."""
    pending = b""
    while (left := deadline - time.monotonic()) > 0:
        channel.settimeout(left)
        try:
            chunk = channel.recv(65536)
        except (TimeoutError, ConnectionResetError):
            return
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        yield from map(decode_event, lines)


def _what_went_wrong(seen: Look, child: subprocess.Popen[bytes]) -> str:
    """In one line; a child that has ended left its last words."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = child.wait(0.2)
        words = child.stderr.read().decode(errors="replace").strip().splitlines() if child.stderr else []
        return f"the sampler ended (exit {code}): {words[-1] if words else 'without a word'}"
    stuck = [state.detail for state in seen.sources.values() if state.stuck_s]
    if stuck:
        return f"{NO_ANSWER} (waiting for {stuck[0]})"
    return NO_ANSWER if seen.greeted else _NOT_STARTED


def _end(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Let the child leave within `patience_s`, then kill it. One that hangs in the kernel is left to die by itself."""
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LEAVE_S)
    if child.stderr is not None:
        child.stderr.close()
