"""Live changes of a program's training: one module for each knob or group of knobs. `CHANGES` lists them by knob."""

from __future__ import annotations

from .change import Change, Refused

__all__ = ["CHANGES", "Change", "Refused", "why_fixed"]

CHANGES: dict[str, Change] = {}
"""The changes that this agent can make, by the name of the knob."""

RESTART = "set in the program; a new value takes effect when the job starts again"


def why_fixed(knob: str) -> str:
    """Why `knob` cannot change while the program runs; empty where it can."""
    from ..watch import watch

    change = CHANGES.get(knob)
    return RESTART if change is None else change.why_fixed(watch)
