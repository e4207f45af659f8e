"""comm.outside_backward: the program itself calls collectives in each step, and they exchange no
gradients."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm, host
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent

STEPS = Threshold(
    "steps", 0.5, "ratio", "what fewer than half of the steps do is no work of each step"
)


class CommOutsideBackward(Rule):
    id = "comm.outside_backward"
    title = "The step waits for collectives outside of the backward pass"
    jobs_only = True
    clear_title = "Collectives outside of the backward pass take little time"
    thresholds = (comm.EXPOSED, STEPS)
    reads = (
        "step_s",
        "comm.outside_ratio",
        "comm.outside_steps_ratio",
        "comm.outside_calls_per_step",
        "stack.comm_ratio",
        "ranks.least_comm_ratio",
    )
    text = """The program calls all_reduce, all_gather, broadcast or barrier itself: before the
backward pass, or after the optimizer. They exchange no gradients. Typical: metrics that are reduced
over all processes in each step. The time is that of the process that spends the least time in them:
it has arrived last, and has waited for no other process. Collectives within a pass do not count,
nor those between the backward pass and the optimizer, where a program without
DistributedDataParallel exchanges its gradients. no_sync() and gradient accumulation change nothing
here.
What helps: keep the metrics of each process in a tensor on its device, and reduce them once in many
steps; one collective for all values (torch.stack) in place of one for each; no barrier. Lightning:
log(..., sync_dist=True) reduces each value; log with on_step=False reduces it once in an epoch.
Recoverable: all but one twentieth of the time, as with one reduction in 20 steps."""
    ignore = "The values are part of the loss: the training needs them in each step."

    def judge(self, case: Case) -> Finding:
        if not comm.several(case):
            return self.clear(summary="one process only, or processes that exchange nothing")
        ratio, limit = case.value("comm.outside_ratio"), comm.EXPOSED
        calls = case.get("comm.outside_calls_per_step", 1.0)
        evidence = case.evidence(("comm.outside_ratio", limit), ("comm.outside_steps_ratio", STEPS))
        evidence += case.if_known(
            "comm.outside_calls_per_step", "stack.comm_ratio", "ranks.least_comm_ratio"
        )
        if ratio < limit:
            return self.clear(ratio / limit, evidence)
        if case.value("comm.outside_steps_ratio") < STEPS:
            return self.clear(0.0, evidence, "few steps have such collectives")
        at_line = host.most_at(case, "stack.comm_ratio")
        calls_in_words = f"{calls:.0f} collectives" if calls >= 1.5 else "a collective"
        summary = (
            f"{percent(ratio)} of each step is in {calls_in_words} outside of the backward pass"
            f"{at_line}. They exchange no gradients."
            " If they reduce metrics: keep the values on the device,"
            " and reduce them in one call, once in many steps"
        )
        recoverable = ratio * (1 - 1 / host.TIMES_RARER)
        return self.fires(
            ratio / limit,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(ratio >= 2 * limit),
        )
