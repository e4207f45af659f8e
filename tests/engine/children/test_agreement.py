"""A live change in several processes of a job is made before one step that they all make."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpuconsole.engine.children.agreement import ALL_LEFT, NO_COMMON_STEP, TRIES, UNDO, Agreement
from gpuconsole.engine.children.job import JobCommand
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.wire.events import AnyEvent, KnobsSet, RankJoined, SetKnobs, Steps, decode_event

PROGRAM = Path(__file__).parents[2] / "agent" / "programs" / "ranks.py"
COMMAND = SetKnobs(1, {"num_workers": 2}, 1)
STEP_S = 0.1


def answers(*given: KnobsSet) -> Mapping[int, KnobsSet]:
    return dict(enumerate(given))


def prepared(step: int) -> KnobsSet:
    return KnobsSet(1.0, 1, step, {"num_workers": 0}, prepared=True)


def changed(step: int, at_step: int) -> KnobsSet:
    return KnobsSet(1.0, 1, step, {"num_workers": 2}, at_step=at_step)


def refused(why: str) -> KnobsSet:
    return KnobsSet(1.0, 1, 9, {"num_workers": 0}, why)


LATE = KnobsSet(1.0, 1, 30, {"num_workers": 0}, late=True)
BACK = KnobsSet(1.0, 1, 40, {"num_workers": 0})


def named(command: SetKnobs | KnobsSet) -> int:
    assert isinstance(command, SetKnobs) and not command.stage
    return command.at_step


def settled(answer: SetKnobs | KnobsSet) -> KnobsSet:
    assert isinstance(answer, KnobsSet)
    return answer


def test_the_step_lies_ahead_of_all_ranks_and_the_answer_names_the_step_of_each() -> None:
    agreement = Agreement(COMMAND)
    assert agreement.prepare().stage == "prepare"
    step = named(agreement.next(answers(prepared(7), prepared(9)), STEP_S))
    assert step > 9 + 0.2 / STEP_S
    answer = settled(
        agreement.next(answers(changed(step + 3, step), changed(step + 4, step)), STEP_S)
    )
    assert (answer.at_step, answer.steps, answer.step, answer.error) == (
        step,
        {0: step, 1: step},
        step + 4,
        None,
    )
    assert decode_event(
        b'{"event":"knobsset","t":1.0,"request":1,"step":3,"knobs":{}}'
    ) == KnobsSet(1.0, 1, 3, {})


def test_one_rank_that_cannot_undoes_the_change_in_all() -> None:
    agreement = Agreement(COMMAND)
    undo = agreement.next(answers(prepared(7), refused("no room")), STEP_S)
    assert isinstance(undo, SetKnobs) and undo.stage == UNDO
    assert settled(agreement.next(answers(BACK, BACK), STEP_S)).error == "no room"


def test_ranks_that_all_refuse_have_nothing_to_undo() -> None:
    assert (
        settled(
            Agreement(COMMAND).next(answers(refused("no loader"), refused("no loader")), STEP_S)
        ).error
        == "no loader"
    )


def test_a_rank_that_was_late_makes_all_try_again_further_ahead() -> None:
    agreement, distances = Agreement(COMMAND), []
    for _ in range(TRIES):
        distances.append(named(agreement.next(answers(prepared(7), prepared(7)), STEP_S)) - 7)
        undo = agreement.next(answers(changed(20, 12), LATE), STEP_S)
        assert isinstance(undo, SetKnobs) and undo.stage == UNDO
        following = agreement.next(answers(BACK, BACK), STEP_S)
    assert all(far > near for near, far in itertools.pairwise(distances))
    assert settled(following).error == NO_COMMON_STEP


def test_a_rank_that_has_left_does_not_count_and_the_end_of_all_is_a_refusal() -> None:
    agreement = Agreement(COMMAND)
    named(agreement.next(answers(prepared(7), prepared(9)), STEP_S))
    assert settled(agreement.next({0: changed(12, 12)}, STEP_S)).steps == {0: 12}
    agreement = Agreement(COMMAND)
    named(agreement.next(answers(prepared(7), prepared(9)), STEP_S))
    assert settled(agreement.next({}, STEP_S)).error == ALL_LEFT


def test_a_rank_that_could_not_go_back_is_named() -> None:
    agreement = Agreement(COMMAND)
    agreement.next(answers(changed(12, 12), LATE), STEP_S)
    assert (
        settled(agreement.next(answers(refused("no epoch"), BACK), STEP_S)).error
        == f"{NO_COMMON_STEP}; rank 0 could not go back: no epoch"
    )


async def changes_of(folder: Path, changes: Sequence[Knobs]) -> list[KnobsSet]:
    """The answers of a job of two ranks to these changes, one after the other."""
    ended, events = asyncio.Event(), list[AnyEvent]()
    command = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        str(PROGRAM),
        str(folder),
    )
    worker = WorkerHandle(
        events.append,
        lambda gone, code: ended.set(),
        job=JobCommand(command, allows_numerics=True, allows_loader=True),
    )
    await worker.launch()
    try:
        async with asyncio.timeout(240):
            while sum(isinstance(event, RankJoined) for event in events) < 2 or not any(
                isinstance(event, Steps) and event.steps and event.steps[-1].index > 20
                for event in events
            ):
                await asyncio.sleep(0.05)
            given = [await worker.set_knobs(change, 0) for change in changes]
            # a change is named before it is in force: the batches under way come first
            while not all(
                len(of_rank) > max(answer.step for answer in given) for of_rank in makers(folder)
            ):
                await asyncio.sleep(0.05)
            return given
    finally:
        (folder / "end").touch()
        await asyncio.wait_for(ended.wait(), 60)


def makers(folder: Path) -> list[list[int]]:
    """For each rank and step, whether a worker made the batch."""
    return [
        [int(line) for line in (folder / f"rank{rank}").read_text().splitlines()] for rank in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.xdist_group("a job")
def test_where_one_rank_cannot_change_none_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    (answer,) = asyncio.run(changes_of(tmp_path, [{"num_workers": 2}]))
    assert answer.error is not None and "died before it was ready" in answer.error
    assert answer.knobs["num_workers"] == 0
    assert not any(map(any, makers(tmp_path)))


@pytest.mark.slow
@pytest.mark.xdist_group("a job")
@pytest.mark.parametrize(
    "samples",
    [
        pytest.param("20000", id="one epoch", marks=pytest.mark.matrix),
        pytest.param("800", id="short epochs"),
    ],
)
def test_two_ranks_of_ddp_make_each_change_before_the_same_step(
    samples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's own record of who made each batch agrees."""
    monkeypatch.setenv("SAMPLES", samples)
    changes: list[Knobs] = [{"num_workers": value} for value in (0, 2, 0, 1, 2)]
    changes += [{"optim": "adamw_fused"}, {"num_workers": 0, "optim": "adamw"}]
    given = asyncio.run(changes_of(tmp_path, changes))
    made = makers(tmp_path)
    for change, answer in zip(changes, given, strict=True):
        print(
            f"{change}: made before step {answer.steps}, in force from step {answer.step}, error"
            f" {answer.error}"
        )
        assert answer.error is None
        assert answer.steps == {0: answer.at_step, 1: answer.at_step}
        assert change.items() <= answer.knobs.items()
        assert [of_rank[answer.step] for of_rank in made] == [
            int(answer.knobs["num_workers"] != 0)
        ] * 2
    # Where one rank is late, all ranks take the change back and try again. So the ranks may differ
    # between two changes, and agree after the last one.
    last = given[-1].step
    assert made[0][last:] == made[1][last:]
    assert [answer.at_step for answer in given] == sorted({answer.at_step for answer in given})
