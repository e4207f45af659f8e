"""comm.slow_link: processes exchange over a path that is far slower than the NVLink between their
GPUs."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm
from gpuconsole.diagnosis.rule import MAX_SHARE, Case, Finding, Rule, Threshold, high_if, short_of

REACHED = Threshold(
    "reached", 0.50, "ratio", "half of the NVLink bandwidth in one direction (survey T34)"
)
LARGE = Threshold(
    "large",
    25e6,
    "B",
    (
        "latency limits smaller exchanges on every link (25 MB is the default bucket of"
        " DistributedDataParallel)"
    ),
)
UNUSED = 0.01
HIDDEN = Threshold(
    "hidden", 0.01, "ratio", "less than 1 % of a step: the bandwidth of the link changes nothing"
)


class CommSlowLink(Rule):
    id = "comm.slow_link"
    title = "Processes do not use the NVLink between their GPUs"
    clear_title = "Communication is as fast as its link"
    gpu_only = True
    thresholds = (REACHED, LARGE, HIDDEN)
    reads = (
        "is_gpu", "step_s", "link.nvlink_joined", "comm.bytes_per_step", "comm.bus_bytes_per_s",
        "link.nvlink_peak_bytes_per_s", "link.pcie_peak_bytes_per_s", "link.nvlink_bytes_per_s",
        "comm.exposed_s",
    )  # fmt: skip
    text = """Probe P10 all-reduces as many bytes as the gradients have, in pieces of 25 MB, and
computes the bus bandwidth as nccl-tests define it. Pieces of that size do not reach the full
bandwidth of NVLink. The rule therefore fires only if the result is below the PCIe bandwidth and
below half of the NVLink bandwidth. NCCL then uses PCIe or host memory: peer access is disabled, or
the processes run in containers that do not share memory. The rule is silent without NVLink and
across several machines.
In a job of your own no exchange is tried. The bytes of the gradients, divided by the exposed time
of the exchange, give the largest bandwidth that the link can have. If that bandwidth is too low,
the link is slow. Where computation hides the exchange, the link is fast enough."""

    def judge(self, case: Case) -> Finding:
        if not comm.several(case):
            return self.clear(summary="one process only, or processes that exchange nothing")
        if not case.value("link.nvlink_joined"):
            return self.clear(
                0.0, case.evidence("link.nvlink_joined"), "no NVLink connects these GPUs"
            )
        sent = case.value("comm.bytes_per_step")
        if sent < LARGE:
            small = case.evidence(("comm.bytes_per_step", LARGE))
            return self.clear(
                0.0, small, "the exchanges are too small to measure the bandwidth of a link"
            )
        if (
            not case.has("comm.bus_bytes_per_s")
            and case.has("comm.exposed_s")
            and case.value("comm.exposed_s") < HIDDEN * case.value("step_s")
        ):
            return self.clear(
                0.0,
                case.evidence("comm.exposed_s", "step_s"),
                "computation hides the communication",
            )
        measured, expected = (
            case.value("comm.bus_bytes_per_s"),
            case.value("link.nvlink_peak_bytes_per_s"),
        )
        pcie = case.value("link.pcie_peak_bytes_per_s")
        limit = min(pcie, REACHED * expected)
        evidence = case.evidence(
            ("comm.bus_bytes_per_s", limit),
            "link.nvlink_peak_bytes_per_s",
            "link.pcie_peak_bytes_per_s",
        )
        traffic = case.get("link.nvlink_bytes_per_s", -1.0)
        if traffic >= 0:
            evidence += case.evidence("link.nvlink_bytes_per_s")
        level = limit / max(1.0, measured)
        if measured >= limit:
            return self.clear(short_of(level), evidence)
        exposed = min(MAX_SHARE, case.get("comm.exposed_s", 0.0) / case.value("step_s"))
        summary = (
            f"an all-reduce reaches {measured / 1e9:.1f} GB/s, less than PCIe ({pcie / 1e9:.0f}"
            f" GB/s); the NVLink between these GPUs reaches {expected / 1e9:.0f} GB/s. Check the"
            " transport with NCCL_DEBUG=INFO; unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; start"
            " containers with --ipc=host"
        )
        recoverable = exposed * (1 - measured / (REACHED * expected))
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(0 <= traffic < UNUSED * expected),
        )
