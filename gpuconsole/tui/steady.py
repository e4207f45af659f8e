"""Holds an advice on the main screen for some seconds: an estimate near a limit would change it back and forth, and Enter would try what nobody has read."""

from __future__ import annotations

import msgspec

from gpuconsole.model.finding import Finding
from gpuconsole.session import facts
from gpuconsole.session.api import View

HOLD_S = 4.0
"""Seconds that another advice must last before it takes the place of the one in sight."""
Advice = tuple[tuple[tuple[str, object], ...], ...]


class Steady:
    """Gives views in which the suggestions of a finding, and with them the whole finding, change only if the new ones last. What was measured, and a change of
    the settings, counts at once."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], Finding] = {}
        self._other: dict[tuple[str, str], tuple[Advice, float]] = {}

    def of(self, view: View) -> View:
        """The view with the findings to show."""
        run = view.run
        if run is None:
            return view
        findings = [self._held(view, run.id, finding) for finding in run.findings]
        if all(held is finding for held, finding in zip(findings, run.findings, strict=True)):
            return view
        return msgspec.structs.replace(view, runs=(*view.runs[:-1], msgspec.structs.replace(run, findings=findings)))

    def _held(self, view: View, run: str, finding: Finding) -> Finding:
        key, advice = (run, finding.rule), _advice(finding)
        shown = self._shown.get(key)
        if shown is None or finding.state != "fires" or advice == _advice(shown) or not _still_holds(view, shown, finding):
            return self._show(key, finding)
        other, since_s = self._other.get(key, ((), view.now))
        if other != advice or since_s > view.now:
            self._other[key] = advice, view.now
            return shown
        return self._show(key, finding) if view.now - since_s >= HOLD_S else shown

    def _show(self, key: tuple[str, str], finding: Finding) -> Finding:
        self._shown[key] = finding
        self._other.pop(key, None)
        return finding


def _advice(finding: Finding) -> Advice:
    return tuple(tuple(sorted(suggestion.changes.items())) for suggestion in finding.suggestions)


def _still_holds(view: View, shown: Finding, finding: Finding) -> bool:
    """Whether the finding in sight is still one that can be shown: it fired, nothing was measured since, and its changes can be tried where they could."""
    measured = {suggestion.tried for suggestion in finding.suggestions} - {suggestion.tried for suggestion in shown.suggestions}
    possible = all(facts.can_try(view.run, suggestion) for suggestion in shown.suggestions)
    return shown.state == "fires" and not measured and (possible or not any(facts.can_try(view.run, one) for one in finding.suggestions))
