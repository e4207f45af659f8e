"""The programs to measure: how each is started and installed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks.console_cost.install import DEBIAN, debian_command

OWN, FORMER = "gpuconsole", "former"
"""This gpuconsole, and an earlier one in a checkout of its own."""
OWN_FIGURE = r"\d/\d+(\.\d+)? GiB"


@dataclass(frozen=True)
class Peer:
    """`shows`: text on its screen as soon as it shows a GPU. `package`: the name for pip or
    apt-get."""

    name: str
    package: str
    arguments: tuple[str, ...] = ()
    program: str = ""
    shows: str = "H200"
    quits_on: bytes = b"q"

    @property
    def by_pip(self) -> bool:
        return "==" in self.package

    @property
    def how(self) -> str:
        """The command that installs the program."""
        return (
            f"pip install {self.package}"
            if self.by_pip
            else f"apt-get install {self.package}  (Debian 13 or newer)"
        )

    def command(self, folder: Path, driver: Path) -> list[str] | None:
        """The command that starts the program: from `folder` if it is there, else from PATH; None
        if it is not installed."""
        program = self.program or self.name
        if self.by_pip:
            own = folder / self.name / "bin" / program
            return [str(own), *self.arguments] if own.exists() else self._on_path(program)
        if (folder / DEBIAN / "usr/bin" / program).exists():
            return [*debian_command(folder, program, driver), *self.arguments]
        return self._on_path(program)

    def _on_path(self, program: str) -> list[str] | None:
        found = shutil.which(program)
        return [found, *self.arguments] if found else None


PEERS = (
    Peer("nvitop", "nvitop==1.7.2", ("--interval", "1"), shows="GiB / "),
    Peer("nvtop", "nvtop", ("-d", "10")),
    Peer("btop", "btop", shows="GPU ?0|GPU +■|gpu-totals"),
    Peer("gpustat", "gpustat==1.1.1", ("-i", "1"), quits_on=b"\x03"),
    Peer("gpu-scope", "gpu-scope==0.2.0", ("-i", "1")),
    Peer("nvhtop-tui", "nvhtop-tui==0.1.1"),
    Peer("dltop", "dltop==0.2.2", ("-i", "1")),
    Peer("nvsonar", "nvsonar==2.4.0"),
    Peer("vllmstat", "vllmstat==0.9.1", ("-i", "1")),
    Peer(
        "torchwatch-tui",
        "torchwatch-tui==0.1.1",
        ("--demo", "--poll", "1000"),
        program="torchwatch",
    ),
)
NAMES = (OWN, FORMER, *(peer.name for peer in PEERS))


def write_settings(home: Path) -> None:
    """Settings that have no command-line option: btop's refresh of one second."""
    folder = home / ".config" / "btop"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "btop.conf").write_text("update_ms = 1000\n")
