import itertools
import math
import random

import pytest

from gpuconsole.experiments.runs import of_blocks, ratio_of
from gpuconsole.experiments.statistics import MAX_RUN_BLOCKS, rate_verdict, run_blocks
from gpuconsole.experiments.throughput import rate_of
from gpuconsole.model.comparison import RateChange
from gpuconsole.model.run import PHASES, Run, SeriesData, Step, Summary
from gpuconsole.session.figures.rate import RateBlock, estimate, mean_rate, rate_distribution
from tests.experiments.measured import in_session


def alike(*rates: float) -> list[RateBlock]:
    return [RateBlock(rate, 1.0) for rate in rates]


def rate_change(
    now: list[RateBlock], kept: list[list[RateBlock]], live: bool = False
) -> RateChange | None:
    """As in the comparison of a run with the runs that were kept on other days."""
    rates = [
        rate._replace(begun=1e9 + day * 1e5, ended=1e9 + day * 1e5 + 60)
        for day, run in enumerate(kept)
        if (rate := of_blocks(run))
    ]
    new = rate_of(in_session(running(now)), live=True) if live else of_blocks(now)
    return ratio_of(rates, [new]).change if rates and new is not None else None


def running(blocks: list[RateBlock]) -> Run:
    """A run that goes on, with a point for each of its blocks."""
    times, rates, seconds = (
        list(itertools.accumulate(block.seconds for block in blocks)),
        [block.rate for block in blocks],
        [block.seconds for block in blocks],
    )
    return Run(
        "1", "train-gpt", "training.gpt", {}, "cpu", "running", duration_s=times[-1],
        steady_from_s=0.0, summary=Summary(tokens_per_s=rate_distribution(blocks)),
        series={"workload.tokens_per_s{device=cpu}": SeriesData(times, rates, "steps", seconds)},
    )  # fmt: skip


ZERO = (0.0,) * (len(PHASES) - 1)


def run(
    chance: random.Random,
    rate: float = 100.0,
    n: int = 30,
    noise: float = 0.04,
    correlated: float = 0.5,
    between: float = 0.0,
) -> list[RateBlock]:
    """Blocks of a run: AR(1) noise within it, and a level of its own."""
    level, offset, rates = rate * math.exp(chance.gauss(0, between)), chance.gauss(0, noise), []
    for _ in range(n):
        rates.append(RateBlock(level * (1 + offset), 1.0))
        offset = correlated * offset + chance.gauss(0, noise * math.sqrt(1 - correlated**2))
    return rates


def verdicts(kept: int, rate: float = 100.0, live: bool = False, **noise: float) -> list[str]:
    found = []
    for seed in range(300):
        chance = random.Random(seed)
        before = [run(chance, **noise) for _ in range(kept)]  # type: ignore[arg-type]
        measured = rate_change(run(chance, rate, **noise), before, live)  # type: ignore[arg-type]
        assert measured is not None
        found.append(rate_verdict(measured))
    return found


@pytest.mark.parametrize("kept", [1, 2, 3, 8])
@pytest.mark.parametrize("correlated", [0.0, 0.5, 0.7])
@pytest.mark.parametrize("n", [12, 40])
def test_the_same_again_is_hardly_ever_called_a_regression(
    kept: int, correlated: float, n: int
) -> None:
    """300 pairs each: autocorrelated noise of 4 % between blocks, of 1 % between runs."""
    found = verdicts(kept, correlated=correlated, n=n, between=0.01)
    assert found.count("slower") + found.count("faster") <= 15


def test_runs_that_differ_more_than_is_usual_are_learnt_from_the_kept_ones() -> None:
    wild = {"between": 0.10, "noise": 0.01, "correlated": 0.0}
    assert verdicts(1, **wild).count("slower") > 15  # what one run cannot know
    assert verdicts(15, **wild).count("slower") <= 15


@pytest.mark.parametrize(
    ("kept", "less", "more"), [(1, 82.0, 122.0), (3, 85.0, 117.0), (8, 85.0, 117.0)]
)
def test_a_sixth_less_is_found(kept: int, less: float, more: float) -> None:
    quiet = {"noise": 0.02, "correlated": 0.3, "between": 0.005}
    assert verdicts(kept, less, **quiet).count("slower") >= 285
    assert verdicts(kept, more, **quiet).count("faster") >= 285


def test_looking_at_every_block_does_not_pay() -> None:
    """A run that is looked at all the time, against one kept run, alarms in hardly any of 100."""
    alarms = 0
    for seed in range(100):
        chance = random.Random(seed)
        kept, now = run(chance), run(chance, n=60)
        looks = (rate_change(now[:n], [kept], live=True) for n in range(4, 60))
        alarms += any(rate_verdict(look) in ("slower", "faster") for look in looks if look)
    assert alarms <= 5


def test_less_than_two_percent_is_no_regression_however_sure() -> None:
    kept = [alike(*(100.0 + i % 2 * 0.01 for i in range(20))) for _ in range(20)]
    for rate, expected in ((98.5, "undecided"), (85.0, "slower"), (117.0, "faster")):
        measured = rate_change(alike(*[rate] * 20), kept)
        assert measured is not None
        assert measured.estimate == pytest.approx(rate / 100 - 1, abs=0.001)
        assert rate_verdict(measured) == expected


def test_no_verdict_on_a_few_blocks() -> None:
    assert rate_change(alike(*[100.0] * 3), [alike(*[100.0] * 20)]) is None
    assert rate_change(alike(*[100.0] * 20), [alike(*[100.0] * 3)]) is None


def test_contention_may_explain_as_much_as_it_took() -> None:
    slow = rate_change(alike(*[80.0] * 20), [alike(*[100.0] * 20)])
    assert slow is not None
    assert rate_verdict(slow) == "slower"
    assert rate_verdict(slow, excused=0.3) == "undecided"
    assert rate_verdict(slow, excused=-0.3) == "slower"  # it was the baseline that was disturbed
    fast = rate_change(alike(*[120.0] * 20), [alike(*[100.0] * 20)])
    assert fast is not None
    assert rate_verdict(fast, excused=-0.3) == "undecided"
    much = rate_change(alike(*[40.0] * 20), [alike(*[100.0] * 20)])
    assert much is not None
    assert rate_verdict(much, excused=0.3) == "slower"
    same = rate_change(alike(*[100.0] * 20), [alike(*[100.0] * 20) for _ in range(20)])
    assert same is not None
    assert rate_verdict(same) == "undecided", "one run shows no spread"


def test_alike_neighbours_count_less() -> None:
    chance = random.Random(1)
    assert estimate(run(chance, n=60, correlated=0.0)).worth > 40
    assert estimate(run(chance, n=60, correlated=0.8)).worth < 20
    assert estimate(alike(*[5.0] * 8)) == (5.0, 0.0, 8)


def steps(n: int, wall: float) -> list[Step]:
    return [Step(i, i * wall, wall, 4, 1000, (wall, *ZERO)) for i in range(n)]


def test_blocks_are_a_second_long_shorter_in_short_runs_and_few_in_long_ones() -> None:
    assert run_blocks(steps(160, 0.125)) == [(8000.0, 1.0)] * 20
    assert len(run_blocks(steps(1024, 2**-8))) in (11, 12)
    assert len(run_blocks(steps(5000, 0.1))) <= MAX_RUN_BLOCKS
    assert len(run_blocks(steps(100, 2.0))) == 20  # five steps at the least
    assert run_blocks([]) == []


def test_a_long_pause_counts_with_its_time() -> None:
    """Steps of 10 ms, with an evaluation of 10 s in each thousandth step: half of the time is
    evaluation."""
    made = [
        Step(i, i * 0.01, 0.01 + 10.0 * (i % 1000 == 999), 32, 0, (0.0, *ZERO)) for i in range(4000)
    ]
    assert mean_rate(run_blocks(made)) == pytest.approx(1600.0)
    assert estimate(run_blocks(made)).mean == pytest.approx(1600.0)
    assert estimate(run_blocks(made)).error > 0.1, (
        "so few evaluations do not say how many there are"
    )
