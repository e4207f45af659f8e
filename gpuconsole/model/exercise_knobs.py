"""Knobs that put a fault into a training workload on purpose, for scenarios that teach and for the benchmark of the diagnosis."""

from __future__ import annotations

from gpuconsole.model.knob import Knob

EXERCISES = (
    Knob(
        "transform_cost",
        "int",
        "exercise: how often the augmentation's blur is applied to a sample",
        low=0,
        high=64,
        loader=True,
        default=0,
        examples=(0, 1, 4),
    ),
    Knob(
        "storage_latency_ms",
        "float",
        "exercise: wait before each sample is read, as remote storage would make it",
        low=0,
        high=1000,
        unit="ms",
        loader=True,
        default=0.0,
        examples=(0.0, 2.0, 10.0),
    ),
    Knob(
        "slow_sample_ratio",
        "float",
        "exercise: share of the samples whose read waits 100 times storage_latency_ms",
        low=0,
        high=1,
        loader=True,
        default=0.0,
        examples=(0.0, 0.05),
    ),
    Knob(
        "leak_mb",
        "float",
        "exercise: memory of the device (on a CPU: of the host) that each step takes and never gives back",
        low=0,
        high=1024,
        unit="MB",
        default=0.0,
        examples=(0.0, 2.0),
    ),
    Knob(
        "straggler_ms",
        "float",
        "exercise: how much longer the last process takes for a pass",
        low=0,
        high=10_000,
        unit="ms",
        default=0.0,
        examples=(0.0, 20.0, 50.0),
    ),
    Knob(
        "straggler_phase",
        "choice",
        "exercise: where the slow process loses its time",
        choices=("data_wait", "forward", "backward"),
        default="backward",
        examples=("forward", "backward"),
    ),
    Knob(
        "varied_lengths",
        "bool",
        "exercise: sequences between a quarter of seq_len and all of it, as text has them",
        default=False,
        examples=(False, True),
    ),
)
