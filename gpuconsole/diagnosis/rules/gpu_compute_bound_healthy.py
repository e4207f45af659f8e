"""gpu.compute_bound_healthy: the device computes at its limit; stop tuning."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm, device, passes
from gpuconsole.diagnosis.rule import Case, Finding, Rule, high_if, percent

SURE = 1.25
"""The confidence is high if the MFU is at least this many times its threshold: 50 % where all
scores of attention count."""


class GpuComputeBoundHealthy(Rule):
    id = "gpu.compute_bound_healthy"
    title = "Compute-bound and healthy"
    clear_title = "Not at the compute limit"
    thresholds = (device.MFU, device.MFU_CAUSAL)
    reads = (
        "mfu_ratio", *passes.LIMITS, "step_s", "ranks.least_comm_ratio", "comm.outside_ratio",
        "comm.exchanges_per_step", "comm.exposed_s", "mbu_ratio", "comm.exchange_large_s",
        "comm.exchange_now_s", "threads", "cores", "is_gpu", "mfu_causal_ratio", "mfu_above_peak",
        "hfu_ratio", "hw.datasheet_clock_ratio", "hw.power_cap_time_ratio",
        "hw.thermal_time_ratio",
    )  # fmt: skip
    text = """Model FLOP/s reach 40 % of the peak: the dense datasheet figure of a GPU for the
precision in use (TF32 for fp32 convolutions, by cuDNN's default), or the best matrix product
measured on this CPU with the same threads. Torch counts all scores of attention. Where attention is
causal, half of them are masked, and 36 % of the peak by the count without them are as much. Where
the power cap lowers the SM clock below that of the datasheet (L4, T4), both shares are lower by as
much. On a GPU it must be known that fp32 is not the fault. The wait for data, copies, logging,
checkpoints, evaluation and code outside of the phases are below their thresholds. Probe P2 finds no
gain in a larger batch, and probe P5 no gain in another implementation. More speed then needs other
mathematics: precision, attention, model shape."""

    def judge(self, case: Case) -> Finding:
        if case.has("mfu_above_peak"):
            return self.clear(
                0.0,
                case.evidence("mfu_above_peak"),
                "the job does not compute in the precision that gpuconsole detected",
            )
        if not case.has("mfu_ratio") and case.has("mbu_ratio"):
            return self.clear(
                0.0,
                case.evidence("mbu_ratio"),
                "there are no matrix products to compare with a peak",
            )
        mfu = case.value("mfu_ratio")
        phase_evidence, phase_over_limit = passes.lost_beside_passes(case)
        evidence, level = device.mfu_evidence(case) + phase_evidence, device.mfu_level(case)
        if phase_over_limit:
            return self.clear(0.0, evidence, phase_over_limit)
        if level < 1:
            return self.clear(min(0.59, level), evidence)
        if comm.several(case) and comm.exposed_ratio(case) >= comm.EXPOSED:
            return self.clear(
                0.0, evidence, f"{percent(comm.exposed_ratio(case))} of a step is communication"
            )
        threads, cores = case.get("threads", 0), case.get("cores", 0)
        cores_in_words = (
            f"; {threads:.0f} of {cores:.0f} cores compute;"
            " the rest is for the loader and the console"
            if case.get("is_gpu", 0) == 0
            else ""
        )
        causal_in_words = (
            f" ({percent(case.value('mfu_causal_ratio'))} by the causal count)"
            if case.has("mfu_causal_ratio")
            else ""
        )
        hfu_in_words = (
            f"; {percent(case.value('hfu_ratio'))}"
            " with what the backward pass computes a second time"
            if case.has("hfu_ratio")
            else ""
        )
        clock = device.capped_clock(case)
        cap_in_words = (
            f"; the power cap lowers the SM clock to {percent(clock)} of the datasheet's,"
            " and the threshold with it"
            if clock < 1
            else ""
        )
        summary = (
            f"MFU {percent(mfu)}{causal_in_words}{hfu_in_words}{cap_in_words};"
            f" no bottleneck found{cores_in_words}"
        )
        return self.note(level, evidence, summary, confidence=high_if(level >= SURE))
