"""vLLM imports this module in its own Python by `--scheduler-cls gpuconsole_caps.scheduler`: vLLM's
scheduler with limits that can change while the server runs.

A memory-mapped file of 64-bit integers holds the limits: maximum sequences and maximum tokens per
iteration (0: the values of the start). After them stand the values of the start, which vLLM may
have chosen itself: this module writes them for the console. Reading the file takes much less time
than an iteration. This module does not import gpuconsole.

GPUCONSOLE_CAPS names the file of a server that the console has started. Any other server has a file
of its own (`OwnLimits`), in which `gpuconsole watch` finds it by its process.
"""

import atexit
import contextlib
import logging
import mmap
import os
import stat
import struct
import time

VARIABLE = "GPUCONSOLE_CAPS"
LAYOUT = struct.Struct("=qq")
"""Two limits: sequences, tokens."""
NUMBER = struct.Struct("=q")
UNTIL_AT = 2 * LAYOUT.size
BEGAN_AT = 2 * LAYOUT.size + NUMBER.size
"""Only in a file of the server's own, after the limits and the values of the start: when the limits
end, in nanoseconds on CLOCK_MONOTONIC; and when the process of the server began, in ticks since the
start of the machine."""
SIZE = BEGAN_AT + NUMBER.size
MEMORY = "/dev/shm"
"""The files are in memory: a server writes nothing to a disk for this."""


def folder_of(user: int) -> str:
    return os.path.join(MEMORY, f"gpuconsole-{user}")


def name_of(pid: int) -> str:
    """The name of the file of process `pid`. Containers number their processes each by itself, and
    may share the folder."""
    return f"limits-{os.stat('/proc/self/ns/pid').st_ino}-{pid}"


def began(pid: int) -> int:
    """When the process began, in ticks since the start of the machine. Raises OSError, ValueError,
    IndexError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def own_folder() -> str:
    """The folder of this user, where nobody else can create anything. Raises OSError."""
    path = folder_of(os.getuid())
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder of this user alone")
    return path


class OwnLimits:
    """The limits of this server in a file of its own.

    They hold until a time that `gpuconsole watch` moves on while it runs: if it dies or hangs, the
    server has the values of its start again.
    """

    def __init__(self, seats: int, tokens: int) -> None:
        """`seats`, `tokens`: the values of the start; 0 for one that cannot change. Raises OSError,
        ValueError, IndexError."""
        folder = own_folder()
        for name in os.listdir(folder):  # of servers that were killed
            space, _, pid = name.rpartition("-")
            if name_of(0).rpartition("-")[0] == space and not os.path.exists(f"/proc/{pid}"):
                _remove(os.path.join(folder, name))
        path = os.path.join(folder, name_of(os.getpid()))
        _remove(path)
        opened = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(
                opened,
                LAYOUT.pack(0, 0)
                + LAYOUT.pack(seats, tokens)
                + NUMBER.pack(0)
                + NUMBER.pack(began(os.getpid())),
            )
            self._map = mmap.mmap(opened, SIZE)
        finally:
            os.close(opened)
        atexit.register(_remove_own, path, os.getpid())

    def read(self):  # type: ignore[no-untyped-def]
        """The limits of this moment: sequences, tokens; 0: the value of the start."""
        seats, tokens = LAYOUT.unpack_from(self._map)
        if (seats or tokens) and time.monotonic_ns() >= NUMBER.unpack_from(self._map, UNTIL_AT)[0]:
            return 0, 0
        return seats, tokens


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)


def _remove_own(path: str, pid: int) -> None:
    """Remove the file at the end of process `pid`: a process that it has forked ends earlier."""
    if os.getpid() == pid:
        _remove(path)


class Caps:
    """A mixin before a scheduler class of vLLM: the schedule of vLLM under the smaller of vLLM's
    limits and these limits."""

    running: list
    max_num_scheduled_tokens: int

    def __init__(self, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*args, **kwargs)
        # newer versions (0.32) separate admission from the number of slots of the model runner
        self._seats = (
            "max_num_active_reqs"
            if hasattr(self, "max_num_active_reqs")
            else "max_num_running_reqs"
        )
        self._most_seats, self._most_tokens = (
            getattr(self, self._seats),
            self.max_num_scheduled_tokens,
        )
        self._limits = lambda: (0, 0)
        if VARIABLE in os.environ:
            with open(os.environ[VARIABLE], "r+b") as file:
                caps = mmap.mmap(file.fileno(), 2 * LAYOUT.size)
            LAYOUT.pack_into(caps, LAYOUT.size, self._most_seats, self._most_tokens)
            self._limits = lambda: LAYOUT.unpack_from(caps)
        else:
            config = getattr(kwargs.get("vllm_config"), "scheduler_config", None)
            # without chunked prefill a prompt that is longer than an iteration would wait for ever
            chunked = getattr(config, "enable_chunked_prefill", True)
            try:
                self._limits = OwnLimits(self._most_seats, self._most_tokens if chunked else 0).read
            except (OSError, ValueError, IndexError) as problem:
                logging.getLogger("vllm").warning(
                    "gpuconsole: the limits cannot change while this server runs: %s", problem
                )

    def schedule(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        seats, tokens = self._limits()
        # never below the number of running sequences: the scheduler admits no more, and running
        # sequences continue to their end
        setattr(
            self,
            self._seats,
            min(self._most_seats, max(seats, len(self.running))) if seats else self._most_seats,
        )
        self.max_num_scheduled_tokens = (
            min(self._most_tokens, tokens) if tokens else self._most_tokens
        )
        return super().schedule(*args, **kwargs)  # type: ignore[misc]


def scheduler(*args, **kwargs):  # type: ignore[no-untyped-def]
    """The scheduler that vLLM would create, with the mixin Caps. vLLM calls this function like a
    class."""
    if getattr(kwargs["vllm_config"].scheduler_config, "async_scheduling", False):
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Base
    else:
        from vllm.v1.core.sched.scheduler import Scheduler as Base
    return type("CappedScheduler", (Caps, Base), {})(*args, **kwargs)
