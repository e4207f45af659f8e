"""host.checkpoint_stall: training pauses while a checkpoint is written."""

from __future__ import annotations

from gpuconsole.diagnosis.families import host
from gpuconsole.diagnosis.rule import Case, Interval, Suggestion, percent


class HostCheckpointStall(host.SideWorkRule):
    id = "host.checkpoint_stall"
    title = "Training waits for checkpoints"
    clear_title = "Checkpoints take little time"
    thresholds = (host.SIDE_WORK,)
    phase, every = "checkpoint", "save_every"
    knobs = ("save_every",)
    reads = (
        "checkpoint_ratio",
        "probe.step_no_side_work_s",
        "stack.thread_ratio",
        "stack.line_ratio",
        "step_with_side_work_s",
        "step_s",
        "stack.checkpoint_ratio",
        "logging_ratio",
        "eval_ratio",
    )
    text = """Training waits for torch.save and the disk. The share is that of all steady steps,
because checkpoints are rare. With a longer interval it waits less often. Young and Daly give sqrt(2
C MTBF) as the interval with the smallest loss, with C the time of one checkpoint.
torch.distributed.checkpoint.async_save copies the state and writes the copy while training
continues."""

    def summary(self, case: Case, share: float, every: int | None) -> str:
        return (
            f"writing checkpoints takes {percent(share)} of training time (save_every is"
            f" {host.every_steps(every)})"
        )

    def rarer(self, case: Case, every: int, predicted: Interval) -> Suggestion | None:
        why = "checkpoints 20 times less often; after a failure, 20 times more steps are repeated"
        code = (
            f"if step % {every} == 0:\n    torch.distributed.checkpoint.async_save(state,"
            " checkpoint_id=path)   # and off the training thread"
        )
        return case.suggest({"save_every": every}, predicted, why, code)
