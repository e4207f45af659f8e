"""gpu.compute_bound_healthy: the device computes at its limit; stop tuning."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm, passes
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent

MFU = Threshold("mfu", 0.40, "ratio", "40 % of the dense peak: well-tuned large training runs report this much (PaLM 46 %, MPT-7B 40-46 %)")


class GpuComputeBoundHealthy(Rule):
    id = "gpu.compute_bound_healthy"
    title = "Compute-bound and healthy"
    clear_title = "Not at the compute limit"
    thresholds = (MFU,)
    reads = (
        "mfu_ratio", "data_wait_ratio", "logging_ratio", "checkpoint_ratio", "step_s", "ranks.least_comm_ratio",
        "comm.exchanges_per_step", "comm.exposed_s", "mbu_ratio", "comm.exchange_large_s", "comm.exchange_now_s", "threads", "cores",
        "is_gpu",
    )  # fmt: skip
    text = """Model FLOP/s reach 40 % of the peak: the dense datasheet figure of a GPU for the precision in use, or the best matrix product measured on this
CPU with the same threads. Data wait, logging and checkpoints are below their thresholds. Probe P2 finds no gain in a larger batch, and
probe P5 no gain in another implementation. More speed then needs other mathematics: precision, attention, model shape."""

    def judge(self, case: Case) -> Finding:
        if not case.has("mfu_ratio") and case.has("mbu_ratio"):
            return self.clear(0.0, case.evidence("mbu_ratio"), "there are no matrix products to compare with a peak")
        mfu = case.value("mfu_ratio")
        phases, lost = passes.lost_beside_passes(case)
        evidence = case.evidence(("mfu_ratio", MFU)) + phases
        if lost:
            return self.clear(0.0, evidence, lost)
        if comm.several(case) and comm.exposed_ratio(case) >= comm.EXPOSED:
            return self.clear(0.0, evidence, f"{percent(comm.exposed_ratio(case))} of a step is communication")
        if mfu < MFU:
            return self.clear(min(0.59, mfu / MFU), evidence)
        threads, cores = case.get("threads", 0), case.get("cores", 0)
        on_cpu = (
            f"; {threads:.0f} of {cores:.0f} cores compute; the rest is for the loader and the console"
            if case.get("is_gpu", 0) == 0
            else ""
        )
        summary = f"{percent(mfu)} of the peak, no wait above its threshold, no gain from a larger batch{on_cpu}"
        return self.note(mfu / MFU, evidence, summary, confidence=high_if(mfu >= 0.5))
