"""gpu.bandwidth_bound_healthy: memory moves what must move as fast as it can; only fewer bytes would help."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _healthy
from gpuconsole.model.finding import Finding

MBU = Threshold("mbu", 0.70, "ratio", "a plain copy reaches 85-92 % of an HBM datasheet figure; BabelStream's triad on CPUs 70-90 %")


class GpuBandwidthBoundHealthy(Rule):
    id = "gpu.bandwidth_bound_healthy"
    title = "Bandwidth-bound and healthy"
    clear_title = "Not at the limit of the memory bandwidth"
    thresholds = (MBU,)
    text = """The workload says how many bytes a sample must move at least; times samples/s that is held against the memory's bandwidth: a GPU's
datasheet figure, or a copy measured on this machine. Bytes that are moved without need (a chain of unfused operations, a dense
gradient of a sparse table) do not count, so waste is not taken for health. From 70 % on there is nothing to tune but the
bytes: smaller types, fusion, fewer passes."""

    def check(self, case: Case) -> Finding:
        case.value("data_wait_ratio")
        if not case.has("mbu_ratio"):
            return self.clear(0.0, (), "the workload does not say how many bytes must move")
        mbu = case.value("mbu_ratio")
        phases, lost = _healthy.lost_beside_passes(case)
        evidence = (case.evidence("mbu_ratio", MBU.value), *phases)
        if lost:
            return self.clear(0.0, evidence, lost)
        if mbu < MBU.value:
            return self.clear(min(0.99, mbu / MBU.value), evidence)
        return self.fires(
            f"the bytes that must move do so at {mbu:.0%} of what memory reaches: only fewer of them would be faster",
            recoverable=0.0,
            confidence="high",
            evidence=evidence,
            level=mbu / MBU.value,
            note=True,
        )
