"""gpu.bandwidth_bound_healthy: the memory works at its limit; only fewer bytes would be faster."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent, short_of

MBU = Threshold(
    "mbu",
    0.70,
    "ratio",
    "a plain copy reaches 85-92 % of an HBM datasheet figure; BabelStream triad on CPUs 70-90 %",
)


class GpuBandwidthBoundHealthy(Rule):
    id = "gpu.bandwidth_bound_healthy"
    title = "Bandwidth-bound and healthy"
    clear_title = "Not at the limit of the memory bandwidth"
    thresholds = (MBU,)
    reads = ("mbu_ratio", *passes.LIMITS)
    text = """The workload reports the minimum bytes that a sample must move. These bytes times
samples/s are compared with the bandwidth of the memory: the datasheet figure of a GPU, or a copy
measured on this machine. Bytes moved without need (a chain of unfused operations, a dense gradient
of a sparse table) do not count, so the rule does not call waste healthy. From 70 % on, only fewer
bytes help: smaller types, fusion, fewer passes."""

    def judge(self, case: Case) -> Finding:
        case.value("data_wait_ratio")
        if not case.has("mbu_ratio"):
            return self.clear(summary="the run does not report how many bytes must move")
        mbu = case.value("mbu_ratio")
        phases, lost = passes.lost_beside_passes(case)
        evidence = case.evidence(("mbu_ratio", MBU)) + phases
        if lost:
            return self.clear(0.0, evidence, lost)
        if mbu < MBU:
            return self.clear(short_of(mbu / MBU), evidence)
        summary = (
            f"the necessary bytes move at {percent(mbu)} of the memory bandwidth; only fewer bytes"
            " would be faster"
        )
        return self.note(mbu / MBU, evidence, summary, confidence="high")
