"""The check of a scenario on a card: memory, limit, and whether the scenario teaches there what it says."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpuconsole.diagnosis.expected.card import ALLOCATOR_SHARE, Card
from gpuconsole.diagnosis.expected.teaching import TESTS, Verdict, verdict
from gpuconsole.diagnosis.expected.works import (
    Work,
    chain_work,
    churn_work,
    exchange_work,
    gemm_work,
    gpt_work,
    ragged_work,
    recommender_work,
    serving_work,
    stream_work,
    vision_work,
)
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.scenario import Scenario

WORKS: dict[str, Callable[[Knobs, Card], Work | None]] = {
    "training.gpt": gpt_work,
    "training.vision": vision_work,
    "training.chain": chain_work,
    "training.recommender": recommender_work,
    "training.ragged": ragged_work,
    "training.churn": churn_work,
    "training.exchange": exchange_work,
    "calibration.gemm": gemm_work,
    "calibration.stream": stream_work,
    "inference.serving": serving_work,
}
FACTORS = ("batch_size", "concurrency")
"""Knobs whose change in a variant is a factor."""


class Check(msgspec.Struct, frozen=True):
    """One scenario on one card. A figure is None where no model gives it; `why` then says so.

    `fits`: whether the scenario has enough memory and enough cards. `teaches`: whether the taught rule should fire; None: not known.
    """

    scenario: str
    rule: str
    memory_bytes: float | None
    usable_bytes: float
    step_s: float | None
    limit: str
    limit_ratio: float | None
    fits: bool
    teaches: bool | None
    why: str


def check(scenario: Scenario, card: Card) -> Check:
    """The check of `scenario` with the values that it takes on this card."""
    knobs = scenario.knobs_for("gpu", card.memory_bytes)
    make = WORKS.get(scenario.workload.name)
    work = make(knobs, card) if make else None
    rule = scenario.teaches.rule
    if work is None:
        why = f"{scenario.workload.name} has no model" if make is None else f"no peak of this card is known at {precision_of(knobs)}"
        return Check(scenario.name, rule, None, card.usable_bytes, None, "", None, True, None, why)

    def variant(changes: Knobs) -> Work | None:
        changed = {name: int(knobs[name]) * int(value) if name in FACTORS else value for name, value in changes.items()}
        return WORKS[scenario.workload.name]({**knobs, **changed}, card)

    room = min(card.usable_bytes, ALLOCATOR_SHARE * work.figures.get("limit_bytes", card.memory_bytes))
    needed_cards = max(int(knobs.get("nproc", 1)), int(knobs.get("tensor_parallel_size", 1)))
    found = _found(scenario, work, variant)
    if work.memory_bytes > room:
        found = Verdict(False, f"out of memory: {work.memory_bytes / 1e9:.1f} of {room / 1e9:.1f} GB")
    elif card.count and needed_cards > card.count:
        found = Verdict(False, f"needs {needed_cards} GPUs, and this machine has {card.count} of them")
    elif needed_cards > 1:
        found = Verdict(found.teaches, f"{found.why} (on {needed_cards} GPUs)")
    return Check(
        scenario=scenario.name,
        rule=rule,
        memory_bytes=work.memory_bytes,
        usable_bytes=room,
        step_s=work.step_s,
        limit=work.limit,
        limit_ratio=work.share(work.limit),
        fits=work.memory_bytes <= room and not (card.count and needed_cards > card.count),
        teaches=found.teaches,
        why=found.why,
    )


def _found(scenario: Scenario, work: Work, variant: Callable[[Knobs], Work | None]) -> Verdict:
    rule = scenario.teaches.rule or ("serving healthy" if scenario.workload.serves else "training healthy")
    if rule not in TESTS:
        return Verdict(None, f"no model predicts {rule}")
    try:
        return verdict(rule, work, variant)
    except KeyError as missing:
        return Verdict(None, f"the model of {scenario.workload.name} does not give {missing}")


def precision_of(knobs: Knobs) -> str:
    """The knob that names the precision, as words for a message."""
    name = "precision" if "precision" in knobs else "dtype"
    return f"{name} {knobs.get(name, CATALOGUE[name].default)}"
