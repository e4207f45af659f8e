"""Builds the fake driver and writes its scripts. For every test that wants GPUs that are not
there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("fake_nvml.c")


def build_fake_nvml(directory: Path) -> Path:
    """Compile the fake into `directory`; returns the directory, to be put on LD_LIBRARY_PATH."""
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", library, _SOURCE],
        check=True,
    )
    return directory


class Script:
    """The state of the fake machine. `write` replaces it whole, also while a program is looking."""

    def __init__(self, path: Path, *lines: str) -> None:
        self.path = path
        self.write(*lines)

    def write(self, *lines: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.rename(self.path)

    def environment(self, library: Path) -> dict[str, str]:
        """The environment of a child that is to see this machine; `library` is what build_fake_nvml
        returned."""
        return os.environ | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_SCRIPT": str(self.path)}
