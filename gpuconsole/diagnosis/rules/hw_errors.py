"""hw.errors: the GPU, its memory or its links are failing. This finding is not about speed, but
more urgent than all findings about speed."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if

ANY = Threshold(
    "errors",
    1.0,
    "",
    "one is enough: lost data, a row that waits for replacement, a hardware XID (survey T42)",
)
NVLINK = Threshold(
    "nvlink_errors",
    1.0,
    "",
    "one replay or recovery is a failure (NVIDIA DCGM, DCGM_LIMIT_MAX_NVLINK_ERROR)",
)
CRC = Threshold(
    "nvlink_crc",
    100.0,
    "/s",
    "100 damaged packets per second and more matter (NVIDIA DCGM, DCGM_LIMIT_MAX_NVLINK_CRC_ERROR)",
)

REPORTS = {
    "hw.lost": (ANY, "the GPU no longer answers"),
    "hw.xid_errors": (ANY, "the driver has reported hardware XID errors"),
    "hw.nvlink_xids": (ANY, "the driver has reported XID errors of NVLink"),
    "hw.ecc_uncorrected": (ANY, "uncorrected memory errors: data was lost"),
    "hw.row_remap_failed": (
        ANY,
        "a faulty memory row could not be replaced: the GPU needs service",
    ),
    "hw.row_remap_pending": (
        ANY,
        "a faulty memory row waits to be replaced: reset the GPU or reboot",
    ),
    "hw.nvlink_errors": (NVLINK, "an NVLink sends packets again or recovers"),
    "hw.nvlink_crc_per_s": (CRC, "an NVLink receives damaged packets"),
}
NEEDED = "hw.xid_errors"
UNSURE = ["hw.nvlink_xids"]
"""XIDs of NVLink: only the kernel log says whether they are fatal."""


class HwErrors(Rule):
    id = "hw.errors"
    title = "The GPU reports hardware errors"
    clear_title = "No GPU hardware errors"
    subject = "hardware"
    gpu_only = True
    thresholds = (ANY, NVLINK, CRC)
    reads = (
        "is_gpu", "hw.lost", "hw.xid_errors", "hw.nvlink_xids", "hw.ecc_uncorrected",
        "hw.row_remap_failed", "hw.row_remap_pending", "hw.nvlink_errors", "hw.nvlink_crc_per_s",
    )  # fmt: skip
    ignore = "Never: results may be wrong, and the GPU may stop."
    text = """The rule counts XID events that mean a hardware fault by NVIDIA's catalog: 48, 61, 62,
64, 74, 79, 95, 110, 136, 140, 143, 158, 167, 171 and 172. From Blackwell on, it also counts 144
to 146, 149 and 150 of NVLink; the kernel log says whether such an event is fatal. The rule
ignores events that programs or the driver's software cause (13, 31, 94, 119, 120), and events
without effect (63, 92, 121, 147, 148). It also counts memory errors that could not be corrected
since the driver was loaded, and memory rows that wait for replacement or could not be replaced.
It counts NVLinks that send again, recover or receive damaged packets while this console
watches. Such a GPU may compute wrong results or stop, so this finding comes before all others,
although it is not about speed."""

    def judge(self, case: Case) -> Finding:
        measured = {name: report for name, report in REPORTS.items() if case.has(name)}
        evidence = case.evidence(*((name, limit) for name, (limit, _) in measured.items()))
        levels = {name: case.value(name) / limit for name, (limit, _) in measured.items()}
        broken = [name for name, level in levels.items() if level >= 1]
        if not broken:
            # no errors count as healthy only if the driver reports errors at all
            case.value(NEEDED)
            return self.clear(max(levels.values()), evidence)
        reports = "; ".join(f"{measured[name][1]} ({case.value(name):.0f})" for name in broken)
        todo = (
            "The kernel log (dmesg) says whether it is fatal"
            if broken == UNSURE
            else "Results may be wrong: check the kernel log (dmesg), drain this GPU and run"
            " dcgmi diag -r 3"
        )
        return self.fires(
            max(levels.values()),
            evidence,
            f"{reports}. {todo}",
            recoverable=0.0,
            confidence=high_if(broken != UNSURE),
        )
