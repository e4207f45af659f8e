"""Runs every rule on a case, and smooths the conclusions over time."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterable
from functools import cache

from gpuconsole.diagnosis import rules as rules_package
from gpuconsole.diagnosis.case import CantTell, Case, Missing
from gpuconsole.diagnosis.precedence import rank, settle
from gpuconsole.diagnosis.probes import ORDER, PROBE_OF
from gpuconsole.diagnosis.rule import Rule
from gpuconsole.model.finding import Finding

OPEN_AFTER = 2
"""Evaluations in a row that must agree before a finding is shown."""
SEEN_ONCE = "fires for the first time; the next evaluation must confirm it"
"""The summary of a finding that is not shown yet."""
CLOSE_BELOW = 0.6
"""A shown finding stays until its leading signal falls below this share of its threshold."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, sorted by id: the classes in the modules of `rules/` whose names do not begin with an underscore."""
    names = [module.name for module in pkgutil.iter_modules(rules_package.__path__) if not module.name.startswith("_")]
    modules = [importlib.import_module(f"{rules_package.__name__}.{name}") for name in names]
    classes = [
        entry for module in modules for entry in vars(module).values() if isinstance(entry, type) and entry.__module__ == module.__name__
    ]
    return tuple(sorted((entry() for entry in classes if issubclass(entry, Rule)), key=lambda rule: rule.id))


def evaluate(case: Case) -> list[Finding]:
    """The conclusions of all rules for this kind of work, after precedence, ranked (precedence.rank)."""
    return rank(settle([conclude(rule, case) for rule in all_rules() if rule.applies(case)], case))


def conclude(rule: Rule, case: Case) -> Finding:
    """The conclusion of one rule. If the rule raises an error, it has no conclusion, and the other rules continue."""
    try:
        return rule.check(case)
    except Missing as missing:
        return rule.cant_tell(str(missing), (missing.signal,))
    except CantTell as reason:
        return rule.cant_tell(str(reason))
    except Exception as error:
        return rule.cant_tell(f"the rule failed: {type(error).__name__}: {error}")


def wanted_probes(findings: list[Finding]) -> list[str]:
    """The needed probes, each once: first the probes that a rule without a conclusion needs, in the order of PROBES; then the probes that a
    firing rule needs for a prediction."""
    found: list[str] = []
    for state in ("cant_tell", "fires"):
        wanted = {PROBE_OF[signal] for f in findings if f.state == state for signal in f.missing if signal in PROBE_OF}
        found += sorted(wanted, key=ORDER.__getitem__)
    return list(dict.fromkeys(found))


def about(findings: Iterable[Finding], tunable: Collection[str]) -> list[Finding]:
    """Findings of rules that may suggest a change of one of these knobs to save time. Without knobs: all findings."""
    rules = {rule.id for rule in all_rules() if rule.resource == "time" and not set(tunable).isdisjoint(rule.knobs)}
    return [finding for finding in findings if not tunable or finding.rule in rules]


class Steadied:
    """Findings over successive evaluations: two in a row open a finding, and only a value well below the threshold closes it."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._open: dict[str, Finding] = {}
        self.opened: list[Finding] = []
        """The findings that the last update showed for the first time."""

    @property
    def waiting(self) -> bool:
        """Whether a finding needs only one more evaluation to be shown."""
        return any(0 < seen < OPEN_AFTER and rule not in self._open for rule, seen in self._seen.items())

    def update(self, findings: list[Finding]) -> list[Finding]:
        """The findings to show after this evaluation, ranked."""
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
            return Finding(rule, "cant_tell", finding.title, summary=SEEN_ONCE, level=finding.level)
        self._seen[rule] = 0
        if rule in self._open and finding.state == "clear" and finding.level >= CLOSE_BELOW:
            return self._open[rule]
        self._open.pop(rule, None)
        return finding
