"""Steps of a user's job from their segments: where the copy of a batch to the GPU is seen."""

from __future__ import annotations

import itertools

import pytest

from gpuconsole.model.run import PHASES
from gpuconsole.session.segments import BACKWARD, DATA, FORWARD, GAP, LOADER, OPTIMIZER, ZERO, RawStep, SegmentFold

COPY = -1
"""A gap in which the program copies its batch."""
COPY_S = 0.05


def phases(codes: list[int], on_device: bool) -> dict[str, float]:
    """The phases of the second of two such steps. The copy takes COPY_S, all other segments 10 ms."""
    fold = SegmentFold()
    fold.on_device = on_device
    seconds = [COPY_S if code == COPY else 0.01 for code in codes]
    ends = list(itertools.accumulate(seconds))
    raw = RawStep(1, 0.0, [GAP if code == COPY else code for code in codes], ends, 8, 0, None, 0, 0, None, True)
    fold.step(raw)
    return dict(zip(PHASES, fold.step(raw._replace(index=2)).phases, strict=True))


@pytest.mark.parametrize(
    "codes",
    [
        [LOADER, COPY, FORWARD, GAP, BACKWARD, OPTIMIZER],
        [LOADER, COPY, ZERO, GAP, FORWARD, GAP, BACKWARD, OPTIMIZER],  # the loop of torch's tutorial
        [DATA, GAP, ZERO, COPY, FORWARD, GAP, BACKWARD, OPTIMIZER],
    ],
    ids=["before the pass", "before the gradients are zeroed", "after they are zeroed"],
)
def test_what_lies_between_a_batch_and_its_pass_is_the_copy(codes: list[int]) -> None:
    assert phases(codes, True)["h2d"] >= COPY_S
    assert phases(codes, True)["other"] == 0.0
    assert phases(codes, False)["h2d"] == 0.0


def test_zeroing_before_the_batch_is_asked_for_is_no_copy() -> None:
    seen = phases([ZERO, COPY, LOADER, FORWARD, GAP, BACKWARD, OPTIMIZER], True)
    assert (seen["h2d"], seen["other"]) == (0.0, pytest.approx(COPY_S))


def test_a_long_step_is_divided_as_the_long_steps_whose_times_the_gpu_has_measured() -> None:
    """Two workers of the same pace deliver two batches together: every other step waits for them."""
    fold = SegmentFold()
    fold.on_device = True

    def step(index: int, wait_s: float, on_stream: bool) -> dict[str, float]:
        ends = list(itertools.accumulate([wait_s, 0.01, 0.01, 0.01]))
        raw = RawStep(index, 0.0, [LOADER, FORWARD, BACKWARD, OPTIMIZER], ends, 8, 0, None, 0, 0, None, on_stream)
        return dict(zip(PHASES, fold.step(raw).phases, strict=True))

    for index in range(3):
        step(index, 0.001, True)
    assert step(3, 0.2, False)["data_wait"] == pytest.approx(0.17), "such a wait was not measured yet: the host has seen it"
    step(3, 0.2, True)
    assert step(4, 0.19, False)["data_wait"] == pytest.approx(0.19, rel=0.02)
    assert step(5, 0.001, False)["data_wait"] == pytest.approx(0.001, rel=0.02)
    assert sum(step(6, 2.0, False).values()) == pytest.approx(2.03)
