"""host.checkpoint_stall: training pauses while a checkpoint is written."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, percent
from gpuconsole.diagnosis.rules import _side_work


class HostCheckpointStall(Rule):
    id = "host.checkpoint_stall"
    title = "Training waits for checkpoints"
    clear_title = "Checkpoints take little time"
    thresholds = (_side_work.SHARE,)
    knobs = ("save_every",)
    reads = ("checkpoint_ratio", "probe.step_no_side_work_s", "step_s", "logging_ratio", "eval_ratio")
    text = """Training waits for torch.save and the disk. With a longer interval it waits less often. Young and Daly give sqrt(2 C MTBF) as the
interval with the smallest loss, with C the time of one checkpoint. torch.distributed.checkpoint.async_save copies the state and writes the
copy while training continues."""

    def judge(self, case: Case) -> Finding:
        share = case.value("checkpoint_ratio")
        limit = _side_work.SHARE
        if share < limit:
            return self.clear(share / limit, case.evidence(("checkpoint_ratio", limit)))
        case.value("probe.step_no_side_work_s")
        every = _side_work.rarer(case, "save_every")
        summary = f"writing checkpoints takes {percent(share)} of training time (save_every is {case.knobs['save_every']})"
        evidence = case.evidence(("checkpoint_ratio", limit), "probe.step_no_side_work_s", "step_s")
        why = "checkpoints 20 times less often; after a failure, 20 times more steps are repeated"
        code = f"if step % {every} == 0:\n    torch.distributed.checkpoint.async_save(state, checkpoint_id=path)   # and off the training thread"
        change = case.suggest({"save_every": every}, _side_work.predicted(case, share), why, code)
        return self.fires(
            share / limit, evidence, summary, recoverable=share * (1 - 1 / _side_work.TIMES_RARER), confidence="high", suggestions=[change]
        )
