from __future__ import annotations

import pytest

from gpuconsole.model.run import COUNTS, PHASES, PROBE, Step
from gpuconsole.session.counters import CompileCounts
from gpuconsole.wire.events import Steps


def report(t: float, steps: int, graphs: float, seconds: float, given_up: float = 0.0, kind: int = COUNTS) -> Steps:
    counters = {"compile.graphs": graphs, "compile.graph_breaks": 0.0, "compile.given_up": given_up, "compile.total_s": seconds}
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
