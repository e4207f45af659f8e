"""input.ipc_collate: batches are there, but the training process takes long to receive and put them together."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule
from gpuconsole.diagnosis.rules import _input
from gpuconsole.diagnosis.suggest import speedup_interval, suggest
from gpuconsole.model.finding import Evidence, Finding, Interval


class InputIpcCollate(Rule):
    id = "input.ipc_collate"
    title = "The training process is busy receiving batches"
    clear_title = "Receiving batches takes little time"
    thresholds = (_input.WAIT, _input.RECEIVES)
    knobs = ("collate_fn",)
    text = """The loader's processes have batches ready, yet next() takes long: each tensor of a batch travels by a file descriptor of its
own and is mapped into the training process, which then stacks them. Probe P6 drains the loader alone and takes the time that the training
process does not wait for a message: when that is half of the time or more, and more than the loading processes are on a core, receiving is the
limit and more workers would not help. What does: stack in the loader's processes, fewer and larger tensors, smaller types (uint8, normalised later).
Where batches arrive as lists of samples, P6 drains a loader that stacks, too: what it delivers is what is predicted."""

    def check(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        if not int(case.knobs.get("num_workers", 0)):
            return self.clear(0.0, summary="the training process loads by itself: nothing is received")
        level = wait / _input.WAIT.value
        if _input.cause(case) != "ipc_collate":
            return self.clear(min(0.99, level), (case.evidence("data_wait_ratio", _input.WAIT.value),))
        receive = case.value("probe.loader_receive_ratio")
        predicted, evidence = _stacked(case)
        return self.fires(
            f"data takes {wait:.0%} of a step; unpacking is {receive:.0%} of what the loader alone takes",
            recoverable=1 - 1 / predicted.middle if predicted else 0.8 * wait,
            confidence="high" if receive >= 0.7 else "medium",
            evidence=(
                case.evidence("data_wait_ratio", _input.WAIT.value),
                case.evidence("probe.loader_receive_ratio", _input.RECEIVES.value),
                case.evidence("probe.loader_cpu_ratio"),
                *evidence,
            ),
            suggestions=[
                suggest(
                    case,
                    {"collate_fn": "stack"},
                    predicted,
                    "the loader's processes make one tensor of a batch, and one tensor travels",
                    "DataLoader(dataset, ..., collate_fn=default_collate)   # not a list of samples",
                )
            ],
            level=level,
        )


def _stacked(case: Case) -> tuple[Interval | None, tuple[Evidence, ...]]:
    """T' = max(T_compute, T_load) with the loader that stacks, if probe P6 has measured its rate, and the figures it is made of."""
    if not case.has("probe.loader_stacked_samples_per_s"):
        return None, ()
    load_s = case.value("samples_per_step") / case.value("probe.loader_stacked_samples_per_s")
    speedup = case.value("step_s") / max(_input.compute_s(case), load_s)
    shown = ("probe.loader_stacked_samples_per_s", "probe.loader_samples_per_s", "samples_per_step", "step_s")
    return speedup_interval(speedup, _input.PREDICTION_ERROR), tuple(case.evidence(name) for name in shown)
