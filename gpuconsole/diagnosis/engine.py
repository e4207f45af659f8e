"""Runs every rule on a case, steadies the verdicts over time, and ranks what fires."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterable
from functools import cache

from gpuconsole.diagnosis import rules as rules_package
from gpuconsole.diagnosis.case import Case, Missing, Rule
from gpuconsole.model.finding import Finding
from gpuconsole.model.profile import OP_CLASSES

OPEN_AFTER = 2
"""Windows in a row that must agree before a finding is shown."""
CLOSE_BELOW = 0.6
"""A shown finding stays until its leading signal falls below this share of its threshold."""

PROBE_OF = {
    "probe.concurrency_gain": "concurrency_step",
    "probe.prefix_cut_gain": "prefix_reuse",
    "probe.prefix_salt_ratio": "prefix_reuse",
    "comm.exposed_s": "exposed_communication",
    "comm.exchange_large_s": "exchange_sizes",
    "comm.straggler_ratio": "exposed_communication",
    "probe.cached_pass_s": "cached_batch",
    "probe.batch_cost_ratio": "batch_elasticity",
    "probe.step_no_side_work_s": "side_work_off",
    "probe.batch_factor": "batch_elasticity",
    "probe.loader_samples_per_s": "loader_alone",
    "probe.loader_cpu_ratio": "loader_alone",
    "probe.loader_plus_1_samples_per_s": "loader_alone",
    "stack.script_ratio": "script_lines",
    "probe.attention_sdpa_speedup": "swap_attention",
    "probe.precision_bf16_native": "swap_precision",
    "probe.optim_present_step_s": "swap_optim",
    "probe.channels_last_speedup": "swap_layout",
    "probe.threads_tried": "swap_threads",
    "probe.threads_speedup": "swap_threads",
    **{f"profile.{name}_ratio": "op_mix" for name in (*OP_CLASSES, "busy", "tensor_core")},
    "memory.heap_allocated_peak_bytes": "heap_peaks",
    "profile.elementwise_bytes": "op_mix",
    "profile.elementwise_bytes_per_s": "op_mix",
    "profile.launches_per_s": "op_mix",
    "profile.mean_kernel_s": "op_mix",
    "comm.bus_bytes_per_s": "exchange_sizes",
    "comm.bytes_per_step": "exposed_communication",
    "probe.issue_s": "launch",
    "probe.sync_gaps_s": "sync_gaps",
    "probe.h2d_pinned_s": "h2d_copies",
}
"""Which probe measures a missing signal."""
PROBE_ORDER = (
    "cached_batch",
    "memory_parts",
    "heap_peaks",
    "side_work_off",
    "loader_alone",
    "script_lines",
    "exposed_communication",
    "swap_attention",
    "swap_optim",
    "batch_elasticity",
    "launch",
    "op_mix",
    "swap_precision",
    "swap_layout",
    "swap_threads",
    "sync_gaps",
    "h2d_copies",
)
"""Those that settle one cause come first, those that look for what may be hidden later. A probe that is not named here comes last."""
FIRST = "hw.errors"
"""Has nothing to recover, and stands before everything that has: results may be wrong."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule: one per module in `rules/`, found by looking there."""
    modules = sorted(module.name for module in pkgutil.iter_modules(rules_package.__path__) if not module.name.startswith("_"))
    return tuple(importlib.import_module(f"{rules_package.__name__}.{name}").RULE for name in modules)


def evaluate(case: Case) -> list[Finding]:
    """Every rule's conclusion that is about such work, ranked: what fires by weight, notes after it, then what can't tell, then clear."""
    return rank([_check(rule, case) for rule in all_rules() if rule.shared or rule.serving == case.serves])


def _check(rule: Rule, case: Case) -> Finding:
    try:
        return rule.check(case)
    except Missing as missing:
        return Finding(rule.id, "cant_tell", rule.title, summary=f"needs {missing.signal}", missing=(missing.signal,))


def rank(findings: list[Finding]) -> list[Finding]:
    order = {"fires": 0, "cant_tell": 1, "clear": 2}
    return sorted(findings, key=lambda f: (order[f.state], f.state != "fires" or f.rule != FIRST, f.note, -f.weight, f.rule))


def wanted_probes(findings: list[Finding]) -> list[str]:
    """Probes that would let a rule tell, each once, in PROBE_ORDER; then those that would let one that fires predict."""
    found = []
    for state in ("cant_tell", "fires"):
        wanted = dict.fromkeys(PROBE_OF[signal] for f in findings if f.state == state for signal in f.missing if signal in PROBE_OF)
        found += sorted(wanted, key=lambda probe: PROBE_ORDER.index(probe) if probe in PROBE_ORDER else len(PROBE_ORDER))
    return list(dict.fromkeys(found))


def about(findings: Iterable[Finding], tunable: Collection[str]) -> list[Finding]:
    """Those of rules that may suggest to turn one of these knobs to save time; all of them where none is named."""
    rules = {rule.id for rule in all_rules() if rule.resource == "time" and not set(tunable).isdisjoint(rule.knobs)}
    return [finding for finding in findings if not tunable or finding.rule in rules]


class Steadied:
    """Findings over successive windows: opened by two in a row, closed only well below the threshold."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._open: dict[str, Finding] = {}
        self.opened: list[Finding] = []
        """What the last look showed for the first time."""

    @property
    def waiting(self) -> bool:
        """Whether a finding needs only one more look to be shown."""
        return any(0 < seen < OPEN_AFTER and rule not in self._open for rule, seen in self._seen.items())

    def update(self, findings: list[Finding]) -> list[Finding]:
        """What to show after this window."""
        before = set(self._open)
        shown = rank([self._steady(finding) for finding in findings])
        self.opened = [finding for rule, finding in self._open.items() if rule not in before]
        return shown

    def _steady(self, finding: Finding) -> Finding:
        rule = finding.rule
        if finding.state == "fires":
            self._seen[rule] = self._seen.get(rule, 0) + 1
            if self._seen[rule] >= OPEN_AFTER or rule in self._open:
                self._open[rule] = finding
                return finding
            return Finding(rule, "cant_tell", finding.title, summary="seen once, waiting for a second look", level=finding.level)
        self._seen[rule] = 0
        if rule in self._open and finding.state == "clear" and finding.level >= CLOSE_BELOW:
            return self._open[rule]
        self._open.pop(rule, None)
        return finding
