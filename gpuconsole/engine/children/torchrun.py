"""A workload in several processes: their launcher is the child, and each process connects to the
console, from other machines too."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from gpuconsole.engine.children.child import STOP_S, Child, read_line
from gpuconsole.host.folders import Scratch, runtime_folder
from gpuconsole.wire.channel import keep_alive
from gpuconsole.wire.events import (
    Activity,
    AnyEvent,
    Command,
    Failed,
    Note,
    Paused,
    Progress,
    QueryActivity,
    RankJoined,
    Resume,
    Steps,
    Stop,
    decode_event,
    encode,
)

ON_ONE_MACHINE = "gpuconsole.workloads.ranks"
LAUNCHER = "gpuconsole.workloads.torchrun"
"""For several machines."""
LOOPBACK = "127.0.0.1"
JOIN_S = 10.0
FIRST_LINE_BYTES = 64 * 1024
"""The longest line of a process that has not shown the token yet."""
WAITING = 8
"""Maximum of open connections that have not shown the token yet: this number, and two for each
process of the run."""
MEETING_S = 600
"""Seconds that torchrun waits for the other machines."""
LOST_S = 15.0
"""Seconds that the other processes have to notice that one has ended, before they are killed."""
BROKEN = ("by peer", "Broken pipe", "remote process exited", "ncclRemoteError", "DistNetworkError")
"""Messages of gloo, NCCL and torch's store about the end of another process: an effect, never the
cause."""
SILENT_S = 30.0
"""After so many seconds without a step, every process is asked what it is doing."""
ANSWER_S = 2.0
"""Seconds to wait for these answers."""
SAME_CLOCK_S = 5.0
"""Seconds. A monotonic clock that differs by more belongs to another machine, and its times are
shifted."""


class Launch(msgspec.Struct, frozen=True):
    """`nproc` processes on each of `nnodes` machines. Those of several machines are started by
    torchrun, and meet at `rdzv_endpoint` (HOST:PORT).

    `cuda_devices`: CUDA_VISIBLE_DEVICES of the processes on this machine. Empty: unchanged.
    """

    nproc: int
    nnodes: int = 1
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    meeting_s: int = MEETING_S
    cuda_devices: str = ""

    @property
    def host(self) -> str:
        """The address of this machine that the processes connect to."""
        return self.rdzv_endpoint.rpartition(":")[0].strip("[]") if self.nnodes > 1 else LOOPBACK

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach `host`; a host's own name often resolves to such an
        address."""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def processes(self) -> int:
        """The number of processes on all machines together."""
        return self.nnodes * self.nproc

    def command(self) -> list[str]:
        """The launcher's module on this machine, and its arguments."""
        if self.nnodes == 1:
            return [ON_ONE_MACHINE, str(self.nproc)]
        conf = f"is_host=1,join_timeout={self.meeting_s}"
        arguments = [
            *self._rendezvous(),
            "--rdzv-conf",
            conf,
            "--local-addr",
            self.host,
            "--max-restarts",
            "0",
        ]
        return [LAUNCHER, *arguments, "-m", "gpuconsole.workloads.rank"]

    def on_other_nodes(self) -> str:
        """The command for each other machine. The user replaces ADDRESS by the address of that
        machine."""
        return " ".join(
            [
                "python -P -m",
                LAUNCHER,
                *self._rendezvous(),
                "--rdzv-conf",
                f"is_host=0,read_timeout={self.meeting_s}",
                "--local-addr",
                "ADDRESS",
                "-m",
                "gpuconsole.workloads.rank",
            ]
        )

    def _rendezvous(self) -> list[str]:
        numbers = ["--nnodes", str(self.nnodes), "--nproc-per-node", str(self.nproc)]
        return [
            *numbers,
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            self.rdzv_endpoint,
            "--rdzv-id",
            self.rdzv_id or "gpuconsole",
        ]


class TorchrunChild(Child):
    """A launcher and the processes (ranks) that it started. `on_event` receives the events of all
    ranks; commands go to the leading rank.

    A process may join only with the token that the launcher received from this console.
    """

    def __init__(
        self,
        launch: Launch,
        scratch: Path,
        on_event: Callable[[AnyEvent], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """`scratch`: the private folder for the data of the processes."""
        module, *arguments = launch.command()
        super().__init__(module, arguments, on_event, self._launcher_ended)
        self._meeting: Scratch | None = None
        self._report_exit = on_exit
        self._launch = launch
        self._scratch = scratch
        self._token = os.urandom(16).hex()
        self._server: asyncio.Server | None = None
        self._connections: dict[int, asyncio.StreamWriter] = {}
        self._last_step_t: float | None = None
        self._doing: dict[int, str] = {}
        self.hanging = ""
        self._reading: set[asyncio.Task[None]] = set()
        self._lost: list[tuple[RankJoined, Exception | None]] = []
        self._failed_ranks: set[int] = set()
        self._effect: Failed | None = None
        self._waiting: list[Command] = []
        self._strangers: list[asyncio.StreamWriter] = []
        self._failed = self._stopping = self._refused = False

    async def start(self) -> None:
        self._meeting = Scratch(runtime_folder())
        self._server = await asyncio.start_server(
            self._serve, self._launch.host, 0, limit=FIRST_LINE_BYTES
        )
        port = self._server.sockets[0].getsockname()[1]
        self._env |= {
            "GPUCONSOLE_CONNECT": f"{self._launch.host}:{port}",
            "GPUCONSOLE_TOKEN": self._token,
            "GPUCONSOLE_SCRATCH": str(self._scratch),
            **(
                {"GPUCONSOLE_STORE": str(self._meeting.path / "store")}
                if self._launch.nnodes == 1
                else {}
            ),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            # torchrun's own choice, without its warning
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        if self._launch.cuda_devices:
            self._env["CUDA_VISIBLE_DEVICES"] = self._launch.cuda_devices
        await self._spawn([self._module, *self._arguments])
        self._watch([asyncio.create_task(self._read_all())])
        self._tasks += [
            asyncio.create_task(self._close_server()),
            asyncio.create_task(self._watch_silence()),
        ]
        if others := self._launch.nnodes - 1:
            machines = "1 other machine" if others == 1 else f"{others} other machines"
            self._on_event(
                Progress(
                    time.monotonic(),
                    "waiting",
                    f"for {machines}; there: {self._launch.on_other_nodes()}",
                )
            )

    def send(self, command: Command) -> None:
        """Queue a command for the leading rank; it is sent as soon as that rank has joined."""
        self._stopping |= isinstance(command, Stop)
        if isinstance(command, Resume):
            self._last_step_t = None  # until the next step
        if self._writer is None:
            self._waiting.append(command)
        else:
            super().send(command)

    async def stop(self, command: Command, patience_s: float = STOP_S) -> None:
        """As Child.stop; without patience while no leading rank can receive the command."""
        await super().stop(command, patience_s if self._writer is not None else 0.0)

    async def _close_server(self) -> None:
        """Close all connections: processes on other machines end with their connection."""
        await self.exited.wait()
        assert self._server is not None
        self._server.close()
        for writer in self._connections.values():
            writer.close()
        assert self._meeting is not None
        self._meeting.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one rank, from joining to its end."""
        keep_alive(writer.get_extra_info("socket"))
        self._strangers.append(writer)
        if len(self._strangers) > WAITING + 2 * self._launch.processes:
            # the oldest: a process of the run shows the token at once
            self._strangers[0].transport.abort()
        try:
            joined = await self._joined(reader, str(writer.get_extra_info("peername")[0]))
        finally:
            self._strangers.remove(writer)
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
        on_event = partial(
            self._on_rank_event, joined.rank, 0.0 if abs(shift) < SAME_CLOCK_S else shift
        )
        on_event(msgspec.structs.replace(joined, token=""))
        self._report_missing()
        reading = asyncio.create_task(self._read_events(reader, on_event))
        self._reading.add(reading)
        await reading
        self._reading.discard(reading)
        if not self._stopping and not self.exited.is_set():
            if joined.rank not in self._failed_ranks:
                self._lost.append((joined, reader.exception()))
            await self._end_others()
        if not joined.leads:
            writer.close()

    async def _read_all(self) -> None:
        """Read the last events of all ranks before the end of the launcher is reported."""
        await self._ended.wait()
        while self._reading:
            await asyncio.wait(self._reading)

    async def _watch_silence(self) -> None:
        """Report what each rank is doing when no steps arrive any more, and report when steps
        arrive again."""
        while not self.exited.is_set():
            await asyncio.sleep(1.0)
            silent_s = (
                time.monotonic() - self._last_step_t if self._last_step_t is not None else 0.0
            )
            if silent_s < SILENT_S:
                if self.hanging and not self._stopping:
                    self._on_event(Note(time.monotonic(), "steps arrive again"))
                self.hanging = ""
            elif not self.hanging and not self._stopping:
                self._doing.clear()
                for writer in self._connections.values():
                    writer.write(encode(QueryActivity()) + b"\n")
                await asyncio.sleep(ANSWER_S)
                doing = (
                    f"rank {rank}: {self._doing.get(rank, 'does not answer')}"
                    for rank in sorted(self._connections)
                )
                self.hanging = f"no step for {silent_s + ANSWER_S:.0f} s; {'; '.join(doing)}"
                self._on_event(Note(time.monotonic(), self.hanging, "warning"))

    def _report_missing(self) -> None:
        processes, machines = self._launch.processes, self._launch.nnodes
        if missing := processes - len(self._connections):
            self._on_event(
                Progress(time.monotonic(), "waiting", f"for {missing} of {processes} processes")
            )
        elif machines > 1:
            self._on_event(
                Note(
                    time.monotonic(),
                    f"all {processes} processes on {machines} machines have joined",
                )
            )

    async def _end_others(self) -> None:
        """Wait until the launcher has ended the other ranks. It cannot where a whole machine is
        gone: then kill them."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.exited.wait(), LOST_S)
            return
        self._report_cause()
        self.kill()

    async def _joined(self, reader: asyncio.StreamReader, address: str) -> RankJoined | None:
        """The first message of a process that has the token. `address`: the machine that it
        connects from."""
        with contextlib.suppress(
            TimeoutError, ConnectionError, ValueError, msgspec.DecodeError, RecursionError
        ):
            async with asyncio.timeout(JOIN_S):
                event = decode_event(await read_line(reader, FIRST_LINE_BYTES))
            if not isinstance(event, RankJoined):
                return None
            if hmac.compare_digest(event.token.encode(), self._token.encode()):
                return event
            if not self._refused:
                self._refused = True
                self._on_event(
                    Note(
                        time.monotonic(),
                        (
                            f"a process at {address} wanted to join without the token of this run"
                            " and was refused"
                        ),
                    )
                )
        return None

    def _on_rank_event(self, rank: int, shift: float, event: AnyEvent) -> None:
        """Pass on an event of one rank, with its time on the clock of this machine."""
        if self.exited.is_set():
            return  # the run is closed
        if shift:
            event = msgspec.structs.replace(event, t=event.t + shift)
        if isinstance(event, Activity):
            self._doing[rank] = event.calls
            return
        if isinstance(event, Steps) and event.steps:
            self._last_step_t = time.monotonic()
        if isinstance(event, Paused):
            self._last_step_t = None
        if not isinstance(event, Failed):
            self._on_event(event)
            return
        self._failed_ranks.add(rank)
        if any(phrase in event.cause for phrase in BROKEN):
            self._effect = self._effect or event
        elif not self._failed:
            self._failed = True
            self._on_event(event)

    def _report_cause(self) -> None:
        """Report the cause of a failure, once. The first rank that failed is the cause, also if it
        could not report this itself."""
        if self._failed:
            return
        cause, effect = self._cause(), self._effect
        if cause or effect:
            self._failed = True
            detail = f"{effect.cause}\n{effect.detail}" if effect else ""
            self._on_event(
                Failed(time.monotonic(), cause or (effect.cause if effect else ""), detail)
            )

    def _cause(self) -> str:
        if self._lost:
            return _end_of(*self._lost[0], self.last_words)
        if not self._connections and any(
            "RendezvousTimeoutError" in line for line in self.last_words
        ):
            return f"the other machines did not come within {self._launch.meeting_s} s"
        return ""

    def _launcher_ended(self, code: int) -> None:
        """The launcher has ended, and with it all ranks of this machine."""
        if code:
            self._report_cause()
        self._report_exit(code)


def _end_of(joined: RankJoined, error: Exception | None, last_lines: Iterable[str]) -> str:
    """How a rank ended that did not report its end, as far as the output of the launcher shows."""
    who = f"rank {joined.rank} on {joined.host} (pid {joined.pid})"
    if error is not None:
        return f"{who} cannot be reached any more: {error}"
    killed = any(f"(pid: {joined.pid})" in line and "SIGKILL" in line for line in last_lines)
    return f"{who} ended unexpectedly" + (
        ": it was killed (the kernel's out-of-memory killer does this)" if killed else ""
    )
