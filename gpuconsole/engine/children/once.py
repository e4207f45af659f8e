"""One reading of all devices through a sampler child, so that a driver call that hangs costs a
timeout and no more."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from gpuconsole.engine.children.environment import dcgm_environment, own_environment
from gpuconsole.session.freshness import slow_gpus
from gpuconsole.session.machine import parent
from gpuconsole.session.state import SessionState
from gpuconsole.telemetry.source import NOT_YET
from gpuconsole.wire.events import AnyEvent, Devices, Hello, Sample, decode_event

ALWAYS = "gpu.utilization_ratio"
"""A metric that every GPU has. A device that cannot report this metric reports nothing."""
NO_ANSWER = "the driver does not answer"
_NOT_STARTED = "the sampler does not start"
_ROUNDS = 2  # rates need two readings; the second round spans a whole interval
_LEAVE_S = 1.0
_MIN_STUCK_S = 2.0
"""A GPU that has not answered for so long is not waited for."""


class DevicesReading(NamedTuple):
    """All devices as one short-lived sampler reported them. `error` is one line, empty when all
    went well; `state` has what came before it."""

    state: SessionState
    error: str


class _Progress:
    """How far a sampler has come."""

    def __init__(self, rounds: int) -> None:
        self.greeted = False
        self._wanted, self._rounds = rounds, 0

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, Hello):
            self.greeted = True
        elif isinstance(event, Devices):
            self._rounds = 0  # the rounds before were without the GPUs
        elif isinstance(event, Sample) and event.device == "sampler":
            self._rounds += 1

    def is_complete(self, state: SessionState) -> bool:
        """Return whether every device has reported or is stuck by itself, and rates have had their
        two readings."""
        slow = slow_gpus(state)
        stuck = {gpu for gpu in slow if state.sources[gpu].stuck_s >= _MIN_STUCK_S}
        mute = {
            device
            for device, reasons in state.unavailable.items()
            if ALWAYS in reasons and parent(device) not in slow
        }
        reported = state.readings.reported.keys() | state.lost.keys() | mute | stuck
        return (
            self._rounds >= self._wanted
            and all(device.id in reported or parent(device.id) in stuck for device in state.devices)
            and state.no_gpu_reason != NOT_YET
        )


def read_devices(
    timeout_s: float = 10.0,
    interval_s: float = 0.3,
    dcgm: str | None = None,
    brief: bool = False,
) -> DevicesReading:
    """Start a sampler (with the address of a dcgm-exporter), wait for two rounds of samples and end
    it. `brief`: one round, of what one line of each GPU needs. Never raises for what the driver
    does.

    Raises OSError when this machine cannot start a process.
    """
    state, error = SessionState(interval_s, history=False), ""
    progress = _Progress(1 if brief else _ROUNDS)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = _start(theirs.fileno(), interval_s, dcgm, brief)
        try:
            for event in _events(ours, time.monotonic() + timeout_s):
                state.apply(event)
                progress.take(event)
                if progress.is_complete(state):
                    break
            if not progress.is_complete(state):
                error = _what_went_wrong(state, progress.greeted, child)
            else:
                with contextlib.suppress(OSError):  # it may have gone already
                    ours.shutdown(socket.SHUT_RDWR)  # the sampler ends with its connection
        finally:
            _end_child(child, patience_s=0.0 if error else _LEAVE_S)
    return DevicesReading(state, error)


def _start(fd: int, interval_s: float, dcgm: str | None, brief: bool) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "gpuconsole.telemetry.sampler",
        "--fd",
        str(fd),
        "--interval",
        str(interval_s),
        *(["--brief"] if brief else []),
    ]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[fd],
        start_new_session=True,
        env={**os.environ, **own_environment(), **dcgm_environment(dcgm)},
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


def _what_went_wrong(state: SessionState, greeted: bool, child: subprocess.Popen[bytes]) -> str:
    """In one line, with the last line of a child that has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = child.wait(0.2)
        lines = (
            child.stderr.read().decode(errors="replace").strip().splitlines()
            if child.stderr
            else []
        )
        return f"the sampler ended (exit {code}): {lines[-1] if lines else 'without a word'}"
    stuck = [source.detail for source in state.sources.values() if source.stuck_s]
    if stuck:
        return f"{NO_ANSWER} (waiting for {stuck[0]})"
    return NO_ANSWER if greeted else _NOT_STARTED


def _end_child(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Let the child leave within `patience_s`, then kill it. One that hangs in the kernel is left
    to die by itself."""
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LEAVE_S)
    if child.stderr is not None:
        child.stderr.close()
