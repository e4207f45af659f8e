"""host.logging_io: writing log records takes a good part of every step."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule
from gpuconsole.diagnosis.rules import _side_work
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding


class HostLoggingIo(Rule):
    id = "host.logging_io"
    title = "Training waits for logging"
    clear_title = "Logging takes little time"
    thresholds = (_side_work.SHARE,)
    knobs = ("log_every",)
    text = """Time between the optimizer and the next step that goes into log records: reading values off the device,
formatting, writing, flushing. It is timed around the logging itself, so a checkpoint or the loader cannot be taken for it;
probe P3 runs the same steps with logging, checkpoints and evaluation off and so measures what leaving them out is worth.
Predicted: 1 / (1 - s (1 - 1/N)) for records N times rarer."""

    def check(self, case: Case) -> Finding:
        share = case.value("logging_ratio")
        limit = _side_work.SHARE.value
        if share < limit:
            return self.clear(share / limit, (case.evidence("logging_ratio", limit),))
        case.value("probe.step_no_side_work_s")
        every = _side_work.rarer(case, "log_every")
        return self.fires(
            f"log records take {share:.0%} of step time (one every {case.knobs['log_every']} steps)",
            recoverable=share * (1 - 1 / _side_work.TIMES_RARER),
            confidence="high",
            evidence=(case.evidence("logging_ratio", limit), case.evidence("probe.step_no_side_work_s"), case.evidence("step_s")),
            suggestions=[
                suggest(
                    case,
                    {"log_every": every},
                    _side_work.predicted(case, share),
                    "the same records, 20 times more rarely",
                    f"if step % {every} == 0:\n    logger.log(metrics)   # or hand records to a writer thread",
                )
            ],
            level=share / limit,
        )
