"""The embedded server's scheduler, iteration by iteration."""

from __future__ import annotations

import pytest

from gpuconsole.workloads.serving.engine.core import Iteration, PrefixCache, Scheduler, Sequence


def scheduler(
    seats: int = 4, tokens: int = 64, blocks: int = 100, *, chunked: bool = True
) -> Scheduler:
    return Scheduler(seats, tokens, blocks, 4, chunked=chunked, prefixes=PrefixCache(0, 4))


def sequence(prompt: int, output: int = 8) -> Sequence:
    return Sequence([1] * prompt, output, 0.0)


def compute(of: Scheduler) -> Iteration:
    """Plan an iteration and pretend that it was computed: everyone who is ready gets a token."""
    plan = of.plan(0.0)
    for one, _, end in plan.prefills:
        one.computed = end
    for one in plan.decodes:
        one.computed += 1
    for one in [*(one for one, _, end in plan.prefills if end == len(one.tokens)), *plan.decodes]:
        one.tokens.append(2)
    return plan


def test_as_many_run_as_there_are_seats_and_the_first_come_are_first() -> None:
    of, asked = scheduler(seats=2), [sequence(4) for _ in range(3)]
    for one in asked:
        of.add(one)
    plan = compute(of)
    assert [one for one, _, _ in plan.prefills] == asked[:2] and list(of.waiting) == asked[2:]
    assert [one.slot for one in asked] == [0, 1, -1]
    of.remove(asked[0])
    assert [one for one, _, _ in compute(of).prefills] == asked[2:] and asked[2].slot == 0, (
        "the lowest seat is given out first"
    )


def test_fewer_seats_hold_from_the_next_iteration_on_and_nobody_is_thrown_out() -> None:
    of, asked = scheduler(seats=4, tokens=64), [sequence(4) for _ in range(6)]
    for one in asked:
        of.add(one)
    compute(of)
    of.set_limits(2, 3)
    assert len(compute(of).decodes) == 3, "four run on, three tokens at a time"
    for one in asked[:3]:
        of.remove(one)
    compute(of)
    assert len(of.running) == 2 and len(of.waiting) == 1


def test_a_long_prompt_is_split_and_those_who_decode_go_on_beside_it() -> None:
    of, first, long = scheduler(tokens=8), sequence(4), sequence(20)
    of.add(first)
    compute(of)
    of.add(long)
    plans = [compute(of) for _ in range(3)]
    assert [plan.decodes for plan in plans] == [[first]] * 3
    assert [[(start, end) for _, start, end in plan.prefills] for plan in plans] == [
        [(0, 7)],
        [(7, 14)],
        [(14, 20)],
    ]
    assert all(plan.tokens <= 8 for plan in plans)


def test_without_chunks_a_prompt_waits_for_an_iteration_that_takes_it_whole() -> None:
    of = scheduler(tokens=8, chunked=False)
    for one in (sequence(6), sequence(6)):
        of.add(one)
    assert [(start, end) for _, start, end in compute(of).prefills] == [(0, 6)]
    second = compute(of)
    assert len(second.decodes) == 1 and [(start, end) for _, start, end in second.prefills] == [
        (0, 6)
    ]


def test_when_blocks_run_out_the_youngest_is_preempted_and_computed_anew_from_its_first_token() -> (
    None
):
    of, old, young = scheduler(blocks=4), sequence(7, 20), sequence(7, 20)
    for one in (old, young):
        of.add(one)
    compute(of)
    assert of.kv_usage == 1.0
    compute(of)  # the eighth token of each: their blocks are full now
    plan = compute(of)
    assert plan.preempted == [young] and plan.decodes == [old]
    assert (young.preemptions, young.computed, young.slot, list(of.waiting)) == (1, 0, -1, [young])
    of.remove(old)
    again = compute(of)
    assert [(one, start, end) for one, start, end in again.prefills] == [(young, 0, 9)], (
        "its own two tokens are part of what is computed anew"
    )
    assert young.output == 3


def test_those_who_decode_already_go_on_where_another_preempts_the_youngest() -> None:
    of, roomy, full, young = scheduler(blocks=6), sequence(5, 20), sequence(7, 20), sequence(7, 20)
    for one in (roomy, full, young):
        of.add(one)
    compute(of)
    compute(of)
    plan = compute(of)
    assert (plan.decodes, plan.preempted) == ([roomy, full], [young])


def test_what_is_removed_gives_its_blocks_back() -> None:
    of, one = scheduler(), sequence(10)
    of.add(one)
    compute(of)
    assert of.kv_usage == pytest.approx(3 / 100)
    of.remove(one)
    assert of.kv_usage == 0 and not of.running
