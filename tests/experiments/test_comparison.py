"""Two runs side by side, on series that are known."""

from __future__ import annotations

import random

import msgspec
import pytest

from gpuconsole.experiments.compare import compare
from gpuconsole.model.comparison import Comparison
from gpuconsole.model.experiments import Trial
from gpuconsole.model.job import JobFacts
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Distribution, Run, SeriesData, Summary
from gpuconsole.model.series import Series
from gpuconsole.model.snapshot import Environment
from tests.experiments.measured import in_session

HERE = Environment(
    host="box", cpu="a CPU", cores=2, torch="2.13.0", devices=[Device("cpu", "a CPU")]
)


def run(rate: float, seed: int = 0, noise: float = 0.01, points: int = 30, **knobs: int) -> Run:
    """Thirty seconds, of which the first five are not steady and ten times as slow."""
    draw = random.Random(seed)
    values = [rate / 10] * 5 + [rate * draw.gauss(1, noise) for _ in range(points - 5)]
    series = {
        "workload.tokens_per_s{device=cpu}": SeriesData(
            [float(n + 1) for n in range(points)], values, "step breakdown"
        ),
        "workload.step_time_s{device=cpu}": SeriesData(
            [float(n + 1) for n in range(points)], [1 / value for value in values], "step breakdown"
        ),
        "host.io_pressure_ratio{device=cpu}": SeriesData([1.0], [0.0], "/proc"),
    }
    summary = Summary(
        tokens_per_s=Distribution(rate, rate * noise, points, rate, p99=rate * 1.02),
        memory_peak_bytes=2e9,
    )
    return Run(
        "1",
        "train-gpt",
        "training.gpt",
        dict(knobs),
        "cpu",
        "finished",
        duration_s=30.0,
        steady_from_s=5.5,
        summary=summary,
        series=series,
    )


def compared(
    before: Run, after: Run, there: Environment = HERE, here: Environment = HERE
) -> Comparison:
    return compare(in_session(before, there, "A"), in_session(after, here, "B"))


def test_a_faster_run_is_better_in_rate_and_time_and_what_was_not_steady_does_not_count() -> None:
    found = {one.metric: one for one in compared(run(1000), run(1200, seed=1)).metrics}
    rate, step = found["workload.tokens_per_s"], found["workload.step_time_s"]
    assert (rate.verdict, step.verdict) == ("better", "better")
    assert rate.before == pytest.approx(1000, rel=0.01)
    assert rate.change is not None and rate.change.low < 0.2 < rate.change.high
    assert (
        found["summary.memory_peak_bytes"].verdict == "not judged"
        and found["summary.memory_peak_bytes"].why_not
    )


def long_run(slow: float, begun: int, ended: int, seed: int) -> Run:
    """An hour with one sample a second, as a series stores it: 100, and `slow` from the second
    `begun` to the second `ended`."""
    draw, series = random.Random(seed), Series()
    for second in range(3600):
        series.add(
            float(second), (slow if begun <= second < ended else 100.0) * draw.gauss(1, 0.02)
        )
    times, values, weights = map(list, zip(*series.weighed(), strict=True))
    data = SeriesData(times, values, "step breakdown", weights)
    return Run(
        "1", "train-gpt", "training.gpt", {}, "cpu", "finished", duration_s=3600.0,
        steady_from_s=0.0, series={"workload.tokens_per_s{device=cpu}": data},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slow", "begun", "ended", "change"),
    [(50.0, 3400, 3600, -0.028), (70.0, 0, 3000, -0.25)],
    ids=["the last minutes", "the first 50"],
)
def test_the_mean_of_a_long_run_is_that_of_all_its_time(
    slow: float, begun: int, ended: int, change: float
) -> None:
    """Without the weights of the stored points, the changes were -20.5 % and -15.8 %."""
    (rate,) = compared(long_run(100.0, 0, 0, 1), long_run(slow, begun, ended, 2)).metrics
    assert rate.change is not None and rate.change.estimate == pytest.approx(change, abs=0.003)
    assert (rate.verdict == "worse") == (change < -0.1)


def test_two_runs_with_the_same_settings_do_not_differ() -> None:
    for seed in range(20):
        verdicts = {one.verdict for one in compared(run(1000, seed), run(1000, seed + 100)).metrics}
        assert verdicts <= {"undecided", "not judged"}


def test_noise_leaves_it_undecided() -> None:
    (rate,) = [
        one
        for one in compared(run(1000, 1, 0.2), run(1050, 2, 0.2)).metrics
        if one.metric == "workload.tokens_per_s"
    ]
    assert rate.verdict == "undecided"


def test_what_differs_around_the_runs_comes_first() -> None:
    there = Environment(
        host="other", cpu="a CPU", cores=2, torch="2.12.0", devices=[Device("gpu:0", "NVIDIA H200")]
    )
    found = compared(run(1000, batch_size=8), run(1000, batch_size=16, num_workers=2), there)
    assert [(one.name, one.before, one.after) for one in found.environment] == [
        ("host", "other", "box"),
        ("torch", "2.12.0", "2.13.0"),
        ("devices", "NVIDIA H200", "a CPU"),
    ]
    assert [(one.name, one.before, one.after) for one in found.knobs] == [
        ("batch_size", "8", "16"),
        ("num_workers", "n/a", "2"),
    ]


def test_metrics_of_one_side_only_are_named() -> None:
    more = run(1000)
    more.series["server.requests_running{device=server}"] = SeriesData([20.0], [3.0], "/metrics")
    found = compared(run(1000), more)
    assert found.only_after == ["server.requests_running"] and found.only_before == []


def test_the_time_of_a_trial_does_not_count() -> None:
    """The blocks of a trial with the change are twice as fast. They are in the series of the run
    that the trial started from."""
    before, after = run(1000), run(2000, seed=1)
    data = before.series["workload.tokens_per_s{device=cpu}"]
    data.v = [
        value * 2 if 12 <= t <= 20 else value for t, value in zip(data.t, data.v, strict=True)
    ]
    trial = Trial("1", "1", {"num_workers": 2}, "done", begun_s=11.5, ended_s=20.5)
    found = compare(in_session(before, HERE, "A", [trial]), in_session(after, HERE, "B"))
    (rate,) = [one for one in found.metrics if one.metric == "workload.tokens_per_s"]
    assert rate.before == pytest.approx(1000, rel=0.01)


def changed(made: Run, **parts: object) -> Run:
    return msgspec.structs.replace(made, **parts)


def verdict_of(found: Comparison, metric: str) -> str:
    return next(one.verdict for one in found.metrics if one.metric == metric)


def test_two_programs_are_named_and_none_of_them_is_better() -> None:
    job = changed(
        run(1000), workload="job", job=JobFacts("a.py"), scenario="a.py", command_digest="abc"
    )
    for before, after, name in (
        (run(1000), changed(run(1300, 1), scenario="tiny-batch"), "scenario"),
        (
            job,
            changed(job, scenario="b.py", series=run(1300, 1).series, summary=run(1300, 1).summary),
            "script",
        ),
        (run(1000, d_model=192), run(1300, 1, d_model=768), "d_model"),
        (run(1000, concurrency=1), run(1300, 1, concurrency=8), "concurrency"),
    ):
        found = compared(before, after)
        assert [one.name for one in found.unlike] == [name]
        assert (
            verdict_of(found, "workload.tokens_per_s") == "higher"
            and verdict_of(found, "workload.step_time_s") == "lower"
        )


def test_another_device_and_other_versions_are_named() -> None:
    there = Environment(
        host="box",
        python="3.11",
        torch="2.12.0",
        driver="550",
        devices=[Device("gpu:0", "NVIDIA H200")],
    )
    here = Environment(
        host="box",
        python="3.11",
        torch="2.13.0",
        driver="570",
        devices=[Device("gpu:0", "NVIDIA L4"), Device("cpu", "a CPU")],
    )
    found = compared(
        changed(run(1000), device="gpu:0"), changed(run(1300, 1), device="gpu:0"), there, here
    )
    assert [(one.name, one.before, one.after) for one in found.unlike] == [
        ("device", "gpu:0 (NVIDIA H200)", "gpu:0 (NVIDIA L4)"),
        ("torch", "2.12.0", "2.13.0"),
        ("driver", "550", "570"),
    ]


def test_a_job_has_versions_of_its_own() -> None:
    """The console runs under another Python than the job."""
    one, other = (
        changed(run(1000), workload="job", job=JobFacts("a.py", torch=version, python="3.12"))
        for version in ("2.4", "2.13")
    )
    assert [(found.name, found.before, found.after) for found in compared(one, other).unlike] == [
        ("torch", "2.4", "2.13")
    ]


def test_a_larger_batch_makes_no_step_worse() -> None:
    found = compared(run(1000, batch_size=8), run(700, 1, batch_size=16))
    assert not found.unlike and [one.name for one in found.other_steps] == ["batch_size"]
    assert (
        verdict_of(found, "workload.tokens_per_s") == "worse"
        and verdict_of(found, "workload.step_time_s") == "higher"
    )
    assert not compared(run(1000, batch_size=8), run(1000, 1, num_workers=4)).other_steps


def test_one_run_is_not_compared_with_itself() -> None:
    assert compared(run(1000), run(1000)).same_run
    assert not compared(run(1000), run(1000, seed=1)).same_run
    assert not compared(run(1000), changed(run(1000), id="2")).same_run
    assert not compared(run(1000), run(1000)).unlike
