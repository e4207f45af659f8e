"""gpu.bandwidth_bound_healthy: memory moves what must move as fast as it can; only fewer bytes would help."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, Threshold, clear, fires
from gpuconsole.diagnosis.rules import _input, _side_work
from gpuconsole.model.finding import Finding

ID = "gpu.bandwidth_bound_healthy"
TITLE = "Bandwidth-bound and healthy"
MBU = Threshold("mbu", 0.70, "ratio", "a plain copy reaches 85-92 % of an HBM datasheet figure; BabelStream's triad on CPUs 70-90 %")


def check(case: Case) -> Finding:
    case.value("data_wait_ratio")
    if "mbu_ratio" not in case.signals:
        return clear(ID, TITLE, 0.0, (), "the workload does not say how many bytes must move")
    mbu = case.value("mbu_ratio")
    evidence = [case.evidence("mbu_ratio", MBU.value)]
    stolen = {
        "data_wait_ratio": _input.WAIT.value,
        "logging_ratio": _side_work.SHARE.value,
        "checkpoint_ratio": _side_work.SHARE.value,
    }
    for signal, limit in stolen.items():
        if case.value(signal) >= limit:
            return clear(ID, TITLE, 0.0, tuple(evidence), f"{signal} is {case.value(signal):.0%}")
        evidence.append(case.evidence(signal, limit))
    if mbu < MBU.value:
        return clear(ID, TITLE, min(0.99, mbu / MBU.value), tuple(evidence))
    return fires(
        ID,
        TITLE,
        f"the bytes that must move do so at {mbu:.0%} of what memory reaches: only fewer of them would be faster",
        recoverable=0.0,
        confidence="high",
        evidence=tuple(evidence),
        level=mbu / MBU.value,
        note=True,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("data_wait_ratio", "mbu_ratio", "logging_ratio", "checkpoint_ratio"),
    thresholds=(MBU,),
    text="""The workload says how many bytes a sample must move at least; times samples/s that is held against the memory's bandwidth: a GPU's
datasheet figure, or a copy measured on this machine. Bytes that are moved without need (a chain of unfused operations, a dense
gradient of a sparse table) do not count, so waste is not taken for health. From 70 % on there is nothing to tune but the
bytes: smaller types, fusion, fewer passes.""",
    check=check,
)
