"""host.recompile_graphbreak: torch.compile compiles again and again, or has given up."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Interval, Knobs, Rule, Threshold, percent

EVERY = Threshold(
    "recompiles_per_step",
    0.05,
    "1/step",
    "one step in 20: rarer compilations pay off within some minutes",
)
COUNT = Threshold(
    "recompiles",
    2,
    "",
    "one is normal: with dynamic=None, torch finds the sizes that change at the second shape",
)
MOSTLY = Threshold(
    "mostly",
    0.5,
    "ratio",
    "beyond half of the time so far, the speed without compilation is hardly known",
)
LENGTHS = 64
"""A multiple that reduces the lengths to a few. Each length is compiled once."""


class HostRecompileGraphbreak(Rule):
    id = "host.recompile_graphbreak"
    title = "torch.compile compiles the model repeatedly"
    clear_title = "No repeated compilation"
    thresholds = (COUNT, EVERY, MOSTLY)
    knobs = ("compile_dynamic", "pad_to_multiple_of")
    reads = (
        "seconds_not_steady", "compile.recompiles", "compile.given_up", "compile.graph_breaks",
        "compile.time_ratio", "compile.steps",
    )  # fmt: skip
    text = """torch.compile compiles a graph for certain sizes, types and flags, and guards check
them. If a guard fails, it compiles again, which takes seconds. After 8 times for one function
(torch._dynamo.config.recompile_limit) it gives up and runs that function uncompiled. Such a run
does not become steady, so this rule reads torch's own counters from the second message on.
Compilation for the first step does not count. If more than half of the time went into compilation,
the rule predicts no gain. Graph breaks alone are a note without a share: their cost depends on what
lies between them."""

    def judge(self, case: Case) -> Finding:
        begun = case.evidence("seconds_not_steady")  # this signal exists from the first step on
        if case.knobs.get("torch_compile", "off") == "off":
            return self.clear(0.0, begun, "the model is not compiled")
        recompiles, given_up, breaks = (
            case.value(f"compile.{name}") for name in ("recompiles", "given_up", "graph_breaks")
        )
        evidence = case.evidence(
            ("compile.recompiles", COUNT),
            "compile.time_ratio",
            ("compile.given_up", 1),
            "compile.graph_breaks",
        )
        often = min(recompiles / COUNT, recompiles / case.value("compile.steps") / EVERY)
        if breaks and not given_up and often < 1:
            summary = (
                f"the graph breaks at {breaks:.0f} places, so the model is compiled in pieces"
                " (TORCH_LOGS=graph_breaks names the places)"
            )
            return self.note(max(often, 0.6), evidence, summary, confidence="low")
        if not given_up and often < 1:
            return self.clear(often, evidence)
        ratio = case.value("compile.time_ratio")
        if given_up:
            summary = (
                "torch has reached its recompile limit and runs the model uncompiled from now on"
            )
        else:
            summary = (
                f"{recompiles:.0f} recompiles in {case.value('compile.steps'):.0f} steps took"
                f" {percent(ratio)} of the time"
            )
        gain = None if given_up or ratio > MOSTLY else Interval(1.0, 1 / (1 - ratio))
        why_dynamic = "one graph for all sizes is compiled once"
        dynamic = case.suggest(
            {"compile_dynamic": "true"},
            gain,
            why_dynamic,
            "model = torch.compile(model, dynamic=True)",
        )
        # padding needs a restart, because torch does not try again after it has given up
        padding: Knobs = {"pad_to_multiple_of": LENGTHS, "compile_dynamic": "auto"}
        why = "a handful of lengths instead of hundreds, at the cost of some arithmetic on padding"
        code = f"DataCollatorWithPadding(tokenizer, pad_to_multiple_of={LENGTHS})"
        padded = (
            case.suggest(padding, gain, why, code)
            if case.knobs.get("pad_to_multiple_of") == 0
            else None
        )
        if case.is_job and dynamic is None and padded is None:
            # no knob shows the program's own call of torch.compile, but the advice must be given
            summary += (
                f". {why_dynamic[0].upper()}{why_dynamic[1:]}: torch.compile(model, dynamic=True)."
                f" Or pad each batch to a multiple of {LENGTHS} tokens: {why}"
            )
        return self.fires(
            1.0,
            evidence,
            summary,
            recoverable=ratio,
            confidence="high",
            suggestions=[dynamic, padded],
        )
