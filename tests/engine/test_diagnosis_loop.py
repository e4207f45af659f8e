"""Which probes are made of a steady run, and in which order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gpuconsole.diagnosis.probes import ALWAYS
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.engine.diagnosis_loop import Diagnosing
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import RunOpened, Steps

KNOBS: Knobs = find_scenario("train-gpt").knobs_for("cpu")


def steady() -> SessionState:
    state = SessionState()
    state.apply(RunOpened(0.0, "1", "train-gpt", "training.gpt", KNOBS, "cpu"))
    shares = tuple(0.05 if phase in ("forward", "backward") else 0.0 for phase in PHASES)
    for n in range(1, 101):
        state.apply(Steps(n / 10, [Step(n, n / 10, 0.1, 8, 1024, shares)], 0.0, 0.0, 0.0, 1e9))
    assert state.record is not None and state.record.steady_t is not None
    return state


@pytest.mark.parametrize("tunable", [(), ("num_threads", "precision")])
def test_who_waits_to_turn_a_knob_waits_for_no_other_probes(tunable: tuple[str, ...]) -> None:
    state, made = steady(), list[str]()

    class Worker:
        async def probe(self, name: str) -> None:
            made.append(name)

    looking = Diagnosing(state, lambda event: None, lambda: None, asyncio.Lock())
    looking.tunable = tunable

    async def look_often() -> None:
        for _ in range(20):
            await looking.look(cast("Any", state.record), cast("Any", Worker()))

    asyncio.run(look_often())
    if tunable:
        assert set(made) == {"swap_threads", "swap_precision"}
    else:
        assert set(ALWAYS) < set(made)
