"""host.eval_stall: evaluation takes a large part of the run."""

from __future__ import annotations

from gpuconsole.diagnosis.families import host
from gpuconsole.diagnosis.rule import Case, Interval, Suggestion, Threshold, percent

RECORDED = Threshold(
    "with_gradients",
    0.2,
    "ratio",
    "the evaluation of a second model, such as a teacher, may need its gradients",
)


class HostEvalStall(host.SideWorkRule):
    id = "host.eval_stall"
    title = "Training waits for evaluation"
    clear_title = "Evaluation takes little time"
    thresholds = (host.EVALUATION, RECORDED)
    phase, every = "eval", "eval_every"
    knobs = ("eval_every", "eval_batch_size")
    reads = (
        "eval_ratio",
        "probe.step_no_side_work_s",
        "stack.thread_ratio",
        "stack.line_ratio",
        "step_with_side_work_s",
        "step_s",
        "stack.eval_ratio",
        "logging_ratio",
        "checkpoint_ratio",
        "eval.with_gradients_ratio",
    )
    text = """The share of evaluation in the time of all steady steps. Evaluation often runs too
often, over too many samples, or with a batch far smaller than fits without a backward pass. The
predicted speedup for an evaluation that runs N times less often is 1 / (1 - s (1 - 1/N)), where s
is the share of evaluation. Probe P3 runs the same steps without logging, checkpoints and
evaluation, and so measures their total cost. `model.eval()` does not turn off gradients: passes
still record them. `torch.no_grad()` or `torch.inference_mode()` around the evaluation saves this
time, and the memory of the activations."""

    def summary(self, case: Case, share: float, every: int | None) -> str:
        recorded = case.get("eval.with_gradients_ratio", 0.0)
        often = (
            f"evaluation takes {percent(share)} of step time (once every {host.every_steps(every)}"
            " steps)"
        )
        return (
            (
                f"{often}; {percent(recorded)} of the evaluation records gradients that nobody"
                " uses: torch.no_grad() is missing"
            )
            if recorded >= RECORDED
            else often
        )

    def rarer(self, case: Case, every: int, predicted: Interval) -> Suggestion | None:
        inner = (
            "with torch.no_grad():\n        evaluate(model)"
            if case.get("eval.with_gradients_ratio", 0.0) >= RECORDED
            else "evaluate(model)"
        )
        code = f"if step % {every} == 0:\n    {inner}"
        return case.suggest(
            {"eval_every": every}, predicted, "the same evaluation, 20 times less often", code
        )

    def otherwise(self, case: Case) -> Suggestion | None:
        size, small = (
            int(case.knobs.get("batch_size", 0)),
            int(case.knobs.get("eval_batch_size", 0)),
        )
        why = (
            f"evaluate {size} samples at once instead of {small}: without a backward pass they fit"
            " into memory"
        )
        code = f"DataLoader(held_out, batch_size={size})"
        return case.suggest({"eval_batch_size": 0}, None, why, code) if 0 < small < size else None
