"""The private memory of each worker of a DataLoader.

A worker is forked: it shares the pages of the training process until one of the two writes to them. A read of a Python object writes its reference count, so a
worker that reads a list of Python objects copies the list page by page. Neither the resident memory nor the anonymous memory of a process shows that, because
shared pages count in both from the start; /proc/PID/smaps_rollup does. To read this file takes 30 µs for each MB of memory. So each worker reads its own
file, in the thread that takes samples (see `loading_parts`), and writes the figure to a small file for the training process.
"""

from __future__ import annotations

import contextlib
import os
import time

from ...clock import now

ROLLUP, PRIVATE = "/proc/self/smaps_rollup", b"Private_Dirty:"
EVERY_S = 1.0
MOST_COST = 0.01
"""Share of a core that the readings may take in a worker."""


class Teller:
    """Writes the private memory of this worker to a file. `folder`: the folder of the job. `parent`: the process ID of the training process."""

    def __init__(self, folder: str, parent: int) -> None:
        self._folder = told_folder(folder, parent)
        self._due = 0.0

    def look(self) -> None:
        """Read the memory and write it to the file, if the next reading is due and the training process has made the folder."""
        if now() < self._due or not os.path.isdir(self._folder):
            return
        begun = time.thread_time()
        with contextlib.suppress(OSError):  # a kernel without the file; or the folder has just gone
            with open(ROLLUP, "rb") as rollup:
                private = next((line.split()[1] for line in rollup if line.startswith(PRIVATE)), b"")
            path = os.path.join(self._folder, str(os.getpid()))
            with open(path + ".new", "wb") as told:
                told.write(private)
            os.replace(path + ".new", path)
        self._due = now() + max(EVERY_S, (time.thread_time() - begun) / MOST_COST)


def told_folder(folder: str, training_pid: int) -> str:
    """The folder for the files of the workers of a training process."""
    return os.path.join(folder, f"memory-{training_pid}")


class WorkersMemory:
    """Reads the memory that the workers of this process have written to their files."""

    def __init__(self) -> None:
        self._folder = ""
        self._due = 0.0

    def read(self, folder: str, workers: list[int]) -> float | None:
        """Return the sum of the private bytes of these workers. None within EVERY_S of the last reading, or while a worker has not written its figure.
        `folder`: the folder of the job; empty while it is not known."""
        t = now()
        if t < self._due or not folder or not workers:
            return None
        self._due = t + EVERY_S
        self._folder = told_folder(folder, os.getpid())
        names = {str(pid) for pid in workers}
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._folder)
            for name in os.listdir(self._folder):
                if name.partition(".")[0] not in names:  # a worker that has ended
                    os.unlink(os.path.join(self._folder, name))
            return sum(self._told(name) for name in names)
        except (OSError, ValueError):
            return None

    def _told(self, name: str) -> float:
        with open(os.path.join(self._folder, name), "rb") as file:
            return int(file.read()) * 1024.0

    def close(self) -> None:
        """Remove the folder, so that the workers stop their readings. A forked child keeps it: the folder belongs to the parent."""
        if self._folder and self._folder == told_folder(os.path.dirname(self._folder), os.getpid()):
            with contextlib.suppress(OSError):  # a worker has written meanwhile: the folder goes later, with the folder of the job
                for name in os.listdir(self._folder):
                    os.unlink(os.path.join(self._folder, name))
                os.rmdir(self._folder)
