"""host.optimizer_offloaded: the optimizer updates the parameters on the CPU, because they are kept
in the memory of the host."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import MAX_SHARE, Case, Finding, Rule, Threshold, percent

SHARE = Threshold(
    "optimizer", 0.10, "ratio", "below 10 % of the step no other place for the update can gain much"
)
ON_HOST = Threshold("on_host", 0.5, "ratio", "half of the optimizer's parameters")
FITS = 0.5
"""Parameters, gradients and states fit if they take less than this share of the GPU's memory: the
other half is for the activations."""
STATES = ("memory.parameters_bytes", "memory.gradients_bytes", "memory.optimizer_bytes")


class HostOptimizerOffloaded(Rule):
    id = "host.optimizer_offloaded"
    title = "The optimizer works on the CPU"
    clear_title = "The optimizer works where the model is, or takes little time"
    gpu_only = True
    jobs_only = True
    thresholds = (SHARE, ON_HOST)
    reads = ("is_gpu", "optimizer_ratio", "optimizer.on_host_ratio", *STATES, "hw.memory_bytes")
    text = """The model computes on the GPU, but its parameters and the states of the optimizer are
kept in the memory of the host: CPUOffloadPolicy of FSDP 2, CPUOffload of FSDP 1, offload_optimizer
of DeepSpeed. The update then runs on the CPU, whose memory is 20 to 50 times slower, and parameters
and gradients cross the link in every step. The GPU waits meanwhile. The loss is the time of the
update; the copies come on top, within the passes.
What helps: no offload where parameters, gradients and states fit in the memory of the GPUs; more
GPUs to divide them; activation checkpointing or a smaller batch in its place; an optimizer with
smaller states (8 bit). If they do not fit: more CPU threads for the update (OMP_NUM_THREADS),
fused=True, gradient accumulation, which makes the update rarer."""
    ignore = (
        "Parameters, gradients and states of the optimizer do not fit in the memory of the GPUs."
    )

    def judge(self, case: Case) -> Finding:
        share, on_host = case.value("optimizer_ratio"), case.value("optimizer.on_host_ratio")
        evidence = case.evidence(("optimizer_ratio", SHARE), ("optimizer.on_host_ratio", ON_HOST))
        evidence += case.if_known(*STATES, "hw.memory_bytes")
        if on_host < ON_HOST:
            return self.clear(0.0, evidence, "the optimizer's parameters are on the GPU")
        level = share / SHARE
        if level < 1:
            return self.clear(level, evidence)
        summary = (
            f"{percent(share)} of a step is the update on the CPU:"
            " parameters and optimizer states are kept in the memory of the host."
            f" {_advice(case)}"
        )
        return self.fires(
            level, evidence, summary, recoverable=min(MAX_SHARE, share), confidence="high"
        )


def _advice(case: Case) -> str:
    """Return a sentence: what to do with the parameters and states on the host, from their size and
    the memory of the GPU."""
    if not case.has(*STATES, "hw.memory_bytes"):
        return "Keep them on the GPU if they fit there"
    needed_bytes, gpu_bytes = sum(map(case.value, STATES)), case.value("hw.memory_bytes")
    sizes = (
        f"Parameters, gradients and states of this process take {needed_bytes / 1e9:.1f} GB,"
        f" and the GPU has {gpu_bytes / 1e9:.0f} GB"
    )
    return (
        f"{sizes}: keep them there"
        if needed_bytes < FITS * gpu_bytes
        else f"{sizes}: more GPUs, or smaller states, make room for them"
    )
