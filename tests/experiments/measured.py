"""Runs with a session around them."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model.experiments import Trial
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, Snapshot


def in_session(
    run: Run, environment: Environment | None = None, name: str = "a", trials: Sequence[Trial] = ()
) -> MeasuredRun:
    session = Snapshot(
        created="",
        gpuconsole="0.1.0",
        environment=environment or Environment(),
        runs=[run],
        trials=list(trials),
    )
    return MeasuredRun(name, run, session)
