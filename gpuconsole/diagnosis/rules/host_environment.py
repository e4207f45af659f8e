"""host.environment: the environment of the job sets a switch that slows it."""

from __future__ import annotations

from gpuconsole.diagnosis.families import host
from gpuconsole.diagnosis.rule import Case, Finding, Rule

SLOWS = {
    "CUDA_LAUNCH_BLOCKING": (
        "CUDA_LAUNCH_BLOCKING=1 makes the host wait for each kernel: the GPU is idle while the host"
        " prepares the next one"
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (
        "with PYTORCH_NO_CUDA_MEMORY_CACHING=1 torch asks the driver for the memory of each tensor,"
        " and the driver waits for the GPU"
    ),
}
"""Switches for debugging. No job needs them in each run."""
MAY_SLOW = {
    "NVIDIA_TF32_OVERRIDE": "NVIDIA_TF32_OVERRIDE=0 forbids TF32, whatever the program sets",
    "NCCL_P2P_DISABLE": (
        "NCCL_P2P_DISABLE=1 sends what the GPUs exchange through the memory of the host"
    ),
    "TORCH_NCCL_BLOCKING_WAIT": (
        "TORCH_NCCL_BLOCKING_WAIT=1 makes the host wait for each collective"
    ),
}
"""Switches that some jobs need: cards without a direct way between them, or the same numbers as on
another card."""


class HostEnvironment(Rule):
    id = "host.environment"
    title = "The environment of the job slows it"
    jobs_only = gpu_only = True
    clear_title = "No switch of the environment slows the job"
    thresholds = (host.ON,)
    reads = (*(f"environment.{name}" for name in (*SLOWS, *MAY_SLOW)), "is_gpu")
    text = """The agent reads a few variables of the environment of the job. Two are for debugging,
and slow each step: CUDA_LAUNCH_BLOCKING (CUDA's programming guide: "This feature is provided for
debugging purposes only") and PYTORCH_NO_CUDA_MEMORY_CACHING. The finding fires for these two. Their
cost is known only when the job has run without them. Some jobs need one of three others, which slow
other jobs: NVIDIA_TF32_OVERRIDE=0, NCCL_P2P_DISABLE=1 and TORCH_NCCL_BLOCKING_WAIT=1. For these
three the finding is a note. CUDA_LAUNCH_BLOCKING makes the host wait for each kernel. So rules
about kernel launches and about waits for the GPU have no conclusion while it is set. What helps:
unset the variable, and start the job again."""
    ignore = (
        "You need the variable, or you look for the kernel that fails and unset the variable"
        " afterwards."
    )

    def judge(self, case: Case) -> Finding:
        # not known before the agent has described the job
        case.value("environment.CUDA_LAUNCH_BLOCKING")
        slow = [name for name in SLOWS if case.get(f"environment.{name}", 0.0) >= host.ON]
        maybe = [name for name in MAY_SLOW if case.get(f"environment.{name}", 0.0) >= host.ON]
        evidence = tuple(
            part
            for name in (*slow, *maybe)
            for part in case.evidence((f"environment.{name}", host.ON))
        )
        if not slow and not maybe:
            return self.clear()
        summary = "; ".join([*(SLOWS[name] for name in slow), *(MAY_SLOW[name] for name in maybe)])
        summary += (
            f". If nothing needs it, start the job without it: `unset {' '.join([*slow, *maybe])}`"
        )
        level = 1 / host.ON
        title = f"{' and '.join(slow or maybe)} {'slows' if slow else 'may slow'} the job"
        if slow:
            return self.fires(
                level, evidence, summary, recoverable=0.0, confidence="high", title=title
            )
        return self.note(level, evidence, summary, confidence="medium", title=title)
