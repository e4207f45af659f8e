"""The trial of a headless run (`--try`, `--apply-top`): when the trial begins, and what it prints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuconsole.cli.session import ended_before
from gpuconsole.diagnosis.engine import in_doubt
from gpuconsole.experiments.session import LiveSession
from gpuconsole.model.finding import Interval, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.report.session import trial_text
from gpuconsole.session import facts
from gpuconsole.session.api import SessionError, View


def ready(view: View, tries: Knobs, late: bool) -> bool:
    """Whether the diagnosis is complete: the run is steady, no probe runs and no rule is in doubt. Without `tries` there must be a suggestion too.
    `late`: the trial begins without a complete diagnosis."""
    run = view.run
    if view.down:
        return False  # a trial on a server that does not answer measures nothing
    if not tries and top_suggestion(view) is None:
        return False  # a later evaluation may suggest a change
    if run is None or run.steady_from_s is None:
        return late
    settled = run.is_job or not in_doubt(run)  # a job runs no probe without the user's consent, so a doubt may stay
    return (bool(run.findings) and not view.probing and settled) or late


async def try_now(engine: LiveSession, tries: Knobs, interrupted: asyncio.Event, say: Callable[[str], None]) -> None:
    """Try `tries`, or the top suggestion without them, and report by `say`. An interrupt breaks the trial off."""
    view = engine.view()
    changes: Knobs = tries
    predicted: Interval | None = None
    if not changes:
        top = top_suggestion(view)
        assert top is not None
        changes, predicted = top.changes, top.predicted_speedup
    say(f"trial: {describe_changes(changes, view.run.settings if view.run else None)}")
    trial = asyncio.create_task(engine.try_change(changes, predicted))
    if not await ended_before(interrupted, trial):
        return
    try:
        for line in trial_text(trial.result(), engine.snapshot()).splitlines():
            say(line)
    except SessionError as error:
        say(f"trial: {error}")


def top_suggestion(view: View) -> Suggestion | None:
    """The first suggestion that can be tried, of the highest-ranked finding that has such a suggestion."""
    return next((suggestion for _, suggestion in facts.suggestions(view).values()), None)


def nothing_to_try(view: View) -> str:
    """Why --apply-top has tried nothing."""
    suggested = [suggestion.changes for finding in facts.firing(view.run) for suggestion in finding.suggestions]
    reason = view.run.why_not(suggested[0]) if view.run is not None and suggested else ""
    return f"the suggestion cannot be tried from here: {reason}" if reason else "no finding suggests a change"
