"""A small session with fixed figures, and its Markdown report as a golden file: `python -m
tests.report.small_session --write` writes it again."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.finding import Evidence, Finding, Interval, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Distribution, Run, SeriesData, Summary
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.report.share.markdown import markdown_page
from gpuconsole.report.share.session import session_document

GOLDEN = Path(__file__).parent / "golden" / "session.md"
KNOBS: Knobs = {"batch_size": 16, "num_workers": 0, "precision": "fp32"}
WAITS = Finding(
    "input.slow_storage",
    "fires",
    "The DataLoader waits for storage",
    0.54,
    "high",
    "a step waits 54 % of its time for data",
    (
        Evidence("data_wait_ratio", 0.54, "ratio", 0.1, "step breakdown, n=28"),
        Evidence("step_s", 0.165, "s", None, "step breakdown, n=28"),
    ),
    (
        Suggestion(
            {"num_workers": 2},
            Interval(1.66, 2.74),
            "waiting workers need no core",
            "DataLoader(dataset, ..., num_workers=2)",
        ),
    ),
)
CLEAR = Finding(
    "host.logging_io", "clear", "Logging costs little time", summary="logging takes 0.3 % of a step"
)
UNSURE = Finding(
    "gpu.small_batch", "cant_tell", "The batch is too small", missing=("probe.batch_cost_ratio",)
)


def run(number: str, rate: float, begun_s: float, seconds: int, phases: dict[str, float]) -> Run:
    """A run of 16 samples a step on a CPU, with a series of one value a second."""
    step = 16 / rate
    return Run(
        number,
        "data-starved",
        "training.vision",
        KNOBS,
        "cpu",
        "finished",
        started="2026-11-23T15:29:26Z",
        duration_s=float(seconds),
        steady_from_s=0.53,
        summary=Summary(
            samples_per_s=Distribution(rate, rate * 0.05, 8, rate),
            step_time_s=Distribution(step, 0.004, 30, step, step * 1.05, step * 1.08, step * 1.1),
            phases_ratio=phases,
            steps=30,
            memory_peak_bytes=578e6,
            overhead_s_per_step=236e-6,
        ),
        series={
            "workload.samples_per_s{device=cpu}": SeriesData(
                [begun_s + n for n in range(1, seconds + 1)],
                [rate + n % 3 for n in range(seconds)],
                "step breakdown",
            )
        },
        unavailable={"workload.tokens_per_j": "the device reports no power"},
    )


def small_session() -> Snapshot:
    """Two runs: one that waits for data, and one with a kept change."""
    first = run(
        "1",
        96.0,
        2.0,
        20,
        {"data_wait": 0.54, "forward": 0.16, "backward": 0.29, "optimizer": 0.01},
    )
    first.findings, first.summary.probes_s = [WAITS, CLEAR, UNSURE], 1.75
    last = run(
        "2",
        227.0,
        22.0,
        10,
        {"data_wait": 0.02, "forward": 0.34, "backward": 0.62, "optimizer": 0.02},
    )
    last.knobs, last.changes, last.findings = (
        {**KNOBS, "num_workers": 2},
        {"num_workers": 2},
        [CLEAR],
    )
    kept = Trial(
        "1",
        "1",
        {"num_workers": 2},
        "done",
        Speedup(2.01, 1.94, 2.08),
        None,
        8,
        Interval(1.66, 2.74),
        "win",
        True,
        begun_s=9.0,
        ended_s=20.0,
        elapsed_s=10.4,
    )
    lost = Trial(
        "2",
        "2",
        {"precision": "bf16"},
        "done",
        Speedup(0.98, 0.95, 1.02),
        None,
        12,
        None,
        "undecided",
        begun_s=24.0,
        ended_s=28.5,
        elapsed_s=5.0,
    )
    host = Device("cpu", "AMD EPYC 9654", 16 << 30)
    environment = Environment(
        "gpubox-07",
        "Linux 6.18",
        "AMD EPYC 9654",
        4,
        16 << 30,
        "3.11.7",
        "2.13.0+cpu",
        devices=[host],
    )
    why = {"gpu": "no NVIDIA driver: libnvidia-ml.so.1 is missing"}
    return Snapshot(
        created="2026-11-23T15:30:00Z",
        gpuconsole="0.1.0",
        environment=environment,
        runs=[first, last],
        trials=[kept, lost],
        unavailable=why,
    )


if __name__ == "__main__":
    page = markdown_page(session_document(small_session()))
    if "--write" in sys.argv:
        GOLDEN.write_text(page)
    else:
        print(page)
