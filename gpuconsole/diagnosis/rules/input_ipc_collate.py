"""input.ipc_collate: batches are ready, but the training process needs long to receive and stack
them."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.precedence import cause_of_data_wait
from gpuconsole.diagnosis.rule import (
    Case,
    Evidence,
    Finding,
    Interval,
    Rule,
    high_if,
    percent,
    short_of,
    speedup_interval,
)


class InputIpcCollate(Rule):
    id = "input.ipc_collate"
    title = "The training process is busy receiving batches"
    clear_title = "Receiving batches takes little time"
    thresholds = (loader.WAIT, loader.RECEIVES)
    knobs = ("collate_fn",)
    reads = (
        *loader.ON_HOST, "loader.row_bytes", "loading.lock_ratio", *loader.OF_WAIT,
        "loader.restart_ratio", "loader.restarts", "loader.sampler_ratio",
        "data_wait_typical_ratio", "data_wait_excess_ratio", "probe.loader_cpu_ratio",
        "probe.loader_receive_ratio", "cores", "threads", "probe.loader_plus_1_samples_per_s",
        "probe.loader_plus_4_samples_per_s", "step_s", "loader.receive_s", "loader.send_s",
        "host.others_cpu_ratio", "samples_per_step", "probe.loader_stacked_samples_per_s",
        "probe.loader_samples_per_s",
    )  # fmt: skip
    text = """The loader's processes have batches ready, but next() takes long: each tensor of a
batch travels through its own file descriptor and is mapped into the training process, which then
stacks the tensors. Probe P6 drains the loader alone and measures the time in which the training
process does not wait for a message. If this is half of the time or more, and more than the CPU
share of the loading processes, receiving is the limit and more workers would not help. What helps:
stack in the loader's processes, send fewer and larger tensors, use smaller types (uint8, normalise
later). Where batches arrive as lists of samples, P6 also drains a loader that stacks; its rate is
the prediction."""

    def judge(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        if not int(case.knobs.get("num_workers", 0)):
            return self.clear(
                summary="the training process loads the data itself and receives nothing"
            )
        level = wait / loader.WAIT
        cause = cause_of_data_wait(case)
        # where another cause explains the waits, a finding shown before closes at once
        if cause != "ipc_collate":
            return self.clear(
                0.0 if cause else short_of(level), case.evidence(("data_wait_ratio", loader.WAIT))
            )
        receive = case.value("probe.loader_receive_ratio")
        predicted, rates = _stacked(case)
        wait_limit, receive_limit = (
            ("data_wait_ratio", loader.WAIT),
            ("probe.loader_receive_ratio", loader.RECEIVES),
        )
        evidence = case.evidence(wait_limit, receive_limit, "probe.loader_cpu_ratio") + rates
        why = "the loader's processes stack a batch into one tensor, and only this tensor is sent"
        code = "DataLoader(dataset, ..., collate_fn=default_collate)   # not a list of samples"
        change = case.suggest({"collate_fn": "stack"}, predicted, why, code)
        advice = (
            "Stack the batch in collate_fn"
            if change
            else "Send fewer, larger tensors, or smaller types"
        )
        summary = (
            f"a step waits {percent(wait)} of its time for data. The workers are ready; the"
            f" training process spends {percent(receive)} of loading on unpacking batches. {advice}"
        )
        recoverable = 1 - 1 / predicted.middle if predicted else 0.8 * wait
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(receive >= 0.7),
            suggestions=[change],
        )


def _stacked(case: Case) -> tuple[Interval | None, tuple[Evidence, ...]]:
    """T' = max(T_compute, T_load) with a loader that stacks, if probe P6 has measured its rate; and
    the evidence for it."""
    if not case.has("probe.loader_stacked_samples_per_s"):
        return None, ()
    load_s = case.value("samples_per_step") / case.value("probe.loader_stacked_samples_per_s")
    speedup = case.value("step_s") / max(loader.compute_s(case), load_s)
    shown = (
        "probe.loader_stacked_samples_per_s",
        "probe.loader_samples_per_s",
        "samples_per_step",
        "step_s",
    )
    return speedup_interval(speedup, loader.PREDICTION_ERROR), case.evidence(*shown)
