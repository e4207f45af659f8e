"""host.logging_io: log records take a large part of every step."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Rule, suggest
from gpuconsole.diagnosis.rules import _side_work
from gpuconsole.model.finding import Finding
from gpuconsole.model.text import percent


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

    def check(self, case: Case) -> Finding:
        share = case.value("logging_ratio")
        limit = _side_work.SHARE.value
        if share < limit:
            return self.clear(share / limit, (case.evidence("logging_ratio", limit),))
        case.value("probe.step_no_side_work_s")
        every = _side_work.rarer(case, "log_every")
        return self.fires(
            f"log records take {percent(share)} of step time (log_every is {case.knobs['log_every']})",
            recoverable=share * (1 - 1 / _side_work.TIMES_RARER),
            confidence="high",
            evidence=(case.evidence("logging_ratio", limit), case.evidence("probe.step_no_side_work_s"), case.evidence("step_s")),
            suggestions=[
                suggest(
                    case,
                    {"log_every": every},
                    _side_work.predicted(case, share),
                    "the same records, 20 times less often",
                    f"if step % {every} == 0:\n    logger.log(metrics)   # or hand records to a writer thread",
                )
            ],
            level=share / limit,
        )
