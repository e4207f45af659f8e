"""Collectives over a ring, and what they make of a step on several processes.

`bytes_per_s` is bus bandwidth as nccl-tests defines it: what one link carries each way, so that it can be held against the link
whatever the number of processes. `size` is the whole tensor's bytes: of an all-gather the result, of a reduce-scatter the input.
"""

from __future__ import annotations

from dataclasses import dataclass

HOOK_BYTES: dict[str, float] = {"none": 4.0, "bf16": 2.0, "fp16": 2.0}
"""Bytes per gradient that DDP sends with each of torch's comm hooks. PowerSGD sends low-rank factors instead."""


def bus_factor(collective: str, processes: int) -> float:
    """Bus bandwidth over algorithm bandwidth: the share of the tensor that crosses each link."""
    share = (processes - 1) / processes
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "broadcast": 1.0}[collective]


def ring_s(collective: str, size: float, processes: int, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Seconds of one collective: 2 (n-1)/n bytes/bandwidth for an all-reduce, half for its halves, and a latency for every hop."""
    if processes == 1:
        return 0.0
    hops = 2 * (processes - 1) if collective == "all_reduce" else processes - 1
    return bus_factor(collective, processes) * size / bytes_per_s + hops * latency_s


def sharding_s(sharding: str, gradients: float, parameters: float, processes: int, bytes_per_s: float) -> float:
    """A step's collectives, one after the other. `gradients` and `parameters`: bytes as they travel.

    ddp: an all-reduce of the gradients. zero1: that, and every process sends the parameters it has updated to all. zero2: FSDP2
    gathers parameters once and scatters gradients. zero3: gathers twice.
    """
    parts = {
        "none": (),
        "ddp": (("all_reduce", gradients),),
        "zero1": (("all_reduce", gradients), ("all_gather", parameters)),
        "zero2": (("all_gather", parameters), ("reduce_scatter", gradients)),
        "zero3": (("all_gather", parameters), ("all_gather", parameters), ("reduce_scatter", gradients)),
    }[sharding]
    return sum(ring_s(collective, size, processes, bytes_per_s) for collective, size in parts)


@dataclass(frozen=True)
class Exposed:
    """Seconds of communication that nothing hides: `low` if all that can overlap does, `high` if nothing does."""

    low: float
    high: float


def exposed_s(communication_s: float, overlapped_s: float, last_share: float = 0.0) -> Exposed:
    """`overlapped_s`: computation that goes on meanwhile, in DDP the backward pass. `last_share`: of the bytes, those that are only
    there when it is over, in DDP the last bucket."""
    return Exposed(max(communication_s * last_share, communication_s - overlapped_s), communication_s)


def last_bucket_share(gradients: float, bucket_cap_mb: float, first_bucket_mb: float = 1.0) -> float:
    """Share of the gradients in DDP's last bucket. The first is of 1 MiB (torch's default), the others of `bucket_cap_mb`."""
    cap = bucket_cap_mb * 2**20
    rest = gradients - min(gradients, first_bucket_mb * 2**20)
    if rest == 0:
        return 1.0
    return (rest % cap or cap) / gradients


def weak_scaling(throughput_one: float, throughput_many: float, processes: int) -> float:
    """Efficiency for the same work on each: the throughput of all over n times that of one."""
    return throughput_many / (processes * throughput_one)
