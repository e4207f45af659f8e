"""The agent counts the steps of foreign loops exactly, names their phases, and changes neither
losses nor weights.

`python -m benchmarks.own_job.truth` compares the phases within 2 points, on a machine without other
work.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.truth import (
    BY_SAMPLES,
    FRAMEWORKS,
    LOOPS,
    PARTS,
    PROGRAMS,
    UNUSUAL,
    UNUSUAL_TOO,
    Ran,
    alone,
    differences,
    digests,
    watched,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("loops with stamps")]

STEPS, SAMPLED_STEPS = 40, 4000
MORE = [loop for loop in (*UNUSUAL_TOO, *PARTS) if loop not in BY_SAMPLES]
POINTS = 0.15
"""Other tests run at the same time. A phase under a wrong name differs by more in these loops."""


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return watched(
        tmp_path_factory.mktemp("loops"),
        str(PROGRAMS / "unusual.py"),
        "fork",
        str(STEPS),
        *LOOPS,
        *UNUSUAL,
    )


@pytest.mark.parametrize(
    "loop", [*(loop for loop in LOOPS if loop != "ddp"), "ddp0", "ddp1", *UNUSUAL]
)
def test_steps_and_phases_agree_with_stamps_by_hand(loops: Ran, loop: str, tmp_path: Path) -> None:
    wrong = far(loops, loop)
    # another test may have taken the core during this loop: the loop runs again, without the others
    if wrong:
        wrong = far(
            watched(tmp_path, str(PROGRAMS / "unusual.py"), "fork", str(STEPS), loop.rstrip("01")),
            loop,
        )
    assert wrong == {}


@pytest.fixture(scope="module")
def more_loops(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return watched(
        tmp_path_factory.mktemp("loops"), str(PROGRAMS / "unusual.py"), "fork", str(STEPS), *MORE
    )


@pytest.mark.parametrize("loop", MORE)
def test_more_loops_agree_with_stamps_by_hand(more_loops: Ran, loop: str) -> None:
    assert far(more_loops, loop) == {}


# a sample comes up to 0.2 ms late, and later beside other work: much in steps of 2 ms
@pytest.mark.rates
@pytest.mark.parametrize("loop", BY_SAMPLES)
def test_a_loop_whose_time_after_its_steps_is_divided_by_samples_agrees_too(
    tmp_path: Path, loop: str
) -> None:
    assert (
        far(watched(tmp_path, str(PROGRAMS / "unusual.py"), "fork", str(SAMPLED_STEPS), loop), loop)
        == {}
    )


def test_samples_and_tokens_of_a_dataclass_are_counted(loops: Ran) -> None:
    last = loops.watched["dataclass_batch"].steps[-1]
    assert (last.samples, last.tokens) == (8, 8 * 31)


def test_a_batch_that_lbfgs_passes_several_times_counts_once(loops: Ran) -> None:
    assert {step.samples for step in loops.watched["lbfgs"].steps[1:]} == {64}


@pytest.mark.parametrize("loop", ["images_in_list", "time_first"])
def test_the_samples_of_a_batch_whose_first_dimension_is_another_are_counted(
    more_loops: Ran, loop: str
) -> None:
    assert more_loops.watched[loop].steps[-1].samples == 16


def test_what_a_generator_returns_is_no_batch(tmp_path: Path) -> None:
    """In a process of its own: the loops above run after gc.freeze, which hides the functions that
    make batches."""
    ran = watched(tmp_path, str(PROGRAMS / "unusual.py"), "own_generator", str(STEPS))
    assert far(ran, "own_generator") == {}


def far(ran: Ran, loop: str) -> dict[str, float]:
    """The phases that differ from the stamps by more than POINTS. The number of steps must be
    exact."""
    return {phase: round(by, 3) for phase, by in differences(ran, loop).items() if abs(by) > POINTS}


def test_losses_and_weights_are_bit_for_bit_the_same(loops: Ran, tmp_path: Path) -> None:
    out = alone(tmp_path, str(PROGRAMS / "unusual.py"), "fork", str(STEPS), *LOOPS, *UNUSUAL)
    assert sorted(digests(loops.out)) == sorted(digests(out)) and len(digests(out)) == 2 * (
        len(LOOPS) + 1 + len(UNUSUAL)
    )


@pytest.mark.parametrize("loop", FRAMEWORKS)
def test_frameworks_agree_with_stamps_by_hand(loop: str, tmp_path: Path) -> None:
    pytest.importorskip(FRAMEWORKS[loop])
    ran = watched(tmp_path, str(PROGRAMS / "frameworks.py"), loop, str(STEPS))
    assert far(ran, loop) == {}
