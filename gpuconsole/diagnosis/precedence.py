"""Decides which of several findings has priority, and the order of findings. Rules do not refer to
each other; only this module compares them, and no module of `families/` or `signals/` imports it.

Three things are decided here:
- `CAUSES_OF_DATA_WAIT`: a step that waits for data has one cause. The rules about input share this
  order.
- `PRECEDENCE`: a rule yields where another finding explains the same time or memory, or contradicts
  the rule.
- `rank`: the order in which findings are stored in `Run.findings` and shown everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import msgspec

from gpuconsole.diagnosis.families import avoidable, comm, device, host, loader, serving, trend
from gpuconsole.diagnosis.probes import PROBE_OF
from gpuconsole.diagnosis.rule import CantTell, Case
from gpuconsole.model.finding import Finding

COVERED = "Covered by"
"""The start of the title of a finding that yields to one that fires."""
FIRST = "hw.errors"
"""This finding recovers no time, but comes before all other findings, because the results may be
wrong."""

Cause = Literal[
    "epoch_restart",
    "jitter",
    "one_by_one",
    "ipc_collate",
    "shared_lock",
    "slow_storage",
    "too_few_workers",
    "cpu_transform",
]
CAUSES_OF_DATA_WAIT: dict[Cause, Callable[[Case], bool]] = {
    "epoch_restart": loader.restarting,
    "jitter": loader.stalling,
    "one_by_one": loader.fetching_rows,
    "ipc_collate": loader.receiving,
    "shared_lock": loader.locking,
    "slow_storage": loader.sleeping,
    "too_few_workers": loader.lacking_workers,
    "cpu_transform": loader.waits,
}
"""Only the first cause that applies is reported. Restarts and single slow samples come first,
because they also look like a slow loader. Rows that are fetched one by one come before workers,
which would fetch them one by one too. More cores do not help a process that is busy receiving, or a
slow storage. Workers that wait for one lock look like workers that wait for storage, or, where the
owner of the lock computes, like too few workers. Cheaper transforms are the last resort."""


def cause_of_data_wait(case: Case) -> Cause | None:
    """Why the step waits for data: the first of CAUSES_OF_DATA_WAIT that applies; None if the step
    waits too little.

    Needs probe P6 once the wait is large enough; raises Missing until the probe has run.
    """
    if not loader.has_loader(case):
        return None
    return next((cause for cause, applies in CAUSES_OF_DATA_WAIT.items() if applies(case)), None)


@dataclass(frozen=True)
class Precedence:
    """The rule `loser` becomes clear if the rule `winner` prevails. `why` is the text for the user.

    The winner prevails if it fires and is not a note. With `when`, the winner prevails if `when` is
    true for the case; then a loser that waits for a probe also becomes clear, so the probe does not
    run without need.
    `unless` is a knob: with any value but 0 the two rules are about different things.
    `must_know`: while the winner has no conclusion, the loser has no conclusion either, if this is
    true for the case.
    """

    loser: str
    winner: str
    why: str
    when: Callable[[Case], bool] | None = None
    unless: str = ""
    must_know: Callable[[Case], bool] | None = None


def _always(case: Case) -> bool:
    return True


def _on_gpu(case: Case) -> bool:
    return case.get("is_gpu", 0.0) > 0


_MORE_TO_GAIN = "that finding still gains time"
_FILLED = "that finding names what fills the memory"
_OWN_CODE = "that finding names the program's own code that takes this time"
_LOCKED = (
    "each operator waits for another Python thread of the program: the times of the passes are not"
    " those of the program alone"
)
_DEBUGGED = (
    "a debugging mode slows every operator, and the measured times of the passes include this cost"
)
_BLOCKING = "CUDA_LAUNCH_BLOCKING makes the host wait for each kernel"
_GROWS = "that finding names what makes each step longer than the one before"
_CLOCK = "a clock that falls makes the steps longer"
_STANDS = "the server stands still: no other figure of it means anything"
_AWAITED = "that finding says what the tokens wait for"
_UNEQUAL = "other engines have room: the sums over all engines hide it"
_FAULTS_OF_SERVERS = (
    "serve.imbalance", "serve.kv_bound", "serve.sequence_cap", "serve.slow_tokens",
    "serve.token_budget", "serve.prefill_stalls_decode", "serve.host_bound", "serve.deferred",
    "serve.queue_before_engine", "serve.prefill_bound", "serve.kv_leak",
    "serve.speculation_rejected", "serve.decode_bandwidth_bound", "serve.batch_too_small",
    "serve.over_capacity", "serve.frontend_cpu", "serve.long_context_cliff",
    "serve.prefix_reuse_missed", "serve.tp_over_pcie",
)  # fmt: skip
_HEALTHY_SERVERS = ("serve.at_limit_healthy", "serve.underloaded_healthy")
_BROKEN_SERVERS = ("serve.stands_still", "serve.requests_fail", "serve.client_bound")
_BROKEN_HARDWARE = ("hw.errors", "hw.thermal", "hw.power")
_NOT_HEALTHY = "that finding says what is wrong"
PRECEDENCE = (
    Precedence("host.slowing_down", "hw.thermal", _CLOCK),
    Precedence("host.slowing_down", "hw.power", _CLOCK),
    Precedence(
        "host.slowing_down", "host.recompile_graphbreak", "the compiler compiles again and again"
    ),
    Precedence(
        "meta.not_steady",
        "host.slowing_down",
        "that finding says how the step time drifts",
        when=trend.slows,
    ),
    Precedence(
        "host.python_overhead", "mem.cache_emptied", "that finding names the line that waits"
    ),
    Precedence(
        "host.python_overhead",
        "host.slowing_down",
        _GROWS,
        when=trend.claims_in("other", "data_wait"),
    ),
    Precedence("host.logging_io", "host.slowing_down", _GROWS, when=trend.claims_in("logging")),
    Precedence(
        "host.checkpoint_stall", "host.slowing_down", _GROWS, when=trend.claims_in("checkpoint")
    ),
    Precedence("host.eval_stall", "host.slowing_down", _GROWS, when=trend.claims_in("eval")),
    Precedence("host.avoidable_work", "host.debug_mode", _DEBUGGED, when=host.is_debugged),
    Precedence("host.avoidable_work", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence(
        "host.avoidable_work",
        "host.slowing_down",
        _GROWS,
        when=trend.claims_in("forward", "loss", "backward", "optimizer"),
    ),
    Precedence("host.slow_function", "host.debug_mode", _DEBUGGED, when=host.is_debugged),
    Precedence("host.slow_function", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence(
        "host.slow_function",
        "host.slowing_down",
        _GROWS,
        when=trend.claims_in("generation", "forward", "loss", "backward", "optimizer"),
    ),
    Precedence(
        "host.slow_function",
        "host.avoidable_work",
        "that finding says what the function could do without",
        when=avoidable.in_function,
    ),
    Precedence("host.sync_stall", "host.debug_mode", _DEBUGGED, when=host.is_debugged),
    Precedence("host.sync_stall", "host.environment", _BLOCKING, when=host.launches_wait),
    Precedence("host.sync_stall", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence(
        "gpu.optimizer_unfused",
        "host.optimizer_offloaded",
        "that finding says why the update takes long",
    ),
    Precedence("gpu.optimizer_unfused", "host.debug_mode", _DEBUGGED, when=host.is_profiled),
    Precedence("gpu.optimizer_unfused", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence("gpu.fp32_no_tensor_core", "host.debug_mode", _DEBUGGED, when=host.is_debugged),
    Precedence("gpu.fp32_no_tensor_core", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence("gpu.small_batch", "host.debug_mode", _DEBUGGED, when=host.is_debugged),
    Precedence("gpu.small_batch", "host.environment", _BLOCKING, when=host.launches_wait),
    Precedence("gpu.small_batch", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence(
        "gpu.small_batch",
        "host.cpu_contention",
        "threads of this job wait for each other, at any batch size",
        when=host.threads_wait_for_each_other,
    ),
    Precedence("gpu.small_batch", "host.slow_function", _OWN_CODE),
    Precedence("gpu.small_batch", "host.avoidable_work", _OWN_CODE),
    Precedence(
        "gpu.small_batch",
        "comm.exposed",
        "accumulation makes the exchange rarer with the same batch",
        when=comm.is_serious,
    ),
    Precedence("host.launch_bound", "host.debug_mode", _DEBUGGED, when=host.is_debugged),
    Precedence("host.launch_bound", "host.environment", _BLOCKING, when=host.launches_wait),
    Precedence("host.launch_bound", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence(
        "host.launch_bound",
        "host.cpu_contention",
        "the host issues kernels late because it waits for a core",
        when=lambda case: (
            host.waits_for_core(case) and not device.knows_the_lead(case)
        ),  # with the lead, the rule takes the delay off itself
    ),
    Precedence("gpu.elementwise_membw", "host.debug_mode", _DEBUGGED, when=host.is_debugged),
    Precedence("gpu.elementwise_membw", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence("gpu.elementwise_membw", "host.slow_function", _OWN_CODE),
    Precedence("gpu.compute_bound_healthy", "host.debug_mode", _DEBUGGED, when=host.is_debugged),
    Precedence("gpu.compute_bound_healthy", "host.environment", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "host.gil", _LOCKED, when=host.waits_for_lock),
    Precedence("gpu.compute_bound_healthy", "host.avoidable_work", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "host.slow_function", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "host.slowing_down", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "hw.power", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "gpu.small_batch", _MORE_TO_GAIN, must_know=_always),
    Precedence("gpu.compute_bound_healthy", "gpu.attention_math", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "gpu.conv_layout_autotune", _MORE_TO_GAIN),
    # on a CPU, fp32 is the usual choice and its finding a note
    Precedence(
        "gpu.compute_bound_healthy", "gpu.fp32_no_tensor_core", _MORE_TO_GAIN, must_know=_on_gpu
    ),
    Precedence("gpu.compute_bound_healthy", "gpu.optimizer_unfused", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "host.idle_cores", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "host.optimizer_offloaded", _MORE_TO_GAIN),
    Precedence("gpu.compute_bound_healthy", "mem.cache_emptied", _MORE_TO_GAIN),
    Precedence("mem.near_capacity", "mem.activation_capped", _FILLED, unless="memory_limit_mb"),
    Precedence("mem.near_capacity", "mem.state_capped", _FILLED, unless="memory_limit_mb"),
    Precedence("serve.imbalance", "serve.stands_still", _STANDS),
    Precedence("serve.kv_bound", "serve.stands_still", _STANDS),
    Precedence("serve.kv_bound", "serve.imbalance", _UNEQUAL),
    Precedence("serve.deferred", "serve.stands_still", _STANDS),
    Precedence("serve.sequence_cap", "serve.stands_still", _STANDS),
    Precedence("serve.sequence_cap", "serve.imbalance", _UNEQUAL),
    Precedence(
        "serve.sequence_cap",
        "serve.deferred",
        "most of the requests that wait are not ready",
        when=serving.are_deferred,
    ),
    Precedence("serve.token_budget", "serve.stands_still", _STANDS),
    Precedence("serve.prefill_stalls_decode", "serve.stands_still", _STANDS),
    Precedence(
        "serve.prefill_stalls_decode",
        "serve.kv_bound",
        "requests that are evicted get no token until they are computed again",
        when=serving.preempts,
    ),
    Precedence("serve.slow_tokens", "serve.stands_still", _STANDS),
    Precedence("serve.slow_tokens", "serve.prefill_stalls_decode", _AWAITED),
    Precedence("serve.slow_tokens", "serve.kv_bound", _AWAITED),
    Precedence("serve.prefill_bound", "serve.stands_still", _STANDS),
    Precedence(
        "serve.prefill_bound",
        "serve.token_budget",
        "larger pieces of prompts come before shorter prompts",
    ),
    Precedence("serve.host_bound", "serve.stands_still", _STANDS),
    Precedence(
        "serve.host_bound",
        "serve.frontend_cpu",
        "the engine waits for requests while the API server process is short of CPU",
        when=serving.frontend_is_busy,
    ),
    Precedence("serve.queue_before_engine", "serve.stands_still", _STANDS),
    Precedence(
        "serve.queue_before_engine", "serve.client_bound", "the load generator itself is late"
    ),
    Precedence(
        "serve.decode_bandwidth_bound",
        "serve.batch_too_small",
        "more concurrent requests would share each reading of the weights",
        when=serving.more_users_gain,
    ),
    *(
        Precedence(healthy, cause, _NOT_HEALTHY)
        for healthy in _HEALTHY_SERVERS
        for cause in (*_BROKEN_SERVERS, *_BROKEN_HARDWARE, *_FAULTS_OF_SERVERS)
    ),
)
"""Entries with the same loser are adjacent. The entries where a rule is the loser come before the
entries where it is the winner."""


def settle(findings: list[Finding], case: Case) -> list[Finding]:
    """The conclusions of the rules after precedence: a rule that loses is clear, with level 0."""
    settled = {finding.rule: finding for finding in findings}
    for loser, entries in groupby(PRECEDENCE, lambda entry: entry.loser):
        if loser in settled:
            outcomes = (_outcome(entry, settled, case) for entry in entries)
            settled[loser] = next(
                (outcome for outcome in outcomes if outcome is not None), settled[loser]
            )
    return list(settled.values())


def _outcome(entry: Precedence, settled: dict[str, Finding], case: Case) -> Finding | None:
    """The new finding of the loser according to this entry; None: this entry does not apply."""
    loser, winner = settled[entry.loser], settled.get(entry.winner)
    if winner is None or (entry.unless and case.knobs.get(entry.unless)):
        return None
    if _prevails(entry, winner, case):
        if loser.state == "clear":
            return msgspec.structs.replace(loser, level=0.0)
        if loser.state == "fires" or (entry.when is not None and _lacks_a_probe(loser)):
            return Finding(
                loser.rule,
                "clear",
                f"{COVERED} {winner.rule}",
                summary=entry.why,
                evidence=loser.evidence or winner.evidence,
            )
    elif (
        entry.must_know is not None
        and entry.must_know(case)
        and loser.state == "fires"
        and winner.state == "cant_tell"
    ):
        return Finding(
            loser.rule, "cant_tell", loser.title, summary=winner.summary, missing=winner.missing
        )
    return None


def _prevails(entry: Precedence, winner: Finding, case: Case) -> bool:
    if entry.when is None:
        return winner.state == "fires" and not winner.note
    try:
        return entry.when(case)
    except CantTell:
        return False


def _lacks_a_probe(finding: Finding) -> bool:
    return finding.state == "cant_tell" and any(signal in PROBE_OF for signal in finding.missing)


def rank(findings: list[Finding]) -> list[Finding]:
    """Sorted findings: first the findings that fire, then rules without a conclusion, then clear
    rules.

    Among findings that fire: FIRST, then those with something to recover by weight (recoverable
    share times confidence), then notes. Equal findings are sorted by rule id. `Run.findings` is
    stored in this order, and readers keep the order.
    """
    states = {"fires": 0, "cant_tell": 1, "clear": 2}
    return sorted(
        findings,
        key=lambda f: (
            states[f.state],
            f.state != "fires" or f.rule != FIRST,
            f.note,
            -f.weight,
            f.rule,
        ),
    )
