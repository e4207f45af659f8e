from __future__ import annotations

import pytest

from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.compile_counts import CompileCounts
from gpuconsole.wire.events import Steps


def report(t: float, steps: int, graphs: float, seconds: float, given_up: float = 0.0) -> Steps:
    counters = {"compile.graphs": graphs, "compile.graph_breaks": 0.0, "compile.given_up": given_up, "compile.total_s": seconds}
    done = [Step(i, t, 1.0, 1, 0, (0.0,) * len(PHASES)) for i in range(steps)]
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
