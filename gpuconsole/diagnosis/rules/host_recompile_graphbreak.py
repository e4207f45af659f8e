"""host.recompile_graphbreak: torch.compile compiles again and again, or has given up."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Evidence, Finding, Interval, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs

EVERY = Threshold("recompiles_per_step", 0.05, "1/step", "one step in 20: rarer ones are paid back within some minutes")
COUNT = Threshold("recompiles", 2, "", "one is normal: with dynamic=None torch learns from the second shape which sizes change")
MOSTLY = Threshold("mostly", 0.5, "ratio", "half of the time so far: how the job runs once it no longer compiles has hardly been seen")
LENGTHS = 64
"""A multiple that leaves a handful of lengths: each is compiled once."""
SIGNALS = ("seconds_not_steady", "compile.recompiles", "compile.steps", "compile.time_ratio", "compile.given_up", "compile.graph_breaks")


class HostRecompileGraphbreak(Rule):
    id = "host.recompile_graphbreak"
    title = "torch.compile compiles the model repeatedly"
    clear_title = "No repeated compilation"
    thresholds = (COUNT, EVERY, MOSTLY)
    knobs = ("compile_dynamic", "pad_to_multiple_of")
    text = """torch.compile guards a graph by what it was compiled for: sizes, types, flags. When a guard fails it compiles anew, which takes
seconds; after 8 times for one function (torch._dynamo.config.recompile_limit) it gives up and runs that function as plain Python for good.
Such a run is never steady before that, so this rule looks at torch's own counters from the second message on and does not wait. What was
compiled for the first step does not count. Where more than half of the time so far went into compiling, no gain is promised. Graph breaks
alone are told without a share: what they cost depends on what lies between them."""

    def check(self, case: Case) -> Finding:
        begun = case.evidence("seconds_not_steady")  # there as soon as there is a step
        if case.knobs.get("torch_compile", "off") == "off":
            return self.clear(0.0, (begun,), "the model is not compiled")
        recompiles, given_up, breaks = (case.value(f"compile.{name}") for name in ("recompiles", "given_up", "graph_breaks"))
        evidence = (
            case.evidence("compile.recompiles", COUNT.value),
            case.evidence("compile.time_ratio"),
            case.evidence("compile.given_up", 1),
            case.evidence("compile.graph_breaks"),
        )
        often = min(recompiles / COUNT.value, recompiles / case.value("compile.steps") / EVERY.value)
        if given_up:
            return self._compiles(
                case, evidence, "torch has reached its recompile limit and runs the model uncompiled from here on", given_up=True
            )
        if often >= 1:
            words = f"{recompiles:.0f} recompiles in {case.value('compile.steps'):.0f} steps took {case.value('compile.time_ratio'):.0%} of the time"
            return self._compiles(case, evidence, words, given_up=False)
        if breaks:
            words = f"the graph breaks at {breaks:.0f} places: what lies between them is compiled piece by piece (TORCH_LOGS=graph_breaks names them)"
            return self.fires(words, recoverable=0.0, confidence="low", evidence=evidence, level=max(often, 0.6), note=True)
        return self.clear(often, evidence)

    def _compiles(self, case: Case, evidence: tuple[Evidence, ...], words: str, given_up: bool) -> Finding:
        ratio = case.value("compile.time_ratio")
        gain = None if given_up or ratio > MOSTLY.value else Interval(1.0, 1 / (1 - ratio))
        return self.fires(
            words,
            recoverable=ratio,
            confidence="high",
            evidence=evidence,
            suggestions=[_dynamic(case, gain), _padded(case, gain)],
        )


def _dynamic(case: Case, gain: Interval | None) -> Suggestion | None:
    why = "one graph for all sizes, compiled once"
    return suggest(case, {"compile_dynamic": "true"}, gain, why, "model = torch.compile(model, dynamic=True)")


def _padded(case: Case, gain: Interval | None) -> Suggestion | None:
    """With a restart, since a torch that has given up does not try again."""
    if case.knobs.get("pad_to_multiple_of") != 0:
        return None
    why = "a handful of lengths instead of hundreds, for some arithmetic on padding"
    changes: Knobs = {"pad_to_multiple_of": LENGTHS, "compile_dynamic": "auto"}
    return suggest(case, changes, gain, why, f"DataCollatorWithPadding(tokenizer, pad_to_multiple_of={LENGTHS})")
