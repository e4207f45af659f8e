"""Shared by the rule about steps that become longer and longer, and by the rules that judge the
same time: which of them claims it."""

from __future__ import annotations

from collections.abc import Callable

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.rule import Case, Threshold
from gpuconsole.model.run import PHASES

GROWN = Threshold(
    "grown",
    0.20,
    "ratio",
    (
        "another program, or a clock that falls with the temperature, changes the step time by up"
        " to a fifth"
    ),
)
GROWN_EARLY = Threshold(
    "grown_early",
    0.5,
    "ratio",
    "in under 200 steps, a part of a longer cycle looks like growth, and noise averages out less",
)
EARLY_SPAN = 180
"""A trend over fewer steps is the trend of a short run: 200 steps minus the warm-up."""
RISES = Threshold(
    "rises",
    1.0,
    "ratio",
    (
        "each of six overlapping quarters: a level shift is in two of them, two level shifts are in"
        " four"
    ),
)
JUMP = Threshold(
    "jump",
    0.65,
    "ratio",
    (
        "a level shift is in one quarter; growth with the square of the steps has half of its"
        " growth in the last quarter"
    ),
)
FALL = Threshold(
    "fall", 0.20, "ratio", "what falls back is a sawtooth or a neighbour that comes and goes"
)
LATE = Threshold(
    "late",
    0.7,
    "ratio",
    (
        "a clock that falls as a processor becomes warm falls more and more slowly; a list grows at"
        " a constant rate"
    ),
)
WORK = Threshold(
    "work",
    0.33,
    "ratio",
    (
        "attention takes time with the square of the tokens: the log growth of the tokens is half"
        " of that of the time; a third leaves room for noise"
    ),
)
EVEN = Threshold(
    "even",
    0.5,
    "ratio",
    (
        "where the forward pass, the backward pass and the optimizer all grow like the step, the"
        " processor has become slower"
    ),
)
SURE = Threshold(
    "interval", 0.5, "ratio", "the lower end of the 95 % interval must be half of the slope"
)
MIN_PART = 0.03
"""Share of a step of a part whose growth can be told."""
MIN_GROWN_SHARE = 0.5
"""Share of the time that another rule judges. If growth is less of it, the other finding claims the
time, and the growth is a note."""


def slows(case: Case) -> bool:
    """Whether the step time grows over the run. Raises Missing."""
    return (
        case.value("trend.growth_ratio") >= least_growth(case)
        and case.value("trend.per_100_steps_low_s") >= SURE * case.value("trend.per_100_steps_s")
        and case.value("trend.rises_ratio") >= RISES
        and case.value("trend.jump_ratio") <= JUMP
        and case.value("trend.fall_ratio") <= FALL
        and case.value("trend.late_ratio") >= LATE
        and case.value("trend.work_ratio") <= WORK
        and evenness(case) < EVEN
    )


def least_growth(case: Case) -> Threshold:
    """Return the growth from which a trend counts. Raises Missing."""
    return GROWN if case.value("trend.steps") >= EARLY_SPAN else GROWN_EARLY


def evenness(case: Case) -> float:
    """The least growth of the forward pass, the backward pass and the optimizer, over the growth of
    the step; 0 where one of them is not known or short. No code of a program makes all three
    longer, if the work of a step stays the same."""
    parts = ("forward", "backward", "optimizer")
    growth, start_s = case.value("trend.growth_ratio"), case.value("trend.start_s")
    if growth <= 0 or not all(
        case.has(f"trend.{part}_s", f"{part}_ratio") and case.value(f"{part}_ratio") >= MIN_PART
        for part in parts
    ):
        return 0.0
    mean_s = start_s * (1 + growth / 2)
    grown = (
        case.value(f"trend.{part}_s")
        * case.value("trend.steps")
        / 100
        / (case.value(f"{part}_ratio") * mean_s)
        for part in parts
    )
    return min(grown) / growth


def grown_ratio(case: Case) -> float:
    """The share of a step at the end of the run that it did not have at the start."""
    growth = case.value("trend.growth_ratio")
    return growth / (1 + growth)


def phase(case: Case) -> str:
    """The phase that grows most."""
    slopes = {name: case.get(f"trend.{name}_s", 0.0) for name in PHASES}
    return max(slopes, key=lambda name: slopes[name])


def claims(case: Case) -> bool:
    """Whether the growth is most of the time that other rules judge in this phase. The rules about
    input and about communication have cures of their own. Raises Missing."""
    grows = phase(case)
    if grows == "comm" or (grows == "data_wait" and loader.has_loader(case)):
        return False
    if grows in ("other", "data_wait"):
        judged = case.get(
            "stack.script_ratio", case.get("other_ratio", 0.0) + case.get("data_wait_ratio", 0.0)
        )
    elif grows in ("logging", "checkpoint", "eval"):
        judged = case.get(f"{grows}_ratio", 0.0)
    else:
        judged = case.get("stack.function_ratio", 0.0)
    return grown_ratio(case) >= MIN_GROWN_SHARE * judged


def claims_in(*phases: str) -> Callable[[Case], bool]:
    """Whether the growth claims the time of one of these phases, as a condition of a precedence."""
    return lambda case: slows(case) and phase(case) in phases and claims(case)
