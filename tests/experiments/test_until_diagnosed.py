"""When a diagnosis is believed: a made-up run that changes by the clock."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest

from gpuconsole.experiments import until_diagnosed as diagnosed
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.run import Run
from gpuconsole.session.api import View

LACKING = Finding("gpu.small_batch", "cant_tell", "", missing=("probe.concurrency_gain",))
KNOWN = Finding("gpu.small_batch", "fires", "")


class SessionApi:
    """Steady after `steady_s`, and judged `judged_s` after that; the probe's answer is there after `answer_s`, and until then it is `probing`,
    or not."""

    def __init__(self, steady_s: float, answer_s: float, probing: str = "", judged_s: float = 0.0) -> None:
        self._begun, self._steady_s, self._answer_s, self._probing = time.monotonic(), steady_s, answer_s, probing
        self._judged_s = judged_s

    def view(self) -> View:
        passed = time.monotonic() - self._begun
        answered = passed > self._steady_s + self._answer_s
        run = Run("1", "train-gpt", "training.gpt", {}, "cpu", "running", findings=[KNOWN if answered else LACKING])
        run.steady_from_s = self._steady_s if passed > self._steady_s else None
        if passed > self._steady_s + self._judged_s:
            run.signals = {"step_s": Signal(0.01, "s", "")}
        return cast("View", SimpleNamespace(run=run, probing="" if answered else self._probing))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_S", 0.01), ("SETTLED_S", 0.02), ("DOUBT_S", 0.6), ("NOT_STEADY_S", 1.5)):
        monkeypatch.setattr(diagnosed, name, seconds)


def told(api: SessionApi, tunable: tuple[str, ...] = ()) -> Run:
    return asyncio.run(asyncio.wait_for(diagnosed.until_diagnosed(api, lambda: False, tunable=tunable), 20.0))


def test_a_probe_is_waited_for_however_long_the_run_took_to_be_steady() -> None:
    assert told(SessionApi(steady_s=0.8, answer_s=0.2)).findings == [KNOWN]


def test_a_probe_that_is_under_way_is_waited_for() -> None:
    assert told(SessionApi(steady_s=0.1, answer_s=1.0, probing="batch_elasticity")).findings == [KNOWN]


def test_an_answer_that_does_not_come_is_given_up() -> None:
    assert told(SessionApi(steady_s=0.1, answer_s=60.0)).findings == [LACKING]


def test_so_is_a_run_that_is_never_steady() -> None:
    assert told(SessionApi(steady_s=60.0, answer_s=0.0)).steady_from_s is None


@pytest.mark.parametrize("tunable", [(), ("optim",)])
def test_what_was_found_before_it_was_steady_is_not_believed(tunable: tuple[str, ...]) -> None:
    """Also where nothing is in doubt by then that anybody waits for."""
    run = told(SessionApi(steady_s=0.2, answer_s=0.4, judged_s=0.4), tunable)
    assert (run.findings, run.signals.keys()) == ([KNOWN], {"step_s"})


def test_a_doubt_that_leads_to_no_change_of_what_may_be_turned_is_not_waited_for() -> None:
    assert told(SessionApi(steady_s=0.1, answer_s=60.0, probing="batch_elasticity"), ("optim",)).findings == [LACKING]
