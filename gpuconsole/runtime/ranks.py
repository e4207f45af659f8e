"""A workload in several processes: torchrun as the child, and a connection from each process, on other machines too."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from gpuconsole.runtime.child import LINE_LIMIT, Child
from gpuconsole.wire.events import AnyEvent, Command, Failed, RankJoined, Stop, decode_event, encode

LOOPBACK = "127.0.0.1"
JOIN_S = 10.0


class Launch(msgspec.Struct, frozen=True):
    """How torchrun is asked to start: `nproc` processes on each of `nnodes` machines, which meet at `rdzv_endpoint` (HOST:PORT)."""

    nproc: int
    nnodes: int = 1
    rdzv_endpoint: str = ""
    rdzv_id: str = ""

    @property
    def host(self) -> str:
        """The address of this machine under which the processes find each other and the console."""
        return self.rdzv_endpoint.rpartition(":")[0] if self.nnodes > 1 else LOOPBACK

    def arguments(self) -> list[str]:
        """torchrun's arguments on this machine, up to the program."""
        if self.nnodes == 1:
            return ["--standalone", "--nproc-per-node", str(self.nproc), "--max-restarts", "0"]
        return [*self._meeting(), "--rdzv-conf", "is_host=1", "--local-addr", self.host, "--max-restarts", "0"]

    def on_other_nodes(self) -> str:
        """The command that makes another machine take part, ADDRESS being its own."""
        return " ".join(
            ["torchrun", *self._meeting(), "--rdzv-conf", "is_host=0", "--local-addr", "ADDRESS", "-m", "gpuconsole.workloads.rank"]
        )

    def _meeting(self) -> list[str]:
        numbers = ["--nnodes", str(self.nnodes), "--nproc-per-node", str(self.nproc)]
        return [*numbers, "--rdzv-backend", "c10d", "--rdzv-endpoint", self.rdzv_endpoint, "--rdzv-id", self.rdzv_id or "gpuconsole"]


class RankedChild(Child):
    """torchrun and the processes that it started. Events of all come to `on_event`; commands go to the one that leads.

    Only processes that know the word given to torchrun may join.
    """

    def __init__(self, launch: Launch, scratch: Path, on_event: Callable[[AnyEvent], None], on_exit: Callable[[int], None]) -> None:
        super().__init__("torch.distributed.run", [*launch.arguments(), "-m", "gpuconsole.workloads.rank"], on_event, self._ended)
        self._tell_exit = on_exit
        self._launch = launch
        self._scratch = scratch
        self._token = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._lost: list[RankJoined] = []
        self._waiting: list[Command] = []
        self._failed = self._stopping = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._launch.host, 0, limit=LINE_LIMIT)
        port = self._server.sockets[0].getsockname()[1]
        env = {
            "GPUCONSOLE_CONNECT": f"{self._launch.host}:{port}",
            "GPUCONSOLE_TOKEN": self._token,
            "GPUCONSOLE_SCRATCH": str(self._scratch),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # torchrun's own choice, without its warning
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME") or interface_of(self._launch.host),
        }
        await self._spawn([self._module, *self._arguments], env=env)
        self._watch([])
        closing = asyncio.create_task(self._close_server())
        self._tasks.append(closing)

    def send(self, command: Command) -> None:
        """To the process that leads, as soon as it is there."""
        self._stopping |= isinstance(command, Stop)
        if self._writer is None:
            self._waiting.append(command)
        else:
            super().send(command)

    async def _close_server(self) -> None:
        await self.exited.wait()
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One process, from its joining to its end."""
        joined = await self._joined(reader)
        if joined is None:
            writer.close()
            return
        if joined.leads:
            self._writer = writer
            for command in self._waiting:
                writer.write(encode(command) + b"\n")
            self._waiting.clear()
        self._on_event(msgspec.structs.replace(joined, token=""))
        await self._read_events(reader)
        if not self._stopping:
            self._lost.append(joined)
        if not joined.leads:
            writer.close()

    async def _joined(self, reader: asyncio.StreamReader) -> RankJoined | None:
        with contextlib.suppress(TimeoutError, ConnectionError, ValueError, msgspec.DecodeError):
            async with asyncio.timeout(JOIN_S):
                event = decode_event(await reader.readline())
            if isinstance(event, RankJoined) and hmac.compare_digest(event.token.encode(), self._token.encode()):
                return event
        return None

    def _hear(self, event: AnyEvent) -> None:
        """The first failure is the cause; the others fail because of it."""
        if isinstance(event, Failed):
            if self._failed:
                return
            self._failed = True
            if self._lost:
                event = msgspec.structs.replace(event, cause=f"{self._first_lost()}; then {event.cause}")
        self._on_event(event)

    def _first_lost(self) -> str:
        gone = self._lost[0]
        return f"rank {gone.rank} on {gone.host} (pid {gone.pid}) ended unexpectedly"

    def _ended(self, code: int) -> None:
        """torchrun ends the others when one is gone, and they may not get to say so."""
        if code and self._lost and not self._failed:
            self._on_event(Failed(time.monotonic(), self._first_lost()))
        self._tell_exit(code)


def interface_of(address: str) -> str:
    """The network interface that has `address`; gloo must be told, or it takes what the host's name resolves to."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.family in (socket.AF_INET, socket.AF_INET6) and one.address == address for one in addresses):
            return str(name)
    return "lo"
