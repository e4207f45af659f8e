"""host.logging_io: log records take a large part of every step."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device, host
from gpuconsole.diagnosis.rule import Case, Interval, Suggestion, percent


class HostLoggingIo(host.SideWorkRule):
    id = "host.logging_io"
    title = "Training waits for logging"
    clear_title = "Logging takes little time"
    thresholds = (host.SIDE_WORK,)
    phase, every, beside = "logging", "log_every", True
    knobs = ("log_every",)
    reads = (
        "logging_ratio",
        "probe.step_no_side_work_s",
        "stack.thread_ratio",
        "stack.line_ratio",
        "step_with_side_work_s",
        "step_s",
        "stack.logging_ratio",
        "checkpoint_ratio",
        "eval_ratio",
        *device.IDLE_SIGNALS,
    )
    text = """Time between the optimizer and the next step for log records: reading values from the
device, formatting, writing, flushing. The time is measured around the logging itself, so
checkpoints and the loader are not included. Probe P3 runs the same steps without logging,
checkpoints and evaluation, and so measures their total cost. Predicted for records N times less
often: 1 / (1 - s (1 - 1/N)), with s the share of logging."""

    def summary(self, case: Case, share: float, every: int | None) -> str:
        return f"log records take {percent(share)} of step time ({_how_often(case, every)})"

    def rarer(self, case: Case, every: int, predicted: Interval) -> Suggestion | None:
        code = (
            f"if step % {every} == 0:\n    logger.log(metrics)   # or hand records to a writer"
            " thread"
        )
        return case.suggest(
            {"log_every": every}, predicted, "the same records, 20 times less often", code
        )


def _how_often(case: Case, every: int | None) -> str:
    """The knob of a built-in run; in a job, what the steps show: the program has no setting of that
    name."""
    if not case.is_job:
        return f"log_every is {host.every_steps(every)}"
    return (
        "in each step"
        if every is not None and every <= 1
        else f"in one of {host.every_steps(every)} steps"
    )
