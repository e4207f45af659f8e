"""hw.shared_gpu: somebody else computes on this GPU."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _gpu
from gpuconsole.model.finding import Finding

BUSY = Threshold("others_busy", 0.10, "ratio", "a tenth of the GPU's time; below, the loss is within what steps differ by anyway")
MEMORY = Threshold("others_memory", 500e6, "B", "500 MB that are not ours; a bare CUDA context takes about as much (DIAGNOSIS T41)")


class HwSharedGpu(Rule):
    id = "hw.shared_gpu"
    title = "Another process uses this GPU"
    clear_title = "No other process slows this GPU"
    subject = "hardware"
    thresholds = (BUSY, MEMORY)
    text = """The driver lists the processes that hold a GPU, their memory and their share of its SMs. Those that this console started are ours; the
others take time slices, memory and bandwidth. Only where ours is in the list, too, is it believed: in a container the driver may hide
processes or give them other numbers. One that only holds memory costs no time, and is for information. Programs that only
draw (a desktop) are not counted."""

    def check(self, case: Case) -> Finding:
        if not _gpu.on_gpu(case):
            return self.not_on_gpu()
        others = case.value("hw.other_processes")
        if not others:
            return self.clear(0.0, (case.evidence("hw.other_processes"),))
        memory = case.get("hw.other_memory_bytes", 0.0)
        evidence = (
            case.evidence("hw.other_processes"),
            *case.if_known("hw.other_memory_bytes", threshold=MEMORY.value),
            *case.if_known("hw.other_sm_ratio", threshold=BUSY.value),
        )
        busy = case.value("hw.other_sm_ratio") if memory < MEMORY.value else case.get("hw.other_sm_ratio", 0.0)
        level = max(busy / BUSY.value, memory / MEMORY.value)
        if level < 1:
            return self.clear(level, evidence, "it does next to nothing there")
        takes = busy >= BUSY.value
        who = "1 other process" if others == 1 else f"{others:.0f} other processes"
        return self.fires(
            f"{who} on this GPU "
            + (f"use {busy:.0%} of its time" if takes else f"hold {memory / 1e9:.1f} GB of its memory")
            + ": choose another GPU (--device), or end them; timings vary with what they do",
            recoverable=min(_gpu.MOST, busy) if takes else 0.0,
            confidence="medium",
            evidence=evidence,
            level=level,
            note=not takes,
        )
