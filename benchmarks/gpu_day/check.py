"""A check of the GPU day: one function with the decorator `check`, in any file of the folder
`checks`. It runs in a process of its own.

    @check(value=90, seconds=30)
    def copies_are_fast(day: Day) -> None:
        \"\"\"A copy within the memory reaches 80 % of the datasheet's bandwidth.\"\"\"
        day.expect("share of the peak", measure(), low=0.8)

The check has failed where a figure is outside of its bounds, or where the function raises.
`NotHereError` says that this machine cannot answer.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


class NotHereError(Exception):
    """This machine cannot answer the question; the message is the reason in one line."""


@dataclass
class Figure:
    """One figure of a check. `low` and `high`: the bounds that it must keep; None: no bound."""

    name: str
    value: float | str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    holds: bool = True


@dataclass
class Result:
    """What became of a check. `seconds`: its duration. `attempts`: how often it was started.
    `data`: more than a page can show."""

    state: str
    reason: str = ""
    figures: list[Figure] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    at: str = ""
    commit: str = ""
    attempts: int = 0

    @classmethod
    def read(cls, found: dict[str, Any]) -> Result:
        return cls(**{**found, "figures": [Figure(**one) for one in found.get("figures", ())]})

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Day:
    """What a check gets. `folder`: for files that are to be kept (recordings, traces)."""

    folder: Path
    simulated: bool = False
    device: str = "gpu:0"
    figures: list[Figure] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def note(self, name: str, value: float | str, unit: str = "") -> None:
        """Keep a figure that has no bound."""
        self.figures.append(Figure(name, value, unit))

    def expect(
        self,
        name: str,
        value: float | None,
        unit: str = "",
        *,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        """Keep a figure with its bounds. A missing value (None, NaN) fails."""
        holds = (
            value is not None
            and not math.isnan(value)
            and (low is None or value >= low)
            and (high is None or value <= high)
        )
        self.figures.append(
            Figure(
                name, "n/a" if value is None or math.isnan(value) else value, unit, low, high, holds
            )
        )

    def require(self, name: str, truth: bool, shown: str) -> None:
        """Keep a statement that must be true; `shown` is what was found."""
        self.figures.append(Figure(name, shown, holds=truth))


@dataclass(frozen=True)
class Check:
    """`value`: the more for each second, the sooner. `seconds`: the expected duration; a check that
    does not fit into the rest of the time is left out. `limit_s`: a check that takes longer hangs.
    `by_hand`: what a person must do in its place; empty for a check that runs by itself."""

    name: str
    title: str
    value: float
    seconds: float
    run: Callable[[Day], None]
    limit_s: float
    by_hand: str = ""


_found: dict[str, Check] = {}


def add(
    name: str,
    title: str,
    value: float,
    seconds: float,
    run: Callable[[Day], None],
    limit_s: float | None = None,
) -> None:
    """Register a check that is made of a function and arguments, such as one scenario of many."""
    _found[name] = Check(name, title, value, seconds, run, limit_s or 3 * seconds + 30)


def add_by_hand(name: str, title: str, needs: str) -> None:
    """Register a check that needs a person. It is on the page, so that nobody forgets it."""

    def run(day: Day) -> None:
        raise NotHereError(needs)

    _found[name] = Check(name, title, 0, 0, run, 0, needs)


def check(
    value: float, seconds: float, limit_s: float | None = None
) -> Callable[[Callable[[Day], None]], Callable[[Day], None]]:
    """Register the function under its name, with the first line of its docstring as the title."""

    def register(function: Callable[[Day], None]) -> Callable[[Day], None]:
        title = " ".join((function.__doc__ or function.__name__).partition("\n\n")[0].split())
        add(function.__name__, title, value, seconds, function, limit_s)
        return function

    return register


@functools.cache
def checks_of(package: str) -> tuple[Check, ...]:
    """The checks of all files in the package, those with the most value per second first."""
    _found.clear()
    folder = importlib.import_module(package)
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{package}.{module.name}")
    return tuple(sorted(_found.values(), key=lambda one: -one.value / max(one.seconds, 1.0)))
