"""Signals of the collectives of a user's job, of any kind of parallelism, from the record that torch keeps of them: nothing is tried.

`comm.KIND_calls`, `comm.KIND_bytes` and, with NCCL and TORCH_NCCL_ENABLE_TIMING=1, `comm.KIND_s`: of one process, in a step. How much of these seconds computation
hides is not known: they are an upper bound of what a step waits for. The process that comes last is known in all its ways: see `session.communication`.
"""

from __future__ import annotations

from gpuconsole.model.finding import Signal
from gpuconsole.model.run import COLLECTIVE_KINDS
from gpuconsole.session.communication import Late, Matched, is_timed, latest, matched, shortest_s, span_s
from gpuconsole.session.run import RunRecord

RECORDER = "torch's flight recorder"
LARGE_BYTES = 25e6
"""Latency limits smaller collectives on every link (25 MB is the default bucket of DistributedDataParallel)."""
MOST = 0.95
LATE_BEFORE = ("comm.late_before", "comm.late_kind_calls", "comm.late_kind_bytes")
"""The signals about the collectives in which the others wait. Where they are known, the other signals of the last process are of the same source."""


def collective_signals(record: RunRecord, signals: dict[str, Signal]) -> dict[str, Signal]:
    """Calls, bytes and seconds in a step by kind, and the process that comes last. Empty for one process, and where torch has recorded nothing."""
    processes = record.ranks.collectives
    if len(processes) < 2:
        return {}
    counted = _by_kind(record)
    if record.ranks.why_not_compared(record.run.device):
        return counted
    reads = matched(processes)
    timed = is_timed(reads)
    if timed:
        counted |= _of_durations(reads, signals["step_s"].value)
        if "comm.bus_bytes_per_s" in counted:
            of_kinds = [counted[name].value for kind in COLLECTIVE_KINDS if (name := f"comm.{kind}_bytes") in counted]
            counted["comm.bytes_per_step"] = Signal(sum(of_kinds), "B", f"{RECORDER}: all collectives of one process")
    late = latest(reads, timed)
    if late is None:
        return counted
    of_kind = {f"comm.late_kind_{what}": counted[name] for what in ("calls", "bytes") if (name := f"comm.{late.kind}_{what}") in counted}
    return counted | of_kind | _late(late, record, signals["step_s"].value)


def _by_kind(record: RunRecord) -> dict[str, Signal]:
    """Of the leading process."""
    process = next(process for _, process in sorted(record.ranks.collectives.items()))
    steps = process.steps
    if not steps:
        return {}
    found: dict[str, Signal] = {}
    for name, kind in process.kinds().items():
        source = f"{RECORDER}, n={kind.calls} in {steps} steps"
        found[f"comm.{name}_calls"] = Signal(kind.calls / steps, "", source)
        found[f"comm.{name}_bytes"] = Signal(kind.bytes / steps, "B", source)
        if kind.timed:
            found[f"comm.{name}_s"] = Signal(kind.seconds * kind.calls / kind.timed / steps, "s", f"{source}, CUDA events, waits included")
    return found


def _of_durations(reads: list[Matched], step_s: float) -> dict[str, Signal]:
    """Seconds of a step in collectives, without waiting for a process, and the bus bandwidth of the large ones."""
    calls = [call for read in reads for call in read[1:]]  # the span of a read begins with its first call
    source = f"{RECORDER}, n={len(calls)}: in each collective, the process that arrived last"
    span = span_s(reads)
    found: dict[str, Signal] = {}
    if span > 0:
        found["comm.collectives_s"] = Signal(
            sum(map(shortest_s, calls)) / span * step_s, "s", f"{source}; a part of it is hidden by computation, not known which"
        )
    large = [call for call in calls if shortest_s(call) and next(iter(call.values())).bus_bytes >= LARGE_BYTES]
    if large:
        rate = sum(next(iter(call.values())).bus_bytes for call in large) / sum(map(shortest_s, large))
        found["comm.bus_bytes_per_s"] = Signal(rate, "B/s", f"{source}, of those with 25 MB or more, as nccl-tests define it")
    return found


def _late(late: Late, record: RunRecord, step_s: float) -> dict[str, Signal]:
    """The signals of probe P8."""
    passes = int(record.run.knobs.get("gradient_accumulation_steps", 1))
    share = min(MOST, late.share)
    ratio = 1 / (1 - share)
    how = "durations on the GPU" if late.timed else "times of the calls on this host"
    source = f"{RECORDER}, n={late.n} collectives of all processes, {how}"
    return {
        "comm.straggler_ratio": Signal(
            ratio, "x", f"{source}: a step over a step less the time in which the others wait for the last process"
        ),
        "comm.straggler_spread": Signal(late.spread * ratio**2, "x", f"{source}: 2 standard errors of that"),
        "comm.slowest_rank": Signal(float(late.rank), "", f"{source}: the last one"),
        "comm.late_s": Signal(share * step_s / passes, "s", f"{source}: what the others wait for it"),
        "comm.pass_alone_s": Signal(step_s / passes, "s", "step breakdown: a whole step"),
        "comm.late_in_backward_ratio": Signal(0.0, "ratio", "not known: the record shows the collective, not the phase"),
        "comm.late_before": Signal(
            float(COLLECTIVE_KINDS.index(late.kind)), "", f"{source}: place of the kind in {', '.join(COLLECTIVE_KINDS)}"
        ),
    }
