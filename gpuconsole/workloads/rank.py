"""One process of a run that has several, started by torchrun: `torchrun ... -m gpuconsole.workloads.rank`.

The process that a console started finds it in its environment and leads; it tells the others where the console is,
on other machines too, and each then has a connection of its own: a process that hangs or dies is seen as such.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import msgspec

from gpuconsole import __version__
from gpuconsole.wire.channel import ChildChannel, die_with_parent, kill_own_group
from gpuconsole.wire.events import Failed, Hello, Progress, RankJoined, Start
from gpuconsole.workloads.clock import now
from gpuconsole.workloads.inbox import Inbox, LockstepInbox
from gpuconsole.workloads.worker import Worker, build, explain, warm_up
from gpuconsole.workloads.world import ProcessWorld

CONNECT = "GPUCONSOLE_CONNECT"
TOKEN = "GPUCONSOLE_TOKEN"
CONNECT_S = 10.0


class Console(msgspec.Struct, frozen=True):
    """Where the console listens, and the word that it expects."""

    host: str
    port: int
    token: str


def console_of_environment() -> Console | None:
    """The console that started this process's torchrun, if one did."""
    host, colon, port = os.environ.pop(CONNECT, "").rpartition(":")
    return Console(host, int(port), os.environ.pop(TOKEN, "")) if colon else None


def connect(console: Console, rank: int, leads: bool) -> ChildChannel:
    """A connection to the console. Raises OSError where it cannot be reached."""
    connection = socket.create_connection((console.host, console.port), CONNECT_S)
    connection.settimeout(None)
    channel = ChildChannel(connection.detach())
    channel.send(RankJoined(now(), rank, socket.gethostname(), os.getpid(), leads, console.token))
    channel.send(Hello(now(), f"rank {rank}", os.getpid(), __version__, time.time()))
    return channel


def serve(channel: ChildChannel, world: ProcessWorld, inbox: Inbox, start: Start, scratch: Path) -> int:
    """Train with the others until told to stop. Returns the exit code."""
    loop = None
    try:
        loop = build(start, scratch, channel, world)
        Worker(channel, inbox, loop, start, world).run()
    except Exception as error:  # the last line of defence: whatever ended the workload is shown to the user
        cause = f"rank {world.rank}: {explain(error, loop.knobs if loop else start.knobs)}"
        channel.send(Failed(now(), cause, "".join(traceback.format_exception(error)[-6:])))
        return 1
    finally:
        if loop is not None:
            loop.close()
    return 0


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    console = console_of_environment() if os.environ.get("LOCAL_RANK", "0") == "0" else None
    early = connect(console, int(os.environ.get("RANK", "0")), True) if console else None
    if early is not None:
        warm_up(early)
        early.send(Progress(now(), "connecting", f"{os.environ.get('WORLD_SIZE', '?')} processes"))
    import torch

    try:
        world = ProcessWorld("nccl" if torch.cuda.is_available() else "gloo", leading=console is not None)
    except Exception as error:
        if early is not None:
            early.send(Failed(now(), f"the processes did not find each other: {explain(error, {})}"))
            early.drain(2.0)
        raise
    inbox = LockstepInbox(world)
    known = world.share(console)
    assert known is not None
    channel = early or connect(known, world.rank, False)
    channel.listen(inbox.put, kill_own_group)
    start = inbox.wait()
    code = 0
    if isinstance(start, Start):
        scratch = Path(tempfile.mkdtemp(prefix=f"gpuconsole-rank{world.rank}-", dir=os.environ.get("GPUCONSOLE_SCRATCH")))
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(scratch / "inductor"))
        code = serve(channel, world, inbox, start, scratch)
    channel.drain(2.0)
    sys.stdout.flush()
    os._exit(code)  # a process group's own shutdown waits for processes that may be gone


if __name__ == "__main__":
    main()
