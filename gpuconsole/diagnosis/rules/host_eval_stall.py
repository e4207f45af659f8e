"""host.eval_stall: evaluation takes a large part of the run."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent
from gpuconsole.diagnosis.rules import _side_work

SHARE = Threshold("share", 0.10, "ratio", "10 % of step time: evaluation is useful work, so it may cost more than logging")


class HostEvalStall(Rule):
    id = "host.eval_stall"
    title = "Training waits for evaluation"
    clear_title = "Evaluation takes little time"
    thresholds = (SHARE,)
    knobs = ("eval_every", "eval_batch_size")
    reads = ("eval_ratio", "probe.step_no_side_work_s", "step_s", "logging_ratio", "checkpoint_ratio")
    text = """The share of step time in evaluation. Evaluation often runs too often, over too many samples, or with a batch far smaller than fits without a
backward pass. Predicted for evaluation N times less often: 1 / (1 - s (1 - 1/N)), with s its share. Probe P3 runs the same steps without
logging, checkpoints and evaluation, and so measures their total cost."""

    def judge(self, case: Case) -> Finding:
        share = case.value("eval_ratio")
        limit = SHARE
        if share < limit:
            return self.clear(share / limit, case.evidence(("eval_ratio", limit)))
        case.value("probe.step_no_side_work_s")
        every = _side_work.rarer(case, "eval_every")
        size, small = int(case.knobs.get("batch_size", 0)), int(case.knobs.get("eval_batch_size", 0))
        summary = f"evaluation takes {percent(share)} of step time (once every {case.knobs['eval_every']} steps)"
        evidence = case.evidence(("eval_ratio", limit), "probe.step_no_side_work_s", "step_s")
        why0 = "the same evaluation, 20 times less often"
        code0 = f"if step % {every} == 0:\n    evaluate(model)"
        change0 = case.suggest({"eval_every": every}, _side_work.predicted(case, share), why0, code0)
        why1 = f"evaluate {size} samples at once instead of {small}: without a backward pass they fit into memory"
        code1 = f"DataLoader(held_out, batch_size={size})"
        change1 = case.suggest({"eval_batch_size": 0}, None, why1, code1) if 0 < small < size else None
        return self.fires(
            share / limit,
            evidence,
            summary,
            recoverable=share * (1 - 1 / _side_work.TIMES_RARER),
            confidence="high",
            suggestions=[change0, change1],
        )
