"""Cases for rule tests: a healthy run's signals, and what differs from them."""

from __future__ import annotations

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.knobs.catalogue import Knobs

HEALTHY = {
    "seconds_not_steady": 0.0,
    "data_wait_ratio": 0.01,
    "h2d_ratio": 0.0,
    "forward_ratio": 0.33,
    "backward_ratio": 0.62,
    "optimizer_ratio": 0.03,
    "logging_ratio": 0.005,
    "checkpoint_ratio": 0.0,
    "eval_ratio": 0.0,
    "other_ratio": 0.005,
    "runq_ratio": 0.0,
    "step_s": 0.1,
    "samples_per_step": 16.0,
    "cores": 2.0,
    "threads": 1.0,
    "is_gpu": 0.0,
    "mfu_ratio": 0.6,
    "memory_used_ratio": 0.3,
    "probe.cached_pass_s": 0.095,
    "probe.batch_cost_ratio": 0.97,
    "probe.batch_cost_spread": 0.03,
    "probe.batch_factor": 4.0,
    "probe.step_no_side_work_s": 0.1,
    "probe.threads_tried": 2.0,
    "probe.threads_speedup": 1.0,
}
KNOBS: Knobs = {
    "batch_size": 16,
    "num_workers": 0,
    "num_threads": 0,
    "log_every": 1,
    "save_every": 2,
    "transform_cost": 2,
}


def case(without: tuple[str, ...] = (), knobs: Knobs | None = None, **changes: float) -> Case:
    """A healthy case with `changes` (dots in names written as two underscores)."""
    values = {**HEALTHY, **{name.replace("__", "."): value for name, value in changes.items()}}
    return Case(
        {**KNOBS, **(knobs or {})},
        {name: Signal(value, "", "test") for name, value in values.items() if name not in without},
    )


def loader(rate: float, plus_1: float, cpu: float) -> dict[str, float]:
    """What probe P6 says."""
    return {
        "probe__loader_samples_per_s": rate,
        "probe__loader_plus_1_samples_per_s": plus_1,
        "probe__loader_cpu_ratio": cpu,
    }


def check(rule: str, a_case: Case) -> Finding:
    """One rule's own conclusion, before precedence; raises Missing."""
    return next(entry for entry in all_rules() if entry.id == rule).check(a_case)
