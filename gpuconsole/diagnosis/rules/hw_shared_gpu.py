"""hw.shared_gpu: another program computes on this GPU."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import MAX_SHARE, Case, Finding, Rule, Threshold, percent

BUSY = Threshold(
    "others_busy",
    0.10,
    "ratio",
    "10 % of the GPU's time; a smaller loss is within the usual variation of steps",
)
MEMORY = Threshold(
    "others_memory",
    500e6,
    "B",
    "500 MB of other processes; a bare CUDA context takes about as much (survey T41)",
)


class HwSharedGpu(Rule):
    id = "hw.shared_gpu"
    title = "Another process uses this GPU"
    clear_title = "No other process slows this GPU"
    subject = "hardware"
    gpu_only = True
    thresholds = (BUSY, MEMORY)
    reads = ("is_gpu", "hw.other_processes", "hw.other_memory_bytes", "hw.other_sm_ratio")
    ignore = (
        "The other programs on the GPU are meant to run there: then compare runs only beside the"
        " same programs."
    )
    text = """The driver lists the processes on a GPU with their memory and their share of the SMs.
Processes that this console started are ours; all others take time, memory and bandwidth. The list
counts only if it contains our own process: in a container the driver may hide processes or number
them differently. A process that only holds memory costs no time and is a note. Programs that only
draw (a desktop) do not count."""

    def judge(self, case: Case) -> Finding:
        others = case.value("hw.other_processes")
        if not others:
            return self.clear(0.0, case.evidence("hw.other_processes"))
        memory = case.get("hw.other_memory_bytes", 0.0)
        evidence = case.evidence("hw.other_processes") + case.if_known(
            ("hw.other_memory_bytes", MEMORY), ("hw.other_sm_ratio", BUSY)
        )
        busy = (
            case.value("hw.other_sm_ratio")
            if memory < MEMORY
            else case.get("hw.other_sm_ratio", 0.0)
        )
        level = max(busy / BUSY, memory / MEMORY)
        if level < 1:
            return self.clear(level, evidence, "the other process does almost nothing on this GPU")
        takes = busy >= BUSY
        who = "1 other process" if others == 1 else f"{others:.0f} other processes"
        summary = (
            f"{who} on this GPU "
            + (
                f"use {percent(busy)} of its time"
                if takes
                else f"hold {memory / 1e9:.1f} GB of its memory"
            )
            + ": choose another GPU (--device) or end the other program; timings vary with its work"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=min(MAX_SHARE, busy) if takes else 0.0,
            confidence="medium",
            note=not takes,
        )
