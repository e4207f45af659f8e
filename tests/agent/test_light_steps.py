"""Light steps of a job: most short steps have no marks but those of their batches and of rare work, and nothing is lost by that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuconsole.session import segments
from gpuconsole.session.segments import UNMARKED, RawStep
from tests.agent.truth import PROGRAMS, Ran, differences, watched

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("light steps")]

STEPS, FULL = 240, 100
"""At least the first FULL steps may all have marks."""
KINDS = (
    "plain",
    "zeroes first",
    "evaluates",
    "saves",
    "rests",
    "accumulates",
    "second optimizer",
    "fails",
    "stops",
    "grows",
    "closure",
    "grads",
)
POINTS = 0.05
"""The agent's own marks are a point or two of steps as short as these, and other tests may run at the same time."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ran, list[RawStep]]]:
    raw: list[RawStep] = []
    plain = segments.unpack
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "unpack", lambda packed: raw.extend(steps := plain(packed)) or steps)
        yield watched(tmp_path_factory.mktemp("light"), str(PROGRAMS / "light.py"), str(STEPS), *KINDS), raw


@pytest.mark.parametrize("kind", KINDS)
def test_steps_samples_and_phases_are_as_by_hand(runs: tuple[Ran, list[RawStep]], kind: str) -> None:
    ran, _ = runs
    wrong = {phase: round(by, 3) for phase, by in differences(ran, kind).items() if abs(by) > POINTS}
    assert wrong == {}
    by_hand = dict(line.split(": ") for line in ran.out.splitlines())
    assert sum(step.samples for step in ran.watched[kind].steps[1:]) == int(by_hand[kind])


def test_most_steps_are_light_once_the_program_is_known(runs: tuple[Ran, list[RawStep]]) -> None:
    ran, raw = runs
    light_ends = {step.ends[-1] for step in raw if UNMARKED in step.codes}
    light = {kind: sum(step.t in light_ends for step in one.steps[FULL:]) / (STEPS - FULL) for kind, one in ran.watched.items()}
    assert {kind for kind, share in light.items() if share < 0.6} == {"second optimizer"}, light
