"""host.eval_stall: evaluation takes a large part of the run."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Rule, Threshold, suggest
from gpuconsole.diagnosis.rules import _side_work
from gpuconsole.model.finding import Finding
from gpuconsole.model.text import percent

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

    def check(self, case: Case) -> Finding:
        share = case.value("eval_ratio")
        limit = SHARE.value
        if share < limit:
            return self.clear(share / limit, (case.evidence("eval_ratio", limit),))
        case.value("probe.step_no_side_work_s")
        every = _side_work.rarer(case, "eval_every")
        size, small = int(case.knobs.get("batch_size", 0)), int(case.knobs.get("eval_batch_size", 0))
        return self.fires(
            f"evaluation takes {percent(share)} of step time (once every {case.knobs['eval_every']} steps)",
            recoverable=share * (1 - 1 / _side_work.TIMES_RARER),
            confidence="high",
            evidence=(case.evidence("eval_ratio", limit), case.evidence("probe.step_no_side_work_s"), case.evidence("step_s")),
            suggestions=[
                suggest(
                    case,
                    {"eval_every": every},
                    _side_work.predicted(case, share),
                    "the same evaluation, 20 times less often",
                    f"if step % {every} == 0:\n    evaluate(model)",
                ),
                suggest(
                    case,
                    {"eval_batch_size": 0},
                    None,
                    f"evaluate {size} samples at once instead of {small}: without a backward pass they fit into memory",
                    f"DataLoader(held_out, batch_size={size})",
                )
                if 0 < small < size
                else None,
            ],
            level=share / limit,
        )
