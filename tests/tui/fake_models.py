"""A scripted run of several processes with its models, for tests only."""

from __future__ import annotations

import msgspec

from gpuconsole.model.figures import Figure
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.run import Distribution, Rank
from gpuconsole.session.api import View
from tests.tui.fake_session import gpu_view

LONG_NOTE = (
    "not measured: a CPU has no allocator that tells, and what it would tell differs from what the"
    " system counts"
)
FIGURES = [
    Figure(
        "memory.parameters_bytes",
        "Parameters",
        "bytes",
        8_299_008.0,
        8_299_008.0,
        "4 B x parameters",
        "this process's part",
    ),
    Figure(
        "flops.per_sample",
        "Model FLOPs of a sample",
        "FLOP",
        7.36e8,
        7.0e8,
        "6 N + 12 L d T a token",
        "FlopCounterMode",
    ),
    Figure(
        "mfu.flops", "MFU: FLOPs over the peak", "ratio", 0.31, None, "FLOPs / peak", note=LONG_NOTE
    ),
    Figure(
        "mfu.tensor_active",
        "MFU: share of time that tensor cores were active",
        "ratio",
        note="not measured: no counter",
    ),
    Figure(
        "mfu.published",
        "Tokens/s of a device, against published",
        "tokens/s",
        240_000.0,
        1_203.0,
        "published / ours",
        "step breakdown",
    ),
    *(
        Figure(
            f"more.{n}", f"Another figure, number {n}", "s", 0.01 * n, 0.011 * n, "t = n", "clock"
        )
        for n in range(1, 16)
    ),
]
STRAGGLER = Finding(
    "comm.straggler",
    "fires",
    "One process is slower than the others",
    0.31,
    "high",
    "rank 1 takes 129 % longer than the others",
)


def ranks(count: int, host: str = "gpubox-07") -> list[Rank]:
    """Of which rank 1 is slow: it does not wait, and the others wait for it."""
    return [
        Rank(
            n,
            host,
            4000 + n,
            812,
            Distribution(0.1, 0.01, 812, 0.1, 0.11, 0.11, 0.12),
            {"forward": 0.2, "backward": 0.7 if n == 1 else 0.2, "comm": 0.1 if n == 1 else 0.6},
            4.4e8,
            leads=n == 0,
        )
        for n in range(count)
    ]


def several_view(count: int = 2, host: str = "gpubox-07", **changes: object) -> View:
    """A run of `count` processes, with its models and the finding about the slow one."""
    shown = gpu_view()
    signals = {
        "comm.straggler_ratio": Signal(2.29, "x", "probe P8"),
        "comm.slowest_rank": Signal(1.0, "", "probe P8"),
        "comm.pass_alone_s.rank0": Signal(0.044, "s", "probe P8"),
        "comm.pass_alone_s.rank1": Signal(0.104, "s", "probe P8"),
    }
    run = msgspec.structs.replace(
        shown.runs[-1],
        figures=FIGURES,
        ranks=ranks(count, host),
        signals=signals,
        findings=[STRAGGLER],
    )
    return msgspec.structs.replace(
        shown, runs=(shown.runs[0], msgspec.structs.replace(run, **changes))
    )
