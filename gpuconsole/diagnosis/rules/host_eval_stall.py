"""host.eval_stall: evaluation takes a large part of the run."""

from __future__ import annotations

from gpuconsole.diagnosis.families import host
from gpuconsole.diagnosis.rule import Case, Interval, Suggestion, Threshold, percent

SHARE = Threshold("share", 0.10, "ratio", "10 % of step time: evaluation is useful work, so it may cost more than logging")


class HostEvalStall(host.SideWorkRule):
    id = "host.eval_stall"
    title = "Training waits for evaluation"
    clear_title = "Evaluation takes little time"
    thresholds = (SHARE,)
    phase, every = "eval", "eval_every"
    knobs = ("eval_every", "eval_batch_size")
    reads = ("eval_ratio", "probe.step_no_side_work_s", "step_s", "logging_ratio", "checkpoint_ratio")
    text = """The share of step time in evaluation. Evaluation often runs too often, over too many samples, or with a batch far smaller than fits without a
backward pass. Predicted for evaluation N times less often: 1 / (1 - s (1 - 1/N)), with s its share. Probe P3 runs the same steps without
logging, checkpoints and evaluation, and so measures their total cost."""

    def summary(self, case: Case, share: float) -> str:
        return f"evaluation takes {percent(share)} of step time (once every {case.knobs['eval_every']} steps)"

    def suggestions(self, case: Case, every: int, predicted: Interval) -> list[Suggestion | None]:
        code = f"if step % {every} == 0:\n    evaluate(model)"
        rarer = case.suggest({"eval_every": every}, predicted, "the same evaluation, 20 times less often", code)
        size, small = int(case.knobs.get("batch_size", 0)), int(case.knobs.get("eval_batch_size", 0))
        why = f"evaluate {size} samples at once instead of {small}: without a backward pass they fit into memory"
        code = f"DataLoader(held_out, batch_size={size})"
        return [rarer, case.suggest({"eval_batch_size": 0}, None, why, code) if 0 < small < size else None]
