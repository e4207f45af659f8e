"""What a rule is (one class per file in `rules/`), its input (the knobs and signals of one run),
and its suggestions with the intervals that they predict."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from gpuconsole.diagnosis.frameworks import code_for
from gpuconsole.model.finding import (
    CodePlace,
    Confidence,
    Evidence,
    Finding,
    Interval,
    Resource,
    Signal,
    Suggestion,
)
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.knobs.knob import Value
from gpuconsole.model.run import Run
from gpuconsole.model.stacks import Place, placed
from gpuconsole.model.text import percent

__all__ = [
    "MAX_SHARE",
    "NOT_ON_GPU",
    "TRIAL_ERROR",
    "CantTell",
    "Case",
    "CodePlace",
    "Confidence",
    "Evidence",
    "Finding",
    "Interval",
    "Knobs",
    "Missing",
    "Rule",
    "Signal",
    "Suggestion",
    "Threshold",
    "Value",
    "high_if",
    "percent",
    "placed",
    "short_of",
    "speedup_interval",
]  # fmt: skip
"""With the plain data of the model that nearly every rule uses: a rule file needs one import."""

# --- thresholds -----------------------------------------------------------------------------------


class Threshold(float):
    """A threshold of a rule: a number with a name, a unit, and the source of its value. `value` is
    the number as the rule wrote it."""

    def __new__(cls, name: str, value: float, unit: str, source: str) -> Self:
        threshold = super().__new__(cls, value)
        threshold.name, threshold.value, threshold.unit, threshold.source = (
            name,
            value,
            unit,
            source,
        )
        return threshold

    name: str
    value: float
    unit: str
    source: str


def short_of(level: float) -> float:
    """The level of a rule that is clear although its leading signal may be beyond the threshold:
    from 0 to 0.99."""
    return max(0.0, min(level, 0.99))


# --- predicted gains ------------------------------------------------------------------------------

TRIAL_ERROR = 0.06
"""Relative difference between two trials of the same change on a shared machine: half of the spread
on the tuning half of benchmarks/diagbench."""


def high_if(certain: bool) -> Confidence:
    """High confidence, or else medium."""
    return "high" if certain else "medium"


def speedup_interval(estimate: float, relative_error: float) -> Interval:
    """A predicted speed-up with `relative_error` applied to its gain; never below 1."""
    gain = max(0.0, estimate - 1)
    return Interval(1 + gain * (1 - relative_error), 1 + gain * (1 + relative_error))


# --- the input of a rule --------------------------------------------------------------------------

SEEN = "job."
"""Prefix of signals that are settings of a user's own job: the step breakdown shows them, and
nobody set them as knobs."""


FORMER_SIGNALS = {"server.seats_taken_ratio": "server.slots_taken_ratio"}
"""Signals that a snapshot of an earlier version has under another name."""


class CantTell(Exception):
    """A rule has no conclusion. The message is the reason: one clause for the user."""


NEEDS = "needs "


class Missing(CantTell):
    """A rule needs a signal that was not measured."""

    def __init__(self, signal: str) -> None:
        super().__init__(f"{NEEDS}{signal}")
        self.signal = signal


@dataclass(frozen=True)
class Case:
    """The input of all rules about one run. `signals` by name; `serves`: a model server under load,
    not training.

    `places`: the functions of the program with the largest shares of a step.
    `knobs`: the knobs in force. `elsewhere`: the model server was not started here, so `knobs` has
    only the settings that the server reports. `watched`: a server under the load of others, of
    which only its own reports are known. `is_job`: a job of the user's own, in which some probes
    measure more and some less. `loop`: the framework that runs its loop, see `JobFacts`. `read`
    collects the names of the requested signals, measured or not, in the order of the first request.
    """

    knobs: Knobs
    signals: dict[str, Signal]
    serves: bool = False
    elsewhere: bool = False
    is_job: bool = False
    loop: str = ""
    read: dict[str, None] = field(default_factory=dict, compare=False, repr=False)
    watched: bool = False
    places: tuple[Place, ...] = ()

    @classmethod
    def of(cls, run: Run, signals: dict[str, Signal]) -> Case:
        """The case of `run` with its present `signals`."""
        seen = {
            name.removeprefix(SEEN): int(signal.value)
            for name, signal in signals.items()
            if name.startswith(SEEN) and math.isfinite(signal.value)
        }
        former = {new: signals[old] for old, new in FORMER_SIGNALS.items() if old in signals}
        return cls(
            {**seen, **run.settings},
            {**former, **signals},
            run.serves,
            run.elsewhere,
            run.is_job,
            run.job.loop if run.job is not None else "",
            watched=run.watched,
            places=tuple(run.places),
        )

    def setting(self, name: str) -> Value:
        """A knob of the model server. Raises CantTell where the server does not report the
        setting."""
        if name not in self.knobs:
            raise CantTell(f"the server does not report its {name}")
        return self.knobs[name]

    def has(self, *signals: str) -> bool:
        """Whether all of these signals were measured."""
        measured = [self._measured(name) for name in signals]  # all of them, for `read`
        return None not in measured

    def signal(self, name: str) -> Signal:
        """The signal with its unit and source; raises Missing."""
        measured = self._measured(name)
        if measured is None:
            raise Missing(name)
        return measured

    def _measured(self, name: str) -> Signal | None:
        """Return the signal; None where it was not measured, or is not a number: no comparison with
        such a value is right."""
        self.read[name] = None
        measured = self.signals.get(name)
        return None if measured is None or math.isnan(measured.value) else measured

    def place(self, signal: str) -> CodePlace | None:
        """Return the place in the code of a signal; None if the place is not known or the signal
        was not measured."""
        measured = self._measured(signal)
        return None if measured is None else measured.place

    def value(self, signal: str) -> float:
        """The signal's value; raises Missing."""
        return self.signal(signal).value

    def get(self, signal: str, default: float) -> float:
        """The value of a signal that only refines a result, or `default` if it was not measured."""
        measured = self._measured(signal)
        return default if measured is None else measured.value

    def recent(self, phase: str, default: float | None = None) -> float:
        """Return the share of a kind of side work in the steps of the other signals.
        `<phase>_ratio` is the share over all steady steps; a snapshot of an earlier version has
        this signal only. Raises Missing where there is neither, and no `default`."""
        name = f"recent.{phase}_ratio" if self.has(f"recent.{phase}_ratio") else f"{phase}_ratio"
        return self.value(name) if default is None else self.get(name, default)

    @property
    def on_gpu(self) -> bool:
        """Whether the run is on a GPU. Rules ask this first, so that runs on a CPU need no GPU
        signals. Raises Missing."""
        return self.value("is_gpu") > 0

    def evidence(self, *shown: str | tuple[str, float]) -> tuple[Evidence, ...]:
        """Evidence from signals; with a threshold, or alone for context. Raises Missing."""
        return tuple(
            self._shown(entry) if isinstance(entry, str) else self._shown(*entry) for entry in shown
        )

    def if_known(self, *shown: str | tuple[str, float]) -> tuple[Evidence, ...]:
        """The same from the signals that were measured."""
        return sum(
            (
                self.evidence(entry)
                for entry in shown
                if self.has(entry if isinstance(entry, str) else entry[0])
            ),
            (),
        )

    def _shown(self, name: str, threshold: float | None = None) -> Evidence:
        signal = self.signal(name)
        limit = threshold.value if isinstance(threshold, Threshold) else threshold
        return Evidence(name, signal.value, signal.unit, limit, signal.source, signal.place)

    def suggest(
        self, changes: Knobs, predicted: Interval | None, why: str, code: str
    ) -> Suggestion | None:
        """A suggestion, or None if the workload lacks one of the knobs or has all of the values
        already.

        A server that was not started here may have settings that it does not report: the suggestion
        then names no value of today.

        `predicted` is the speed-up that the rule's model gives. The trial that measures the
        speed-up also has an error, so the interval is widened by TRIAL_ERROR. A predicted gain
        never becomes a predicted loss that way.
        """
        missing = [name for name in changes if name not in self.knobs]
        return (
            None if missing and not self.elsewhere else self.advise(changes, predicted, why, code)
        )

    def advise(
        self, changes: Knobs, predicted: Interval | None, why: str, code: str
    ) -> Suggestion | None:
        """Return the same, even if the workload does not show one of the knobs: a user's own job
        can make the change in its code."""
        if all(self.knobs.get(name) == value for name, value in changes.items()):
            return None
        if predicted is not None:
            low = max(min(1.0, predicted.low), predicted.low * (1 - TRIAL_ERROR))
            predicted = Interval(low, predicted.high * (1 + TRIAL_ERROR))
        framework = code_for(self.loop, changes)
        if framework not in code:
            code = framework
        return Suggestion(
            changes, predicted, f"{describe_changes(changes, self.knobs)}: {why}", code
        )


# --- what a rule is -------------------------------------------------------------------------------

MAX_SHARE = 0.9
"""The largest share of a step that a rule claims."""
NOT_ON_GPU = "the run is not on a GPU"
"""The summary of a rule about GPUs for a run on a CPU."""


class Rule(ABC):
    """One cause of lost time or memory: its recognition, its meaning and its remedies.

    `title` names the fault. `clear_title` is the title of a finding in the state "clear": it names
    what is correct.
    `text` is the explanation that `gpuconsole rules ID` prints. `thresholds` are all thresholds
    that `judge` uses.
    `reads` are the signals that `check` and `judge` may read; a test compares them with what it
    reads. `knobs` are the knobs that the suggestions change. `ignore` says when a user may ignore
    the finding; empty: the reasons that hold for all rules say it. `resource` is the resource that
    the suggestions save.
    `gpu_only`: the rule is clear for a run on a CPU. `jobs_only`: the rule is about the user's own
    jobs. `subject`: rules about training run on training jobs; rules about serving on model
    servers, whoever sends the load; rules about the load on servers under our load; rules about
    hardware on every run whose device is this machine's. `once`: former ids of the rule.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    clear_title: ClassVar[str]
    text: ClassVar[str]
    thresholds: ClassVar[tuple[Threshold, ...]]
    reads: ClassVar[tuple[str, ...]]
    knobs: ClassVar[tuple[str, ...]] = ()
    ignore: ClassVar[str] = ""
    resource: ClassVar[Resource] = "time"
    gpu_only: ClassVar[bool] = False
    jobs_only: ClassVar[bool] = False
    subject: ClassVar[Literal["training", "serving", "load", "hardware"]] = "training"
    once: ClassVar[tuple[str, ...]] = ()

    def check(self, case: Case) -> Finding:
        """The conclusion about one run, independent of other rules. Raises CantTell, or Missing for
        a signal that was not measured."""
        if self.gpu_only and not case.on_gpu:
            return self.clear(summary=NOT_ON_GPU)
        return self.judge(case)

    @abstractmethod
    def judge(self, case: Case) -> Finding:
        """The conclusion about a run that the rule is about, with `clear` or `fires`. May raise as
        `check` does."""

    def applies(self, case: Case) -> bool:
        """Whether the rule applies to this kind of work."""
        if self.jobs_only and not case.is_job:
            return False
        if self.subject == "hardware":
            return not case.elsewhere or case.has("is_gpu")
        if self.subject == "load":
            return case.serves and not case.watched
        return (self.subject == "serving") == case.serves

    def clear(
        self, level: float = 0.0, evidence: tuple[Evidence, ...] = (), summary: str = ""
    ) -> Finding:
        """A finding in the state "clear". `level`: the leading signal over its threshold,
        below 1."""
        return Finding(
            self.id, "clear", self.clear_title, evidence=evidence, level=level, summary=summary
        )

    def cant_tell(self, reason: str, missing: tuple[str, ...] = ()) -> Finding:
        """A finding without a conclusion. `missing`: signals that would allow a conclusion."""
        return Finding(self.id, "cant_tell", self.title, summary=reason, missing=missing)

    def fires(
        self,
        level: float,
        evidence: tuple[Evidence, ...],
        summary: str,
        *,
        recoverable: float,
        confidence: Confidence,
        suggestions: Iterable[Suggestion | None] = (),
        note: bool = False,
        for_prediction: tuple[str, ...] = (),
        title: str = "",
    ) -> Finding:
        """A finding that names a cause. `recoverable`: the share of step time (or of the memory
        limit) that a perfect cure would free.

        `suggestions`: best first; None entries do not apply to this workload. `level`: the leading
        signal over its threshold, 1 or more. `note`: the finding informs and names no fault.
        `for_prediction`: missing probe signals that would predict the gain of the suggestion.
        """
        if math.isnan(level) or math.isnan(recoverable):
            raise CantTell("its signals give no number")
        return Finding(
            self.id,
            "fires",
            title or self.title,
            min(1.0, max(0.0, recoverable)),
            confidence,
            summary,
            evidence,
            tuple(entry for entry in suggestions if entry is not None),
            note,
            for_prediction,
            level,
            self.resource,
        )

    def note(
        self,
        level: float,
        evidence: tuple[Evidence, ...],
        summary: str,
        *,
        confidence: Confidence,
        suggestions: Iterable[Suggestion | None] = (),
        title: str = "",
    ) -> Finding:
        """A finding that informs and has nothing to recover. See `fires`."""
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=0.0,
            confidence=confidence,
            suggestions=suggestions,
            note=True,
            title=title,
        )
