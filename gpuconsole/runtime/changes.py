"""Changes to a run's knobs, checked before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable

from gpuconsole.model.knobs import CATALOGUE, KnobError, Knobs, check_knobs, describe_changes
from gpuconsole.model.run import Run
from gpuconsole.runtime.front import FrontError


def checked(changes: Knobs, run: Run) -> Knobs:
    """Those of `changes` that alter anything in `run`; raises FrontError when one is not allowed, or all are so already."""
    try:
        allowed = check_knobs(dict(changes), tuple(run.knobs), run.scenario)
    except KnobError as error:
        raise FrontError(str(error)) from None
    changed = {name: value for name, value in allowed.items() if run.knobs[name] != value}
    if not changed:
        raise FrontError(f"{describe_changes(allowed)}: already so")
    return changed


def is_cold(names: Iterable[str]) -> bool:
    """Whether one of these knobs needs another worker."""
    return any(CATALOGUE[name].apply == "cold" for name in names)


def check_hot(changes: Knobs, otherwise: str) -> None:
    """Raises FrontError, which ends in `otherwise`, where a change needs another worker."""
    if is_cold(changes):
        raise FrontError(f"{describe_changes(changes)} {otherwise}")
