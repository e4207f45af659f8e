"""The input of a rule: the knobs and signals of one run."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuconsole.model.finding import Evidence, Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.knob import Value
from gpuconsole.model.run import Run

SEEN = "job."
"""Prefix of signals that are settings of a user's own job: the step account shows them, and nobody set them as knobs."""


class CantTell(Exception):
    """A rule has no conclusion. The message is the reason: one clause for the user."""


class Missing(CantTell):
    """A rule needs a signal that was not measured."""

    def __init__(self, signal: str) -> None:
        super().__init__(f"needs {signal}")
        self.signal = signal


@dataclass(frozen=True)
class Case:
    """The input of all rules about one run. `signals` by name; `serves`: a model server under load, not training.

    `knobs`: the knobs in force. `elsewhere`: the model server was not started here, so `knobs` has only the settings that the server reports.
    `read` collects the names of the requested signals, measured or not, in the order of the first request.
    """

    knobs: Knobs
    signals: dict[str, Signal]
    serves: bool = False
    elsewhere: bool = False
    read: dict[str, None] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, run: Run, signals: dict[str, Signal]) -> Case:
        """The case of `run` with its present `signals`."""
        seen = {name.removeprefix(SEEN): int(signal.value) for name, signal in signals.items() if name.startswith(SEEN)}
        return cls({**seen, **run.settings}, signals, run.serves, run.elsewhere)

    def setting(self, name: str) -> Value:
        """A knob of the model server. Raises CantTell where the server does not report the setting."""
        if name not in self.knobs:
            raise CantTell(f"the server does not report its {name}")
        return self.knobs[name]

    def has(self, *signals: str) -> bool:
        """Whether all of these signals were measured."""
        for name in signals:
            self.read[name] = None
        return all(name in self.signals for name in signals)

    def signal(self, name: str) -> Signal:
        """The signal with its unit and source; raises Missing."""
        self.read[name] = None
        found = self.signals.get(name)
        if found is None:
            raise Missing(name)
        return found

    def value(self, signal: str) -> float:
        """The signal's value; raises Missing."""
        return self.signal(signal).value

    def get(self, signal: str, default: float) -> float:
        """The value of a signal that only refines a result, or `default` if it was not measured."""
        self.read[signal] = None
        found = self.signals.get(signal)
        return default if found is None else found.value

    def evidence(self, signal: str, threshold: float | None = None) -> Evidence:
        """The signal and its threshold as evidence (None: shown for context); raises Missing."""
        found = self.signal(signal)
        return Evidence(signal, found.value, found.unit, threshold, found.source)

    def if_known(self, *signals: str, threshold: float | None = None) -> tuple[Evidence, ...]:
        """Evidence from the signals that were measured."""
        return tuple(self.evidence(name, threshold) for name in signals if self.has(name))
