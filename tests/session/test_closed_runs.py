"""What the state keeps of a run that is over."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from gpuconsole.model.run import PHASES, Step
from gpuconsole.model.serving import Request
from gpuconsole.session.run import MAX_STEPS
from gpuconsole.session.serving import MAX_REQUESTS
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import (
    AnyEvent,
    Compared,
    Found,
    RankJoined,
    Requests,
    RunClosed,
    RunOpened,
    ServerState,
    Started,
    Steps,
)

CLOSED_BYTES = 200_000
"""The most that a closed run may hold. Its steps alone are 9 MB."""
MESSAGE = 100

Apply = Callable[[AnyEvent], None]


def train(apply: Apply, run: str) -> None:
    apply(RunOpened(0.0, run, "train-gpt", "training.gpt", {"batch_size": 8, "nproc": 2}, "cpu"))
    for rank in (0, 1):
        apply(RankJoined(0.0, rank, "here", 10 + rank, leads=rank == 0))
    apply(Started(0.0, {"batch_size": 8, "nproc": 2}, {"flops_per_sample": 1e9}))
    for first in range(0, MAX_STEPS // 4, MESSAGE):
        for rank in (0, 1):
            steps = [
                Step(
                    n,
                    0.1 * n + 0.001,
                    0.1 + 1e-6 * n,
                    8,
                    1000,
                    tuple(0.01 + 1e-6 * n for _ in PHASES),
                )
                for n in range(first, first + MESSAGE)
            ]
            apply(Steps(0.1 * (first + MESSAGE), steps, 0.0, 0.0, 0.0, 1e9, rank=rank))


def serve(apply: Apply, run: str) -> None:
    knobs = {"request_rate": 0, "max_num_seqs": 8}
    apply(RunOpened(0.0, run, "serve-chat", "inference.serving", knobs, "cpu"))
    apply(Started(0.0, knobs, {"max_num_seqs": 8.0}))
    for first in range(0, MAX_REQUESTS // 8, MESSAGE):
        t = 1.0 + first / MESSAGE
        done = [
            Request(t, 0.0, 0.1 + 1e-6 * n, 1.0, 10, 3, (0.05 + 1e-6 * n,) * 2, (1.0, 1.0))
            for n in range(first, first + MESSAGE)
        ]
        apply(Requests(t, done))
        apply(
            ServerState(
                t,
                {f"gauge_{n}": t + n for n in range(20)},
                {f"total_{n}": t + n for n in range(20)},
            )
        )
        apply(Steps(t, [Step(first, t, 1.0, MESSAGE, 300, ())], 0.0, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("work", [train, serve])
def test_a_closed_run_keeps_its_summary_and_not_its_steps(
    work: Callable[[Apply, str], None],
) -> None:
    state = SessionState(history=False)
    state.apply(RunOpened(0.0, "0", "warm", "training.gpt", {}, "cpu"))
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        work(state.apply, "1")
        end = state.now
        state.apply(RunClosed(end, "1", "finished"))
        last = run_now(state, state.records[-1])
        measured, _ = tracemalloc.get_traced_memory()
        state.apply(RunOpened(end, "2", "train-gpt", "training.gpt", {}, "cpu"))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert measured - before > 2 * CLOSED_BYTES
    assert after - before < CLOSED_BYTES
    assert run_now(state, state.records[1]) == last
    assert last.summary.step_time_s is not None or last.summary.requests
    assert len(last.ranks) == (2 if work is train else 0)


def test_conclusions_about_a_closed_run_still_reach_it() -> None:
    from gpuconsole.model.comparison import BaselineComparison
    from gpuconsole.model.finding import Finding

    state = SessionState()
    state.apply(RunOpened(0.0, "1", "train-gpt", "training.gpt", {}, "cpu"))
    state.apply(RunClosed(1.0, "1", "finished"))
    state.apply(RunOpened(2.0, "2", "train-gpt", "training.gpt", {}, "cpu"))
    finding = Finding("x", "clear", "X")
    state.apply(Found(3.0, "1", [finding]))
    state.apply(Compared(3.0, "1", BaselineComparison(key="k", words="same")))
    run = run_now(state, state.records[0])
    assert run.findings == [finding]
    assert run.baseline is not None and run.baseline.words == "same"
    assert msgspec.json.encode(run_now(state, state.records[1])).count(b"finding") == 0
