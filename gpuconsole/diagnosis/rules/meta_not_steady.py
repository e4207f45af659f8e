"""meta.not_steady: step time still has a trend, so no measurement is final."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold

PATIENCE = Threshold(
    "patience", 15.0, "s", "warm-up, compilation and autotuning take less in the built-in scenarios"
)


class MetaNotSteady(Rule):
    id = "meta.not_steady"
    title = "Step time is not steady yet"
    clear_title = "Step time settles normally"
    thresholds = (PATIENCE,)
    reads = ("seconds_not_steady",)
    ignore = (
        "You need no figures of this run: the finding is about the measurement, and says nothing"
        " against the job."
    )
    text = """A run is steady once the medians of two successive halves of the last steps (at least
8 steps and 2 s) differ by less than 2 %, or by no more than 2.5 standard errors. Until then no
other rule judges the run. If it takes longer than 15 s, something keeps changing."""

    def judge(self, case: Case) -> Finding:
        seconds = case.value("seconds_not_steady")
        evidence = case.evidence(("seconds_not_steady", PATIENCE))
        if seconds < PATIENCE:
            return self.clear(0.0, evidence)
        summary = (
            f"after {seconds:.0f} s the step time still drifts by more than its noise. Wait for the"
            " end of warm-up; if the drift goes on, stop other programs, or look for recompilation"
            " (varying shapes)"
        )
        return self.note(seconds / PATIENCE, evidence, summary, confidence="medium")
