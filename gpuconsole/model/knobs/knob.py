"""What a knob is: one typed setting of a workload, under the ecosystem's own name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal

import msgspec

Value = bool | int | float | str
Knobs = dict[str, Value]
NO_EFFECT = "no effect: "
"""How a worker's notes name knobs that do nothing there; the reason is the note."""


class KnobError(ValueError):
    """A knob or a value that does not exist; the message is one line fit for a user."""


class Knob(msgspec.Struct, frozen=True):
    """One setting. `low`/`high` bound numbers (inclusive), `choices` lists words.

    `loader`: the change is felt through the DataLoader, so a trial must time wall clock, not the training
    thread's own time, and must let the new loader's queue reach its steady state first.
    `serving`: a setting of a model server or of its load; what it does is felt through requests, so a trial times wall clock.
    `changes_output`: a model server answers otherwise with it, so that a trial compares perplexity too.
    `changes_numerics`: the same step computes other figures with it, so that a trial compares the loss of held-out batches too.
    `default`: the value where a scenario gives none; a knob without one must be given.
    `changes_training`: the change alters what is learnt per step (batch size), not only how fast.
    """

    name: str
    kind: Literal["int", "float", "choice", "bool"]
    meaning: str
    apply: Literal["hot", "cold"] = "hot"
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    unit: str = ""
    loader: bool = False
    changes_training: bool = False
    serving: bool = False
    changes_output: bool = False
    changes_numerics: bool = False
    default: Value | None = None
    examples: tuple[Value, ...] = ()

    def allowed(self) -> str:
        """The allowed values in words."""
        if self.kind == "choice":
            return "|".join(self.choices)
        if self.kind == "bool":
            return "true|false"
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.kind} {_plain(self.low)}..{_plain(self.high)}{unit}"

    def check(self, value: object) -> Value:
        """`value` as this knob's type; raises KnobError when it is not allowed."""
        if self.kind == "bool" and isinstance(value, bool):
            return value
        if self.kind == "choice" and isinstance(value, str) and value in self.choices:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high:
            if self.kind == "float":
                return float(value)
            if self.kind == "int" and int(value) == value:
                return int(value)
        hint = nearest(str(value), self.choices) if self.kind == "choice" else ""
        raise KnobError(f"{self.name}: {value!r} is not allowed; allowed: {self.allowed()}{hint}")

    def parse(self, text: str) -> Value:
        """A value typed by a user."""
        if self.kind == "choice":
            return self.check(text)
        if self.kind == "bool":
            words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
            return self.check(words.get(text.lower(), text))
        try:
            return self.check(float(text) if self.kind == "float" else int(text))
        except ValueError as error:
            if isinstance(error, KnobError):
                raise
            raise KnobError(f"{self.name}: {text!r} is not allowed; allowed: {self.allowed()}") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known word is close."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _plain(bound: float) -> str:
    """Without an exponent, which nobody would type."""
    return f"{bound:.0f}" if bound == int(bound) else f"{bound:g}"


def show(value: Value) -> str:
    """A knob value as a user would type it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
