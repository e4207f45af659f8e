"""Live changes of a program's training: one module for each knob or group of knobs. `CHANGES` lists
them by knob."""

from __future__ import annotations

from functools import partial

from ...protocol import Value
from ..guard import from_outside, switch, unseen
from ..memory import first_steps
from .change import CHANGES_NUMERICS, Change, ChangeRefused, site, why
from .loader import LoaderChange, NumWorkers, PinMemory, PrefetchFactor
from .model import ChannelsLast, CudnnBenchmark, Precision, TorchCompile, device_of
from .optimizer import Optimizer

__all__ = ["CHANGES", "Change", "ChangeRefused", "begin_change", "effects", "observed", "why_fixed"]

_ALL = (
    NumWorkers,
    PrefetchFactor,
    PinMemory,
    Optimizer,
    Precision,
    TorchCompile,
    ChannelsLast,
    CudnnBenchmark,
)
CHANGES: dict[str, Change] = {change.knob: change() for change in _ALL}
"""The changes that this agent can make, by the name of the knob."""


@unseen
def why_fixed(knob: str) -> str:
    """Why `knob` cannot change while the program runs, with the code that sets it; empty where it
    can."""
    from ..watch import watch

    change = CHANGES.get(knob)
    if change is None:
        return why(knob, watch)
    if knob in unreadable:
        return f"its value cannot be read ({unreadable[knob]})"
    reason = change.why_fixed(watch)
    place = (
        site(watch, "loader")
        if isinstance(change, LoaderChange)
        else site(watch, "optimizer")
        if knob == "optim"
        else ""
    )
    return f"{reason} ({place})" if reason and place else reason


unreadable: dict[str, str] = {}
"""Why the value of a knob could not be read, by knob."""


@unseen
def observed() -> dict[str, Value]:
    """The values in force of all settings that can change. A knob that cannot be read is left out,
    and `unreadable` says why."""
    from ..watch import watch

    values: dict[str, Value] = {}
    for knob, change in CHANGES.items():
        try:
            value = change.read(watch)
        except Exception as problem:
            # a setting that this agent does not know, or an object of the program that raises
            if from_outside(problem):
                raise
            if knob not in unreadable:
                unreadable[knob] = f"{type(problem).__name__}: {problem}".splitlines()[0]
                switch.notes.append(
                    f"gpuconsole cannot read {knob} in this program ({unreadable[knob]})"
                )
            continue
        if value is not None:
            values[knob] = value
    return values


@unseen
def effects() -> dict[str, str]:
    """What each change does to the numbers of the program."""
    from ..watch import watch

    return {
        knob: change.effect_here(watch)
        for knob, change in CHANGES.items()
        if knob not in unreadable
    }


def begin_change(knob: str, value: Value, prepare: bool = False) -> None:
    """Begin to set `knob`, or only to prepare that. Raises ChangeRefused."""
    from ..watch import watch

    change = CHANGES.get(knob)
    if change is None or (reason := why_fixed(knob)):
        raise ChangeRefused(f"{knob}: {why_fixed(knob) if change is None else reason}")
    if (
        change.effect == CHANGES_NUMERICS
        and not watch.allows_numerics
        and value != change.read(watch)
    ):
        raise ChangeRefused(
            f"{knob} changes numerics: it needs your permission: N, or --allow-numerics"
        )
    if prepare:
        change.prepare(watch, value)
        return
    before = change.read(watch)
    own.setdefault(knob, before)
    change.set(watch, value)
    if value == own[knob]:
        first_steps.end()
    elif before is not None and not isinstance(change, LoaderChange) and device_of(watch) == "cuda":
        first_steps.begin(f"{knob}={value}", partial(change.set, watch, before))


own: dict[str, Value | None] = {}
"""The values that the program itself has set, of the knobs that were changed."""
