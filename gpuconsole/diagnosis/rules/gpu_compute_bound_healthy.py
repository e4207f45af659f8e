"""gpu.compute_bound_healthy: the device does what it can; stop tuning."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Missing, Rule, Threshold, clear, fires
from gpuconsole.diagnosis.rules import (
    _comm,
    _input,
    _side_work,
    gpu_attention_math,
    gpu_conv_layout_autotune,
    gpu_fp32_no_tensor_core,
    gpu_optimizer_unfused,
    gpu_small_batch,
    host_idle_cores,
)
from gpuconsole.model.finding import Finding

ID = "gpu.compute_bound_healthy"
TITLE = "Compute-bound and healthy"
MFU = Threshold("mfu", 0.40, "ratio", "40 % of the dense peak: what well-tuned large training runs report (PaLM 46 %, MPT-7B 40-46 %)")
PROBED = (
    gpu_attention_math.RULE,
    gpu_conv_layout_autotune.RULE,
    gpu_fp32_no_tensor_core.RULE,
    gpu_optimizer_unfused.RULE,
    host_idle_cores.RULE,
)
"""Rules by which a run whose time is all computing may still be slower than it need be."""


def check(case: Case) -> Finding:
    if "mfu_ratio" not in case.signals and "mbu_ratio" in case.signals:
        return clear(ID, TITLE, 0.0, (case.evidence("mbu_ratio"),), "there are no matrix products to hold against a peak")
    mfu = case.value("mfu_ratio")
    evidence = [case.evidence("mfu_ratio", MFU.value)]
    stolen = {
        "data_wait_ratio": _input.WAIT.value,
        "logging_ratio": _side_work.SHARE.value,
        "checkpoint_ratio": _side_work.SHARE.value,
    }
    for signal, limit in stolen.items():
        if case.value(signal) >= limit:
            return clear(ID, TITLE, 0.0, tuple(evidence), f"{signal} is {case.value(signal):.0%}")
        evidence.append(case.evidence(signal, limit))
    if _comm.several(case) and _comm.exposed_ratio(case) >= _comm.EXPOSED.value:
        return clear(ID, TITLE, 0.0, tuple(evidence), f"{_comm.exposed_ratio(case):.0%} of a step is communication")
    if mfu < MFU.value or gpu_small_batch.check(case).state == "fires" or any(_gains(rule, case) for rule in PROBED):
        return clear(ID, TITLE, min(0.59, mfu / MFU.value), tuple(evidence))
    threads, cores = case.get("threads", 0), case.get("cores", 0)
    on_cpu = f"; {threads:.0f} of {cores:.0f} cores compute, the rest is left to loader and console" if case.get("is_gpu", 0) == 0 else ""
    return fires(
        ID,
        TITLE,
        f"{mfu:.0%} of the peak, no wait above its threshold, and a larger batch gains nothing{on_cpu}",
        recoverable=0.0,
        confidence="high" if mfu >= 0.5 else "medium",
        evidence=tuple(evidence),
        level=mfu / MFU.value,
        note=True,
    )


def _gains(rule: Rule, case: Case) -> bool:
    """Whether `rule` finds time to win; where its probe could not be run it finds none."""
    try:
        finding = rule.check(case)
    except Missing:
        return False
    return finding.state == "fires" and not finding.note


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("mfu_ratio", "data_wait_ratio", "logging_ratio", "checkpoint_ratio", "probe.batch_cost_ratio"),
    thresholds=(MFU,),
    text="""Model FLOP/s reach 40 % of the peak (a GPU's dense datasheet figure for the precision in use; on a CPU the best matrix
product measured on it with the same threads), data wait, logging and checkpoints are below their thresholds, and probe P2
finds nothing in a larger batch, nor P5 in a fused kernel. Then the time goes where it should, and tuning further means changing the mathematics:
precision, attention, model shape.""",
    check=check,
)
