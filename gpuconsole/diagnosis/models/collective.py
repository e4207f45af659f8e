"""Time of ring collectives, and the exposed communication of a step with several processes.

`bytes_per_s` is bus bandwidth as nccl-tests defines it: the rate of one link in one direction,
comparable with the link's bandwidth for any number of processes. `size` is the bytes of the whole
tensor: the result of an all-gather, the input of a reduce-scatter.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from gpuconsole.diagnosis.models.inputs import FP32, NOT_STEADY, ModelInputs, with_note
from gpuconsole.diagnosis.models.memory import exchanged_bytes
from gpuconsole.model.figures import Figure

HOOK_BYTES: dict[str, float] = {"none": 4.0, "bf16": 2.0, "fp16": 2.0}
"""Bytes per gradient that DDP sends with each of torch's comm hooks. PowerSGD sends low-rank
factors instead."""


def bus_factor(collective: str, processes: int) -> float:
    """Bus bandwidth over algorithm bandwidth: the share of the tensor that crosses each link."""
    share = (processes - 1) / processes
    return {
        "all_reduce": 2 * share,
        "all_gather": share,
        "reduce_scatter": share,
        "broadcast": 1.0,
    }[collective]


def ring_s(
    collective: str, size: float, processes: int, bytes_per_s: float, latency_s: float = 0.0
) -> float:
    """Seconds of one collective: 2 (n-1)/n bytes/bandwidth for an all-reduce, half of it for
    all-gather and reduce-scatter, plus a latency per hop."""
    if processes == 1:
        return 0.0
    hops = 2 * (processes - 1) if collective == "all_reduce" else processes - 1
    return bus_factor(collective, processes) * size / bytes_per_s + hops * latency_s


def sharding_s(
    sharding: str, gradients: float, parameters: float, processes: int, bytes_per_s: float
) -> float:
    """Seconds of a step's collectives, one after the other. `gradients` and `parameters`: bytes
    that are sent.

    ddp: an all-reduce of the gradients. zero1: an all-reduce, then every process sends its updated
    parameters to all. zero2: FSDP2 gathers parameters once and reduce-scatters gradients. zero3:
    FSDP2 gathers parameters twice.
    """
    parts = {
        "none": (),
        "ddp": (("all_reduce", gradients),),
        "zero1": (("all_reduce", gradients), ("all_gather", parameters)),
        "zero2": (("all_gather", parameters), ("reduce_scatter", gradients)),
        "zero3": (
            ("all_gather", parameters),
            ("all_gather", parameters),
            ("reduce_scatter", gradients),
        ),
    }[sharding]
    return sum(ring_s(collective, size, processes, bytes_per_s) for collective, size in parts)


@dataclass(frozen=True)
class Exposed:
    """Seconds of exposed communication: `low` with full overlap, `high` without overlap."""

    low: float
    high: float


def exposed_s(communication_s: float, overlapped_s: float, last_share: float = 0.0) -> Exposed:
    """`overlapped_s`: seconds of computation that can overlap, in DDP the backward pass.
    `last_share`: share of the bytes that are ready only after that computation, in DDP the last
    bucket."""
    return Exposed(
        max(communication_s * last_share, communication_s - overlapped_s), communication_s
    )


def last_bucket_share(
    gradients: float, bucket_cap_mb: float, first_bucket_mb: float = 1.0
) -> float:
    """Share of the gradients in DDP's last bucket. The first bucket has 1 MiB (torch's default),
    all others `bucket_cap_mb`."""
    cap = bucket_cap_mb * 2**20
    rest = gradients - min(gradients, first_bucket_mb * 2**20)
    if rest == 0:
        return 1.0
    return (rest % cap or cap) / gradients


# --- the figures of a run -------------------------------------------------------------------------

NO_LINK = "the bandwidth between processes is not known (run gpuconsole calibrate)"


def collective_figures(inputs: ModelInputs) -> list[Figure]:
    """Communication of a step: bytes, time on a ring, and exposed time. Empty for a run with one
    process."""
    sharding, exchanged = inputs.text("sharding", "none"), exchanged_bytes(inputs)
    if inputs.replicas == 1 or sharding == "none" or exchanged is None:
        return []
    of_part = " of the process's part of each matrix" if inputs.tensor_parallel > 1 else ""
    formula = f"4 B x trained parameters{of_part}"
    size = Figure(
        "comm.bytes_per_step",
        "Gradients that each process exchanges",
        "bytes",
        exchanged[0],
        None,
        formula,
    )
    formula = "ring: all-reduce 2 (n-1)/n bytes/bandwidth; all-gather and reduce-scatter half"
    ring = Figure("comm.ring_s", "Time of a step's collectives", "s", formula=formula)
    formula = "collectives - overlapping computation, at least DDP's last bucket"
    exposed = Figure("comm.exposed_s", "Exposed communication", "s", formula=formula)
    hook, link = inputs.text("comm_hook", "none"), _link(inputs)
    if hook not in HOOK_BYTES or link is None:
        why = (
            "not predicted: "
            f"{'the bytes of PowerSGD depend on its rank' if hook not in HOOK_BYTES else NO_LINK}"
        )
        ring, exposed = with_note(ring, why), with_note(exposed, why)
    else:
        gradients, parameters = exchanged
        if sharding in ("ddp", "zero1"):
            gradients *= HOOK_BYTES[hook] / FP32
        seconds = sharding_s(sharding, gradients, parameters, inputs.replicas, link[0])
        ring = replace(ring, predicted=seconds, note=f"bandwidth: {link[1]}")
        exposed = _exposed(inputs, exposed, sharding, seconds, gradients)
    return [
        inputs.with_measurement(size, size.name, "probe P7 has not run"),
        with_note(
            ring,
            "not measured: communication that overlaps with computation adds no measurable time",
        ),
        inputs.with_measurement(exposed, exposed.name, "probe P7 has not run"),
    ]


def _exposed(
    inputs: ModelInputs, figure: Figure, sharding: str, seconds: float, gradients: float
) -> Figure:
    step = inputs.value("step_s")
    backward, forward = inputs.value("backward_ratio"), inputs.value("forward_ratio")
    if step is None or backward is None:
        return with_note(figure, f"not predicted: {NOT_STEADY}")
    hides = (
        backward + (forward or 0.0) + (inputs.value("loss_ratio") or 0.0)
        if sharding in ("zero2", "zero3")
        else backward
    )
    last = (
        last_bucket_share(gradients, float(inputs.knobs.get("bucket_cap_mb", 25.0)))
        if sharding == "ddp"
        else 0.0
    )
    exposed = exposed_s(seconds, hides * step / inputs.passes, last)
    return replace(figure, predicted=exposed.low, note=f"if nothing overlaps: {exposed.high:.4g} s")


def _link(inputs: ModelInputs) -> tuple[float, str] | None:
    """Bus bandwidth between processes."""
    if inputs.calibration.get("allreduce_bytes_per_s"):
        return inputs.calibration["allreduce_bytes_per_s"], "all-reduce, calibrated"
    # a card that can have NVLink may have no bridge
    joined = inputs.value("link.nvlink_joined") != 0.0
    if inputs.is_gpu and inputs.peaks.nvlink_bytes_per_s and joined:
        return inputs.peaks.nvlink_bytes_per_s / 2, f"NVLink, one direction, {inputs.peaks.source}"
    return None
