"""What the findings about the loader say about the parts of loading (probe P16), and who waits for
them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuconsole.agent.hooks.evidence.loading_parts import LOCKED, SHOWN
from gpuconsole.diagnosis.engine import evaluate, in_doubt, wanted_probes
from gpuconsole.diagnosis.families.loader import PARTS, SLOW_PART, without_part
from gpuconsole.diagnosis.probes import PROBE_OF
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import CodePlace, Finding, Signal
from gpuconsole.model.run import Run
from tests.diagnosis.cases import case, loader

BLUR, FLIP = (
    CodePlace("train.py:41", "Blur"),
    CodePlace("train.py:40", "Flip"),
)


def starved(workers: int, shares: dict[str, tuple[float, CodePlace]], **changes: float) -> Case:
    """A job of the user's own that waits for half of its step: 16 samples in 0.1 s, by a loader
    that computes."""
    known = case(
        knobs={"num_workers": workers},
        data_wait_ratio=0.5,
        mfu_ratio=0.3,
        probe__cached_pass_s=0.05,
        **loader(160, 165, 0.97),
        **changes,
    )
    known.signals.update(
        {
            name: Signal(share, "ratio", "212 stack samples", place)
            for name, (share, place) in shares.items()
        }
    )
    return replace(known, is_job=True)


def about_input(a_case: Case) -> Finding:
    return next(
        finding
        for finding in evaluate(a_case)
        if finding.state == "fires" and finding.rule.startswith("input.")
    )


def test_the_finding_names_the_large_parts_with_the_gain_without_each() -> None:
    finding = about_input(
        starved(2, {PARTS[0]: (0.4, BLUR), PARTS[1]: (0.3, FLIP), PARTS[2]: (0.2, FLIP)})
    )
    assert finding.rule == "input.cpu_transform"
    assert finding.summary == (
        "a step waits 50 % of its time for data. Blur at train.py:41 takes 40 % of loading (speedup"
        " about 1.7x without this part). Flip at train.py:40 takes 30 % of loading (speedup about"
        " 1.4x without this part). The transforms compute 97 % of the time, and no core is free for"
        " more workers"
    )
    assert [evidence.signal for evidence in finding.evidence if evidence.signal in PARTS] == list(
        PARTS
    )
    assert not finding.missing


def alone(share: float, wait: float, cores: float) -> Finding:
    """Of a job that loads in its training process, and whose largest part of loading takes `share`
    of it."""
    rate = 16 / (0.1 * wait)
    job = case(
        knobs={"num_workers": 0},
        data_wait_ratio=wait,
        mfu_ratio=0.3,
        cores=cores,
        **loader(rate, rate, 0.97),
    )
    job.signals[PARTS[0]] = Signal(share, "ratio", "212 stack samples", BLUR)
    return about_input(replace(job, is_job=True))


@pytest.mark.parametrize(
    ("share", "wait", "cores", "rule", "title", "gain"),
    [
        # 90 ms of loading, of which 9 are left; two workers need 45
        (0.9, 0.9, 3.0, "input.too_few_workers", SLOW_PART, 0.1 / 0.019),
        (0.3, 0.9, 3.0, "input.too_few_workers", "Too few DataLoader workers", 0.1 / 0.045),
        # a worker hides all of the loading
        (0.9, 0.5, 2.0, "input.too_few_workers", "Too few DataLoader workers", 2.0),
        (0.9, 0.9, 2.0, "input.cpu_transform", SLOW_PART, 10.0),
        (
            0.2,
            0.9,
            2.0,
            "input.cpu_transform",
            "Loading takes time that a worker would not save",
            10.0,
        ),
    ],
)
def test_a_part_of_loading_that_gains_more_than_workers_comes_first(
    share: float, wait: float, cores: float, rule: str, title: str, gain: float
) -> None:
    finding = alone(share, wait, cores)
    assert (finding.rule, finding.title) == (rule, title)
    assert finding.recoverable_ratio == pytest.approx(1 - 1 / gain, abs=0.01)
    assert "receive" not in finding.summary


def test_the_agent_sends_the_signals_that_the_rules_read() -> None:
    assert SHOWN == PARTS and LOCKED in PROBE_OF


AT = CodePlace("train.py:20", "waiting for a lock")


@pytest.mark.parametrize(
    ("workers", "cpu", "locked", "cores", "gain"),
    [
        (2, 0.03, 0.5, 2.0, 0.1 / 0.05),  # the read sleeps
        # two cores have 24 ms of loading and 6 ms of training to do for each step
        (8, 0.03, 0.87, 2.0, 0.1 / 0.015),
        # the read computes, and each worker waits for the other one
        (2, 0.5, 0.5, 4.0, 0.1 / 0.05),
        (2, 0.5, 0.5, 2.0, 0.1 / 0.053),
    ],
)
def test_workers_that_wait_for_one_lock_get_no_further_workers(
    workers: int, cpu: float, locked: float, cores: float, gain: float
) -> None:
    known = behind_a_lock(workers, cpu, cores)
    known.signals["loading.lock_ratio"] = Signal(locked, "ratio", "1042 stack samples", AT)
    finding = about_input(known)
    assert finding.rule == "input.shared_lock" and not finding.suggestions
    assert finding.summary.startswith(
        f"a step waits 94 % of its time for data. The {workers} workers wait for one lock in"
        f" {100 * locked:.0f} % of loading, at train.py:20 (speedup about {gain:.1f}x without these"
        " waits). They load one after the other, and more workers would wait for the same lock"
    )
    assert finding.recoverable_ratio == pytest.approx(1 - 1 / gain, abs=0.01)
    assert (
        sum(other.state == "fires" and other.rule.startswith("input.") for other in evaluate(known))
        == 1
    )


def behind_a_lock(workers: int, cpu: float, cores: float) -> Case:
    """A job that waits for its loader. The rate with another worker is in proportion: nothing was
    tried."""
    rates = loader(160, 160 * (workers + 1) / workers, cpu)
    return replace(
        case(knobs={"num_workers": workers}, data_wait_ratio=0.94, cores=cores, **rates),
        is_job=True,
    )


def test_where_the_owner_of_the_lock_keeps_the_only_core_busy_the_core_is_the_limit() -> None:
    known = behind_a_lock(2, 0.5, 1.0)
    known.signals["loading.lock_ratio"] = Signal(0.5, "ratio", "1042 stack samples", AT)
    assert about_input(known).rule == "input.cpu_transform"


@pytest.mark.parametrize(("workers", "locked"), [(2, 0.2), (1, 0.6)])
def test_a_lock_that_takes_little_or_that_one_worker_takes_is_not_the_cause(
    workers: int, locked: float
) -> None:
    known = behind_a_lock(workers, 0.03, 2.0)
    known.signals["loading.lock_ratio"] = Signal(locked, "ratio", "1042 stack samples", AT)
    assert about_input(known).rule == "input.slow_storage"


def test_the_model_limits_the_gain() -> None:
    """The step computes for 50 ms, and receives for 10 more."""
    few = starved(2, {}, probe__loader_receive_ratio=0.2)
    assert without_part(few, 0.3) == pytest.approx(0.1 / 0.07)
    assert without_part(few, 0.9) == pytest.approx(0.1 / 0.06)


def test_without_workers_the_model_and_the_rest_of_the_loading_take_turns() -> None:
    here = case(knobs={"num_workers": 0}, data_wait_ratio=0.5, **loader(320, 330, 0.97))
    assert without_part(here, 0.5) == pytest.approx(0.1 / 0.075)


def test_without_the_rate_of_the_loader_no_gain_is_promised() -> None:
    assert without_part(case(data_wait_ratio=0.5), 0.5) is None


def test_only_in_a_job_the_parts_are_asked_for_and_nothing_waits_for_them() -> None:
    job = starved(2, {})
    finding = about_input(job)
    assert finding.missing == PARTS[:1]
    assert wanted_probes([finding]) == ["loading_parts"]
    assert about_input(replace(job, is_job=False)).missing == ()
    run = Run("1", "train.py", "job", {}, "cpu", "running", findings=[finding])
    assert not in_doubt(run)
