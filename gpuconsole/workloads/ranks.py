"""Starts the processes of a run on one machine, as a child of the console:
`python -m gpuconsole.workloads.ranks NPROC`.

The processes find each other by a file in a private folder (torch's FileStore). torchrun's
rendezvous is not used here: its store holds pickles, listens on all interfaces and has no password.
When a process fails, the launcher ends the others. All processes end with the console.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType

from gpuconsole.wire.channel import die_with_parent
from gpuconsole.workloads.torchrun import LAUNCHER

LOOK_EVERY_S = 0.05
END_S = 5.0
"""Seconds between SIGTERM and SIGKILL for the other processes, after one has failed."""


def environment(rank: int, size: int) -> dict[str, str]:
    """The variables of one process, as torchrun names them. gloo and NCCL listen on loopback
    only."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def start(size: int) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "gpuconsole.workloads.rank"]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **environment(rank, size)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rank in range(size)
    ]


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def supervise(processes: list[subprocess.Popen[bytes]], ending: list[int]) -> int:
    """Wait for the end of all processes, or for a signal in `ending`. Returns 0 where all ended
    well, otherwise 1."""
    while not ending and any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes):
            break
        time.sleep(LOOK_EVERY_S)
    failed = [(rank, process) for rank, process in enumerate(processes) if process.returncode]
    for rank, process in failed:
        code = process.returncode
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        print(f"rank {rank} (pid: {process.pid}) {how}", file=sys.stderr, flush=True)
    end_processes(processes)
    return 1 if failed else 0


def end_processes(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the processes that still run: first by SIGTERM, after END_S by SIGKILL."""
    deadline = time.monotonic() + END_S
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    die_with_parent()
    os.environ[LAUNCHER] = str(os.getpid())
    ending: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        # a handler must not wait: it may interrupt a wait for the same process
        ending.append(number)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return supervise(start(int(sys.argv[1])), ending)


if __name__ == "__main__":
    sys.exit(main())
