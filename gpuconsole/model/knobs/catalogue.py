"""The knob catalogue, and the checks of knob values that a user types.

A workload's TOML file lists the knobs of that workload. `apply` says when a change takes effect:
*hot* between two steps, *cold* after a restart of the worker.
"""

from __future__ import annotations

from gpuconsole.model.knobs.knob import Knob, KnobError, Knobs, Value, nearest, show
from gpuconsole.model.knobs.serving import SERVING_GROUPS, SERVING_KNOBS
from gpuconsole.model.knobs.training import TRAINING_GROUPS, TRAINING_KNOBS

__all__ = [
    "CATALOGUE",
    "GROUPS",
    "Knob",
    "KnobError",
    "Knobs",
    "Value",
    "check_knobs",
    "describe_changes",
    "find",
    "in_words",
    "nearest",
    "parse_assignment",
    "place",
    "show",
    "side_effects",
]

CATALOGUE: dict[str, Knob] = {knob.name: knob for knob in TRAINING_KNOBS + SERVING_KNOBS}
GROUPS = TRAINING_GROUPS | SERVING_GROUPS
"""The groups that a workload's TOML file can name."""


def check_knobs(values: dict[str, object], allowed: tuple[str, ...], owner: str) -> Knobs:
    """`values` checked against the knobs that `owner` has; raises KnobError naming the first bad
    one."""
    return {name: find(name, allowed, owner).check(value) for name, value in values.items()}


def parse_assignment(text: str, allowed: tuple[str, ...], owner: str) -> tuple[str, Value]:
    """`NAME=VALUE` as typed after `--set`; raises KnobError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise KnobError(f"{text!r}: expected NAME=VALUE")
    return name, find(name, allowed, owner).parse(value)


def find(name: str, allowed: tuple[str, ...], owner: str) -> Knob:
    """The knob `name` of `owner`; raises KnobError with the nearest match."""
    if name not in allowed:
        raise KnobError(
            f"{owner} has no setting {name!r}{nearest(name, allowed)}; it has: {', '.join(allowed)}"
        )
    return CATALOGUE[name]


def describe_changes(changes: Knobs, before: Knobs | None = None) -> str:
    """`num_workers 0 -> 4, prefetch_factor 4`."""
    parts = []
    for name, value in changes.items():
        old = f"{show(before[name])} -> " if before and name in before else ""
        parts.append(f"{name} {old}{show(value)}")
    return ", ".join(parts)


def in_words(changes: Knobs) -> str:
    """`use 4 DataLoader workers and load batches into page-locked memory`. A knob without an
    instruction: `set NAME to VALUE`."""
    parts = [_instruction(name, show(value)) for name, value in changes.items()]
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)


def place(changes: Knobs) -> str:
    """Where a user makes such changes without the console: `in your own code`, `server flags`, or
    `in your client` for the load of a server."""
    knobs = [CATALOGUE[name] for name in changes if name in CATALOGUE]
    if not any(knob.serving for knob in knobs):
        return "in your own code"
    return "in your client" if all(knob.work == "sample" for knob in knobs) else "server flags"


def side_effects(changes: Knobs) -> list[str]:
    """What such changes alter beside the speed: `changes numerics`, `changes training`,
    `changes answers`."""
    knobs = [CATALOGUE[name] for name in changes if name in CATALOGUE]
    altered = {
        "changes numerics": any(knob.changes_numerics for knob in knobs),
        "changes training": any(knob.changes_training for knob in knobs),
        "changes answers": any(knob.changes_output for knob in knobs),
    }
    return [words for words, holds in altered.items() if holds]


def _instruction(name: str, value: str) -> str:
    description = CATALOGUE[name].words if name in CATALOGUE else ""
    if not isinstance(description, str):
        description = description.get(value, description.get("", ""))
    return description.format(value) if description else f"set {name} to {value}"
