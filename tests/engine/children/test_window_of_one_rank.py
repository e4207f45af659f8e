"""A profiler window in one of several processes of a user's job: the others wait for it once, and
compute what they compute without it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpuconsole.engine.children.job import JobCommand
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.model.run import COUNTS, PROBE, SETTLING, Step
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import AnyEvent, Profiled, RankJoined, RunOpened, Steps
from tests.tui.fake_profile import GPU_PROFILE

PROGRAM = Path(__file__).parents[2] / "agent" / "programs" / "profiled_ranks.py"
WINDOW = 3
MORE_STEPS = 50
"""Steps that all processes make after the last window."""


def command(folder: Path) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        str(PROGRAM),
        str(folder),
    )


async def profiled(folder: Path, ranks: tuple[int, ...]) -> tuple[list[Profiled], list[AnyEvent]]:
    """The answers to requests for windows in these processes, one after the other, and all events
    of the job."""
    ended, events = asyncio.Event(), list[AnyEvent]()
    worker = WorkerHandle(
        events.append, lambda gone, code: ended.set(), job=JobCommand(command(folder))
    )
    await worker.launch()
    try:
        async with asyncio.timeout(200):
            while (
                sum(isinstance(event, RankJoined) for event in events) < 2
                or min(reached(events)) < 50
            ):
                await asyncio.sleep(0.05)
            answers = [
                await worker.profile(WINDOW, rank, str(folder / f"trace{rank}.json.gz"))
                for rank in ranks
            ]
            last = max(reached(events))
            while min(reached(events)) < last + MORE_STEPS:
                await asyncio.sleep(0.05)
            return answers, events
    finally:
        (folder / "end").touch()
        await asyncio.wait_for(ended.wait(), 60)


def reached(events: list[AnyEvent]) -> list[int]:
    """The last step of each process that the console knows."""
    return [
        max(
            (
                e.steps[-1].index
                for e in events
                if isinstance(e, Steps) and e.steps and e.rank == rank
            ),
            default=0,
        )
        for rank in (0, 1)
    ]


def lines(folder: Path, rank: int) -> list[tuple[str, float]]:
    """The loss and the seconds of each step."""
    return [
        (loss, float(seconds))
        for loss, seconds in (
            line.split() for line in (folder / f"rank{rank}").read_text().splitlines()
        )
    ]


@pytest.mark.slow
@pytest.mark.xdist_group("a job")
def test_a_window_of_one_process_changes_no_loss_and_all_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, alone = tmp_path / "watched", tmp_path / "alone"
    watched.mkdir()
    alone.mkdir()
    answers, events = asyncio.run(profiled(watched, (1, 0, 5)))
    assert [(answer.error, answer.report and answer.report.rank) for answer in answers[:2]] == [
        (None, 1),
        (None, 0),
    ]
    assert answers[2].error == "the job has no process 5"
    assert all(
        answer.report is not None
        and answer.report.steps == WINDOW
        and Path(answer.report.trace).exists()
        for answer in answers[:2]
    )
    made = [lines(watched, rank) for rank in (0, 1)]
    monkeypatch.setenv("STEPS", str(len(made[0])))
    done = subprocess.run(command(alone), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert [loss for loss, _ in made[rank]] == [loss for loss, _ in lines(alone, rank)], (
            "the same bits, also beside and after the windows"
        )
    kinds = [{step.index: step.kind for step in steps_of(events, rank)} for rank in (0, 1)]
    for rank in (0, 1):
        window = [index for index, kind in kinds[rank].items() if kind == PROBE]
        assert len(window) >= WINDOW
        assert all(kinds[1 - rank][index] == SETTLING for index in window), (
            "no step that waits for the window counts in the other process"
        )
        assert {kinds[of_rank][max(kinds[of_rank])] for of_rank in (0, 1)} == {COUNTS}


def steps_of(events: list[AnyEvent], rank: int) -> list[Step]:
    return [
        step
        for event in events
        if isinstance(event, Steps) and event.rank == rank
        for step in event.steps
    ]


def test_rules_read_the_window_of_the_leading_process_only() -> None:
    for rank, read in ((None, True), (0, True), (1, False)):
        state = SessionState()
        state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "gpu:0"))
        for joined in (0, 1):
            state.apply(RankJoined(1.0, joined, "here", 10 + joined, joined == 0, world_size=2))
        state.apply(Profiled(2.0, 1, msgspec.structs.replace(GPU_PROFILE, rank=rank)))
        assert state.record is not None and state.record.run.profile is not None
        assert bool(state.record.probe_signals) == read
