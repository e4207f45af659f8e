"""Two hosts on one machine: network namespaces of their own, with their own host names, joined by a
cable."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

TOOLS = ("ip", "unshare")


def why_not() -> str:
    """Why hosts cannot be made here; empty where they can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"no {', '.join(missing)} here"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False
    )
    return probe.stderr.strip()


class Host:
    """A network namespace: commands run in it see its interface alone, and its name."""

    def __init__(self, namespace: str, name: str, address: str, interface: str) -> None:
        self.namespace, self.name, self.address, self.interface = (
            namespace,
            name,
            address,
            interface,
        )

    def command(self, *words: str) -> list[str]:
        """`words` as run on this host."""
        script = f'hostname {self.name}; exec "$@"'
        return [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--uts",
            "sh",
            "-c",
            script,
            "sh",
            *words,
        ]


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else."""
    tag = f"gc{os.getpid() % 100000}"
    hosts = tuple(
        Host(
            f"{tag}{letter}", f"node-{letter}", f"10.77.{os.getpid() % 250}.{n}", f"v{tag}{letter}"
        )
        for n, letter in ((1, "a"), (2, "b"))
    )
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        _ip("link", "add", hosts[0].interface, "type", "veth", "peer", "name", hosts[1].interface)
        for host in hosts:
            _ip("link", "set", host.interface, "netns", host.namespace)
            for words in (
                ("addr", "add", f"{host.address}/24", "dev", host.interface),
                ("link", "set", host.interface, "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", host.namespace, *words)
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            subprocess.run(
                ["ip", "netns", "delete", host.namespace], capture_output=True, check=False
            )


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
