"""Runs a rule on many random cases, and collects the signals that the rule reads. A test compares
them with `Rule.reads`."""

from __future__ import annotations

import random
from abc import abstractmethod
from contextlib import suppress
from typing import Any, TypeVar

from gpuconsole.diagnosis.rule import Case, Rule
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import CATALOGUE
from gpuconsole.model.knobs.knob import Knob, Value

QUIET = 400
"""Runs without a new signal after which the search ends. The rule must also have fired, because
then its last branch has run, and must have read all signals that it declares."""
MAX_CASES = 100_000
"""Maximum number of runs of a rule that does not fire. tests/diagnosis/test_reads.py fails for such
a rule."""
VALUES = (
    0.0,
    0.0,
    0.0,
    0.0,
    0.01,
    0.06,
    0.12,
    0.3,
    0.6,
    0.95,
    1.0,
    1.5,
    2.0,
    4.0,
    40.0,
    2e3,
    2e8,
    4e9,
    3e10,
)
"""Ratios, seconds, counts and bytes, on both sides of the thresholds."""
NUMBERS = (0, 0, 1, 1, 2, 4, 64, 2048)
"""Values of numeric knobs."""
KNOWN = 0.9
"""Share of knobs and signals that exist in a case. If a signal is missing, a rule may read another
signal."""


def explore(rule: Rule) -> tuple[dict[str, None], bool]:
    """The signals that were read, and whether the rule has fired. The cases are the same at each
    call, and record what was asked for."""
    draw = random.Random(rule.id)
    read: dict[str, None] = {}
    fired, quiet = False, 0
    for _ in range(MAX_CASES):
        case = Case(
            _Knobs(draw), _Signals(draw), rule.subject in ("serving", "load"), is_job=rule.jobs_only
        )
        with suppress(Exception):  # a rule may fail on values that do not occur in real runs
            fired |= rule.check(case).state == "fires"
        quiet = quiet + 1 if case.read.keys() <= read.keys() else 0
        read |= case.read
        if fired and quiet >= QUIET and read.keys() >= set(rule.reads):
            break
    return read, fired


T = TypeVar("T")


class _Drawn(dict[str, T]):
    """Random values, each drawn at the first request of its name. Some names have no value."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw
        self._absent: set[str] = set()

    @abstractmethod
    def _new(self, name: str) -> T | None: ...

    def __contains__(self, name: object) -> bool:
        text = str(name)
        if not super().__contains__(text) and text not in self._absent:
            value = self._new(text) if self._draw.random() < KNOWN else None
            if value is None:
                self._absent.add(text)
            else:
                self[text] = value
        return text not in self._absent

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise KeyError(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().__getitem__(name) if name in self else default


class _Signals(_Drawn[Signal]):
    """The possible values of a run. In some runs there are few, so that several small values occur
    together."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self._values = draw.choices(VALUES, k=draw.choice((3, 6, 30)))

    def _new(self, name: str) -> Signal:
        return Signal(self._draw.choice(self._values), "", "")


class _Knobs(_Drawn[Value]):
    def _new(self, name: str) -> Value | None:
        knob = CATALOGUE.get(name)
        return None if knob is None else self._value(knob)

    def _value(self, knob: Knob) -> Value:
        if knob.kind == "bool":
            return self._draw.random() < 0.5
        if knob.kind == "choice":
            return self._draw.choice(knob.choices or (str(knob.default or ""),))
        number = min(knob.high, max(knob.low, self._draw.choice(NUMBERS)))
        return int(number) if knob.kind == "int" else float(number)
