"""Installs the other monitors into a folder: Python programs into a virtual environment each, nvtop
and btop from Debian's packages.

The nvtop and btop of an older Debian are too old. Therefore the packages of Debian unstable are
unpacked with their libraries and started through their own loader. Nothing on the system changes.
"""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

DEBIAN = "debian"
_LIBRARIES = (
    "libc6",
    "libstdc++6",
    "libgcc-s1",
    "libncursesw6",
    "libtinfo6",
    "libsystemd0",
    "libcap2",
)
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCE = f"deb [signed-by={_KEYRING}] http://deb.debian.org/debian sid main\n"


def install_python(folder: Path, name: str, package: str) -> None:
    venv.create(folder / name, with_pip=True, clear=True)
    subprocess.run(
        [folder / name / "bin" / "python", "-m", "pip", "install", "--quiet", package], check=True
    )


def install_debian(folder: Path, packages: list[str]) -> None:
    """Unpack `packages` with their libraries under FOLDER/debian."""
    state, root = folder / "apt", folder / DEBIAN
    for needed in ("lists/partial", "cache/archives/partial", "debs"):
        (state / needed).mkdir(parents=True, exist_ok=True)
    root.mkdir(exist_ok=True)
    (state / "sources.list").write_text(_SOURCE)
    options = [
        "-o", f"Dir::Etc::sourcelist={state / 'sources.list'}",
        "-o", "Dir::Etc::sourceparts=/dev/null",
        "-o", f"Dir::State::lists={state / 'lists'}",
        "-o", f"Dir::Cache={state / 'cache'}",
    ]  # fmt: skip
    subprocess.run(["apt-get", *options, "-q", "update"], check=True)
    subprocess.run(
        ["apt-get", *options, "-q", "download", *packages, *_LIBRARIES],
        check=True,
        cwd=state / "debs",
    )
    for package in sorted((state / "debs").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)


def debian_command(folder: Path, program: str, driver: Path) -> list[str]:
    """The command that starts a program of `install_debian` with the NVML library in `driver`."""
    libraries = next((folder / DEBIAN / "usr/lib").glob("*-linux-gnu"))
    loader = next(libraries.glob("ld-linux-*"))
    return [
        str(loader),
        "--library-path",
        f"{driver}:{libraries}",
        str(folder / DEBIAN / "usr/bin" / program),
    ]
