"""A restart judged by the hours before and after: at the same load, and undecided where the load is another."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from gpuconsole.experiments.restart_effect import NO_RESTART, judge_restart
from gpuconsole.session.history import History
from gpuconsole.wire.events import AnyEvent, Hello, ServerState

HOUR = 3600.0


def hours(before: float, after: float, **more: float) -> History:
    history = History()
    for event in hours_of_events(before, after, **more):  # type: ignore[arg-type]
        history.add(event)
    return history


def hours_of_events(
    before: float, after: float, *, load: float = 1.0, faster: float = 1.0, seed: int = 1, every: float = 5.0
) -> Iterator[AnyEvent]:
    """A server that restarts after `before` hours and runs `after` hours more, then with `load` times the requests and each token `faster` times as fast. The
    requests per second rise and fall with a period of an hour and at random, and a token takes longer where more requests come."""
    chance = random.Random(seed)
    yield Hello(t=0.0, role="recording", pid=1, version="1", wall_time=1_780_000_200.0)
    names = ("requests", "prompt_tokens", "generation_tokens", "ttft_s_sum", "ttft_s_count", "itl_s_sum", "itl_s_count")
    totals, slow, restarted = dict.fromkeys(names, 0.0), 1.0, False
    for step in range(int((before + after) * HOUR / every)):
        t = step * every
        if t >= before * HOUR and not restarted:
            totals, restarted = dict.fromkeys(names, 0.0), True
        slow = min(1.2, max(0.85, slow + chance.gauss(0, 0.01)))  # the machine has minutes that are slower, and they follow each other
        rate = 4 * (1 + 0.4 * math.sin(2 * math.pi * t / HOUR)) * chance.uniform(0.8, 1.25) * (load if restarted else 1.0)
        token_s = 0.02 * (1 + rate / 20) * slow / (faster if restarted else 1.0)
        ended = rate * every
        totals["requests"] += ended
        totals["prompt_tokens"] += 300 * ended
        totals["generation_tokens"] += 100 * ended
        for name, mean, count in (("ttft_s", 5 * token_s, ended), ("itl_s", token_s, 99 * ended)):
            totals[f"{name}_sum"] += mean * count
            totals[f"{name}_count"] += count
        inside = rate * 105 * token_s
        yield ServerState(t, {"requests_running": inside, "requests_waiting": 0.0}, dict(totals))


def test_a_faster_server_is_better_although_the_load_rises_and_falls() -> None:
    effect = judge_restart(hours(5, 5, faster=1.25))
    found = effect.effects["time_per_token_s"]
    assert effect.verdict == "win" and found.low < 1.25 < found.high and effect.compared_ratio > 0.9


def test_a_slower_server_is_worse() -> None:
    assert judge_restart(hours(5, 5, faster=0.7)).verdict == "worse"


@pytest.mark.slow
def test_the_same_server_is_no_win_and_no_loss() -> None:
    verdicts = [judge_restart(hours(3, 3, seed=seed, every=10.0)).verdict for seed in range(20)]
    assert sum(verdict in ("win", "worse") for verdict in verdicts) <= 1, verdicts  # the level of the interval is 1 in 20


def test_less_load_makes_a_server_faster_and_is_no_win() -> None:
    """With half the requests a token takes a tenth less time: compared without regard to the load it is a win."""
    effect = judge_restart(hours(5, 5, load=0.7))
    assert effect.verdict != "win" and effect.effects["time_per_token_s"].low < 1.02


def test_another_load_is_undecided_with_both_loads() -> None:
    effect = judge_restart(hours(3, 3, load=4.0))
    assert effect.verdict == "undecided" and effect.reason.startswith("the load differs: ") and "requests/s before and" in effect.reason


def test_a_short_time_is_undecided() -> None:
    effect = judge_restart(hours(3, 0.3))
    assert effect.verdict == "undecided" and "too few: 120 are needed" in effect.reason


def test_without_a_restart_there_is_nothing_to_judge() -> None:
    with pytest.raises(ValueError, match=NO_RESTART):
        judge_restart(hours(0.2, 0))
