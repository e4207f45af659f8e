"""When a tuner tries what it knows: a made-up run, one of whose probes has yet to answer."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest

from gpuconsole.model.finding import Finding, Interval, Suggestion
from gpuconsole.model.knobs import Knobs
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.trial import Trial
from gpuconsole.runtime import diagnosed
from gpuconsole.runtime.front import View
from gpuconsole.runtime.tuner import Tuner

LACKING = Finding("gpu.small_batch", "cant_tell", "", missing=("probe.concurrency_gain",))
ANSWER_S = 0.5


class Engine:
    """Its loader is too slow, by `predicted`; a rule lacks a probe's answer for ANSWER_S. Every change wins, and clears it."""

    def __init__(self, predicted: Interval) -> None:
        found = Finding("input.cpu_transform", "fires", "", suggestions=(Suggestion({"num_workers": 2}, predicted, "", ""),))
        self._found, self._knobs, self._begun = [found], {"num_workers": 0}, time.monotonic()
        self.answered_before_trial: list[bool] = []

    @property
    def _answered(self) -> bool:
        return time.monotonic() - self._begun > ANSWER_S

    def view(self) -> View:
        findings = [*self._found, *([] if self._answered else [LACKING])]
        run = Run("1", "data-starved", "training.vision", dict(self._knobs), "cpu", "running", findings=findings)
        run.steady_from_s = 1.0
        return cast("View", SimpleNamespace(run=run, probing=""))

    def environment(self) -> Environment:
        return Environment()

    async def try_change(self, changes: Knobs, predicted: Interval | None = None) -> Trial:
        self.answered_before_trial.append(self._answered)
        self._knobs |= changes
        self._found = [Finding("input.cpu_transform", "clear", "")]
        return Trial("1", "1", changes, "done", verdict="win", kept=True)


@pytest.mark.parametrize(("predicted", "waited"), [(Interval(1.5, 2.5), False), (Interval(1.06, 1.3), True)])
def test_what_promises_much_is_tried_before_the_probes_have_answered(
    predicted: Interval, waited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LOOK_S", 0.01), ("SETTLED_S", 0.02)):
        monkeypatch.setattr(diagnosed, name, seconds)
    engine = Engine(predicted)
    certificate = asyncio.run(Tuner(engine, "data-starved", 60.0).run())
    assert engine.answered_before_trial == [waited]
    assert certificate.end == {"num_workers": 2}
