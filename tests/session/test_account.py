import random

import msgspec
import pytest

from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.figures.breakdown import steady_from, summarize
from gpuconsole.session.figures.distributions import distribution, weighted
from gpuconsole.session.figures.flops import SampleFlops
from gpuconsole.session.figures.totals import Totals


def step(index: int, wall: float, wait: float = 0.0, runq: float | None = None) -> Step:
    phases = [0.0] * len(PHASES)
    phases[0], phases[2] = wait, wall - wait
    delays = None if runq is None else (runq, *[0.0] * (len(PHASES) - 1))
    return Step(index, index * 1.0, wall, 8, 1024, tuple(phases), delays)


def test_shares_sum_to_one() -> None:
    shares = Totals([step(i, 0.1, 0.04) for i in range(10)]).shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["data_wait"] == pytest.approx(0.4)


def test_a_step_of_a_recording_without_the_newer_parts_has_none_of_their_time() -> None:
    before = msgspec.json.decode(
        b"[1, 1.0, 0.2, 8, 0, [0,0,0.1,0.1,0,0,0,0,0,0], [0,0,0.01,0,0,0,0,0,0,0], 0.5]", type=Step
    )
    shares = Totals([before, step(2, 0.2)]).shares()
    assert shares["loss"] == shares["generation"] == 0 and sum(shares.values()) == pytest.approx(1)
    assert before.loss == 0.5 and len(before.runq or ()) == len(PHASES)


def test_run_queue_delay_is_taken_off_before_shares() -> None:
    """A step of 100 ms, 60 ms of them in next(), of which 50 ms were spent waiting for a core: the
    wait is 10 of 50 ms."""
    shares = Totals([step(i, 0.1, 0.06, 0.05) for i in range(10)]).contention_free_shares()
    assert shares["data_wait"] == pytest.approx(0.2)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_steady_needs_time_and_no_trend() -> None:
    chance = random.Random(1)
    flat = [step(i, 0.1 * chance.gauss(1, 0.05)) for i in range(60)]
    assert steady_from(flat) is not None
    assert steady_from(flat[:10]) is None
    warming = [step(i, 0.1 + 0.4 * 0.93**i) for i in range(40)]
    assert steady_from(warming) is None


def test_summary_figures() -> None:
    steps = [step(i, 0.1) for i in range(100)]
    summary = summarize(steps, Totals(steps), work=SampleFlops(1e9), peak=(1e11, "here"))
    assert summary.samples_per_s is not None
    assert summary.samples_per_s.mean == pytest.approx(80.0)
    assert summary.tokens_per_s is not None
    assert summary.tokens_per_s.mean == pytest.approx(10240.0)
    assert summary.mfu_ratio == pytest.approx(0.8) and summary.runq_ratio is None


def test_the_share_of_the_wait_for_a_core_is_that_of_the_steps_on_which_it_was_read() -> None:
    steps = [step(i, 0.1, runq=0.02 if i % 4 == 0 else None) for i in range(40)]
    assert summarize(steps, Totals(steps), None, None).runq_ratio == pytest.approx(0.2)


def test_samples_that_are_not_known_give_no_rate() -> None:
    """A job may call no model with a batch, as in a script with single tensors."""
    unknown = Step(1, 1.0, 0.1, 0, 0, (0.1, *[0.0] * (len(PHASES) - 1)), None)
    assert summarize([unknown], Totals([unknown]), work=None, peak=None).samples_per_s is None


def test_percentiles_are_nearest_rank() -> None:
    found = distribution([float(i) for i in range(1, 101)])
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99) == (50.0, 90.0, 95.0, 99.0)


def test_values_that_are_no_numbers_are_in_no_distribution() -> None:
    nan, infinite = float("nan"), float("inf")
    assert distribution([nan, 2.0, infinite, 4.0, nan]) == distribution([2.0, 4.0])
    assert distribution([nan, nan]) is None and distribution([]) is None
    assert weighted([(nan, 1.0), (2.0, 3.0)]) == weighted([(2.0, 3.0)])
