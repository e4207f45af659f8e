"""What the findings about the loader say about the parts of loading (probe P16), and who waits for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuconsole.agent.hooks.evidence.loading_parts import SHOWN
from gpuconsole.diagnosis.engine import evaluate, in_doubt, wanted_probes
from gpuconsole.diagnosis.families.loader import PARTS, without_part
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.run import Run
from tests.diagnosis.cases import case, loader

BLUR, FLIP = (
    "212 stack samples of the loading processes: Blur at train.py:41",
    "212 stack samples of the loading processes: Flip at train.py:40",
)


def starved(workers: int, shares: dict[str, tuple[float, str]], **changes: float) -> Case:
    """A job of the user's own that waits for half of its step: 16 samples in 0.1 s, by a loader that computes."""
    known = case(
        knobs={"num_workers": workers}, data_wait_ratio=0.5, mfu_ratio=0.3, probe__cached_pass_s=0.05, **loader(160, 165, 0.97), **changes
    )
    known.signals.update({name: Signal(share, "ratio", source) for name, (share, source) in shares.items()})
    return replace(known, is_job=True)


def about_input(a_case: Case) -> Finding:
    return next(finding for finding in evaluate(a_case) if finding.state == "fires" and finding.rule.startswith("input."))


def test_the_finding_names_the_large_parts_with_the_gain_without_each() -> None:
    finding = about_input(starved(2, {PARTS[0]: (0.4, BLUR), PARTS[1]: (0.3, FLIP), PARTS[2]: (0.2, FLIP)}))
    assert finding.rule == "input.cpu_transform"
    assert finding.summary == (
        "a step waits 50 % of its time for data. Blur at train.py:41 takes 40 % of loading (speedup about 1.7x without this part). Flip at train.py:40 takes 30 % of loading"
        " (speedup about 1.4x without this part). The transforms compute 97 % of the time, and no core is free for more workers"
    )
    assert [evidence.signal for evidence in finding.evidence if evidence.signal in PARTS] == list(PARTS)
    assert not finding.missing


def test_the_agent_sends_the_signals_that_the_rules_read() -> None:
    assert SHOWN == PARTS


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
