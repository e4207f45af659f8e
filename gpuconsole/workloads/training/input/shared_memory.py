"""Room in /dev/shm for the batches of DataLoader workers.

A worker puts each tensor into shared memory. Where that is full, the worker dies with a bus error, without a message. Docker gives a container
64 MB (--shm-size).
"""

from __future__ import annotations

import os

from gpuconsole.model.knobs.catalogue import Knobs

FOLDER = "/dev/shm"
MB = 2**20


def check_room(knobs: Knobs, sample_bytes: float) -> None:
    """Raise ValueError, one line, if the batches that the workers keep ready do not fit into shared memory.

    `sample_bytes`: of one collated sample. Each worker keeps `prefetch_factor` batches ready, and the training process holds one more.
    """
    workers = int(knobs["num_workers"])
    room = total_bytes()
    if not workers or room is None:
        return
    batches = workers * int(knobs["prefetch_factor"]) + 1
    needed = batches * int(knobs["batch_size"]) * sample_bytes
    if needed > room:
        raise ValueError(
            f"{FOLDER} has {room / MB:.0f} MB, and {workers} DataLoader workers keep {batches} batches in it, {needed / MB:.0f} MB: "
            "give the container more (docker run --shm-size=8g, or --ipc=host), or lower num_workers, prefetch_factor or batch_size"
        )


def total_bytes() -> int | None:
    """The size of /dev/shm; None where this system has none. What other programs hold there is not subtracted: it changes."""
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize
