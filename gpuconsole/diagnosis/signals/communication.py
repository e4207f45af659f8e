"""Signals of the communication in a user's job, in place of those of probes P7, P8 and P10: nothing
is tried.

Where the job uses DistributedDataParallel (DDP), they come from DDP's own timer
(agent/hooks/evidence/communication.py). Else they come from the collectives that the training
thread calls itself. In a job with sharded models (FSDP) or split matrices the collectives run
within the passes: torch's own record of them tells their kinds and the last process.

Of the collectives of any kind of parallelism there are `comm.KIND_calls`, `comm.KIND_bytes` and,
with NCCL and TORCH_NCCL_ENABLE_TIMING=1, `comm.KIND_s`: of one process, in a step. How much of
these seconds computation hides is not known: they are an upper bound of what a step waits for. The
process that comes last is known in all its ways: see `session.communication`.
"""

from __future__ import annotations

import statistics

from gpuconsole.model.finding import Signal
from gpuconsole.model.run import COLLECTIVE_KINDS, Exchange
from gpuconsole.model.text import percent
from gpuconsole.session.communication import (
    MIN_ITERATIONS,
    Exchanges,
    Late,
    Matched,
    in_common,
    is_timed,
    latest,
    matched,
    shortest_s,
    span_s,
)
from gpuconsole.session.run import RunRecord

# --- collectives of any kind of parallelism -------------------------------------------------------

RECORDER = "torch's flight recorder"
LARGE_BYTES = 25e6
"""Latency limits smaller collectives on every link (25 MB is the default bucket of
DistributedDataParallel)."""
MAX_LATE_SHARE = 0.95
LATE_BEFORE = ("comm.late_before", "comm.late_kind_calls", "comm.late_kind_bytes")
"""The signals about the collectives in which the others wait. Where they are known, the other
signals of the last process are of the same source."""


def collective_signals(record: RunRecord, signals: dict[str, Signal]) -> dict[str, Signal]:
    """Calls, bytes and seconds in a step by kind, and the process that comes last. Empty for one
    process, and where torch has recorded nothing."""
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
            of_kinds = [
                counted[name].value
                for kind in COLLECTIVE_KINDS
                if (name := f"comm.{kind}_bytes") in counted
            ]
            counted["comm.bytes_per_step"] = Signal(
                sum(of_kinds), "B", f"{RECORDER}: all collectives of one process"
            )
    late = latest(reads, timed)
    if late is None:
        return counted
    of_kind = {
        f"comm.late_kind_{what}": counted[name]
        for what in ("calls", "bytes")
        if (name := f"comm.{late.kind}_{what}") in counted
    }
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
            found[f"comm.{name}_s"] = Signal(
                kind.seconds * kind.calls / kind.timed / steps,
                "s",
                f"{source}, CUDA events, waits included",
            )
    return found


def _of_durations(reads: list[Matched], step_s: float) -> dict[str, Signal]:
    """Seconds of a step in collectives, without waiting for a process, and the bus bandwidth of the
    large ones."""
    # the span of a read begins with its first call
    calls = [call for read in reads for call in read[1:]]
    source = f"{RECORDER}, n={len(calls)}: in each collective, the process that arrived last"
    span = span_s(reads)
    found: dict[str, Signal] = {}
    if span > 0:
        found["comm.collectives_s"] = Signal(
            sum(map(shortest_s, calls)) / span * step_s,
            "s",
            f"{source}; a part of it is hidden by computation, not known which",
        )
    large = [
        call
        for call in calls
        if shortest_s(call) and next(iter(call.values())).bus_bytes >= LARGE_BYTES
    ]
    if large:
        rate = sum(next(iter(call.values())).bus_bytes for call in large) / sum(
            map(shortest_s, large)
        )
        found["comm.bus_bytes_per_s"] = Signal(
            rate, "B/s", f"{source}, of those with 25 MB or more, as nccl-tests define it"
        )
    return found


def _late(late: Late, record: RunRecord, step_s: float) -> dict[str, Signal]:
    """The signals of probe P8."""
    passes = int(record.run.knobs.get("gradient_accumulation_steps", 1))
    share = min(MAX_LATE_SHARE, late.share)
    ratio = 1 / (1 - share)
    how = "durations on the GPU" if late.timed else "times of the calls on this host"
    source = f"{RECORDER}, n={late.n} collectives of all processes, {how}"
    return {
        "comm.straggler_ratio": Signal(
            ratio,
            "x",
            (
                f"{source}: a step over a step less the time in which the others wait for the last"
                " process"
            ),
        ),
        "comm.straggler_spread": Signal(
            late.spread * ratio**2, "x", f"{source}: 2 standard errors of that"
        ),
        "comm.slowest_rank": Signal(float(late.rank), "", f"{source}: the last one"),
        "comm.late_s": Signal(
            share * step_s / passes, "s", f"{source}: what the others wait for it"
        ),
        "comm.pass_alone_s": Signal(step_s / passes, "s", "step breakdown: a whole step"),
        "comm.late_in_backward_ratio": Signal(
            0.0, "ratio", "not known: the record shows the collective, not the phase"
        ),
        "comm.late_before": Signal(
            float(COLLECTIVE_KINDS.index(late.kind)),
            "",
            f"{source}: place of the kind in {', '.join(COLLECTIVE_KINDS)}",
        ),
    }


# --- all communication ----------------------------------------------------------------------------

LARGE_MB = 25.0
LESS_EXACT = 0.1
HIDDEN = 0.01
"""Share of step time. Below it the exposed time says nothing about the link."""
MIN_EXPOSED_SHARE = 0.10
"""Share of step time from which rules call communication exposed (families/comm.py)."""
HOST_LATE = 0.5
"""Share of steps at whose end the GPU has no work left: the host is the limit in them, or waits for
the GPU. From here on nothing is said of what the computation waits for."""
OF_SHARDED = ("comm.exposed_s", "comm.pass_s", "comm.pass_alone_s", "comm.bytes_per_step")
TIMER = "DistributedDataParallel's own timer"


def communication_signals(record: RunRecord, signals: dict[str, Signal]) -> dict[str, Signal]:
    """The signals of the job's communication. `signals`: those of the run so far. Empty for one
    process.

    DDP's timer comes first, because it knows the phase. Then torch's record of collectives says
    which process comes last, and the account how long the host waits in the collectives."""
    processes = record.ranks.exchanges
    if len(processes) < 2:
        return {}
    recorded = collective_signals(record, signals)
    ranks = sorted(processes)
    timed = [processes[rank] for rank in ranks]
    models = [
        model for model in timed[0].by_model if len(in_common(timed, model)) >= MIN_ITERATIONS
    ]
    if models:
        others = {name: signal for name, signal in recorded.items() if name not in LATE_BEFORE}
        return others | _of_exchanges(record, ranks, timed, models, signals)
    if any(timed) or record.facts.get("exchange.bytes"):
        return recorded
    account = _of_account(record, signals)
    return (
        account
        | recorded
        | {name: account[name] for name in ("comm.pass_alone_s",) if name in account}
    )


def _of_account(record: RunRecord, signals: dict[str, Signal]) -> dict[str, Signal]:
    """What the account tells of the collectives that the training thread calls. With FSDP the host,
    or on a GPU the stream of the computation, waits for some of them within the passes: their time
    is a lower bound, which says something only where it is large. On a GPU it does so only where
    the hosts are ahead: else a process waits for the late host of another one. So steps with a late
    host are left out, and where they are many nothing is said."""
    passive = _of_collectives(record, signals)
    if record.run.knobs.get("sharding") == "ddp":
        return passive
    if "comm.exposed_s" not in passive:
        return {}
    late = signals["host.caught_up_ratio"].value if "host.caught_up_ratio" in signals else 1.0
    if signals["is_gpu"].value:
        if late >= HOST_LATE:
            return {}
        passive |= _without_late_hosts(passive, late)
    if passive["comm.exposed_s"].value < MIN_EXPOSED_SHARE * signals["step_s"].value:
        return {}
    return {name: passive[name] for name in OF_SHARDED if name in passive}


def _without_late_hosts(passive: dict[str, Signal], late: float) -> dict[str, Signal]:
    """The exposed time without the steps, a share `late` of all, in which the computation may have
    waited for the late host of another process."""
    exposed, step = passive["comm.exposed_s"], passive["comm.pass_s"]
    least = (1 - late) * exposed.value
    source = (
        f"{exposed.source}; without the {percent(late)} of the steps in which a host is not ahead"
        if late
        else exposed.source
    )
    return {
        "comm.exposed_s": Signal(least, "s", source),
        "comm.pass_alone_s": Signal(step.value - least, "s", passive["comm.pass_alone_s"].source),
    }


def _of_collectives(record: RunRecord, signals: dict[str, Signal]) -> dict[str, Signal]:
    """The program exchanges gradients by collectives of its own: their time on the training thread,
    without waiting for other processes. The account shows the time of each process without them."""
    least, busy, busiest = (
        signals.get(name)
        for name in ("ranks.least_comm_ratio", "ranks.busy_ratio", "ranks.busiest")
    )
    if least is None or busy is None or busiest is None or not least.value:
        return {}
    outside = signals["comm.outside_ratio"].value if "comm.outside_ratio" in signals else 0.0
    passes, step_s = (
        int(record.run.knobs.get("gradient_accumulation_steps", 1)),
        signals["step_s"].value,
    )
    exposed = max(0.0, least.value - outside) * step_s
    alone = step_s * (1 - least.value)
    source = "step breakdown: a whole step"
    passive = {
        "comm.exposed_s": Signal(
            exposed, "s", f"{least.source}; collectives that the program calls"
        ),
        "comm.pass_s": Signal(step_s, "s", source),
        "comm.pass_alone_s": Signal(alone, "s", f"{source} without its communication"),
        "comm.straggler_ratio": busy,
        "comm.straggler_spread": Signal(
            LESS_EXACT, "x", "times from the account are less exact than times of passes"
        ),
        "comm.slowest_rank": busiest,
        "comm.late_s": Signal(max(0.0, alone * (1 - 1 / busy.value)) / passes, "s", busy.source),
        "comm.late_in_backward_ratio": Signal(
            0.0, "ratio", "not known: the account of the steps does not show where"
        ),
    }
    gradients = 4 * record.facts.get("trainable_parameters", 0.0)
    if gradients:
        passive["comm.bytes_per_step"] = Signal(gradients, "B", "4 B x trained parameters")
    return passive


def _of_exchanges(
    record: RunRecord,
    ranks: list[int],
    timed: list[Exchanges],
    models: list[int],
    signals: dict[str, Signal],
) -> dict[str, Signal]:
    """What DDP has timed. On a CPU its times are wall times. The run-queue delay is taken off them
    in the same proportion as off `step_s`."""
    matched = {model: in_common(timed, model) for model in models}
    per_step = {model: timed[0].per_step(model) for model in models}
    most = max(per_step.values())  # a step that exchanges once may exchange for several modules
    n = max(len(exchanges) for exchanges in matched.values())
    source = f"{TIMER}, {n} exchanges of {len(ranks)} processes"
    on_core = 1.0
    if not signals["is_gpu"].value and "runq_ratio" in signals:
        on_core, source = 1 - signals["runq_ratio"].value, f"{source}, run-queue delay taken off"
    least = {
        model: [min(times.exposed_s for times in exchange) for exchange in matched[model]]
        for model in models
    }
    exposed = (
        on_core * sum(statistics.fmean(least[model]) * per_step[model] for model in models) / most
    )
    spread = (
        on_core
        * sum(_two_standard_errors(least[model]) * per_step[model] for model in models)
        / most
    )
    waits = "from its last gradient to the end of the exchange, of the process that waits least"
    passive = {
        "comm.exposed_s": Signal(exposed, "s", f"{source}: {waits}"),
        "comm.exposed_spread_s": Signal(spread, "s", f"{source}: 2 standard errors of that"),
        "comm.exchanges_per_step": Signal(most, "", f"{TIMER}: its iterations over the steps"),
    }
    size = record.facts.get("exchange.bytes")
    if size:
        passive["comm.bytes_per_step"] = Signal(
            size, "B", "gradients of one process (DistributedDataParallel)"
        )
        passive["comm.buffer_bytes"] = Signal(
            record.facts.get("exchange.buffer_bytes", 0.0),
            "B",
            "buffers that process 0 sends before each forward pass (DistributedDataParallel)",
        )
        passive |= _link(record, size, exposed, exposed * most / signals["step_s"].value)
    largest = max(
        models, key=lambda model: statistics.fmean(times[0].compute_s for times in matched[model])
    )
    return (
        passive
        | _slowest(ranks, matched[largest], source, on_core)
        | _pieces(record, timed, models, exposed, on_core, source)
    )


def _link(record: RunRecord, size: float, exposed: float, ratio: float) -> dict[str, Signal]:
    """The most that the link can have carried: all bytes in the exposed time alone. Nothing where
    computation hides the exchange."""
    n = int(record.facts.get("world_size", 2))
    if ratio < HIDDEN or n < 2:
        return {}
    rate = 2 * (n - 1) / n * size / exposed
    source = (
        f"{TIMER}: at most; all gradients in the time after the computation, as bus bandwidth"
        " (nccl-tests)"
    )
    return {"comm.bus_bytes_per_s": Signal(rate, "B/s", source)}


def _slowest(
    ranks: list[int], matched: list[tuple[Exchange, ...]], source: str, on_core: float
) -> dict[str, Signal]:
    """The process whose passes take longest without its exchange, and by how much more than the
    others."""
    passes = [
        [times[i].forward_s + times[i].compute_s for times in matched] for i in range(len(ranks))
    ]
    alone = [on_core * statistics.median(of_rank) for of_rank in passes]
    backward = [
        on_core * statistics.median(times[i].compute_s for times in matched)
        for i in range(len(ranks))
    ]
    slowest = max(range(len(ranks)), key=alone.__getitem__)
    rest = [i for i in range(len(ranks)) if i != slowest]
    others, other_backward = (
        statistics.median(alone[i] for i in rest),
        statistics.median(backward[i] for i in rest),
    )
    late = alone[slowest] - others
    gaps = [
        passes[slowest][n] / max(1e-9, statistics.median(passes[i][n] for i in rest))
        for n in range(len(matched))
    ]
    together = [
        statistics.fmean(time.forward_s + time.compute_s + time.exposed_s for time in times)
        for times in matched
    ]
    in_backward = (
        min(1.0, max(0.0, (backward[slowest] - other_backward) / late)) if late > 0 else 0.0
    )
    part = "pass" if any(time.forward_s for times in matched for time in times) else "backward pass"
    each = {
        f"comm.pass_alone_s.rank{rank}": Signal(
            seconds, "s", f"{source}: its {part} up to its last gradient"
        )
        for rank, seconds in zip(ranks, alone, strict=True)
    }
    return each | {
        "comm.pass_s": Signal(
            on_core * statistics.median(together), "s", f"{source}: a {part} with its exchange"
        ),
        "comm.pass_alone_s": Signal(
            alone[slowest],
            "s",
            f"{source}: a {part} of the slowest process, up to its last gradient",
        ),
        "comm.slowest_rank": Signal(
            float(ranks[slowest]), "", f"{source}: the longest {part} up to its last gradient"
        ),
        "comm.straggler_ratio": Signal(
            alone[slowest] / max(1e-9, others), "x", f"{source}: that pass over the others' median"
        ),
        "comm.straggler_spread": Signal(
            _two_standard_errors(gaps), "x", f"{source}: 2 standard errors of that"
        ),
        "comm.late_s": Signal(
            late, "s", f"{source}: what that pass takes longer than the others' median"
        ),
        "comm.late_in_backward_ratio": Signal(
            in_backward, "ratio", f"{source}: share of that in its backward pass"
        ),
    }


def _pieces(
    record: RunRecord,
    timed: list[Exchanges],
    models: list[int],
    exposed: float,
    on_core: float,
    source: str,
) -> dict[str, Signal]:
    """Where the buckets are below torch's default: the exchange now, and DDP's first iteration, in
    which it has all gradients in fewer and larger buckets. The first iteration also sets up
    connections, so the gain of larger buckets is at least the difference."""
    if float(record.run.knobs.get("bucket_cap_mb", LARGE_MB)) >= LARGE_MB:
        return {}
    first = [
        min(process.first[model].comm_s for process in timed)
        for model in models
        if all(model in process.first for process in timed)
    ]
    fewer, now = (
        record.facts.get("exchange.first_buckets", 0.0),
        record.facts.get("exchange.buckets", 0.0),
    )
    pieces = f"{source}: the part after the computation, in {now:.0f} buckets"
    # the model fits in as few buckets as DDP can make: larger buckets would be the same
    if now and fewer >= now:
        same = Signal(exposed, "s", pieces)
        return {"comm.exchange_now_s": same, "comm.exchange_large_s": same}
    if len(first) < len(models) or not fewer:
        return {}
    large = (
        f"{TIMER}: DDP's first iteration, which has {fewer:.0f} bucket{'' if fewer == 1 else 's'}"
    )
    return {
        "comm.exchange_now_s": Signal(exposed, "s", pieces),
        "comm.exchange_large_s": Signal(on_core * sum(first), "s", large),
    }


def _two_standard_errors(values: list[float]) -> float:
    return 2 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
