"""host.logging_io: log records take a large part of every step."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, percent
from gpuconsole.diagnosis.rules import _side_work


class HostLoggingIo(Rule):
    id = "host.logging_io"
    title = "Training waits for logging"
    clear_title = "Logging takes little time"
    thresholds = (_side_work.SHARE,)
    knobs = ("log_every",)
    reads = ("logging_ratio", "probe.step_no_side_work_s", "step_s", "checkpoint_ratio", "eval_ratio")
    text = """Time between the optimizer and the next step for log records: reading values from the device, formatting, writing, flushing. The time is
measured around the logging itself, so checkpoints and the loader are not included. Probe P3 runs the same steps without logging, checkpoints
and evaluation, and so measures their total cost. Predicted for records N times less often: 1 / (1 - s (1 - 1/N)), with s the share
of logging."""

    def judge(self, case: Case) -> Finding:
        share = case.value("logging_ratio")
        limit = _side_work.SHARE
        if share < limit:
            return self.clear(share / limit, case.evidence(("logging_ratio", limit)))
        case.value("probe.step_no_side_work_s")
        every = _side_work.rarer(case, "log_every")
        summary = f"log records take {percent(share)} of step time (log_every is {case.knobs['log_every']})"
        evidence = case.evidence(("logging_ratio", limit), "probe.step_no_side_work_s", "step_s")
        code = f"if step % {every} == 0:\n    logger.log(metrics)   # or hand records to a writer thread"
        change = case.suggest({"log_every": every}, _side_work.predicted(case, share), "the same records, 20 times less often", code)
        return self.fires(
            share / limit, evidence, summary, recoverable=share * (1 - 1 / _side_work.TIMES_RARER), confidence="high", suggestions=[change]
        )
