"""The parts of a step, or of a request, and which finding claims the time of which part. No other
module decides this.

Two sentences hold for all findings of a run:
- Findings that claim the same milliseconds are alternatives. A finding whose share does not fit
  beside the findings before it names them (`Finding.alternative_to`).
- The shares of the findings that are no alternatives never add up to more than their parts.

What these findings leave of a part is the time that no finding explains (`left`).
A run may be called "without a fault" only when this time is small, and when no rule that could
explain a large part of a step is without a conclusion.

All figures of that time come from the signals and findings that a run keeps, so a snapshot has the
same answer as the run had.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from gpuconsole.diagnosis.families import comm, device, loader, serving, trend
from gpuconsole.diagnosis.precedence import rank
from gpuconsole.diagnosis.probes import IN_JOB, NO_CONSENT, PROBE_OF
from gpuconsole.diagnosis.rule import CantTell, Case, Threshold, percent, placed
from gpuconsole.model.finding import Finding
from gpuconsole.model.run import Run
from gpuconsole.model.stacks import WITHIN, Place
from gpuconsole.session.side_work import SIDE_WORK

# --- the parts, and who claims them ---------------------------------------------------------------


class ClaimedPart(NamedTuple):
    """A part of the time of a step, or of a request. `share` raises Missing where the part is not
    measured: its room is then not limited.

    `words`: what the time goes to, after its share; empty for useful work, which needs no
    explanation. `fits`: causes that such time can have.
    """

    name: str
    share: Callable[[Case], float]
    words: str = ""
    fits: str = ""


def _phase(name: str) -> Callable[[Case], float]:
    return lambda case: case.value(f"{name}_ratio")


def _lost(name: str) -> Callable[[Case], float]:
    """Return in which share of a step, within a phase on the stream, the GPU has no work although
    the training thread has a core. Kernels that run between the passes count as work."""
    return lambda case: (
        device.with_core_ratio(case) * device.lost(case, case.value(f"{name}_ratio"))
    )


def _idle(case: Case) -> float:
    """Return the share of a step in which no kernel runs on the GPU, less the parts of the step
    that make no GPU work."""
    if not case.get("is_gpu", 0.0) or not case.has("gpu.util_ratio"):
        return 0.0
    try:
        return max(0.0, 1 - case.value("gpu.util_ratio") - device.beside_passes(case))
    except CantTell:
        return 0.0


IDLE = "idle"
"""The name of the part of a step in which the GPU has no work although it should."""
CORE_WAIT = "core_wait"
"""The name of the part of a step in which the training thread waits for a core."""
PASSES = ("generation", "forward", "loss", "backward", "optimizer")


def _busy(case: Case) -> float:
    """Return the share of a step in the passes and the optimizer, less the time without work on the
    GPU."""
    case.value("forward_ratio")
    return max(0.0, sum(case.get(f"{phase}_ratio", 0.0) for phase in PASSES) - _idle(case))


TRAINING = (
    ClaimedPart(
        "data_wait",
        _lost("data_wait"),
        "waits for data",
        "too few workers, slow storage, or costly transforms",
    ),
    ClaimedPart(
        "h2d",
        _lost("h2d"),
        "copies batches to the GPU",
        "copies from pageable memory, large batches, or a slow PCIe link",
    ),
    ClaimedPart(
        "comm",
        comm.whole_ratio,
        "waits for other processes",
        "a slow link, a slow process, or exchanges that no computation hides",
    ),
    ClaimedPart(
        "logging", _phase("logging"), "goes to logging", "log records in each step, or a slow disk"
    ),
    ClaimedPart(
        "checkpoint",
        _phase("checkpoint"),
        "goes to checkpoints",
        "checkpoints that are often or large, or a slow disk",
    ),
    ClaimedPart(
        "eval", _phase("eval"), "goes to evaluation", "an evaluation that is often or long"
    ),
    ClaimedPart(
        "other",
        _lost("other"),
        "is outside of all phases",
        "Python code of the loop, or the garbage collector",
    ),
    ClaimedPart(
        IDLE,
        _idle,
        "passes without work on the GPU",
        "slow launches of kernels, or waits for the GPU",
    ),
    ClaimedPart("busy", _busy),
    ClaimedPart(CORE_WAIT, _phase("runq")),
)
SERVING = (
    ClaimedPart(
        "queue",
        serving.queue_ratio,
        "is a wait in the queue",
        "more load than the server can take, or limits that are too low",
    ),
    ClaimedPart("served", lambda case: max(0.0, 1 - serving.queue_ratio(case))),
)
_CLAIMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input.", ("data_wait",)),
    ("host.python_overhead", ("other", "data_wait")),
    ("h2d.", ("h2d",)),
    ("link.", ("h2d",)),
    ("comm.straggler", ("comm", "busy")),
    ("comm.", ("comm",)),
    ("host.logging_io", ("logging",)),
    ("host.checkpoint_stall", ("checkpoint",)),
    ("host.eval_stall", ("eval",)),
    ("host.cpu_contention", ("core_wait",)),
    ("hw.", ("busy",)),
    ("gpu.small_batch", ("idle", "busy")),
    ("mem.cache_emptied", ("other", "idle")),
    ("gpu.", ("busy", "idle")),
    ("host.", ("idle", "busy")),
    ("serve.over_capacity", ("queue",)),
    ("serve.sequence_cap", ("queue",)),
    *(
        (f"serve.{name}", ("queue", "served"))
        for name in ("kv_bound", "deferred", "queue_before_engine", "token_budget", "imbalance")
    ),
    ("serve.", ("served", "queue")),
)
"""For each rule, by the start of its id, the parts whose time its findings claim: what fills the
first part is taken from the next. The first entry that fits counts."""


def parts_of(rule: str, case: Case) -> tuple[str, ...]:
    """Return the parts whose time a finding of this rule claims."""
    if rule == "host.slowing_down":
        phase = trend.phase(case)
        return ("busy", "idle") if phase in PASSES else (phase,)
    if case.serves and rule.startswith("hw."):
        return ("served", "queue")
    return next((parts for start, parts in _CLAIMS if rule.startswith(start)), ())


def rules_about(part: str) -> tuple[str, ...]:
    """Return the starts of the ids of the rules that can name the cause of this part's time."""
    return tuple(start for start, parts in _CLAIMS if part in parts)


def is_about(finding: Finding, part: str, case: Case) -> bool:
    """Return whether a finding that fires, and is no note, names a cause in this part, with or
    without something to recover."""
    named = finding.state == "fires" and not finding.note and finding.resource == "time"
    return named and parts_of(finding.rule, case)[:1] == (part,)


def claims_time(finding: Finding) -> bool:
    """Return whether a finding claims time: it fires, is no note, and no trial has shown that its
    changes gain nothing."""
    return (
        finding.state == "fires"
        and not finding.note
        and finding.resource == "time"
        and finding.recoverable_ratio > 0
        and not finding.failed
    )


def share_out(findings: Sequence[Finding], case: Case) -> list[Finding]:
    """Return the findings, ranked. None recovers more than the parts that it claims, and each that
    does not fit beside those before it names them as alternatives."""
    return [located(finding, case) for finding in _share_out(findings, case)[0]]


def left(findings: Sequence[Finding], case: Case) -> list[tuple[ClaimedPart, float, float]]:
    """Return each part that is measured and is no useful work, with its share of the step (or
    request), and with what the findings leave of it."""
    room, parts = _share_out(findings, case)[1], SERVING if case.serves else TRAINING
    whole = [(part, _share(part, case)) for part in parts if part.words]
    return [(part, share, room[part.name]) for part, share in whole if not math.isinf(share)]


def _share_out(findings: Sequence[Finding], case: Case) -> tuple[list[Finding], dict[str, float]]:
    whole = {part.name: _share(part, case) for part in (SERVING if case.serves else TRAINING)}
    room, before = dict(whole), dict[str, tuple[str, ...]]()
    shared: list[Finding] = []
    for finding in rank([_within(finding, whole, case) for finding in findings]):
        alternatives: tuple[str, ...] = ()
        if claims_time(finding):
            parts = tuple(name for name in parts_of(finding.rule, case) if name in room)
            if finding.recoverable_ratio <= sum(room[name] for name in parts) + 1e-9:
                _take_room(finding.recoverable_ratio, parts, room)
            else:
                alternatives = tuple(
                    rule for rule, others in before.items() if set(parts) & set(others)
                )
            before[finding.rule] = parts
        shared.append(msgspec.structs.replace(finding, alternative_to=alternatives))
    return shared, room


def _share(part: ClaimedPart, case: Case) -> float:
    try:
        share = part.share(case)
    except CantTell:
        return math.inf
    if part.name != CORE_WAIT:
        share *= beside_core_wait(case)
    return share if part.name in SIDE_WORK else share * _beside_side_work(case)


def beside_core_wait(case: Case) -> float:
    """Return the share of a step in which the training thread does not wait for a core, where the
    rules see a step without this wait: on a CPU. Return 1 elsewhere."""
    on_cpu = not case.serves and not case.get("is_gpu", 0.0)
    return 1 - min(1.0, case.get("runq_ratio", 0.0)) if on_cpu else 1.0


def of_whole_step(finding: Finding, case: Case) -> Finding:
    """Return the conclusion of a rule as a share of the whole step.

    On a CPU, rules judge a step without its wait for a core. Only the rule about this wait judges
    the whole step. The claims of all findings need one base.
    """
    beside = beside_core_wait(case)
    if beside == 1 or finding.resource != "time" or CORE_WAIT in parts_of(finding.rule, case):
        return finding
    return msgspec.structs.replace(finding, recoverable_ratio=beside * finding.recoverable_ratio)


def _beside_side_work(case: Case) -> float:
    """Return the time that side work leaves in all steady steps, over the time that it leaves in
    the last steps, of which the shares of the other parts are; at most 1. So all shares are those
    of a mean step, and an evaluation that is not among the last steps has room beside them."""
    of_all, recent = (
        sum(shares)
        for shares in zip(
            *((case.get(f"{name}_ratio", 0.0), case.recent(name, 0.0)) for name in SIDE_WORK),
            strict=True,
        )
    )
    return max(0.0, 1 - of_all) / (1 - recent) if recent < of_all else 1.0


def _within(finding: Finding, whole: dict[str, float], case: Case) -> Finding:
    """Return the finding with no more than all of its parts to recover."""
    if not claims_time(finding):
        return finding
    most = sum(whole[name] for name in parts_of(finding.rule, case) if name in whole)
    return (
        msgspec.structs.replace(finding, recoverable_ratio=most)
        if most < finding.recoverable_ratio
        else finding
    )


def _take_room(ratio: float, parts: Sequence[str], room: dict[str, float]) -> None:
    for name in parts:
        taken = min(ratio, room[name])
        room[name] -= taken
        ratio -= taken


# --- the code that a finding is about -------------------------------------------------------------

CODE_OF: dict[str, tuple[str, ...]] = {
    "data_wait": ("data_wait",),
    "comm": ("comm",),
    "logging": ("logging",),
    "checkpoint": ("checkpoint",),
    "eval": ("eval",),
    "other": ("feed", "between"),
    "compiles": ("forward",),
}
"""Map each part of a step that findings claim to the parts of the stack samples in it. The passes
are left out: they hold all functions of the model, and few of these concern the cause."""
ONE_LINE_EACH = {"data_wait", "forward", "backward", "optimizer"}
"""The parts of a step for which a loop of the program's own has separate lines."""
COMPILES = "host.recompile_graphbreak"
"""The rule that claims time in the call of the model."""
EXCHANGES = "DistributedDataParallel"
"""A module of torch that waits for other processes within a pass."""
MAIN_SHARE = 0.5
"""The least share of a part's samples with which one function has most of the part."""


def located(finding: Finding, case: Case) -> Finding:
    """Return the finding with its place in the code: the place of its evidence, or the function
    that takes most of the claimed time. Add the line to the summary if the summary does not name
    it."""
    if finding.state != "fires" or finding.note or finding.resource != "time":
        return finding
    least = MAIN_SHARE * finding.recoverable_ratio
    place = next(
        (
            shown.place
            for shown in finding.evidence
            if shown.place is not None and (shown.unit != "ratio" or shown.value >= least)
        ),
        None,
    )
    if place is None:
        names = ("compiles",) if finding.rule == COMPILES else parts_of(finding.rule, case)[:1]
        parts = [part for name in names for part in CODE_OF.get(name, ())]
        inside = [
            one
            for one in case.places
            if one.part in parts or ("comm" in names and EXCHANGES in one.callee)
        ]
        most = max(inside, key=lambda one: one.share_ratio, default=None)
        if (
            most is None
            or _runs_loop(most, case.places)
            or most.share_ratio < max(least, MAIN_SHARE * sum(one.share_ratio for one in inside))
        ):
            return finding
        place = most.code
    summary = finding.summary
    if not re.search(rf"(?<!\w){re.escape(place.line)}(?!\d)", summary):
        summary += f". Most of this time is in {placed(place)}"
    return msgspec.structs.replace(finding, place=place, summary=summary)


def _runs_loop(place: Place, places: Sequence[Place]) -> bool:
    """Return whether the line runs several parts of a step, as `trainer.fit()` does. Such a line
    does not point to a cause."""
    return len({other.part for other in places if other.line == place.line} & ONE_LINE_EACH) > 1


class Unjudged(NamedTuple):
    """A function of the program that has most of a part of the step, and that no rule has judged.
    `by_library`: the line of the program runs the whole loop."""

    place: Place
    by_library: bool = False

    @property
    def time(self) -> str:
        """Return one clause: the share of a step, and its place."""
        code = self.place.code
        called = "" if self.by_library else f", called at {code}"
        where = (
            f"{self.place.callee}{called}, {WITHIN[code.part]}"
            if self.place.callee
            and (
                self.by_library
                or self.place.part == "backward"
                or self.place.callee.endswith(".step")
            )
            else placed(replace(code, caller=""))
        )
        return f"{percent(self.place.share_ratio)} of the step is in {where}"

    @property
    def words(self) -> str:
        """Return the clause for a run with a final diagnosis; it names the calling line."""
        called = f" (called by {self.place.caller})" if self.place.caller else ""
        return f"{self.time}{called}: no rule judges it"


OWN_WORK = Threshold(
    "own_work",
    0.2,
    "ratio",
    "a loss, a clipping of gradients or an optimizer of a healthy job takes less than a fifth",
)
MODEL_WORK = Threshold(
    "model_work", 0.25, "ratio", "as host.slow_function: the functions of a model take less each"
)


AFTER_FORWARD = {"loss", "backward", "clip"}
"""The parts of a step over which a function of the program may differentiate: a Jacobian, or the
norm of gradients in a loss."""


def unjudged(run: Run) -> Unjudged | None:
    """Return the function that takes most of a part of the passes or of the optimizer, if no
    finding names the function and no rule can judge it; else None.

    Rules about the passes judge operators of torch in a model. While these rules lack data, no rule
    judges a function of the model, a function that makes backward passes of its own, or the
    backward pass of the program. No rule judges the program's own code in its loss, between the
    backward pass and the optimizer, or in its own optimizer. The line that calls the backward pass
    comes last: any other line says more, and so does a finding about the passes."""
    if run.serves or not run.is_job or run.steady_from_s is None:
        return None
    open_rules = bool(_without_conclusion(run, RULES_OF_PASSES))
    in_part: dict[str, float] = defaultdict(float)
    of_function: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for place in run.places:
        in_part[place.part] += place.share_ratio
        of_function[_function(place)].append(place)
    of_passes = ("forward", "no_grad", "optimizer", "loss", "backward")
    said = any(
        claims_time(finding) and finding.place is not None and finding.place.part in of_passes
        for finding in run.findings
    )
    last: Unjudged | None = None
    for place in run.places:
        same = of_function[_function(place)]
        parts = {one.part for one in same}
        if differentiates := "backward" in parts <= AFTER_FORWARD:
            share = sum(one.share_ratio for one in same)
            place = msgspec.structs.replace(place, share_ratio=share, callee="")
            large = open_rules and share >= MODEL_WORK
        elif place.share_ratio < MAIN_SHARE * in_part[place.part]:
            continue
        elif place.part in ("loss", "clip", "optimizer") and len(parts) == 1:
            large = place.share_ratio >= OWN_WORK
        else:
            large = open_rules and place.part in of_passes and place.share_ratio >= MODEL_WORK
        if large and not _is_named(place, run):
            found = Unjudged(place, _runs_loop(place, run.places))
            if place.part != "backward" or differentiates:
                return found
            last = last or found
    return None if said else last


def _is_named(place: Place, run: Run) -> bool:
    """Return whether a finding that fires names this function, or claims most of its time."""
    return any(
        finding.state == "fires"
        and not finding.note
        and finding.resource == "time"
        and (
            any(
                shown.place is not None
                and (_file(shown.place.line), shown.place.function) == _function(place)
                for shown in finding.evidence
            )
            or (
                finding.rule.startswith(("gpu.", "host."))
                and finding.recoverable_ratio >= MAIN_SHARE * place.share_ratio
            )
        )
        for finding in run.findings
    )


def _function(place: Place) -> tuple[str, str]:
    return _file(place.line), place.function


def _file(line: str) -> str:
    return line.rpartition(":")[0]


# --- time that no finding explains ----------------------------------------------------------------

LARGE = Threshold(
    "unexplained",
    0.10,
    "ratio",
    "a tenth of a step: from this share on the rules about input and exchanges name a cause",
)

_OF_STEP, _OF_REQUEST = "of each step", "of the time of a request"


class Unexplained(NamedTuple):
    """Time that no finding explains. `share`: of a step or of a request. `time`: one clause that
    says what it goes to. `fits`: possible causes. `missing`: the signals that the rules about this
    time lack. `remedy`: how to get them, one clause. `named`: findings name a cause in this part,
    and would not free all of it."""

    share: float
    time: str
    fits: str
    missing: tuple[str, ...]
    remedy: str
    named: bool = False

    @property
    def words(self) -> str:
        """The clause for a run whose diagnosis is final."""
        return (
            f"{self.time} beyond what the findings would free"
            if self.named
            else f"{self.time}, and no rule names the cause"
        )


UNMEASURED = "forward_ratio"
"""The signal that rules lack where the time of a step is not divided yet."""
RULES_OF_PASSES = (
    "gpu.",
    "host.launch_bound",
    "host.sync_stall",
    "host.recompile_graphbreak",
    "host.idle_cores",
)


def unexplained(run: Run) -> Unexplained | None:
    """Return the largest part of a step (of a server: of a request) that the findings leave, where
    a tenth or more is left."""
    case = Case.of(run, run.signals)
    open_parts = [
        (part, whole, rest - _named_ratio(run, part.name))
        for part, whole, rest in left(run.findings, case)
    ]
    part, whole, rest = max(open_parts, key=lambda entry: entry[2], default=(None, 0.0, 0.0))
    if part is None or rest < LARGE:
        return None
    unsure = _without_conclusion(run, rules_about(part.name))
    if run.serves:  # the limits of a server come first, as in _CLAIMS
        order = [start for start, _ in _CLAIMS]
        unsure = sorted(
            (one for one in unsure if parts_of(one.rule, case)[:1] == (part.name,)),
            key=lambda one: next(n for n, start in enumerate(order) if one.rule.startswith(start)),
        )
    missing = _missing(unsure) if not run.watched else ()
    fits = part.fits
    if part.name == IDLE and (place := _waiting_place(case)):
        fits += f" (most of them in {place})"
    elif part.name == "data_wait" and case.is_job and not loader.has_loader(case):
        fits = "the program's own code that makes batches"
    time = f"{percent(rest)} {_OF_REQUEST if run.serves else _OF_STEP} {part.words}"
    named = rest < whole or any(is_about(finding, part.name, case) for finding in run.findings)
    how = (
        "; ".join(dict.fromkeys(finding.summary for finding in unsure))
        if run.watched
        else remedy(run, missing)
    )
    return Unexplained(rest, time, fits, missing, how, named)


def _named_ratio(run: Run, part: str) -> float:
    """Return the share of a step in this part at a line that a finding about another part names.
    Such a line is one cause with time in two parts."""
    lines = {
        shown.place.line
        for finding in run.findings
        if claims_time(finding) and CODE_OF.get(part)
        for shown in finding.evidence
        if shown.place is not None
    }
    return sum(
        place.share_ratio
        for place in run.places
        if place.part in CODE_OF.get(part, ())
        and (place.line in lines or place.caller.rpartition(" ")[0] in lines)
    )


def _waiting_place(case: Case) -> str:
    """Where the host waits for the GPU; empty where it waits little, or the place is not known."""
    try:
        return device.waiting_place(case)[0] if device.waited_ratio(case) >= device.WAITED else ""
    except CantTell:
        return ""


def open_question(run: Run) -> tuple[str, str]:
    """Return why a run without unexplained time may still have a fault: rules about a large part of
    it have no conclusion. The second clause says how to get their data. The first clause is empty
    if there are no such rules."""
    if any(UNMEASURED in finding.missing for finding in run.findings):
        return "the shares of a step are not measured yet", ""
    if run.serves:
        rules, about = (
            _without_conclusion(run, ("serve.",)),
            "the server",
        )
    else:
        case = Case.of(run, run.signals)
        share = sum(case.get(f"{phase}_ratio", 0.0) for phase in PASSES)
        rules = _without_conclusion(run, RULES_OF_PASSES) if share >= LARGE else []
        about = f"the passes and the optimizer ({percent(share)} {_OF_STEP})"
    if not rules:
        return "", ""
    if run.watched:
        others = f"; {len(rules) - 1} other {'rule lacks' if len(rules) == 2 else 'rules lack'}"
        return f"{rules[0].summary}{f'{others} data too' if rules[1:] else ''}", ""
    have = "rule has" if len(rules) == 1 else "rules have"
    return f"{len(rules)} {have} no data about {about}", remedy(run, _missing(rules))


def remedy(run: Run, missing: tuple[str, ...]) -> str:
    """How to get signals that are missing, one clause; empty where nothing is missing, or nothing
    is known to help."""
    probes = list(dict.fromkeys(PROBE_OF[signal] for signal in missing if signal in PROBE_OF))
    waiting = [
        probe
        for probe in probes
        if probe in IN_JOB and run.unavailable.get(f"probe.{probe}") == NO_CONSENT
    ]
    if waiting:
        key = "P (or --probe)" if run.state == "running" else "--probe"
        return (
            f"{key} allows {'the probe' if len(waiting) == 1 else 'the probes'}"
            f" {', '.join(waiting)}"
        )
    reasons = [
        run.unavailable[f"probe.{probe}"] for probe in probes if f"probe.{probe}" in run.unavailable
    ]
    # consent would not help: these never run in a job
    refused = [reason for reason in reasons if reason != NO_CONSENT]
    if refused:
        return f"the measurement is not possible here: {refused[0]}"
    return "a longer run may give the numbers" if missing else ""


def _without_conclusion(run: Run, rules: tuple[str, ...]) -> list[Finding]:
    return [finding for finding in _about(run, rules) if finding.state == "cant_tell"]


def _about(run: Run, rules: tuple[str, ...]) -> list[Finding]:
    return [finding for finding in run.findings if finding.rule.startswith(rules)]


def _missing(findings: list[Finding]) -> tuple[str, ...]:
    """The signals that these rules lack, each once."""
    return tuple(dict.fromkeys(signal for finding in findings for signal in finding.missing))
