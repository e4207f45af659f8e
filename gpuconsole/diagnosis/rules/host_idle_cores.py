"""host.idle_cores: on a CPU, the training process computes on fewer threads than there are cores for."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, clear, fires, some, suggest
from gpuconsole.diagnosis.rules import _comm, _gpu, _swap, host_cpu_contention
from gpuconsole.model.finding import Finding, Interval

ID = "host.idle_cores"
TITLE = "Cores stand idle while the training thread computes"
ERROR = 0.25
"""Of the predicted gain, relative: the core that was idle is needed now and then by loader, console and neighbours."""


def check(case: Case) -> Finding:
    if _gpu.on_gpu(case):
        return clear(ID, TITLE, 0.0, summary="the run computes on a GPU")
    if _comm.several(case):
        return clear(ID, TITLE, 0.0, summary="several processes share the cores")
    compute, threads, most = _gpu.compute_ratio(case), case.value("threads"), host_cpu_contention.threads_with_a_core(case)
    seen = (case.evidence("threads"), case.evidence("cores"), *case.if_known("host.others_cpu_ratio"))
    if most <= threads:
        return clear(ID, TITLE, 0.0, seen, "no core is idle")
    if compute * (1 - threads / most) < _swap.GAIN.value:
        return clear(ID, TITLE, 0.0, seen, "too little of the step is computing")
    tried, faster = case.value("probe.threads_tried"), case.value("probe.threads_speedup")
    recoverable = _swap.saves(case, "threads")
    evidence = (*_swap.evidence(case, "threads"), case.evidence("probe.threads_tried"), *seen)
    level = recoverable / _swap.GAIN.value
    if recoverable < _swap.GAIN.value or tried > most:
        return clear(ID, TITLE, max(0.0, min(level, 0.99)), evidence)
    return fires(
        ID,
        TITLE,
        f"{threads:.0f} of {case.value('cores'):.0f} cores compute; on {tried:.0f} the same pass runs {faster:.2f}x as fast",
        recoverable=0.0,
        confidence="high",
        evidence=evidence,
        suggestions=some(
            suggest(
                case,
                {"num_threads": int(tried)},
                _predicted(case, compute, faster),
                "none is left to console and neighbours then, and timings are less certain",
                f"torch.set_num_threads({tried:.0f})",
            )
        ),
        level=level,
        note=True,
    )


def _predicted(case: Case, compute: float, faster: float) -> Interval:
    """The passes alone get faster; or the optimizer's update as much as they."""
    low, high = (1 / (1 - share * (1 - 1 / faster)) for share in (compute, compute + case.get("optimizer_ratio", 0.0)))
    return Interval(1 + (low - 1) * (1 - ERROR), 1 + (high - 1) * (1 + ERROR))


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("is_gpu", "forward_ratio", "backward_ratio", "threads", "cores", "probe.threads_speedup", "probe.threads_tried"),
    thresholds=(_swap.GAIN,),
    text="""With num_threads = 0 a run on a CPU leaves one core to loader, console and neighbours, which keeps its timings quiet. Where that core
stands idle, more threads may compute faster: as many as there are cores, less what workers and other programs use. Probe P5 runs the present pass
on them in turn with the present one; small operations gain nothing, since handing them out costs more than it saves. A note, since it was
left free on purpose.""",
    check=check,
)
