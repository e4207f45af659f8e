"""Which finding wins, and in which order findings stand. Rules do not know each other; only this module compares them.

Three things are decided here:
- `CAUSES_OF_DATA_WAIT`: a step that waits for data has one cause. The rules about input share this order.
- `PRECEDENCE`: a rule yields where another finding explains the same time or memory, or contradicts the rule.
- `rank`: the order in which findings are stored in `Run.findings` and shown everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import msgspec

from gpuconsole.diagnosis.case import CantTell, Case
from gpuconsole.diagnosis.probes import PROBE_OF
from gpuconsole.diagnosis.rules import _cores, _serving
from gpuconsole.model.finding import Finding

FIRST = "hw.errors"
"""Recovers nothing and stands before all other findings: results may be wrong."""

Cause = Literal["epoch_restart", "jitter", "ipc_collate", "slow_storage", "too_few_workers", "cpu_transform"]
CAUSES_OF_DATA_WAIT: tuple[Cause, ...] = ("epoch_restart", "jitter", "ipc_collate", "slow_storage", "too_few_workers", "cpu_transform")
"""The first cause that applies is the one that is reported: restarts and single slow samples explain waits that look like a slow loader; a
process that is busy receiving, or a storage that is slow, is not helped by cores; cheaper transforms are the answer if nothing else is."""


@dataclass(frozen=True)
class Yields:
    """The rule `loser` is clear where `winner` stands; `why` is what the user reads.

    The winner stands if it fires and is no note, or, where `when` is given, if `when` is true of the case. A loser that
    waits for a probe is then clear too, so the probe is not run in vain.
    `unless` is a knob: with any value but 0 the two rules are about different things.
    `must_know`: while the winner cannot tell, the loser cannot tell either.
    """

    loser: str
    winner: str
    why: str
    when: Callable[[Case], bool] | None = None
    unless: str = ""
    must_know: bool = False


_MORE_TO_GAIN = "that finding still gains time"
_NAMED = "that finding names what the device is busy with"
_FILLED = "that finding names what fills the memory"
PRECEDENCE = (
    Yields(
        "gpu.small_batch",
        "host.cpu_contention",
        "threads of this job wait for each other, at any batch size",
        when=_cores.threads_wait_for_each_other,
    ),
    Yields(
        "host.launch_bound", "host.cpu_contention", "the host issues kernels late because it waits for a core", when=_cores.waits_for_core
    ),
    Yields("gpu.compute_bound_healthy", "gpu.small_batch", _MORE_TO_GAIN, must_know=True),
    Yields("gpu.compute_bound_healthy", "gpu.attention_math", _MORE_TO_GAIN),
    Yields("gpu.compute_bound_healthy", "gpu.conv_layout_autotune", _MORE_TO_GAIN),
    Yields("gpu.compute_bound_healthy", "gpu.fp32_no_tensor_core", _MORE_TO_GAIN),
    Yields("gpu.compute_bound_healthy", "gpu.optimizer_unfused", _MORE_TO_GAIN),
    Yields("gpu.compute_bound_healthy", "host.idle_cores", _MORE_TO_GAIN),
    Yields("mem.near_capacity", "mem.activation_capped", _FILLED, unless="memory_limit_mb"),
    Yields("mem.near_capacity", "mem.state_capped", _FILLED, unless="memory_limit_mb"),
    Yields(
        "serve.host_overhead_eager",
        "serve.frontend_cpu",
        "the engine waits for requests while the API server process is short of CPU",
        when=_serving.frontend_is_busy,
    ),
    Yields(
        "serve.decode_bandwidth_bound",
        "serve.batch_too_small",
        "more concurrent requests would share each reading of the weights",
        when=_serving.more_users_gain,
    ),
    Yields("serve.saturated_healthy", "serve.decode_bandwidth_bound", _NAMED, must_know=True),
    Yields("serve.saturated_healthy", "serve.prefill_bound", _NAMED, must_know=True),
)
"""Entries with the same loser stand together, and a rule stands as a loser before it stands as a winner."""


def settle(findings: list[Finding], case: Case) -> list[Finding]:
    """The rules' own conclusions after precedence: a rule that yields is clear, with level 0."""
    found = {finding.rule: finding for finding in findings}
    for loser, entries in groupby(PRECEDENCE, lambda entry: entry.loser):
        if loser in found:
            outcomes = (_outcome(entry, found, case) for entry in entries)
            found[loser] = next((outcome for outcome in outcomes if outcome is not None), found[loser])
    return list(found.values())


def _outcome(entry: Yields, found: dict[str, Finding], case: Case) -> Finding | None:
    """What the loser becomes because of this entry; None: this entry decides nothing."""
    loser, winner = found[entry.loser], found.get(entry.winner)
    if winner is None or (entry.unless and case.knobs.get(entry.unless)):
        return None
    if _stands(entry, winner, case):
        if loser.state == "clear":
            return msgspec.structs.replace(loser, level=0.0)
        if loser.state == "fires" or (entry.when is not None and _lacks_a_probe(loser)):
            return Finding(loser.rule, "clear", f"Covered by {winner.rule}", summary=entry.why, evidence=loser.evidence or winner.evidence)
    elif entry.must_know and loser.state == "fires" and winner.state == "cant_tell":
        return Finding(loser.rule, "cant_tell", loser.title, summary=winner.summary, missing=winner.missing)
    return None


def _stands(entry: Yields, winner: Finding, case: Case) -> bool:
    if entry.when is None:
        return winner.state == "fires" and not winner.note
    try:
        return entry.when(case)
    except CantTell:
        return False


def _lacks_a_probe(finding: Finding) -> bool:
    return finding.state == "cant_tell" and any(signal in PROBE_OF for signal in finding.missing)


def rank(findings: list[Finding]) -> list[Finding]:
    """What fires, then what cannot tell, then what is clear.

    Among findings that fire: FIRST, then those with something to recover by weight (recoverable share times confidence), then notes.
    Equal findings stand in the order of their rule ids. `Run.findings` is stored in this order, and readers keep the order.
    """
    states = {"fires": 0, "cant_tell": 1, "clear": 2}
    return sorted(findings, key=lambda f: (states[f.state], f.state != "fires" or f.rule != FIRST, f.note, -f.weight, f.rule))
