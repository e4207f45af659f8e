"""All-reduce between the processes of this machine: two on CPU through gloo, one for each GPU
through NCCL.

The figures are those of nccl-tests: algbw is the tensor's bytes over the time of one operation;
busbw is algbw x 2(n-1)/n, what each link must carry in a ring, so that it can be compared with the
bandwidth of a link.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from gpuconsole.agent.clock import now
from gpuconsole.model.machine import Reached
from gpuconsole.wire.channel import die_with_parent
from gpuconsole.workloads.calibration.measures import (
    MAX_REPEATS,
    MIN_REPEATS,
    as_rate,
    as_time,
    missing,
    synchronize,
)

LATENCY, BANDWIDTH = "allreduce_latency_s", "allreduce_bytes_per_s"
LATENCY_BYTES = 64 * 2**10
LATENCY_OPERATIONS = 20
BANDWIDTH_BYTES = 16 * 2**20
BANDWIDTH_OPERATIONS = 2
MEET_S = 60.0
"""Time limit for the processes to meet. On busy cores two processes that import torch need up to 20
s."""


def all_reduce(
    gpus: int, on_gpu: bool, folder: Path, budget_s: float, environment: dict[str, str | None]
) -> list[Reached]:
    """Latency at 64 KiB and bus bandwidth at 16 MiB. `environment`: variables for the processes;
    None unsets a variable."""
    world, backend = (gpus, "nccl") if on_gpu else (2, "gloo")
    if world < 2:
        return [
            missing(name, "one visible GPU: there is no other process to exchange with")
            for name in (LATENCY, BANDWIDTH)
        ]
    if not dist.is_available() or not (
        dist.is_nccl_available() if on_gpu else dist.is_gloo_available()
    ):
        return [
            missing(name, f"this torch is built without {backend}") for name in (LATENCY, BANDWIDTH)
        ]
    short, long = _in_processes(world, backend, folder, budget_s, environment)
    bus = 2 * (world - 1) / world
    who = f"{world} {'GPUs' if on_gpu else 'processes'}, {backend}"
    algbw = BANDWIDTH_BYTES / min(long) / 1e9
    return [
        as_time(LATENCY, short, f"{LATENCY_BYTES >> 10} KiB, {who}"),
        as_rate(
            BANDWIDTH,
            BANDWIDTH_BYTES * bus,
            long,
            f"busbw, {BANDWIDTH_BYTES >> 20} MiB, {who}; algbw {algbw:.3g} GB/s",
        ),
    ]


def _in_processes(
    world: int, backend: str, folder: Path, budget_s: float, environment: dict[str, str | None]
) -> tuple[list[float], list[float]]:
    """Seconds per operation, short and long. Raises RuntimeError; no process is left in either
    case."""
    from torch.multiprocessing.spawn import ProcessException, start_processes

    arguments = (world, backend, str(folder), budget_s, environment, os.getpid())
    processes = start_processes(_rank, arguments, nprocs=world, join=False, start_method="spawn")
    assert processes is not None
    deadline = now() + MEET_S + 4 * budget_s
    try:
        while not processes.join(timeout=1.0):
            if now() > deadline:
                raise RuntimeError(
                    f"the {world} processes did not finish within {MEET_S + 4 * budget_s:.0f} s"
                )
    except ProcessException as error:
        lines = str(error).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else type(error).__name__) from None
    finally:
        for process in processes.processes:
            process.kill()
    return msgspec.json.decode(
        (folder / "allreduce.json").read_bytes(), type=tuple[list[float], list[float]]
    )


def _rank(
    rank: int,
    world: int,
    backend: str,
    folder: str,
    budget_s: float,
    environment: dict[str, str | None],
    parent: int,
) -> None:
    """One of the processes, from its start to its end."""
    die_with_parent()
    if os.getppid() != parent:  # the parent died before prctl
        return
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # all processes are on this machine, whatever the host's name resolves to
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    patience = datetime.timedelta(seconds=MEET_S)
    dist.init_process_group(
        backend, init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=patience
    )
    times = (
        _operations_s(LATENCY_BYTES, LATENCY_OPERATIONS, device, budget_s),
        _operations_s(BANDWIDTH_BYTES, BANDWIDTH_OPERATIONS, device, budget_s),
    )
    if rank == 0:
        Path(folder, "allreduce.json").write_bytes(msgspec.json.encode(times))
    dist.destroy_process_group()


def _operations_s(size: int, operations: int, device: torch.device, budget_s: float) -> list[float]:
    """Seconds per operation, as the mean of each block. A single operation may end early where
    other processes began it before."""
    source = torch.randn(size // 4, device=device)
    tensor = torch.empty_like(source)

    def block() -> float:
        tensor.copy_(source)  # sums of sums would overflow
        dist.barrier()
        synchronize(device)
        start = now()
        for _ in range(operations):
            dist.all_reduce(tensor)
        synchronize(device)
        return (now() - start) / operations

    block()
    return [block() for _ in range(_agreed_count(block, operations, device, budget_s))]


def _agreed_count(
    block: Callable[[], float], operations: int, device: torch.device, budget_s: float
) -> int:
    """The number of blocks that fit in the budget, as process 0 decides."""
    count = torch.tensor(
        [min(MAX_REPEATS, max(MIN_REPEATS, int(budget_s / (block() * operations))))], device=device
    )
    dist.broadcast(count, 0)
    return int(count.item())
