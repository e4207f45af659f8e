"""The network interface that leads from this machine to the other processes of a run."""

from __future__ import annotations

import contextlib
import os
import socket

import psutil

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def choose_interface() -> None:
    """Set gloo's interface to the one that leads to the other processes. By default gloo takes the address of this machine's name."""
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
        if any(entry.family in (socket.AF_INET, socket.AF_INET6) and entry.address.partition("%")[0] == address for entry in addresses):
            return str(name)
    return None
