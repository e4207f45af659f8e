"""A workload in several processes: torchrun as the child, and a connection from each process, on other machines too."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from gpuconsole.processes.child import LINE_LIMIT, STOP_S, Child
from gpuconsole.wire.channel import keep_alive
from gpuconsole.wire.events import (
    AnyEvent,
    Command,
    Doing,
    Failed,
    Note,
    Paused,
    Progress,
    RankJoined,
    Resume,
    Steps,
    Stop,
    WhatNow,
    decode_event,
    encode,
)

LOOPBACK = "127.0.0.1"
JOIN_S = 10.0
MEETING_S = 600
"""torchrun's own patience for the other machines."""
LOST_S = 15.0
"""How long the other processes have to notice that one is gone, before they are ended."""
BROKEN = ("by peer", "Broken pipe", "remote process exited", "ncclRemoteError", "DistNetworkError")
"""What gloo, NCCL and torch's store say when another process is gone: an effect, never the cause."""
SILENT_S = 30.0
"""Without a step for so long, every process is asked what it is doing."""
ANSWER_S = 2.0
SAME_CLOCK_S = 5.0
"""Another machine's monotonic clock differs by more, unless both were booted together."""


class Launch(msgspec.Struct, frozen=True):
    """How torchrun is asked to start: `nproc` processes on each of `nnodes` machines, which meet at `rdzv_endpoint` (HOST:PORT)."""

    nproc: int
    nnodes: int = 1
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    meeting_s: int = MEETING_S

    @property
    def host(self) -> str:
        """The address of this machine under which the processes find each other and the console."""
        return self.rdzv_endpoint.rpartition(":")[0].strip("[]") if self.nnodes > 1 else LOOPBACK

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it; a host's own name often resolves to such an address."""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def processes(self) -> int:
        """On all machines together."""
        return self.nnodes * self.nproc

    def arguments(self) -> list[str]:
        """torchrun's arguments on this machine, up to the program."""
        if self.nnodes == 1:
            return ["--standalone", "--local-addr", LOOPBACK, "--nproc-per-node", str(self.nproc), "--max-restarts", "0"]
        conf = f"is_host=1,join_timeout={self.meeting_s}"
        return [*self._meeting(), "--rdzv-conf", conf, "--local-addr", self.host, "--max-restarts", "0"]

    def on_other_nodes(self) -> str:
        """The command that makes another machine take part, ADDRESS being its own."""
        return " ".join(
            [
                "torchrun",
                *self._meeting(),
                "--rdzv-conf",
                f"is_host=0,read_timeout={self.meeting_s}",
                "--local-addr",
                "ADDRESS",
                "-m",
                "gpuconsole.workloads.rank",
            ]
        )

    def _meeting(self) -> list[str]:
        numbers = ["--nnodes", str(self.nnodes), "--nproc-per-node", str(self.nproc)]
        return [*numbers, "--rdzv-backend", "c10d", "--rdzv-endpoint", self.rdzv_endpoint, "--rdzv-id", self.rdzv_id or "gpuconsole"]


class RankedChild(Child):
    """torchrun and the processes that it started. Events of all come to `on_event`; commands go to the one that leads.

    Only processes that know the word given to torchrun may join.
    """

    def __init__(self, launch: Launch, scratch: Path, on_event: Callable[[AnyEvent], None], on_exit: Callable[[int], None]) -> None:
        super().__init__("gpuconsole.workloads.torchrun", [*launch.arguments(), "-m", "gpuconsole.workloads.rank"], on_event, self._ended)
        self._tell_exit = on_exit
        self._launch = launch
        self._scratch = scratch
        self._token = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._connections: dict[int, asyncio.StreamWriter] = {}
        self._stepped: float | None = None
        self._doing: dict[int, str] = {}
        self.hanging = ""
        self._reading: set[asyncio.Task[None]] = set()
        self._lost: list[tuple[RankJoined, Exception | None]] = []
        self._told: set[int] = set()
        self._effect: Failed | None = None
        self._waiting: list[Command] = []
        self._failed = self._stopping = self._refused = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._launch.host, 0, limit=LINE_LIMIT)
        port = self._server.sockets[0].getsockname()[1]
        env = {
            "GPUCONSOLE_CONNECT": f"{self._launch.host}:{port}",
            "GPUCONSOLE_TOKEN": self._token,
            "GPUCONSOLE_SCRATCH": str(self._scratch),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # torchrun's own choice, without its warning
        }
        await self._spawn([self._module, *self._arguments], env=env)
        self._watch([asyncio.create_task(self._read_all())])
        self._tasks += [asyncio.create_task(self._close_server()), asyncio.create_task(self._notice_silence())]
        if others := self._launch.nnodes - 1:
            machines = "1 other machine" if others == 1 else f"{others} other machines"
            self._on_event(Progress(time.monotonic(), "waiting", f"for {machines}; there: {self._launch.on_other_nodes()}"))

    def send(self, command: Command) -> None:
        """To the process that leads, as soon as it is there."""
        self._stopping |= isinstance(command, Stop)
        if isinstance(command, Resume):
            self._stepped = None  # until the next step
        if self._writer is None:
            self._waiting.append(command)
        else:
            super().send(command)

    async def stop(self, command: Command, patience_s: float = STOP_S) -> None:
        """At once, as long as there is nobody whom the command could reach."""
        await super().stop(command, patience_s if self._writer is not None else 0.0)

    async def _close_server(self) -> None:
        """Processes on other machines that are still there end when their connections do."""
        await self.exited.wait()
        assert self._server is not None
        self._server.close()
        for writer in self._connections.values():
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One process, from its joining to its end."""
        keep_alive(writer.get_extra_info("socket"))
        joined = await self._joined(reader)
        if joined is None or self.exited.is_set():
            writer.close()
            return
        self._connections[joined.rank] = writer
        if joined.leads:
            self._writer = writer
            for command in self._waiting:
                writer.write(encode(command) + b"\n")
            self._waiting.clear()
        shift = time.monotonic() - joined.t
        hear = partial(self._hear_from, joined.rank, 0.0 if abs(shift) < SAME_CLOCK_S else shift)
        hear(msgspec.structs.replace(joined, token=""))
        self._tell_missing()
        reading = asyncio.create_task(self._read_events(reader, hear))
        self._reading.add(reading)
        await reading
        self._reading.discard(reading)
        if not self._stopping and not self.exited.is_set():
            if joined.rank not in self._told:
                self._lost.append((joined, reader.exception()))
            await self._end_the_others()
        if not joined.leads:
            writer.close()

    async def _read_all(self) -> None:
        """What the processes said last is heard before torchrun's end is."""
        assert self._process is not None
        await self._process.wait()
        while self._reading:
            await asyncio.wait(self._reading)

    async def _notice_silence(self) -> None:
        """Say what each process is doing when there are no steps any more, and that they go on when they do."""
        while not self.exited.is_set():
            await asyncio.sleep(1.0)
            silent_s = time.monotonic() - self._stepped if self._stepped is not None else 0.0
            if silent_s < SILENT_S:
                if self.hanging and not self._stopping:
                    self._on_event(Note(time.monotonic(), "steps go on"))
                self.hanging = ""
            elif not self.hanging and not self._stopping:
                self._doing.clear()
                for writer in self._connections.values():
                    writer.write(encode(WhatNow()) + b"\n")
                await asyncio.sleep(ANSWER_S)
                doing = (f"rank {rank}: {self._doing.get(rank, 'does not answer')}" for rank in sorted(self._connections))
                self.hanging = f"no step for {silent_s + ANSWER_S:.0f} s; {'; '.join(doing)}"
                self._on_event(Note(time.monotonic(), self.hanging, "warning"))

    def _tell_missing(self) -> None:
        if missing := self._launch.processes - len(self._connections):
            self._on_event(Progress(time.monotonic(), "waiting", f"for {missing} of {self._launch.processes} processes"))

    async def _end_the_others(self) -> None:
        """torchrun ends them, unless the one that is gone was on a machine that is gone too."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.exited.wait(), LOST_S)
            return
        self._tell_cause()
        self.kill()

    async def _joined(self, reader: asyncio.StreamReader) -> RankJoined | None:
        with contextlib.suppress(TimeoutError, ConnectionError, ValueError, msgspec.DecodeError):
            async with asyncio.timeout(JOIN_S):
                event = decode_event(await reader.readline())
            if not isinstance(event, RankJoined):
                return None
            if hmac.compare_digest(event.token.encode(), self._token.encode()):
                return event
            if not self._refused:
                self._refused = True
                self._on_event(Note(time.monotonic(), f"a process of another run, on {event.host}, wanted to join and was refused"))
        return None

    def _hear_from(self, rank: int, shift: float, event: AnyEvent) -> None:
        """An event of one process, told by the clock of this machine."""
        if self.exited.is_set():
            return  # the run is closed; what comes late belongs to no other
        if shift:
            event = msgspec.structs.replace(event, t=event.t + shift)
        if isinstance(event, Doing):
            self._doing[rank] = event.calls
            return
        if isinstance(event, Steps) and event.steps:
            self._stepped = time.monotonic()
        if isinstance(event, Paused):
            self._stepped = None
        if not isinstance(event, Failed):
            self._on_event(event)
            return
        self._told.add(rank)
        if any(words in event.cause for words in BROKEN):
            self._effect = self._effect or event
        elif not self._failed:
            self._failed = True
            self._on_event(event)

    def _tell_cause(self) -> None:
        """Once: of processes that fail one after the other, the first is the cause. It may not have got to say so."""
        if self._failed:
            return
        cause, effect = self._cause(), self._effect
        if cause or effect:
            self._failed = True
            detail = f"{effect.cause}\n{effect.detail}" if effect else ""
            self._on_event(Failed(time.monotonic(), cause or (effect.cause if effect else ""), detail))

    def _cause(self) -> str:
        if self._lost:
            return _end_of(*self._lost[0], self.last_words)
        if not self._connections and any("RendezvousTimeoutError" in words for words in self.last_words):
            return f"the other machines did not come within {self._launch.meeting_s} s"
        return ""

    def _ended(self, code: int) -> None:
        """torchrun ends the others when one is gone."""
        if code:
            self._tell_cause()
        self._tell_exit(code)


def _end_of(joined: RankJoined, error: Exception | None, words: Iterable[str]) -> str:
    """How a process ended that did not say so, as far as torchrun's report tells."""
    who = f"rank {joined.rank} on {joined.host} (pid {joined.pid})"
    if error is not None:
        return f"{who} cannot be reached any more: {error}"
    killed = any(f"(pid: {joined.pid})" in line and "SIGKILL" in line for line in words)
    return f"{who} ended unexpectedly" + (": it was killed (the kernel's out-of-memory killer does this)" if killed else "")
