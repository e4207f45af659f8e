"""comm.accum_without_no_sync: gradients are accumulated, and yet travel after every pass."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _comm
from gpuconsole.diagnosis.suggest import speedup_interval, suggest
from gpuconsole.model.finding import Evidence, Finding

TOO_MANY = Threshold("exchanges", 1.5, "", "one exchange per optimizer step is enough (train-doctor looks for the same)")
GAIN = Threshold("recoverable", 0.05, "ratio", "less than 5 % of step time is not worth a word")


class CommAccumWithoutNoSync(Rule):
    id = "comm.accum_without_no_sync"
    title = "Gradients are exchanged in every accumulation pass"
    clear_title = "Gradients are exchanged once per optimizer step"
    thresholds = (TOO_MANY, GAIN)
    knobs = ("sync_each_batch",)
    text = """DistributedDataParallel exchanges gradients in every backward pass, unless the pass runs under no_sync(). Exchanges are counted
where they happen; more than one per optimizer step is waste: the sum is the same. What one exchange adds to a pass is measured by probe P7.
Predicted: 1 / (1 - (n - 1) E / T)."""

    def check(self, case: Case) -> Finding:
        passes = int(case.knobs.get("gradient_accumulation_steps", 1))
        if not _comm.several(case) or passes == 1:
            return self.clear(0.0, summary="one process, or one pass per optimizer step")
        exchanges = case.value("comm.exchanges_per_step")
        evidence: tuple[Evidence, ...] = (case.evidence("comm.exchanges_per_step", TOO_MANY.value),)
        if exchanges < TOO_MANY.value:
            return self.clear(exchanges / TOO_MANY.value * 0.99, evidence)
        saved = superfluous_ratio(case)
        evidence += (case.evidence("comm.exposed_s"), case.evidence("step_s"))
        if saved < GAIN.value:
            return self.clear(0.99, evidence, "but what travels too often is hidden behind computation")
        return self.fires(
            f"gradients travel {exchanges:.0f} times per optimizer step, once would do: {saved:.0%} of a step",
            recoverable=saved,
            confidence="high",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"sync_each_batch": False},
                    speedup_interval(1 / (1 - saved), 0.3),
                    "the same result with one exchange: gradients add up before they travel",
                    "with model.no_sync() if not last_pass else nullcontext():\n    loss.backward()",
                )
            ],
            level=exchanges / TOO_MANY.value,
        )


def superfluous_ratio(case: Case) -> float:
    """Share of a step in exchanges beyond the first, at what one adds to a pass (probe P7)."""
    return min(0.9, (case.value("comm.exchanges_per_step") - 1) * case.value("comm.exposed_s") / _comm.step_s(case))
