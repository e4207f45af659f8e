"""When a diagnosis stands: a made-up run on a made-up clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuconsole.diagnosis.engine import DOUBT_S, NOT_STEADY_S, SERVING_S, SETTLED_S, DiagnosisStatus
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.run import Run

LACKING = Finding("gpu.small_batch", "cant_tell", "", missing=("probe.concurrency_gain",))
KNOWN = Finding("gpu.small_batch", "fires", "")
EVERY_S = 0.25


def times() -> Iterator[float]:
    n = 0
    while True:
        yield n * EVERY_S
        n += 1


def stands_at(
    *,
    steady_s: float,
    answer_s: float,
    probing: bool = False,
    judged_s: float = 0.0,
    tunable: tuple[str, ...] = (),
    workload: str = "training.gpt",
) -> tuple[float, Run]:
    """When the diagnosis stands, and on which run. The run is steady after `steady_s` and judged
    `judged_s` later; the probe answers `answer_s` after the run is steady, and until then `probing`
    is true or not."""
    standing = DiagnosisStatus(0.0, tunable)
    for now_s in times():
        answered = now_s > steady_s + answer_s
        run = Run(
            "1",
            "train-gpt",
            workload,
            {},
            "cpu",
            "running",
            findings=[KNOWN if answered else LACKING],
            duration_s=now_s,
        )
        run.steady_from_s = steady_s if now_s > steady_s else None
        if now_s > steady_s + judged_s:
            run.signals = {"step_s": Signal(0.01, "s", "")}
        if standing.evaluate(run, probing and not answered, now_s):
            return now_s, run
        assert now_s < 1000, "it never stands"
    raise AssertionError


def test_a_probe_is_waited_for_however_long_the_run_took_to_be_steady() -> None:
    now_s, run = stands_at(steady_s=NOT_STEADY_S - 1, answer_s=DOUBT_S - 5)
    assert run.findings == [KNOWN] and now_s == pytest.approx(
        NOT_STEADY_S - 1 + DOUBT_S - 5 + SETTLED_S + EVERY_S, abs=EVERY_S
    )


def test_a_probe_that_is_running_is_waited_for() -> None:
    assert stands_at(steady_s=1.0, answer_s=2 * DOUBT_S, probing=True)[1].findings == [KNOWN]


def test_an_answer_that_does_not_come_is_given_up() -> None:
    now_s, run = stands_at(steady_s=1.0, answer_s=1e6)
    assert run.findings == [LACKING] and now_s == pytest.approx(1.0 + DOUBT_S, abs=2 * EVERY_S)


def test_a_run_that_is_never_steady_is_given_up() -> None:
    now_s, run = stands_at(steady_s=1e6, answer_s=0.0)
    assert run.steady_from_s is None and now_s == pytest.approx(NOT_STEADY_S, abs=2 * EVERY_S)


@pytest.mark.parametrize("tunable", [(), ("optim",)])
def test_findings_from_before_the_steady_state_do_not_count(tunable: tuple[str, ...]) -> None:
    """Also where no rule is in doubt that can change a tunable knob."""
    _, run = stands_at(steady_s=2.0, answer_s=3.0, judged_s=3.0, tunable=tunable)
    assert (run.findings, run.signals.keys()) == ([KNOWN], {"step_s"})


def test_a_probe_that_cannot_lead_to_a_change_of_a_tunable_knob_is_not_waited_for() -> None:
    now_s, run = stands_at(steady_s=1.0, answer_s=1e6, probing=True, tunable=("optim",))
    assert run.findings == [LACKING] and now_s < 1.0 + DOUBT_S / 2


def test_a_model_server_gets_time_to_fill_its_queue() -> None:
    now_s, _ = stands_at(steady_s=1.0, answer_s=0.0, workload="inference.chat")
    assert now_s == pytest.approx(1.0 + SERVING_S, abs=EVERY_S)
