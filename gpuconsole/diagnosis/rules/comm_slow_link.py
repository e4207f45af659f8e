"""comm.slow_link: processes exchange over a path that is far slower than the NVLinks between their GPUs."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _comm, _gpu
from gpuconsole.model.finding import Finding

REACHED = Threshold("reached", 0.50, "ratio", "half of the NVLinks' bandwidth in one direction (DIAGNOSIS T34)")
LARGE = Threshold(
    "large", 25e6, "B", "smaller exchanges are bound by latency, whatever the link (DistributedDataParallel's own bucket size)"
)
UNUSED = 0.01


class CommSlowLink(Rule):
    id = "comm.slow_link"
    title = "Processes do not use the NVLink between their GPUs"
    clear_title = "Communication is as fast as its link"
    thresholds = (REACHED, LARGE)
    text = """Probe P10 reduces as many bytes as the gradients have, in pieces of 25 MB, and gives the bus bandwidth as nccl-tests define it. Between GPUs
that are joined by NVLinks it must be more than PCIe could give, and half of the NVLinks' own or more: pieces of that size do not reach
all of it, so the rule fires only where both are missed. Then NCCL goes through PCIe or host memory: peer access is disabled, or the
processes lie in containers that do not share it. Without NVLink, or over several machines, the rule is silent."""

    def check(self, case: Case) -> Finding:
        if not _gpu.on_gpu(case):
            return self.not_on_gpu()
        if not _comm.several(case):
            return self.clear(0.0, summary="one process, or several that exchange nothing")
        if not case.value("link.nvlink_joined"):
            return self.clear(0.0, (case.evidence("link.nvlink_joined"),), "no NVLink joins these GPUs")
        sent = case.value("comm.bytes_per_step")
        if sent < LARGE.value:
            return self.clear(0.0, (case.evidence("comm.bytes_per_step", LARGE.value),), "too few bytes to tell a link's bandwidth by")
        measured, expected = case.value("comm.bus_bytes_per_s"), case.value("link.nvlink_peak_bytes_per_s")
        pcie = case.value("link.pcie_peak_bytes_per_s")
        evidence = [
            case.evidence("comm.bus_bytes_per_s", min(pcie, REACHED.value * expected)),
            case.evidence("link.nvlink_peak_bytes_per_s"),
            case.evidence("link.pcie_peak_bytes_per_s"),
        ]
        traffic = case.get("link.nvlink_bytes_per_s", -1.0)
        if traffic >= 0:
            evidence.append(case.evidence("link.nvlink_bytes_per_s"))
        limit = min(pcie, REACHED.value * expected)
        level = limit / max(1.0, measured)
        if measured >= limit:
            return self.clear(min(0.99, level), tuple(evidence))
        exposed = min(_gpu.MOST, case.get("comm.exposed_s", 0.0) / case.value("step_s"))
        return self.fires(
            f"an all-reduce reaches {measured / 1e9:.1f} GB/s, no more than PCIe gives ({pcie / 1e9:.0f}), between GPUs whose NVLinks do"
            f" {expected / 1e9:.0f}. See what NCCL_DEBUG=INFO says of the transport; unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL,"
            " give a container --ipc=host",
            recoverable=exposed * (1 - measured / (REACHED.value * expected)),
            confidence="high" if 0 <= traffic < UNUSED * expected else "medium",
            evidence=tuple(evidence),
            level=level,
        )
