"""Shared by the rules about communication."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Missing, Threshold

EXPOSED = Threshold(
    "exposed",
    0.10,
    "ratio",
    "10 % of a step is notable, 20 % is serious (PyTorch profiler 10 %, gpuprof 20 %)",
)
LATE = Threshold(
    "late",
    1.10,
    "x",
    "10 % slower than the median of the others is notable, 20 % is serious (TraceML; alloc 20 %)",
)

LARGE_MB = 25.0
"""The default of bucket_cap_mb in DistributedDataParallel."""
LATE_OUTSIDE = Threshold(
    "late_outside",
    1.20,
    "x",
    "20 %: times from the account are less exact than times from the probe",
)


def several(case: Case) -> bool:
    """Whether the run's processes exchange anything. Raises Missing before there are steps."""
    case.value("step_s")
    return (
        case.knobs.get("sharding", "none") != "none"
        or int(case.knobs.get("tensor_parallel", 1)) > 1
    )


def is_serious(case: Case) -> bool:
    """Whether communication that no computation hides takes a fifth of a step: twice EXPOSED."""
    return (
        case.has("comm.exposed_s", "step_s")
        and several(case)
        and exposed_ratio(case) >= 2 * EXPOSED
    )


def exposed_ratio(case: Case) -> float:
    """Share of a step in communication that computation does not hide, at most 0.95.

    For all passes of a step, the larger of two times: the exposed time by probe P7, and the
    communication time of the last process in ordinary steps (where processes share cores and links
    with all other work). Gradients are exchanged in the last pass only, other data in every pass.
    Time that larger buckets would save is not counted: it belongs to comm.small_buckets.
    """
    share = share_of_gradients(case)
    exchanges = share + (1 - share) * int(case.knobs.get("gradient_accumulation_steps", 1))
    return min(0.95, exchanges * _exposed_of_a_pass(case))


def whole_ratio(case: Case) -> float:
    """Return the share of a step in which computation waits for other processes: in the step
    breakdown, or, where computation hides a part of it there, by the probe and by the collectives
    of the last process. With what larger buckets and fewer exchanges would save. Raises Missing
    where nothing is measured."""
    share = share_of_gradients(case)
    exchanges = max(
        case.get("comm.exchanges_per_step", 1.0),
        share + (1 - share) * int(case.knobs.get("gradient_accumulation_steps", 1)),
    )
    known = [case.value("comm_ratio")] if case.has("comm_ratio") else []
    if case.has("comm.exposed_s", "step_s") and case.value("step_s") > 0:
        known.append(
            exchanges * case.value("comm.exposed_s") / case.value("step_s") + outside_ratio(case)
        )
    if case.has("ranks.least_comm_ratio"):
        known.append(case.value("ranks.least_comm_ratio"))
    if not known:
        raise Missing("comm_ratio")
    return min(1.0, max(known))


def gradients_ratio(case: Case) -> float:
    """The part of `exposed_ratio` for gradients. Accumulation reduces this part."""
    buffers = buffers_ratio(case) if case.has("comm.buffer_bytes") else 0.0
    return max(0.0, min(0.95, share_of_gradients(case) * _exposed_of_a_pass(case)) - buffers)


def buffers_ratio(case: Case) -> float:
    """Return the share of a step in which the processes of a job exchange buffers before the
    forward pass: the communication of ordinary steps minus the communication of gradients, which
    DDP itself times. Return 0 if the gradients are larger than the buffers: the times of the two
    cannot then be told apart."""
    size = case.get("comm.buffer_bytes", 0.0)
    if not size or size < case.get("comm.bytes_per_step", 0.0):
        return 0.0
    gradients = (
        case.value("comm.exposed_s")
        * case.get("comm.exchanges_per_step", 1.0)
        / case.value("step_s")
    )
    return max(0.0, case.get("ranks.least_comm_ratio", 0.0) - outside_ratio(case) - gradients)


def share_of_gradients(case: Case) -> float:
    """Share of the gradients in the traffic of a pass. zero2 also gathers parameters once per pass,
    zero3 twice; split matrices exchange results."""
    if int(case.knobs.get("tensor_parallel", 1)) > 1:
        return 0.0
    return {"zero2": 1 / 2, "zero3": 1 / 3}.get(str(case.knobs.get("sharding")), 1.0)


def _exposed_of_a_pass(case: Case) -> float:
    lost = lost_to_small_buckets(case) if buckets_can_be_small(case) else 0.0
    in_steps = max(0.0, case.get("ranks.least_comm_ratio", 0.0) - outside_ratio(case)) / max(
        1.0, case.get("comm.exchanges_per_step", 1.0)
    )
    return (1 - lost) * max(case.value("comm.exposed_s") / case.value("step_s"), in_steps)


def outside_ratio(case: Case) -> float:
    """Share of a step in collectives of a job's program that exchange no gradients, such as
    metrics: neither fewer exchanges of gradients nor other buckets change it."""
    return case.get("comm.outside_ratio", 0.0)


def buckets_can_be_small(case: Case) -> bool:
    """Whether DDP's buckets are below torch's default."""
    return (
        several(case)
        and case.knobs.get("sharding") in ("ddp", "zero1")
        and float(case.knobs.get("bucket_cap_mb", LARGE_MB)) < LARGE_MB
    )


def lost_to_small_buckets(case: Case) -> float:
    """Share of an exchange's time that larger buckets would save (probe P10)."""
    return max(0.0, 1 - case.value("comm.exchange_large_s") / case.value("comm.exchange_now_s"))


def late_alone(case: Case) -> float:
    """Time of the slowest process over the others, alone in a pass (P8; in a job DDP's own timer).
    1 where that is not certain."""
    alone = case.value("comm.straggler_ratio")
    return alone if alone - case.get("comm.straggler_spread", 0.0) >= LATE else 1.0


def late_outside(case: Case) -> float:
    """The same outside of passes, from the account. 1 where that is not certain: the time in
    collectives is divided between the processes as the system wakes them, so a difference that is
    small beside that time is none."""
    outside = case.get("ranks.busy_ratio", 1.0)
    return (
        outside if outside >= LATE_OUTSIDE and 1 - 1 / outside >= outside_ratio(case) / 2 else 1.0
    )
