"""Changes to a run's knobs, checked before anything is touched."""

from __future__ import annotations

from gpuconsole.model.knobs.catalogue import CATALOGUE, KnobError, Knobs, check_knobs, describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.serving import within_live_limit
from gpuconsole.session.api import SessionError


def checked(changes: Knobs, run: Run) -> Knobs:
    """Those of `changes` that alter anything in `run`; raises SessionError when one is not allowed, or all are so already."""
    try:
        allowed = check_knobs(dict(changes), tuple(run.knobs), run.scenario)
    except KnobError as error:
        raise SessionError(str(error)) from None
    changed = {name: value for name, value in allowed.items() if run.knobs[name] != value}
    if not changed:
        raise SessionError(f"{describe_changes(allowed)}: already so")
    return changed


def is_cold(changes: Knobs, run: Run) -> bool:
    """Whether one of these knobs needs another worker than that of `run`."""
    return any(CATALOGUE[name].apply == "cold" and not within_live_limit(name, value, run.facts) for name, value in changes.items())


def check_hot(changes: Knobs, run: Run, otherwise: str) -> None:
    """Raises SessionError, which ends in `otherwise`, where a change needs another worker than that of `run`."""
    if is_cold(changes, run):
        raise SessionError(f"{describe_changes(changes)} {otherwise}")
