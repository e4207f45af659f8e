"""What a rule is: one class per file in `rules/`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from gpuconsole.diagnosis.case import Case
from gpuconsole.model.finding import Confidence, Evidence, Finding, Resource, Suggestion

NOT_ON_GPU = "the run is not on a GPU"
"""The summary of a rule about GPUs for a run on a CPU."""


@dataclass(frozen=True)
class Threshold:
    """A threshold of a rule, and the source of its value."""

    name: str
    value: float
    unit: str
    source: str


class Rule(ABC):
    """One cause of lost time or memory: its recognition, its meaning and its remedies.

    `title` names the fault. `clear_title` is the title of a finding in the state "clear": it names what is correct.
    `text` is the explanation that `gpuconsole rules ID` prints. `thresholds` are all thresholds that `check` uses.
    `knobs` are the knobs that the suggestions change. `resource` is the resource that the suggestions save.
    `subject`: rules about training run on training jobs, rules about serving on model servers, rules about hardware on both.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    clear_title: ClassVar[str]
    text: ClassVar[str]
    thresholds: ClassVar[tuple[Threshold, ...]]
    knobs: ClassVar[tuple[str, ...]] = ()
    resource: ClassVar[Resource] = "time"
    subject: ClassVar[Literal["training", "serving", "hardware"]] = "training"

    @abstractmethod
    def check(self, case: Case) -> Finding:
        """The conclusion about one run, independent of other rules. Raises CantTell, or Missing for a signal that was not measured."""

    def applies(self, case: Case) -> bool:
        """Whether the rule applies to this kind of work."""
        return self.subject == "hardware" or (self.subject == "serving") == case.serves

    def clear(self, level: float = 0.0, evidence: tuple[Evidence, ...] = (), summary: str = "") -> Finding:
        """A finding in the state "clear". `level`: the leading signal over its threshold, below 1."""
        return Finding(self.id, "clear", self.clear_title, evidence=evidence, level=level, summary=summary)

    def not_on_gpu(self) -> Finding:
        return self.clear(summary=NOT_ON_GPU)

    def cant_tell(self, reason: str, missing: tuple[str, ...] = ()) -> Finding:
        """A finding without a conclusion. `missing`: signals that would allow a conclusion."""
        return Finding(self.id, "cant_tell", self.title, summary=reason, missing=missing)

    def fires(
        self,
        summary: str,
        *,
        recoverable: float,
        confidence: Confidence,
        evidence: tuple[Evidence, ...],
        suggestions: Iterable[Suggestion | None] = (),
        level: float = 1.0,
        note: bool = False,
        for_prediction: tuple[str, ...] = (),
        title: str = "",
    ) -> Finding:
        """A finding that names a cause. `recoverable`: the share of step time (or of the memory limit) that a perfect cure would free.

        `suggestions`: best first; None entries do not apply to this workload. `level`: the leading signal over its threshold, 1 or more.
        `note`: the finding informs and names no fault. `for_prediction`: missing probe signals that would predict the gain of the suggestion.
        """
        return Finding(
            self.id,
            "fires",
            title or self.title,
            max(0.0, recoverable),
            confidence,
            summary,
            evidence,
            tuple(entry for entry in suggestions if entry is not None),
            note,
            for_prediction,
            level,
            self.resource,
        )
