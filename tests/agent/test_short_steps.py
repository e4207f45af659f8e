"""Loops of short steps: their phases are those of stamps in the loop, and of the shortest steps
most are only counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuconsole.session import segments
from gpuconsole.session.segments import FORWARD, P_BACKWARD, UNMARKED, RawStep
from gpuconsole.wire.events import Segments, Steps
from tests.agent.listener import Listener
from tests.agent.truth import PROGRAMS, Ran, differences, watched

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("short steps")]

STEPS, SHORT_STEPS = 240, 3000
SHORT = f"""
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.ones(8, 8)
for _ in range({SHORT_STEPS}):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""
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
POINTS = 0.1
"""The agent's own marks are a point or two of steps as short as these, and other tests may run at
the same time."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return watched(tmp_path_factory.mktemp("loops"), str(PROGRAMS / "light.py"), str(STEPS), *KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_samples_and_phases_are_as_by_hand(ran: Ran, kind: str) -> None:
    wrong = {
        phase: round(by, 3) for phase, by in differences(ran, kind).items() if abs(by) > POINTS
    }
    assert wrong == {}
    by_hand = dict(line.split(": ") for line in ran.out.splitlines())
    samples = sum(step.samples for step in ran.watched[kind].steps[1:])
    assert samples == pytest.approx(int(by_hand[kind]), rel=0.03 if kind == "grows" else 0.0), (
        "a counted step has the samples of the marked one before"
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before Python 3.12 all steps are marked")
def test_of_short_steps_a_few_are_marked_and_the_others_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw: list[RawStep] = []
    plain = segments.unpack
    monkeypatch.setattr(
        segments, "unpack", lambda packed: raw.extend(steps := plain(packed)) or steps
    )
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, "-c", SHORT)
    assert (done.returncode, done.stderr) == (0, "")
    (job,) = listener.watched
    assert job.off is None and [step.index for step in job.steps] == list(range(SHORT_STEPS))
    counted = [step for step in raw if UNMARKED in step.codes]
    assert len(counted) > SHORT_STEPS / 4 and all(FORWARD not in step.codes for step in counted)
    assert sum(step.samples for step in job.steps[1:]) == 8 * (SHORT_STEPS - 1)
    marked = {step.index for step in raw} - {step.index for step in counted}
    share = {
        kind: sum(
            step.phases[P_BACKWARD] for step in job.steps[100:] if (step.index in marked) is kind
        )
        / sum(step.wall_s for step in job.steps[100:] if (step.index in marked) is kind)
        for kind in (True, False)
    }
    assert share[False] == pytest.approx(share[True], abs=0.15), (
        "the time of a counted step is divided as that of the marked steps"
    )


@pytest.mark.parametrize(
    "kind",
    [
        "in_backward",
        "nested",
        "compiled_late",
        "loaded",
        "failed_saves",
        "accumulates",
        "without_code",
    ],
)
def test_each_short_step_is_seen_however_it_ends(kind: str, tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, str(PROGRAMS / "short_kinds.py"), kind, "1500")
    assert done.returncode == 0, done.stderr
    (job,) = listener.watched
    assert job.off is None and [step.index for step in job.steps] == list(range(1500))
    if kind == "without_code":
        assert {step.samples for step in job.steps[1:]} == {8}
    if kind == "accumulates":
        assert [step.samples for step in job.steps[100:-1]] == [8] * 1399
    if kind == "loaded":
        batches = [
            event.counters["loader.batches"]
            for event in job.events
            if isinstance(event, (Segments, Steps)) and "loader.batches" in event.counters
        ]
        assert batches[-1] == pytest.approx(1500, rel=0.05), (
            "the batches of counted steps are counted"
        )


def test_a_child_that_is_forked_within_a_counted_step_is_seen(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, str(PROGRAMS / "short_kinds.py"), "forked", "1500")
    assert (done.returncode, done.stderr) == (0, "")
    parent, child = (job for job in listener.watched if job.steps)
    assert [step.index for step in parent.steps] == list(range(1500)) and [
        step.index for step in child.steps
    ] == list(range(1500))
    assert any(step.phases[P_BACKWARD] for step in child.steps)
