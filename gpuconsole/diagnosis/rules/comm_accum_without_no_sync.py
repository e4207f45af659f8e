"""comm.accum_without_no_sync: gradients are exchanged in every accumulation pass, although one
exchange per step is enough."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent, speedup_interval

TOO_MANY = Threshold(
    "exchanges",
    1.5,
    "",
    "one exchange per optimizer step is enough (train-doctor has the same rule)",
)
CODE = """# the forward pass, too: it decides whether the backward pass exchanges
with model.no_sync() if not last_pass else nullcontext():
    loss = loss_function(model(inputs), targets)
    loss.backward()"""
GAIN = Threshold(
    "recoverable", 0.05, "ratio", "below 5 % of step time the gain is not worth a finding"
)


class CommAccumWithoutNoSync(Rule):
    id = "comm.accum_without_no_sync"
    title = "Gradients are exchanged in every accumulation pass"
    clear_title = "Gradients are exchanged once per optimizer step"
    thresholds = (TOO_MANY, GAIN)
    knobs = ("sync_each_batch",)
    reads = ("step_s", "comm.exchanges_per_step", "comm.exposed_s")
    text = """DistributedDataParallel exchanges gradients in every backward pass, except in passes
under no_sync(). gpuconsole counts the exchanges where they happen. One exchange per optimizer step
gives the same sum of gradients, so further exchanges are waste. Probe P7 measures what one exchange
adds to a pass. In a user's job DistributedDataParallel counts and times its exchanges itself.
Predicted speed-up for n exchanges per step: 1 / (1 - (n - 1) E / T), with E the exposed time of one
exchange and T the time of a step."""

    def judge(self, case: Case) -> Finding:
        passes = int(case.knobs.get("gradient_accumulation_steps", 1))
        if not comm.several(case) or passes == 1:
            return self.clear(summary="one process only, or one pass per optimizer step")
        exchanges = case.value("comm.exchanges_per_step")
        evidence = case.evidence(("comm.exchanges_per_step", TOO_MANY))
        if exchanges < TOO_MANY:
            return self.clear(exchanges / TOO_MANY * 0.99, evidence)
        # each exchange takes the time that probe P7 measured for a pass
        saved = min(0.9, (exchanges - 1) * case.value("comm.exposed_s") / case.value("step_s"))
        evidence += case.evidence("comm.exposed_s", "step_s")
        if saved < GAIN:
            return self.clear(0.99, evidence, "computation hides the extra exchanges")
        summary = (
            f"gradients are exchanged {exchanges:.0f} times per optimizer step; one exchange would"
            f" be enough. The others take {percent(saved)} of a step"
        )
        why = "the same result with one exchange: gradients are added up before the exchange"
        change = case.suggest(
            {"sync_each_batch": False}, speedup_interval(1 / (1 - saved), 0.3), why, CODE
        )
        return self.fires(
            exchanges / TOO_MANY,
            evidence,
            summary,
            recoverable=saved,
            confidence="high",
            suggestions=[change],
        )
