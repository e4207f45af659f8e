"""Options of runs on several machines. The options have the same names as in torchrun."""

from __future__ import annotations

import argparse
import errno
import socket

from gpuconsole.cli.options.network import parse_address
from gpuconsole.cli.options.usage import UsageError, refuse_given
from gpuconsole.engine.children.torchrun import Launch
from gpuconsole.model.scenario import Workload

NODE_OPTIONS = ("nnodes", "rdzv_endpoint", "rdzv_id")
RDZV_ID = "gpuconsole"
NODES_HELP = "number of machines; the console prints the command for the other machines"


def add_node_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several machines (this one is the first)")
    group.add_argument("--nnodes", type=int, metavar="N", help=NODES_HELP)
    group.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="rendezvous: an address of this machine and a free port")
    group.add_argument("--rdzv-id", metavar="ID", help=f"name of the job, the same on all machines (default {RDZV_ID})")


def check_nodes(args: argparse.Namespace, workload: Workload) -> None:
    """Raises UsageError where the options do not fit the workload or each other."""
    if "nproc" not in workload.knobs:
        refuse_given(args, f"is for workloads that run in several processes; {workload.name} runs in one", *NODE_OPTIONS)
    nodes(args)


def nodes(args: argparse.Namespace) -> Launch | None:
    """The rendezvous of several machines; None for this machine alone. Raises UsageError."""
    wanted: int | None = getattr(args, "nnodes", None)
    count = 1 if wanted is None else wanted
    endpoint: str | None = getattr(args, "rdzv_endpoint", None)
    if not 1 <= count <= 1024:
        raise UsageError(f"--nnodes {count}: allowed are 1 to 1024")
    if count == 1:
        refuse_given(args, "needs --nnodes 2 or more", "rdzv_endpoint", "rdzv_id")
        return None
    if not endpoint:
        raise UsageError(f"--nnodes {count} needs --rdzv-endpoint HOST:PORT, an address of this machine that the other machines can reach")
    host, port = parse_address(endpoint, "--rdzv-endpoint")
    if port == 0:
        raise UsageError(f"--rdzv-endpoint {endpoint}: the port must not be 0, because the other machines need it")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"--rdzv-endpoint {endpoint}: the port is taken") from None
        raise UsageError(f"--rdzv-endpoint {endpoint}: not an address of this machine: {error.strerror}") from None
    found = str(address[0])
    launch = Launch(1, count, f"[{found}]:{port}" if ":" in found else f"{found}:{port}", args.rdzv_id or RDZV_ID)
    if launch.on_loopback:
        raise UsageError(
            f"--rdzv-endpoint {endpoint}: {found} is a loopback address, which no other machine reaches; `hostname -I` prints others"
        )
    return launch
