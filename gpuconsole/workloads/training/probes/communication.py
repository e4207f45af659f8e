"""Probes P7 and P8: passes with and without communication, in turn, on all processes at once.

Without communication each process takes its own time for a pass. So these passes show a slow
process, also in the backward pass, where otherwise the waiting of the other processes hides it. A
pass with communication takes longer than the slowest pass without: the difference is exposed
communication.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import ProbeError, half_width, rounds, stopwatch, untouched
from gpuconsole.agent.protocol import Signal
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.parallel.plan import trained
from gpuconsole.workloads.training.task import Batch

BUDGET_S = 2.5
MIN_ROUNDS = 6
MAX_ROUNDS = 60
LARGE_MB = 25.0
MAX_BYTES = 256 * 2**20


@dataclass
class Times:
    """Seconds of this process's passes, in order."""

    together: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    alone_backward: list[float] = field(default_factory=list)


def exposed_communication(loop: TrainingLoop) -> Signals:
    """What communication adds to a pass, and how long each process takes for a pass alone."""
    if not loop.plan.exchanges:
        raise ProbeError("one process, or several that exchange nothing: there is no communication")
    batch, world, mine = loop.batch, loop.plan.world, Times()
    with untouched(loop):
        _pass(loop, batch, mine, silent=False)
        _pass(loop, batch, mine, silent=True)
        mine = Times()
        for index in rounds(loop, BUDGET_S, MIN_ROUNDS, MAX_ROUNDS):
            for silent in (False, True) if index % 2 else (True, False):
                world.gather(None)  # all processes begin together
                _pass(loop, batch, mine, silent)
    return _signals(
        [Times(**times) for times in world.gather(asdict(mine))],
        sum(parameter.numel() * parameter.element_size() for parameter in trained(loop.task.model)),
    )


def exchange_sizes(loop: TrainingLoop) -> Signals:
    """P10: an all-reduce of as many bytes as the gradients have, in pieces of `bucket_cap_mb` and
    in pieces of 25 MB."""
    import torch.distributed as dist

    if loop.plan.world.size == 1:
        raise ProbeError("one process: nothing travels")
    parameters = trained(loop.task.model)
    whole = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    total = min(MAX_BYTES, whole)
    buffer = parameters[0].new_zeros(max(1, total // parameters[0].element_size()))
    sizes = {"now": float(loop.knobs["bucket_cap_mb"]), "large": LARGE_MB}
    pieces = {
        name: buffer.split(max(1, int(size * 2**20) // buffer.element_size()))
        for name, size in sizes.items()
    }
    times: dict[str, list[float]] = {name: [] for name in sizes}
    for index in rounds(loop, BUDGET_S / 2, MIN_ROUNDS, MAX_ROUNDS):
        for name in sizes:
            loop.plan.world.gather(None)
            with stopwatch(loop) as measured:
                for work in [dist.all_reduce(piece, async_op=True) for piece in pieces[name]]:
                    work.wait()
            if index:  # the first round sets up connections and buffers
                times[name] += measured
    now_s, large_s = (statistics.median(times[name]) for name in ("now", "large"))
    for_all = f", as much for all {whole / 1e6:.0f} MB" if whole > total else ""
    source, size = f"probe P10, median of {len(times['now'])}", loop.plan.world.size
    return {
        "comm.exchange_now_s": Signal(
            now_s * whole / total,
            "s",
            f"{source}: {total / 1e6:.1f} MB in {len(pieces['now'])} pieces{for_all}",
        ),
        "comm.exchange_large_s": Signal(
            large_s * whole / total,
            "s",
            f"{source}: {total / 1e6:.1f} MB in {len(pieces['large'])} pieces{for_all}",
        ),
        "comm.bus_bytes_per_s": Signal(
            2 * (size - 1) / size * total / large_s,
            "B/s",
            f"{source}: bus bandwidth as nccl-tests define it",
        ),
    }


def _pass(loop: TrainingLoop, batch: Batch, times: Times, silent: bool) -> None:
    """One forward and backward pass, timed."""
    model = loop.task.model
    with (
        loop.silence() if silent else loop.plan.backward_pass(model, last=True),
        stopwatch(loop) as whole,
    ):
        loss = loop.forward(batch)
        with stopwatch(loop) as backward:
            loss.backward()
    loop.drop_gradients()
    (times.alone if silent else times.together).extend(whole)
    if silent:
        times.alone_backward.extend(backward)


def _signals(ranks: list[Times], exchanged_bytes: float) -> Signals:
    """The signals that follow from the times of all processes."""
    n = len(ranks[0].alone)
    together = [statistics.fmean(rank.together[i] for rank in ranks) for i in range(n)]
    alone = [statistics.median(rank.alone) for rank in ranks]
    slowest = max(range(len(ranks)), key=lambda rank: alone[rank])
    others = statistics.median(seconds for rank, seconds in enumerate(alone) if rank != slowest)
    exposed = max(0.0, statistics.median(together) - alone[slowest])
    source = f"probe P7, {n} pairs of passes on {len(ranks)} processes"
    spread = half_width(
        [with_it - without for with_it, without in zip(together, ranks[slowest].alone, strict=True)]
    )
    backward = statistics.median(ranks[slowest].alone_backward)
    other_backward = statistics.median(
        statistics.median(rank.alone_backward)
        for index, rank in enumerate(ranks)
        if index != slowest
    )
    late = alone[slowest] - others
    gaps = [
        ranks[slowest].alone[i]
        / statistics.median(rank.alone[i] for index, rank in enumerate(ranks) if index != slowest)
        for i in range(n)
    ]
    signals = {
        "comm.pass_s": Signal(statistics.median(together), "s", source),
        "comm.pass_alone_s": Signal(
            alone[slowest], "s", f"{source}: the slowest process, without communication"
        ),
        "comm.exposed_s": Signal(
            exposed, "s", f"{source}: with communication less without, per exchange"
        ),
        "comm.exposed_spread_s": Signal(spread, "s", f"{source}: 2 standard errors"),
        "comm.bytes_per_step": Signal(float(exchanged_bytes), "B", "gradients of one process"),
        "comm.slowest_rank": Signal(
            float(slowest), "", "probe P8: longest pass without communication"
        ),
        "comm.straggler_ratio": Signal(
            alone[slowest] / others, "x", f"probe P8: its pass over the others' median, {source}"
        ),
        "comm.straggler_spread": Signal(
            half_width(gaps), "x", "probe P8: 2 standard errors of that"
        ),
        "comm.late_s": Signal(late, "s", "probe P8: what it takes longer than the others"),
        "comm.late_in_backward_ratio": Signal(
            min(1.0, max(0.0, (backward - other_backward) / late)) if late > 0 else 0.0,
            "ratio",
            "probe P8: share of that in its backward pass",
        ),
    }
    for rank, seconds in enumerate(alone):
        signals[f"comm.pass_alone_s.rank{rank}"] = Signal(seconds, "s", "probe P8")
    return signals
