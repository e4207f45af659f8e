"""What a trial with a second model server will take and can resolve, before it starts."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec
import pytest

from gpuconsole.experiments import statistics
from gpuconsole.experiments import statistics as trial_statistics
from gpuconsole.experiments import trial as trials
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.trial import USUAL, forecast_line, forecast_restart, refusal
from gpuconsole.model.experiments import Forecast
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.run import Distribution, Run, Step, Summary
from gpuconsole.session.api import SessionError
from gpuconsole.wire.events import AnyEvent, Note
from tests.waiting import until

KNOBS: Knobs = {
    name: knob.default
    for name, knob in CATALOGUE.items()
    if knob.serving and knob.default is not None
}
CHANGES: Knobs = {"num_gpu_blocks_override": 200}
START_S = 40.0


def a_run(e2e_s: float) -> Run:
    each = Distribution(mean=e2e_s, std=0.0, n=10, p50=e2e_s)
    return Run("1", "kv-pressure", "inference.chat", KNOBS, "cpu", summary=Summary(e2e_s=each))


def steps(noise: float, count: int = 160) -> list[Step]:
    """Ticks of 0.25 s with blocks of 2 s that differ by `noise`."""
    chance = random.Random(1)
    levels = [1 + chance.gauss(0, noise) for _ in range(count // 8 + 1)]
    return [Step(n, n * 0.25, 0.25, 1, round(1000 * levels[n // 8]), ()) for n in range(count)]


def test_a_quiet_run_resolves_small_changes_in_few_pairs() -> None:
    found = forecast_restart(a_run(1.0), steps(0.01), CHANGES, None, USUAL, START_S)
    assert found.resolution_ratio == pytest.approx(0.065, abs=0.015), (
        "two processes differ by 5.5 % whatever the number of pairs"
    )
    assert START_S + 4 * 2 * 3 <= found.seconds <= START_S + 6 * 2 * 4


def test_a_noisy_run_takes_the_whole_time_and_resolves_large_changes_only() -> None:
    found = forecast_restart(a_run(8.0), steps(0.2), CHANGES, Interval(1.1, 1.2), USUAL, START_S)
    assert START_S + USUAL.serving_cap_s <= found.seconds <= START_S + USUAL.serving_cap_s + 15
    assert found.resolution_ratio is not None and found.resolution_ratio > 0.3
    assert not found.resolves(0.15) and found.resolves(3.0)
    large = forecast_restart(a_run(1.0), steps(0.1), CHANGES, Interval(2.5, 3.5), USUAL, START_S)
    small = forecast_restart(a_run(1.0), steps(0.1), CHANGES, Interval(1.1, 1.2), USUAL, START_S)
    assert large.seconds < small.seconds, "a large effect is clear after fewer pairs"


def test_without_steady_steps_only_the_time_is_known() -> None:
    found = forecast_restart(a_run(1.0), [], CHANGES, None, USUAL, START_S)
    assert found.resolution_ratio is None and found.resolves(0.001)
    assert (
        forecast_line(found, server=True)
        == "The trial starts a second model server: about 1 min 40 s."
    )


def test_the_sentences() -> None:
    found = Forecast(130.0, 0.062)
    assert forecast_line(found, server=True) == (
        "The trial starts a second model server: about 2 min 10 s. It can resolve a change of"
        " 6.2 % at best."
    )
    text = refusal(CHANGES, found, Interval(1.01, 1.04))
    assert (
        "about 2 min 10 s" in text
        and "1.01-1.04x" in text
        and "--try num_gpu_blocks_override=200" in text
        and "\n" not in text
    )


@pytest.mark.matrix
@pytest.mark.slow
def test_the_forecast_holds_with_a_real_server_and_a_hopeless_trial_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With two pairs of short blocks in place of four, so that the test is short."""
    for module in (trials, trial_statistics):
        monkeypatch.setattr(module, "MIN_PAIRS", 2)
    monkeypatch.setattr(statistics, "MIN_SERVING_BLOCK_S", 0.5)
    limits = msgspec.structs.replace(USUAL, serving_cap_s=1.0)
    notes: list[str] = []

    def listen(event: AnyEvent) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    async def play() -> None:
        engine = LiveSession(interval_s=0.5)
        engine.listeners.append(listen)
        await engine.open()
        try:
            await engine.start("serve-chat", {"d_model": 64, "n_layer": 1, "output_tokens": 16})
            await until(lambda: engine.view().running_s > 3, 60, "the run runs")
            with pytest.raises(
                SessionError,
                match=r"no trial: it would take .* and the predicted speedup is 1.00-1.00x",
            ):
                await engine.try_change({"enable_prefix_caching": False}, Interval(1.001, 1.002))
            begun = time.monotonic()
            trial = await engine.try_change({"enable_prefix_caching": False}, None, limits=limits)
            took = time.monotonic() - begun
        finally:
            await engine.close()
        assert trial.state == "done" and trial.forecast is not None, trial
        assert trial.forecast.seconds / 2 < took < trial.forecast.seconds * 2, (
            trial.forecast,
            took,
        )
        assert notes == [forecast_line(trial.forecast, server=True)]

    asyncio.run(play())
