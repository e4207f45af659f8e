"""input.ipc_collate: batches are there, but the training process takes long to receive and put them together."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, clear, fires, some, suggest
from gpuconsole.diagnosis.rules import _input
from gpuconsole.model.finding import Finding, Interval

ID = "input.ipc_collate"
TITLE = "Receiving batches keeps the training process busy"


def check(case: Case) -> Finding:
    wait = case.value("data_wait_ratio")
    if not int(case.knobs.get("num_workers", 0)):
        return clear(ID, TITLE, 0.0, summary="the training process loads by itself: nothing is received")
    level = wait / _input.WAIT.value
    if _input.cause(case) != "ipc_collate":
        return clear(ID, TITLE, min(0.99, level), (case.evidence("data_wait_ratio", _input.WAIT.value),))
    receive = case.value("probe.loader_receive_ratio")
    return fires(
        ID,
        TITLE,
        f"a step spends {wait:.0%} of its time on data, and the training process is on a core for {receive:.0%} of that: it unpacks",
        recoverable=0.8 * wait,
        confidence="high" if receive >= 0.7 else "medium",
        evidence=(
            case.evidence("data_wait_ratio", _input.WAIT.value),
            case.evidence("probe.loader_receive_ratio", _input.RECEIVES.value),
            case.evidence("probe.loader_cpu_ratio"),
        ),
        suggestions=some(
            suggest(
                case,
                {"collate_fn": "stack"},
                Interval(1 / (1 - 0.4 * wait), 1 / (1 - min(0.95, wait))),
                "the loader's processes make one tensor of a batch, and one tensor travels",
                "DataLoader(dataset, ..., collate_fn=default_collate)   # not a list of samples",
            )
        ),
        level=level,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("data_wait_ratio", "probe.loader_receive_ratio", "probe.loader_cpu_ratio"),
    thresholds=(_input.WAIT, _input.RECEIVES),
    knobs=("collate_fn",),
    text="""The loader's processes have batches ready, yet next() takes long: each tensor of a batch travels by a file descriptor of its
own and is mapped into the training process, which then stacks them. Probe P6 drains the loader alone and reads the CPU time
of the receiving thread: when it is on a core for half of the time or more, and more than the processes that load, receiving is the limit and
more workers would not help. What does: stack in the loader's processes, fewer and larger tensors, smaller types (uint8, normalised later).""",
    check=check,
)
