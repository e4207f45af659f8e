"""One process of a run with several: `python -m gpuconsole.workloads.rank`, started by
`gpuconsole.workloads.ranks` or by torchrun.

The first process that a console started finds the console's address in its environment, and leads.
It sends the address to the other processes, also on other machines. Each process then has its own
connection, so the console notices when one of them hangs or dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path

import msgspec
import psutil

from gpuconsole import __version__
from gpuconsole.agent.clock import now
from gpuconsole.agent.protocol import COMMANDS
from gpuconsole.agent.service import Inbox, LockstepInbox, explain
from gpuconsole.agent.world import ProcessWorld
from gpuconsole.host.folders import Scratch, data_folder, sweep_scratch
from gpuconsole.wire.channel import ChildChannel, die_with_parent, keep_alive, kill_own_group
from gpuconsole.wire.events import (
    Activity,
    Command,
    Failed,
    Hello,
    Progress,
    QueryActivity,
    RankJoined,
    Start,
)
from gpuconsole.workloads import process
from gpuconsole.workloads.process import without_collections
from gpuconsole.workloads.torchrun import LAUNCHER
from gpuconsole.workloads.worker import build, failed, put_into, train, warm_up

# --- the network interface that leads to the other processes --------------------------------------

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def choose_interface() -> None:
    """Set gloo's interface to the one that leads to the other processes. By default gloo takes the
    address of this machine's name."""
    if GLOO_INTERFACE in os.environ:
        return
    with contextlib.suppress(OSError):
        name = interface_of(address_towards(os.environ.get("MASTER_ADDR", "")))
        if name is not None:
            os.environ[GLOO_INTERFACE] = name


def address_towards(host: str) -> str:
    """This machine's address on the route to `host`. Sends nothing. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The network interface with `address`, or None."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(
            entry.family in (socket.AF_INET, socket.AF_INET6)
            and entry.address.partition("%")[0] == address
            for entry in addresses
        ):
            return str(name)
    return None


# --- the process ----------------------------------------------------------------------------------

CONNECT = "GPUCONSOLE_CONNECT"
TOKEN = "GPUCONSOLE_TOKEN"
CONNECT_S = 10.0


class JoinError(RuntimeError):
    """A process cannot take part. The message names the process and the reason."""


class ConsoleAddress(msgspec.Struct, frozen=True):
    """The address of the console, and the token that it expects."""

    host: str
    port: int
    token: str


PLAIN = (*COMMANDS.values(), Start, ConsoleAddress)
"""The classes of the values that the processes exchange."""


def console_of_environment() -> ConsoleAddress | None:
    """The console that started this process's launcher, if one did."""
    host, colon, port = os.environ.pop(CONNECT, "").rpartition(":")
    return ConsoleAddress(host, int(port), os.environ.pop(TOKEN, "")) if colon else None


def connect(console: ConsoleAddress, rank: int, leads: bool) -> ChildChannel:
    """A connection to the console. Raises OSError where it cannot be reached."""
    connection = socket.create_connection((console.host, console.port), CONNECT_S)
    connection.settimeout(None)
    keep_alive(connection)
    channel = ChildChannel(connection.detach())
    channel.send(RankJoined(now(), rank, socket.gethostname(), os.getpid(), leads, console.token))
    channel.send(Hello(now(), f"rank {rank}", os.getpid(), __version__, time.time()))
    return channel


def join(
    world: ProcessWorld, own: ConsoleAddress | None, early: ChildChannel | None
) -> ChildChannel:
    """This process's connection to the console, once all processes have one.

    Raises JoinError in all processes where one cannot take part.
    """
    console, version = world.share((own, __version__))
    assert console is not None
    me, problem = f"rank {world.rank} on {socket.gethostname()}", ""
    if version != __version__:
        problem = f"{me} has gpuconsole {__version__}, the console's machine has {version}"
    elif early is not None and not world.leads:
        problem = (
            f"{me} has its own console: start the console on one machine, and on the others the"
            " command that the console shows"
        )
    elif early is None:
        try:
            early = connect(console, world.rank, False)
        except OSError as error:
            problem = (
                f"{me} does not reach the console at {console.host} port {console.port}: {error}"
            )
    problems = [text for text in world.gather(problem) if text]
    if problems:
        raise JoinError(problems[0])
    assert early is not None
    return early


def make_scratch() -> Scratch:
    """A new folder for this process: in the console's own where the console runs on this machine.
    Raises OSError."""
    if given := os.environ.get("GPUCONSOLE_SCRATCH"):
        return Scratch(Path(given))
    sweep_scratch()  # left by processes that were killed
    return Scratch(data_folder())


def set_up_environment(scratch: Path) -> None:
    """Set the variables that the console sets for its workers."""
    share = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    process.set_variables(str(scratch))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, min(8, share - 1))))


def on_command(channel: ChildChannel, rank: int, inbox: Inbox, command: Command) -> None:
    """Answer QueryActivity, put other commands into `inbox`. Runs on the channel's thread."""
    if isinstance(command, QueryActivity):
        channel.send(Activity(now(), rank, innermost_calls()))
    else:
        put_into(inbox)(command)


def innermost_calls() -> str:
    """The present calls of the main thread: the innermost call of gpuconsole, and the innermost
    call of all."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = (
        traceback.extract_stack(frame, limit=40) if frame is not None else traceback.StackSummary()
    )
    calls = [f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in stack]
    own = max(
        (
            index
            for index, call in enumerate(stack)
            if f"{os.sep}gpuconsole{os.sep}" in call.filename
        ),
        default=0,
    )
    return " > ".join(dict.fromkeys((*calls[own : own + 1], *calls[-1:])))


def run_rank(
    channel: ChildChannel, world: ProcessWorld, inbox: Inbox, start: Start, scratch: Path
) -> int:
    """Train with the other processes until Stop. Returns the exit code."""
    loop = None
    try:
        loop = build(start, scratch, channel, world)
        train(channel, inbox, loop, start, world)
    except Exception as error:
        # the last line of defence: the user sees whatever ended the workload
        channel.send(failed(error, loop.knobs if loop else start.knobs, f"rank {world.rank}: "))
        return 1
    finally:
        if loop is not None:
            loop.close()
    return 0


def main() -> None:
    die_with_parent()
    if os.getppid() != int(os.environ.get(LAUNCHER, os.getppid())):
        return  # the launcher was gone before the kernel could be asked
    # the launcher ends its processes; Python's own handler would print a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    choose_interface()
    console = console_of_environment() if os.environ.get("LOCAL_RANK", "0") == "0" else None
    early = connect(console, int(os.environ.get("RANK", "0")), True) if console else None
    if early is not None:
        warm_up(early)
        early.send(
            Progress(
                now(), "waiting", f"for the others of {os.environ.get('WORLD_SIZE', '?')} processes"
            )
        )
    with without_collections():
        import torch
        import torch._dynamo  # the first optimizer would import it

    try:
        world = ProcessWorld(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            leading=console is not None,
            plain=PLAIN,
        )
        channel = join(world, console, early)
    except Exception as error:
        if early is not None:
            cause = (
                str(error)
                if isinstance(error, JoinError)
                else f"the processes did not find each other: {explain(error, {})}"
            )
            early.send(Failed(now(), cause))
            early.drain(2.0)
        raise
    inbox = LockstepInbox(world)
    channel.listen(partial(on_command, channel, world.rank, inbox), kill_own_group)
    start = inbox.wait()
    code = 0
    if isinstance(start, Start):
        try:
            scratch = make_scratch()
        except OSError as error:
            channel.send(Failed(now(), f"rank {world.rank} on {socket.gethostname()}: {error}"))
            channel.end(1)
        set_up_environment(scratch.path)
        code = run_rank(channel, world, inbox, start, scratch.path)
        scratch.close()
    channel.end(code)  # a process group's own shutdown waits for processes that may be gone


if __name__ == "__main__":
    main()
