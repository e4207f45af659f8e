from __future__ import annotations

import msgspec
import pytest

from gpuconsole.model.run import COUNTS, PHASES, PROBE, Step
from gpuconsole.session.counters import CompileCounts
from gpuconsole.wire.events import Steps


def report(
    t: float, steps: int, graphs: float, seconds: float, given_up: float = 0.0, kind: int = COUNTS
) -> Steps:
    counters = {
        "compile.graphs": graphs,
        "compile.graph_breaks": 0.0,
        "compile.given_up": given_up,
        "compile.total_s": seconds,
    }
    done = [Step(i, t, 1.0, 1, 0, (0.0,) * len(PHASES), kind=kind) for i in range(steps)]
    return Steps(t, done, 0.0, 0.0, 0.0, 0.0, counters=counters)


def test_the_first_report_is_the_base() -> None:
    counts = CompileCounts()
    counts.add(report(10.0, 1, 1, 9.0))
    assert counts.signals() == {}
    counts.add(report(14.0, 2, 3, 12.0))
    counts.add(report(18.0, 2, 4, 14.0, given_up=1))
    values = {name: signal.value for name, signal in counts.signals().items()}
    assert values["compile.recompiles"] == 3
    assert values["compile.steps"] == 4
    assert values["compile.time_ratio"] == pytest.approx(5 / 8)
    assert values["compile.given_up"] == 1


def test_a_job_that_holds_its_first_steps_back_has_compiled_for_each_step_since_its_first() -> None:
    """The first two messages of a job, after its first and its second step, contain no steps."""
    counts = CompileCounts()
    base, second = report(8.0, 0, 1, 7.0), report(11.0, 0, 2, 10.0)
    counts.add(msgspec.structs.replace(base, counters={**base.counters, "work.steps": 1.0}))
    counts.add(msgspec.structs.replace(second, counters={**second.counters, "work.steps": 2.0}))
    assert counts.signals() == {}
    third = report(14.0, 3, 3, 13.0)
    ends = [
        msgspec.structs.replace(step, t=t)
        for step, t in zip(third.steps, (8.0, 11.0, 14.0), strict=True)
    ]
    counts.add(msgspec.structs.replace(third, steps=ends))
    values = {name: signal.value for name, signal in counts.signals().items()}
    assert (values["compile.recompiles"], values["compile.steps"]) == (2, 2)
    assert values["compile.time_ratio"] == 1.0


def test_a_message_before_the_first_step_is_no_base() -> None:
    counts = CompileCounts()
    counts.add(report(1.0, 0, 0, 0.0))
    counts.add(report(9.0, 1, 1, 8.0))
    assert counts.signals() == {}


def test_what_a_probe_compiles_between_two_ordinary_messages_is_left_out() -> None:
    counts = CompileCounts()
    counts.add(report(1.0, 1, 1, 1.0))
    counts.add(report(2.0, 2, 1, 1.0))
    counts.probed()
    counts.add(report(6.0, 2, 3, 5.0, given_up=1))
    counts.add(report(7.0, 2, 4, 5.5, given_up=1))
    values = {name: signal.value for name, signal in counts.signals().items()}
    assert (values["compile.recompiles"], values["compile.given_up"]) == (1, 0)


def test_what_is_not_compiled_has_no_such_signals() -> None:
    counts = CompileCounts()
    for t in (1.0, 2.0):
        counts.add(Steps(t, [], 0.0, 0.0, 0.0, 0.0))
    assert counts.signals() == {}


@pytest.mark.parametrize("before", [0.0, 1.0])
def test_a_frame_that_a_probe_gives_up_is_not_charged_to_the_job(before: float) -> None:
    counts = CompileCounts()
    counts.add(report(1.0, 1, 1, 1.0, given_up=before))
    counts.add(report(2.0, 2, 1, 1.0, given_up=before))
    counts.add(report(3.0, 2, 2, 2.0, given_up=before + 1, kind=PROBE))
    counts.add(report(4.0, 2, 2, 2.0, given_up=before + 1))
    assert counts.signals()["compile.given_up"].value == 0
    counts.add(report(5.0, 2, 3, 3.0, given_up=before + 2))
    assert counts.signals()["compile.given_up"].value == 1


def test_a_process_that_starts_again_begins_its_totals_at_0() -> None:
    counts = CompileCounts()
    for event in (
        report(10.0, 1, 5, 9.0),
        report(14.0, 2, 6, 10.0),
        report(30.0, 1, 1, 3.0),
        report(34.0, 2, 2, 4.0),
    ):
        counts.add(event)
    values = {name: signal.value for name, signal in counts.signals().items()}
    assert values["compile.recompiles"] == 2 and values["compile.time_ratio"] == pytest.approx(
        2 / 8
    )


def test_a_process_that_has_compiled_as_much_as_the_one_before_is_another_process() -> None:
    counts = CompileCounts()
    for event in (
        report(10.0, 1, 5, 9.0),
        report(14.0, 2, 6, 10.0),
        report(30.0, 1, 6, 8.0),
        report(34.0, 2, 7, 9.0),
    ):
        counts.add(event)
    values = {name: signal.value for name, signal in counts.signals().items()}
    assert values["compile.recompiles"] == 2 and values["compile.time_ratio"] == pytest.approx(
        2 / 8
    )
