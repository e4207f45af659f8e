"""The probes, in the order in which the rules ask for them, and the signals that each one
measures."""

from __future__ import annotations

from dataclasses import dataclass

from gpuconsole.model.profile import OP_CLASSES, OP_MIX, SYNC_GAPS
from gpuconsole.model.serving import CLIENT_WAIT

NO_CONSENT = (
    "waits for your permission (P, or --probe): a probe makes passes that the job did not ask for"
)
"""Why a probe has not run in a job of the user's own."""
ASKS_FIRST = "waits for your permission (P, or --probe): it sends a few requests to the server"
"""Why the probe of a watched server has not run."""


@dataclass(frozen=True)
class Probe:
    """A short experiment on the running workload. `signals`: the signals that rules read; a probe
    may measure more signals.

    `always`: runs once on every steady training run, because its figures are useful even if no rule
    needs them.
    `decisive`: rules request this probe only after a phase has taken too much time. It decides
    between the causes and runs first. `adds_words`: a finding that fires is complete without it, so
    nothing waits for it.
    `passive`: it only watches, so it runs in a user's own job without consent. `in_job`: what it
    does in a user's own job, for the question before it runs; empty where it is passive, or never
    runs there (the agent refuses it).
    """

    name: str
    signals: tuple[str, ...] = ()
    always: bool = False
    decisive: bool = False
    passive: bool = False
    adds_words: bool = False
    in_job: str = ""


WINDOW = "torch.profiler on a few of the job's own steps"
PASSES = "forward and backward passes on a copy of the last batch"
PROBES = (
    Probe(
        "cached_batch",
        ("probe.cached_pass_s",),
        always=True,
        in_job=f"{PASSES}: what a step costs without input",
    ),
    Probe("memory_parts", always=True),
    Probe("heap_peaks", ("memory.heap_allocated_peak_bytes",)),
    Probe("side_work_off", ("probe.step_no_side_work_s",), decisive=True),
    Probe(
        "loader_alone",
        (
            "probe.loader_samples_per_s",
            "probe.loader_cpu_ratio",
            "probe.loader_plus_1_samples_per_s",
        ),
        decisive=True,
    ),
    Probe("script_lines", ("stack.script_ratio",), decisive=True, passive=True),
    Probe(
        "loading_parts",
        ("loading.first_ratio", "loading.lock_ratio"),
        passive=True,
        adds_words=True,
    ),
    Probe(
        "exposed_communication",
        ("comm.exposed_s", "comm.straggler_ratio", "comm.bytes_per_step"),
        decisive=True,
    ),
    Probe("swap_attention", ("probe.attention_sdpa_speedup",)),
    Probe(
        "swap_optim",
        ("probe.optim_present_step_s",),
        in_job="updates of copies of the parameters: the gain of a fused optimizer",
    ),
    Probe(
        "batch_elasticity",
        ("probe.batch_cost_ratio", "probe.batch_factor"),
        in_job=f"{PASSES}, at up to 4 times its size: what a larger batch costs",
    ),
    Probe(
        "launch",
        ("probe.issue_s",),
        in_job=f"{PASSES}: whether the host issues kernels more slowly than the GPU runs them",
    ),
    Probe(
        OP_MIX,
        (
            *(f"profile.{name}_ratio" for name in (*OP_CLASSES, "busy", "tensor_core")),
            "profile.elementwise_bytes",
            "profile.elementwise_bytes_per_s",
            "profile.launches_per_s",
            "profile.mean_kernel_s",
        ),
        in_job=f"{WINDOW}: which kinds of kernels they consist of",
    ),
    Probe("swap_precision", ("probe.precision_bf16_native",)),
    Probe("swap_layout", ("probe.channels_last_speedup",)),
    Probe("swap_threads", ("probe.threads_tried", "probe.threads_speedup")),
    Probe(
        SYNC_GAPS,
        ("probe.sync_gaps_s",),
        in_job=f"{WINDOW}: where the GPU is idle because the host waited for it",
    ),
    Probe("h2d_copies", ("probe.h2d_pinned_s",)),
    Probe("exchange_sizes", ("comm.exchange_large_s", "comm.bus_bytes_per_s")),
    Probe("concurrency_step", ("probe.concurrency_gain",)),
    Probe("prefix_reuse", ("probe.prefix_cut_gain", "probe.prefix_salt_ratio")),
    Probe(CLIENT_WAIT, ("probe.before_engine_s",)),
)
"""Probes that settle one cause come first; probes that search for hidden causes come later."""

PROBE_OF = {signal: probe.name for probe in PROBES for signal in probe.signals}
"""The probe that measures a signal, by signal."""
ORDER = {probe.name: number for number, probe in enumerate(PROBES)}
ALWAYS = tuple(probe.name for probe in PROBES if probe.always)
IN_JOB = {probe.name: probe.in_job for probe in PROBES if probe.in_job}
"""What each probe does that may run in a user's own job with consent, by name."""
PASSIVE = frozenset(probe.name for probe in PROBES if probe.passive)
DECISIVE = frozenset(probe.name for probe in PROBES if probe.decisive)
ADDS_WORDS = frozenset(probe.name for probe in PROBES if probe.adds_words)
