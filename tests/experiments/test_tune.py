"""When the tuner starts a trial, and when it ends: a made-up run with a probe that has not answered
yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import cast

import pytest

from gpuconsole.diagnosis import engine
from gpuconsole.diagnosis.probes import NO_CONSENT
from gpuconsole.experiments import tune as waiting
from gpuconsole.experiments.tune import Tuner
from gpuconsole.model.experiments import Trial
from gpuconsole.model.finding import Finding, Interval, Signal, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.report.experiments import certificate_report
from gpuconsole.report.parts import printed
from gpuconsole.session.api import SessionError, View

LACKING = {
    rule: Finding(rule, "cant_tell", "", missing=("probe.concurrency_gain",))
    for rule in ("input.jitter", "gpu.small_batch", "gpu.optimizer_unfused")
}
ANSWER_S = 1.0


class Engine:
    """A slow loader with the gain `predicted`. The rule `lacking` has no answer of its probe for
    ANSWER_S. Every change wins and clears the finding."""

    def __init__(self, predicted: Interval, lacking: str = "input.jitter") -> None:
        self._lacking = LACKING[lacking]
        self.probed_for: list[set[str]] = []
        self.duration_s, self.step_s = 60.0, 0.01
        found = Finding(
            "input.too_few_workers",
            "fires",
            "",
            suggestions=(Suggestion({"num_workers": 2}, predicted, "", ""),),
        )
        self._found, self._begun = [found], time.monotonic()
        self._knobs: Knobs = {"num_workers": 0, "batch_size": 8, "optim": "adamw"}
        self.answered_before_trial: list[bool] = []

    @property
    def _answered(self) -> bool:
        return time.monotonic() - self._begun > ANSWER_S

    def view(self) -> View:
        findings = [*self._found, *([] if self._answered else [self._lacking])]
        run = Run(
            "1",
            "data-starved",
            "training.vision",
            dict(self._knobs),
            "cpu",
            "running",
            findings=findings,
        )
        run.steady_from_s, run.duration_s, run.signals = (
            1.0,
            self.duration_s,
            {"step_s": Signal(self.step_s, "s", "")},
        )
        return cast("View", SimpleNamespace(run=run, probing="", trials=()))

    def environment(self) -> Environment:
        return Environment()

    def probe_only_for(self, knobs: Collection[str]) -> None:
        self.probed_for.append(set(knobs))

    async def try_change(self, changes: Knobs, predicted: Interval | None = None) -> Trial:
        self.answered_before_trial.append(self._answered)
        self._knobs |= changes
        self._found = [Finding("input.too_few_workers", "clear", "")]
        return Trial("1", "1", changes, "done", verdict="win", kept=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "READ_EVERY_S", 0.01)
    monkeypatch.setattr(engine, "SETTLED_S", 0.02)


@pytest.mark.parametrize(
    ("predicted", "step_s", "waited"),
    [
        (Interval(1.5, 2.5), 0.01, False),
        (Interval(1.06, 1.3), 0.01, True),
        (Interval(1.5, 2.5), 1.0, True),  # eight blocks of five steps take longer than most trials
    ],
)
def test_a_large_predicted_gain_is_tried_before_the_probes_have_answered(
    predicted: Interval, step_s: float, waited: bool, quick: None
) -> None:
    engine = Engine(predicted)
    engine.step_s = step_s
    # eight blocks of 5 to 15 s fit
    certificate = asyncio.run(Tuner(engine, "data-starved", 90.0).run())
    assert engine.answered_before_trial == [waited]
    assert certificate.changed == {"num_workers": 2}


@pytest.mark.parametrize(
    ("lacking", "allow", "only", "waited"),
    [
        # suggests another batch size, which changes what the model learns per step
        ("gpu.small_batch", False, (), False),
        ("gpu.small_batch", True, (), True),
        ("gpu.optimizer_unfused", False, (), True),
        ("gpu.optimizer_unfused", False, ("num_workers",), False),
    ],
)
def test_only_probes_that_can_lead_to_a_change_are_waited_for(
    lacking: str, allow: bool, only: tuple[str, ...], waited: bool, quick: None
) -> None:
    engine = Engine(Interval(1.06, 1.3), lacking)
    asyncio.run(Tuner(engine, "data-starved", 60.0, allow_training_changes=allow, only=only).run())
    assert engine.answered_before_trial == [waited]
    every = {"num_workers", "optim", *(["batch_size"] if allow else [])}
    assert engine.probed_for[0] == (set(only) or every) and engine.probed_for[-1] == set()


class RareFinding(Engine):
    """The first steps show no finding: for example, a checkpoint comes later."""

    def view(self) -> View:
        young = time.monotonic() - self._begun < ANSWER_S / 2
        shown = super().view()
        assert shown.run is not None
        if young:
            shown.run.findings, shown.run.duration_s = (
                [Finding("host.checkpoint_stall", "clear", "")],
                3.0,
            )
        return shown


def test_a_short_run_without_findings_does_not_count_as_healthy(quick: None) -> None:
    certificate = asyncio.run(Tuner(RareFinding(Interval(1.06, 1.3)), "data-starved", 60.0).run())
    assert certificate.changed == {"num_workers": 2}


def test_without_a_tunable_knob_the_session_ends_at_once(quick: None) -> None:
    engine = Engine(Interval(1.5, 2.5))
    certificate = asyncio.run(Tuner(engine, "data-starved", 60.0, only=("batch_size",)).run())
    assert "alter what the model learns" in certificate.stopped
    assert not engine.answered_before_trial


def test_the_end_names_the_change_that_is_left_out_because_it_changes_training(quick: None) -> None:
    engine = Engine(Interval(1.5, 2.5))
    suggestion = Suggestion({"batch_size": 64}, Interval(1.8, 2.7), "", "")
    engine._found = [Finding("gpu.small_batch", "fires", "", 0.5, suggestions=(suggestion,))]
    certificate = asyncio.run(Tuner(engine, "tiny-batch", 60.0).run())
    assert not engine.answered_before_trial
    (left,) = certificate.left_alone
    assert left.changes == {"batch_size": 64} and left.why.endswith(
        "--allow-training-changes allows it"
    )
    assert (
        "Left alone: batch_size 8 -> 64   predicted 1.80-2.70x: it changes what the model learns"
        " per step; --allow-training-changes allows it."
    ) in printed(certificate_report(certificate))


class JobEngine(Engine):
    """A job whose dataset proves to be random when the change is refused."""

    def __init__(self) -> None:
        super().__init__(Interval(1.5, 2.5))
        self.effects: dict[str, str] = {}

    def view(self) -> View:
        state = super().view()
        assert state.run is not None
        state.run.workload, state.run.effects, state.run.state = "job", self.effects, "running"
        state.run.unavailable["probe.batch_elasticity"] = NO_CONSENT
        state.run.findings.append(LACKS_PASSES)
        return state

    async def try_change(self, changes: Knobs, predicted: Interval | None = None) -> Trial:
        self.effects = {"num_workers": "changes numerics"}
        raise SessionError("the dataset is random")


LACKS_PASSES = Finding("gpu.small_batch", "cant_tell", "", missing=("probe.batch_cost_ratio",))


def test_the_end_names_the_change_of_a_job_that_needs_permission_and_the_experiments_that_wait(
    quick: None,
) -> None:
    certificate = asyncio.run(asyncio.wait_for(Tuner(JobEngine(), "train.py", 60.0).run(), 20.0))
    words = printed(certificate_report(certificate))
    assert not certificate.attempts
    assert "Left alone: num_workers 0 -> 2   predicted 1.50-2.50x: it changes numerics" in words
    assert "--allow-numerics allows it (on the screen: N)." in " ".join(words.split())
    assert certificate.stopped == (
        "no other change is predicted to gain 5 %; probes in the job may find more: --probe allows"
        " them (on the screen: P)"
    )


class LateFinding(Engine):
    """A finding about the batch size that needs its probe, and the probe runs only where it is
    allowed."""

    def view(self) -> View:
        probed = any("batch_size" in knobs for knobs in self.probed_for)
        suggestion = Suggestion({"batch_size": 64}, Interval(1.8, 2.7), "", "")
        fires = Finding("gpu.small_batch", "fires", "", 0.5, suggestions=(suggestion,))
        self._found = [
            fires if probed else LACKING["gpu.small_batch"],
            Finding("input.jitter", "clear", ""),
        ]
        state = super().view()
        assert state.run is not None
        state.run.findings = self._found
        return state


def test_the_end_of_a_session_runs_the_probes_for_changes_of_training_too(quick: None) -> None:
    """Otherwise the session could not name the change that it leaves out."""
    engine = LateFinding(Interval(1.5, 2.5))
    certificate = asyncio.run(asyncio.wait_for(Tuner(engine, "tiny-batch", 60.0).run(), 20.0))
    assert [one.changes for one in certificate.left_alone] == [
        {"batch_size": 64}
    ] and not certificate.attempts
