"""The last lines about a job that ended before a trial could be decided."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuconsole.cli.hints import job_hints
from gpuconsole.experiments.trial import JOB_ENDED
from gpuconsole.model.experiments import Trial
from gpuconsole.model.finding import Finding, Interval, Suggestion
from gpuconsole.model.job import EFFECTS, JOB, MAY_DIFFER, JobFacts, Site
from gpuconsole.model.run import Distribution, Run, SeriesData, Summary
from gpuconsole.model.snapshot import Environment, Snapshot

SUGGESTED = Suggestion({"num_workers": 4}, Interval(1.5, 2.0), "the loader waits", "")
STARVED = Finding(
    "input.too_few_workers", "fires", "too few workers", 0.4, "high", suggestions=(SUGGESTED,)
)
BROKEN_OFF = Trial(
    "1",
    "1",
    {"num_workers": 2},
    state="failed",
    error=JOB_ENDED,
    elapsed_s=6.0,
    blocks=4,
    begun_s=15.0,
)
CODE = (
    "to try it in your own code: DataLoader(..., num_workers={}) at train.py:27  #"
    f" {EFFECTS[MAY_DIFFER]}"
)


def job(**fields: Any) -> Run:
    run = Run(
        "1",
        "train.py",
        JOB,
        {"num_workers": 0},
        "cpu",
        "finished",
        duration_s=5.0,
        steady_from_s=1.0,
        findings=[STARVED],
    )
    run.summary = Summary(step_time_s=Distribution(0.05, 0.0, 100, 0.05))
    run.job = JobFacts("train.py", sites=[Site("loader", "/code/train.py", 27)])
    run.series = {"workload.samples_per_s": SeriesData([6.0, 15.0], [1.0, 1.0], "")}
    return msgspec.structs.replace(run, **fields)


def hints(run: Run, *trials: Trial, **tries: Any) -> list[str]:
    return job_hints(
        Snapshot(
            created="", gpuconsole="", environment=Environment(), runs=[run], trials=list(trials)
        ),
        tries,
    )


def test_a_job_that_is_too_short_says_how_long_a_trial_takes_and_what_to_try() -> None:
    """Four pairs of blocks of 0.8 s, a second until the steps are steady, two for the diagnosis;
    the workers fill their queue first."""
    assert hints(job()) == [
        (
            "the job ended after about 5 s of training, before a trial of num_workers 0 -> 4 could"
            " be decided: that takes about 12 s or more"
        ),
        CODE.format(4),
    ]
    assert hints(job(), num_workers=2)[1] == CODE.format(2)


def test_a_trial_that_the_end_interrupts_counts_with_its_own_blocks() -> None:
    """The job trained for 5 s when the trial began; a block took 1.5 s, and a trial has at least
    eight."""
    first, second = hints(job(), BROKEN_OFF)
    assert first.endswith("num_workers 0 -> 2 could be decided: that takes about 17 s or more")
    assert second == CODE.format(2)


def test_no_hint_where_a_trial_was_decided_or_the_time_was_enough_or_nothing_is_to_try() -> None:
    assert hints(job(), msgspec.structs.replace(BROKEN_OFF, state="done", error=None)) == []
    assert hints(job(duration_s=60.0)) == []
    assert hints(job(findings=[])) == []
    assert hints(job(unavailable={"knob.num_workers": "an IterableDataset"})) == []
    assert hints(job(summary=Summary())) == []
