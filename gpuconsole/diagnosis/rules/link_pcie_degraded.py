"""link.pcie_degraded: the PCIe link runs below what GPU and slot support."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if

REACHED = Threshold(
    "reached",
    0.60,
    "ratio",
    "pinned copies reach 60 % of the bandwidth of a healthy link, or more (survey T08)",
)
REPLAYS = Threshold(
    "replays",
    8.0,
    "/min",
    "NVIDIA recommends at most 8 replays per minute (DCGM_LIMIT_MAX_PCIREPLAY_RATE)",
)
MATTERS = 0.02
"""Below this share of a step the finding is a note."""


class LinkPcieDegraded(Rule):
    id = "link.pcie_degraded"
    title = "The PCIe link is slower than it should be"
    clear_title = "The PCIe link runs at full speed"
    subject = "hardware"
    gpu_only = True
    thresholds = (REACHED, REPLAYS)
    reads = (
        "is_gpu", "link.pcie_generation", "link.pcie_width", "link.pcie_generation_max",
        "link.pcie_width_max", "link.pcie_peak_bytes_per_s", "link.pcie_replays_per_min",
        "probe.h2d_bytes_per_s", "h2d_ratio",
    )  # fmt: skip
    ignore = "The slot has fewer lanes by design, and copies to the GPU are a small part of a step."
    text = """Generation and width of the PCIe link, read while the GPU is under load: an idle GPU
lowers the generation to save power, which is no fault. A link with fewer lanes or an older
generation than card and slot support indicates the seat of the card, a riser or a BIOS setting. So
do packets that are sent again. If probe P10 has measured copies from pinned memory, their bandwidth
is compared with the link's. The cost is the exposed part of the copies from host to device; without
such copies the finding is a note."""

    def judge(self, case: Case) -> Finding:
        now = case.value("link.pcie_generation"), case.value("link.pcie_width")
        most = case.value("link.pcie_generation_max"), case.value("link.pcie_width_max")
        peak = case.value("link.pcie_peak_bytes_per_s")
        replays = case.get("link.pcie_replays_per_min", 0.0)
        # bandwidth now over the best bandwidth: each generation doubles the one before
        of_most = 2.0 ** (now[0] - most[0]) * now[1] / max(1.0, most[1])
        measured = case.get("probe.h2d_bytes_per_s", peak)
        evidence = case.evidence(("link.pcie_generation", most[0]), ("link.pcie_width", most[1]))
        evidence += case.if_known(
            "h2d_ratio",
            ("probe.h2d_bytes_per_s", REACHED * peak),
            ("link.pcie_replays_per_min", REPLAYS),
        )
        degraded, slow, sick = of_most < 1, measured < REACHED * peak, replays > REPLAYS
        if not (degraded or slow or sick):
            return self.clear(0.0, evidence)
        reports = [
            (
                f"the link runs at gen{now[0]:.0f} x{now[1]:.0f} instead of gen{most[0]:.0f}"
                f" x{most[1]:.0f}"
            )
            if degraded
            else "",
            f"copies reach {measured / 1e9:.1f} of {peak / 1e9:.1f} GB/s" if slow else "",
            f"{replays:.0f} packets per minute are sent again" if sick else "",
        ]
        share = case.get("h2d_ratio", 0.0) * (
            1 - min(1.0, of_most) * (min(1.0, measured / peak / REACHED))
        )
        summary = (
            f"{'; '.join(filter(None, reports))} (under load). Reseat the card; check slot, riser"
            " and BIOS settings"
        )
        level = max(1 / of_most if of_most > 0 else 1.0, 1.0)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=share,
            confidence=high_if(degraded),
            note=share < MATTERS,
        )
