"""host.slowing_down: each step takes longer than the step before, over the whole run."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader, trend
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    Case,
    Finding,
    Rule,
    high_if,
    percent,
    placed,
    short_of,
)
from gpuconsole.model import units
from gpuconsole.model.run import PHASES

NAMED = 0.5
"""Share of the growth that a function must take, to be named."""
SLOPES = ("trend.per_100_steps_s", "trend.per_100_steps_low_s", "trend.per_100_steps_high_s")
OWN_CODE = (
    "Look for a list that keeps one entry for each step, and for a metric that is computed over all"
    " steps so far: keep sums, and compute it at the end of an epoch. Keep `loss.item()` in place"
    " of `loss`, which keeps its graph"
)
PASSES = (
    "Look for a graph that is kept from step to step: keep `loss.item()` in place of `loss`, carry"
    " a state with `state.detach()`, and leave out `retain_graph=True`. Look for a hook that is"
    " registered in each step, too"
)
SIDE_WORK = "Look for a history that is written as a whole each time: write what is new"
ADVICE = {
    "forward": PASSES,
    "generation": (
        "Look for an input that becomes longer, and for states that are not kept from token to"
        " token"
    ),
    "backward": PASSES,
    "optimizer": "Look for a hook or a group of parameters that is added in each step",
    "comm": "Look for a list that is gathered from all processes and becomes longer",
    "logging": SIDE_WORK,
    "checkpoint": SIDE_WORK,
    "eval": "Look for a metric that is computed over all evaluations so far",
}
PARTS = {
    "data_wait": "the wait for data",
    "h2d": "the copies to the GPU",
    "generation": "generation",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "comm": "communication",
    "logging": "logging",
    "checkpoint": "checkpoints",
    "eval": "evaluation",
    "other": "the time between the phases",
}


class HostSlowingDown(Rule):
    id = "host.slowing_down"
    title = "Steps become longer and longer"
    clear_title = "Step time does not grow"
    jobs_only = True
    thresholds = (
        trend.GROWN,
        trend.GROWN_EARLY,
        trend.SURE,
        trend.RISES,
        trend.JUMP,
        trend.FALL,
        trend.LATE,
        trend.WORK,
        trend.EVEN,
    )
    reads = (
        *SLOPES, "trend.growth_ratio", "trend.start_s", "trend.steps", "trend.rises_ratio",
        "trend.jump_ratio", "trend.fall_ratio", "trend.late_ratio", "trend.work_ratio",
        *(f"trend.{phase}_s" for phase in PHASES), "trend.place_ratio", "stack.script_ratio",
        "stack.function_ratio", "other_ratio", "data_wait_ratio", "logging_ratio",
        "checkpoint_ratio", "eval_ratio", "forward_ratio", "backward_ratio", "optimizer_ratio",
    )  # fmt: skip
    ignore = (
        "The work of a step is meant to grow, for example with an input that becomes larger, and"
        " samples and tokens do not show it."
    )
    text = """The step time of the whole run, also before it is steady, as medians of blocks of
steps; on a CPU without the time in which the thread waits for a core. The slope is Theil and Sen's,
the median of the slopes between all pairs of blocks, with the 95 % interval by Kendall's statistic
(Sen, 1968). The slope alone is no finding: each of six overlapping quarters of the run must keep on
rising, no quarter may have nearly all of the growth (a level shift, a clock that changes), the
second half must be nearly as steep as the first (a processor that becomes warm), and nothing may
fall back (a sawtooth, a neighbour). The forward pass, the backward pass and the optimizer must not
all grow alike (a processor that becomes slower). If samples or tokens in a step grow too, longer
batches explain it. The slope of each phase says which part of the step grows. Stack samples of the
first third of the time against those of the last third name the function. Usual causes: a list that
is kept, a metric over all steps so far, a graph that is kept (`loss` in place of `loss.item()`), a
hook that is registered in each step, a history that is written as a whole.
A run of 40 to 200 steps that lasts 20 seconds or more is judged in smaller blocks of steps. The
step time must then grow by half."""

    def judge(self, case: Case) -> Finding:
        growth = case.value("trend.growth_ratio")
        evidence = case.evidence(
            *SLOPES,
            ("trend.growth_ratio", trend.least_growth(case)),
            "trend.start_s",
            ("trend.rises_ratio", trend.RISES),
            ("trend.jump_ratio", trend.JUMP),
            ("trend.fall_ratio", trend.FALL),
            ("trend.late_ratio", trend.LATE),
            ("trend.work_ratio", trend.WORK),
        )
        if not trend.slows(case):
            return self.clear(short_of(growth / trend.least_growth(case)), evidence)
        phase = trend.phase(case)
        evidence += case.if_known(f"trend.{phase}_s", "trend.place_ratio")
        slope, low, high = (1e3 * case.value(name) for name in SLOPES)
        start_s, steps = case.value("trend.start_s"), case.value("trend.steps")
        where = f"most of the growth is in {PARTS[phase]}"
        place = case.place("trend.place_ratio")
        if place is not None and case.value("trend.place_ratio") >= NAMED:
            where = (
                f"{percent(case.value('trend.place_ratio'))} of the growth is in {placed(place)}"
            )
        summary = (
            f"each 100 steps make the step {units.digits(slope)} ms longer [{units.digits(low)},"
            f" {units.digits(high)}]: from {1e3 * start_s:.3g} ms to"
            f" {1e3 * start_s * (1 + growth):.3g} ms in {steps:.0f} steps."
            f" {where[0].upper()}{where[1:]}. {_advice(case, phase)}"
        )
        sure = high_if(growth >= 2 * trend.GROWN)
        if not trend.claims(case):
            return self.note(growth / trend.GROWN, evidence, summary, confidence=sure)
        recoverable = min(MAX_SHARE, trend.grown_ratio(case))
        return self.fires(
            growth / trend.GROWN, evidence, summary, recoverable=recoverable, confidence=sure
        )


def _advice(case: Case, phase: str) -> str:
    if phase == "data_wait" and loader.has_loader(case):
        return "Look for a list or a cache of the dataset that grows with each sample"
    return ADVICE.get(phase, OWN_CODE)
