"""A machine with fake GPUs whose values move, for programs to be measured. Needs a C compiler."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.fakes.nvml.build import Script

_SOURCES = [
    str(Path(__file__).parent / "console_cost" / name) for name in ("moving_nvml.c", "peers_nvml.c")
]
PCIE_MS = 20
"""What nvmlDeviceGetPcieThroughput takes on a real driver: it counts for so long."""


def build_driver(folder: Path) -> Path:
    """Compile the moving fake driver into `folder`, for LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-O0",
        "-finstrument-functions",
        "-Wall",
        "-Wextra",
        "-o",
        str(library),
        *_SOURCES,
        "-lm",
    ]
    subprocess.run(command, check=True)
    (folder / "libnvidia-ml.so").symlink_to(library.name)
    return folder


class FakeBox:
    """`gpus` GPUs, each with one process on it. A context manager: the processes end with it.

    `hiccups` are milliseconds and a number N: on average every N-th driver call takes this much
    longer.
    """

    def __init__(
        self,
        folder: Path,
        driver: Path,
        gpus: int,
        *,
        pcie_ms: int = PCIE_MS,
        hiccups: tuple[int, int] | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self.gpus = gpus
        self._driver = driver
        self._hiccups = hiccups
        self._counter = folder / "calls"
        self._counter.write_bytes(bytes(8))
        self._tasks = [subprocess.Popen(["sleep", "1000000"]) for _ in range(min(gpus, 8))]
        self._script = Script(folder / "machine.txt", *self._lines(pcie_ms))

    def __enter__(self) -> FakeBox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.kill()
            task.wait()

    def environment(self) -> dict[str, str]:
        """The environment for a program on this machine."""
        found = self._script.environment(self._driver) | {"NVML_CALLS_FILE": str(self._counter)}
        if self._hiccups is not None:
            found["NVML_HICCUPS"] = f"{self._hiccups[0]} {self._hiccups[1]}"
        found.pop("CUDA_VISIBLE_DEVICES", None)
        return found

    def calls(self) -> int:
        """Driver calls so far, by all programs."""
        return int(struct.unpack("Q", self._counter.read_bytes())[0])

    def _lines(self, pcie_ms: int) -> Sequence[str]:
        lines = [f"gpus {self.gpus}", "gpu * field_per_s 74 20000000"]
        if pcie_ms:
            lines.append(f"gpu * delay nvmlDeviceGetPcieThroughput {pcie_ms}")
        for gpu in range(self.gpus):
            task = self._tasks[gpu % len(self._tasks)]
            lines.append(f"gpu {gpu} process {task.pid} compute 18000000000 60")
        return lines


def clean_environment(home: Path) -> dict[str, str]:
    """The environment of every measured program: a terminal with 256 colours and an own home
    folder."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
    return kept | {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "LANG": "C.UTF-8",
    }
