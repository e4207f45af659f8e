"""A knob: one typed setting of a workload, under the name that the ecosystem uses."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Value = bool | int | float | str
Knobs = dict[str, Value]
NO_EFFECT = "no effect: "
"""Prefix of a worker's notes about knobs that have no effect there; the note holds the reason."""


class KnobError(ValueError):
    """A knob or a value that does not exist. The message is one line for the user."""


APPLY = {"hot": "live", "cold": "restart"}
"""When a change takes effect, in words: between two steps, or in a new process."""


class Knob(msgspec.Struct, frozen=True):
    """One setting. `low`/`high` bound numbers (inclusive), `choices` lists words.

    `loader`: the change acts through the DataLoader. A trial must measure wall-clock time, not the
    training thread's own time, and must first let the queue of the new loader reach its steady
    state.
    `serving`: a setting of a model server or of its load. The change acts through requests, so a
    trial measures wall-clock time. `changes_output`: the change alters the answers of a model
    server, so a trial compares perplexity too.
    `changes_numerics`: the change alters the numbers that a step computes, so a trial compares the
    loss of held-out batches too. `default`: the value where a scenario sets none. A scenario must
    set a knob without a default.
    `changes_training`: the change alters what the model learns per step (batch size), not only the
    speed.
    `work`: the knob gives a sample or a request other work (its model, its data, the load), or a
    step more samples.
    `words`: the change as an instruction (`use {} DataLoader workers`), one for all values or one
    for each; `` is the instruction for all other values.
    `lowered_live`: a cold knob whose value a model server can lower, and raise again, while it runs
    (see `live_limit`).
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
    lowered_live: bool = False
    work: Literal["", "sample", "step"] = ""
    words: str | Mapping[str, str] = ""

    def live_limit(self, facts: Mapping[str, float]) -> float | None:
        """The largest value that the running worker accepts without a restart; None where its
        `facts` report no limit."""
        return facts.get(live_limit_fact(self.name))

    def applies_live(self, value: Value, facts: Mapping[str, float]) -> bool:
        """Whether `value` takes effect in the running worker, without another process.

        True for hot knobs, and for a cold knob up to the limit that the worker, or its model
        server, reports in its `facts`.
        """
        limit = self.live_limit(facts)
        return self.apply == "hot" or (
            limit is not None and isinstance(value, int | float) and value <= limit
        )

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
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
        ):
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
            spellings = {
                "true": True,
                "1": True,
                "yes": True,
                "on": True,
                "false": False,
                "0": False,
                "no": False,
                "off": False,
            }
            return self.check(spellings.get(text.lower(), text))
        try:
            return self.check(float(text) if self.kind == "float" else int(text))
        except ValueError as error:
            if isinstance(error, KnobError):
                raise
            raise KnobError(
                f"{self.name}: {text!r} is not allowed; allowed: {self.allowed()}"
            ) from None


def live_limit_fact(name: str) -> str:
    """The name of the fact in which a worker reports the live limit of knob `name`."""
    return f"live_limit.{name}"


def nearest(word: str, names: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known word is close."""
    match = difflib.get_close_matches(word, list(names), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _plain(bound: float) -> str:
    """The bound without an exponent."""
    return f"{bound:.0f}" if bound == int(bound) else f"{bound:g}"


def show(value: Value) -> str:
    """A knob value as a user would type it."""
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
