"""Which series of step times are a trend. The series are drawn with fixed seeds. Each series is
judged ten times while it grows, as in a run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import msgspec
import pytest

from gpuconsole.diagnosis.rules.host_slowing_down import HostSlowingDown
from gpuconsole.diagnosis.signals.run import run_signals, trend_signals
from gpuconsole.model.finding import CodePlace
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Step, Summary
from gpuconsole.model.stacks import StackSample
from gpuconsole.session.figures.trend import StepBlocks
from gpuconsole.session.places import StackRecord
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import Devices, RunOpened, Stacks, Steps
from tests.diagnosis.cases import case

DRAWS, MAX_FALSE, LOOKS = 200, 1, 10
OTHER = PHASES.index("other")
Draw = Callable[[random.Random, int], list[float]]


def steps(walls: list[float], tokens: list[int] | None = None) -> Iterator[Step]:
    t = 0.0
    for index, wall in enumerate(walls):
        t += wall
        phases = [0.0] * len(PHASES)
        phases[OTHER] = wall
        yield Step(index, t, wall, 8, tokens[index] if tokens else 0, tuple(phases))


def fires(blocks: StepBlocks) -> bool:
    signals = trend_signals(blocks, StackRecord())
    return (
        HostSlowingDown()
        .check(case(**{name.replace(".", "__"): signal.value for name, signal in signals.items()}))
        .state
        == "fires"
        if signals
        else False
    )


def found(walls: list[float], tokens: list[int] | None = None) -> bool:
    """Whether a finding stands at any of the looks."""
    blocks, series = StepBlocks(), list(steps(walls, tokens))
    size = math.ceil(len(series) / LOOKS)
    for begun in range(0, len(series), size):
        blocks.add(series[begun : begun + size], 0.0)
        if fires(blocks):
            return True
    return False


def noise(draw: random.Random, n: int, spread: float = 0.08) -> list[float]:
    return [0.05 * math.exp(draw.gauss(0, spread)) for _ in range(n)]


def spikes(draw: random.Random, n: int) -> list[float]:
    return [
        wall * (draw.uniform(2, 20) if draw.random() < 0.05 else 1) for wall in noise(draw, n, 0.2)
    ]


def warm_up(draw: random.Random, n: int) -> list[float]:
    slower, length = draw.uniform(0.5, 5), draw.uniform(0.02, 0.3) * n
    return [wall * (1 + slower * math.exp(-i / length)) for i, wall in enumerate(noise(draw, n))]


def clock(draw: random.Random, n: int) -> list[float]:
    """A processor that becomes warm lowers its clock by and by."""
    slower, length = draw.uniform(0.1, 0.5), draw.uniform(0.02, 0.2) * n
    return [
        wall * (1 + slower * (1 - math.exp(-i / length)))
        for i, wall in enumerate(noise(draw, n, 0.03))
    ]


def clocks(draw: random.Random, n: int) -> list[float]:
    """A clock that changes now and then between four values."""
    level, walls = 1.0, []
    for wall in noise(draw, n, 0.03):
        if draw.random() < 6 / n:
            level = draw.choice((1.0, 1.1, 1.25, 1.5))
        walls.append(wall * level)
    return walls


def shift(draw: random.Random, n: int) -> list[float]:
    at, level, spread = draw.randrange(n), draw.uniform(1.2, 3), draw.uniform(0.01, 0.2)
    return [wall * (level if i >= at else 1) for i, wall in enumerate(noise(draw, n, spread))]


def evaluation(draw: random.Random, n: int) -> list[float]:
    every, factor = draw.choice((5, 10, 50, 100, 200)), draw.uniform(3, 30)
    return [
        wall * (factor if i % every == every - 1 else 1) for i, wall in enumerate(noise(draw, n))
    ]


def sawtooth(draw: random.Random, n: int) -> list[float]:
    growth = draw.uniform(0.2, 2)
    return [wall * (1 + growth * (i % 100) / 100) for i, wall in enumerate(noise(draw, n))]


def neighbour(draw: random.Random, n: int) -> list[float]:
    """Another program that comes and goes takes caches and memory bandwidth."""
    walls, busy = [], False
    for wall in noise(draw, n):
        busy ^= draw.random() < 0.01
        walls.append(wall * (1.4 if busy else 1))
    return walls


def wandering(draw: random.Random, n: int) -> list[float]:
    """Noise with a memory of 50 steps."""
    walls, level = [], 0.0
    for wall in noise(draw, n):
        level = 0.98 * level + draw.gauss(0, 0.02)
        walls.append(wall * math.exp(level))
    return walls


STEADY: dict[str, Draw] = {
    "noise": noise,
    "spikes": spikes,
    "warm_up": warm_up,
    "clock": clock,
    "clocks": clocks,
    "shift": shift,
    "evaluation": evaluation,
    "sawtooth": sawtooth,
    "neighbour": neighbour,
    "wandering": wandering,
}


@pytest.mark.parametrize("kind", STEADY)
def test_what_is_no_trend_gives_no_finding(kind: str) -> None:
    draw = random.Random(kind)
    false = sum(found(STEADY[kind](draw, draw.choice((250, 600, 1500)))) for _ in range(DRAWS))
    assert false <= MAX_FALSE


@pytest.mark.parametrize("kind", [name for name in STEADY if name != "sawtooth"])
def test_a_short_run_of_long_steps_that_warms_up_or_waits_gives_no_finding(kind: str) -> None:
    """A sawtooth of 100 steps is growth as long as it has not fallen back."""
    draw = random.Random(f"short {kind}")
    drawn = (STEADY[kind](draw, draw.choice((60, 120, 190))) for _ in range(DRAWS))
    assert sum(found([10 * wall for wall in walls]) for walls in drawn) <= MAX_FALSE


@pytest.mark.parametrize(("length", "each_s", "expected"), [(60, 0.5, 0.9), (60, 0.05, 0.0)])
def test_growth_of_long_steps_is_found_within_a_minute(
    length: int, each_s: float, expected: float
) -> None:
    """A state that is not detached: the time of a step doubles and more. Short steps wait for more
    of them."""
    draw = random.Random(8)
    series = (
        [
            each_s / 0.05 * wall * (1 + 1.5 * i / length)
            for i, wall in enumerate(noise(draw, length))
        ]
        for _ in range(DRAWS)
    )
    share = sum(map(found, series)) / DRAWS
    assert share >= expected if expected else share == 0


def lengths(draw: random.Random, n: int, kind: str) -> tuple[list[float], list[int]]:
    """Batches of different lengths. The time of a step grows with its length, and faster for long
    ones."""
    tokens = [draw.randrange(2000, 8000) for _ in range(n)]
    if kind == "sorted":
        tokens.sort()
    if kind == "curriculum":
        tokens = [int(1000 * (1 + 3 * i / n) * draw.uniform(0.9, 1.1)) for i in range(n)]
    if kind == "ten times as long":
        tokens = [int(800 * (1 + 9 * i / n)) for i in range(n)]
    attention = draw.uniform(0, 1)
    return [
        wall * (count / 2000 + attention * (count / 4000) ** 2)
        for wall, count in zip(noise(draw, n), tokens, strict=True)
    ], tokens


@pytest.mark.parametrize("kind", ["mixed", "sorted", "curriculum", "ten times as long"])
def test_longer_batches_are_no_trend(kind: str) -> None:
    draw = random.Random(kind)
    assert (
        sum(found(*lengths(draw, draw.choice((250, 600, 1500)), kind)) for _ in range(DRAWS))
        <= MAX_FALSE
    )


@pytest.mark.parametrize(("spread", "hits"), [(0.03, 0.98), (0.08, 0.85)])
@pytest.mark.parametrize(("growth", "shape"), [(0.3, 1.0), (1.0, 2.0)])
def test_growth_is_found(growth: float, shape: float, spread: float, hits: float) -> None:
    """Linear growth by 30 %, and growth with the square of the steps. In 250 steps with noise of
    8 % some growth stays within the noise."""
    draw = random.Random(f"{shape} {spread}")
    lengths = [draw.choice((250, 600, 1500)) for _ in range(DRAWS)]
    series = (
        [wall * (1 + growth * (i / n) ** shape) for i, wall in enumerate(noise(draw, n, spread))]
        for n in lengths
    )
    assert sum(map(found, series)) >= hits * DRAWS


def test_growth_is_found_where_the_batches_vary_in_length() -> None:
    draw = random.Random(3)
    tokens = [draw.randrange(2000, 8000) for _ in range(1500)]
    walls = [0.02 * count / 2000 + 0.1 * i / 1500 for i, count in enumerate(tokens)]
    assert found(walls, tokens)


def test_blocks_of_a_long_run_stay_few() -> None:
    blocks = StepBlocks()
    blocks.add(steps([0.1 + 1e-6 * i for i in range(100_000)]), 0.5)
    trend = blocks.trend()
    assert trend is not None and len(blocks) < 128
    assert trend.slope.middle == pytest.approx(0.5e-6) and trend.growth == pytest.approx(
        0.9 / 1.1, rel=0.05
    )
    assert max(trend.phases(), key=lambda name: trend.phases()[name].middle) == "other"


def test_the_function_whose_time_grows_is_named_and_the_run_need_not_be_steady() -> None:
    """The metric grows from 10 to 50 ms; a function that is larger at first does not grow. Steps
    wait for a core for half of their time."""
    state = SessionState()
    state.apply(Devices(0.0, [Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "cpu"))
    t, index = 0.0, 0
    for second in range(30):
        metric_s = 0.01 + 0.04 * second / 30
        some = list[Step]()
        while t < 2 * second + 2:
            wall = 2 * (0.02 + metric_s)
            t, index = t + wall, index + 1
            some.append(Step(index, t, wall, 8, 0, (0.0,) * (len(PHASES) - 1) + (wall,)))
        state.apply(Steps(t, some, 0.0, t / 2, 0.0, 1e6))
        samples = [
            StackSample("between", "python", 100 * metric_s, "", ["metric.py:27 compute"]),
            StackSample("forward", "native", 2.0, "", ["train.py:9 run"]),
        ]
        state.apply(
            Stacks(
                t,
                0,
                [msgspec.structs.replace(sample, weight=sample.weight * 20) for sample in samples],
            )
        )
    record = state.record
    assert record is not None
    record.steady_t = None
    signals = run_signals(record, Summary(), 2, None)
    assert (
        signals["trend.growth_ratio"].value > 0.8 and 0.02 < signals["trend.start_s"].value < 0.05
    )
    assert signals["trend.place_ratio"].place == CodePlace("metric.py:27", "compute", "between")
    assert signals["trend.place_ratio"].value > 0.8
