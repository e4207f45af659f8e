"""Answers that only read: made from a View, by the functions that the screen and the reports
use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from gpuconsole.diagnosis.engine import all_rules, in_doubt
from gpuconsole.diagnosis.probes import NO_CONSENT, PROBE_OF
from gpuconsole.mcp.answers import (
    DATA,
    Conclusion,
    DeviceAnswer,
    DevicesAnswer,
    FromJob,
    Kernel,
    OutputAnswer,
    Permissions,
    ProfileAnswer,
    SettingAnswer,
    SettingsAnswer,
    Share,
    ShownSignal,
    Status,
    StepTime,
    SuggestedChange,
    ThroughputAnswer,
    TrialAnswer,
    first,
    fitting,
    from_job,
    name,
    rounded,
)
from gpuconsole.model.device_columns import (
    CORES,
    HBM,
    HBM_BANDWIDTH,
    HOST_MEMORY,
    POWER,
    RUN_QUEUE_DELAY,
    SM,
    TEMPERATURE,
    TENSOR,
)
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.finding import Finding, Interval, Suggestion
from gpuconsole.model.job import CHANGES_NUMERICS, EFFECTS
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.knobs.knob import APPLY
from gpuconsole.model.metrics import series_key
from gpuconsole.model.profile import ProfileReport, TopOp
from gpuconsole.model.run import Run
from gpuconsole.model.stacks import placed
from gpuconsole.model.text import clean
from gpuconsole.report.run.diagnosis import state_words
from gpuconsole.report.run.models import Roof, roof_of
from gpuconsole.report.run.profile import of_peak
from gpuconsole.report.screen.answer import answer
from gpuconsole.session import facts
from gpuconsole.session.api import View

ALLOWED, ASK, NO = "allowed", "ask", "no"
"""A permission: in force; the agent may ask for it by `allow`; the person has not passed the
flag."""
GPU_COLUMNS = (SM, TENSOR, HBM, HBM_BANDWIDTH, POWER, TEMPERATURE)
HOST_COLUMNS = (CORES, HOST_MEMORY, RUN_QUEUE_DELAY)


# --- status and findings --------------------------------------------------------------------------


def status(view: View, permissions: Permissions | None, output: tuple[str, str] | None) -> Status:
    """The state of the session below the limit of an answer: what matters least is left out first.
    `output`: the file with the output of the job, and its last lines."""
    levels = ((6, 4, 600), (4, 3, 400), (3, 2, 200), (2, 2, 100), (1, 1, 60), (0, 0, 0))
    return fitting(partial(_status, view, permissions, output), levels)


def _status(
    view: View,
    permissions: Permissions | None,
    output: tuple[str, str] | None,
    most: int,
    evidence: int,
    characters: int,
) -> Status:
    run = view.run
    headline = name("".join(text for text, _ in answer(view, "").head))
    if run is None:
        return Status(
            "",
            view.state or "idle",
            headline,
            "no run",
            False,
            DATA,
            permissions=permissions,
            notes=_notes(view, most),
        )
    firing = facts.firing(run)
    rate, unit = run.throughput
    times = run.summary.step_time_s
    trial = facts.running_trial(view)
    gain = facts.since_start(view)
    judged = run.findings if run.steady_from_s is not None else []
    undecided = [finding for finding in judged if finding.state == "cant_tell" and finding.missing]
    return Status(
        name(run.scenario),
        run.state,
        headline,
        diagnosis(view, run),
        run.steady_from_s is not None,
        DATA,
        running_s=round(view.running_s, 1),
        device=run.device,
        throughput=ThroughputAnswer(
            rounded(rate.mean) or 0.0, unit, rounded(rate.std) or 0.0, rate.n
        )
        if rate is not None
        else None,
        step_time=StepTime(rounded(times.p50) or 0.0, rounded(times.p99))
        if times is not None
        else None,
        step_breakdown_ratio={
            part: round(ratio, 3)
            for part, ratio in run.summary.phases_ratio.items()
            if ratio >= 0.0005
        },
        attainable_ratio=rounded(run.attainable.share_ratio)
        if run.attainable is not None
        else None,
        gain_since_start=gain.words if gain is not None else "",
        kept_changes=facts.kept_changes(facts.chain(view)),
        findings=[
            conclusion(finding, run, evidence, 2, short=True) for finding in first(firing, most)
        ],
        undecided={finding.rule: needs(finding, run)[:2] for finding in first(undecided, 2 * most)},
        trial=trial_answer(trial) if trial is not None else None,
        measuring=view.probing,
        permissions=permissions,
        error=from_job(run.error, 300) if run.error else None,
        notes=_notes(view, most),
        output=OutputAnswer(output[0], from_job(output[1], characters, last=True))
        if output is not None
        else None,
        left_out=max(0, len(firing) - most) + max(0, len(undecided) - 2 * most),
    )


def diagnosis(view: View, run: Run) -> str:
    """Whether the diagnosis is complete, or what it waits for."""
    if not facts.active(view):
        return "the run has ended"
    if run.state == "starting":
        return name(view.stage or "starting")
    if run.steady_from_s is None:
        return name(state_words(run))
    return (
        f"a probe runs: {view.probing}"
        if view.probing
        else "some rules wait for data"
        if in_doubt(run)
        else "complete"
    )


def _notes(view: View, most: int) -> list[FromJob]:
    return [from_job(note, 200) for note in view.notes[-min(most, 3) :]] if most else []


def conclusion(
    finding: Finding,
    run: Run,
    evidence: int | None = None,
    changes: int | None = None,
    *,
    short: bool = False,
) -> Conclusion:
    """A finding with at most so many signals and suggestions. `short`: without summary, reasons and
    code."""
    return Conclusion(
        finding.rule,
        name(finding.title),
        finding.state,
        recoverable_ratio=round(finding.recoverable_ratio, 3),
        of=finding.resource,
        alternative_to=list(finding.alternative_to),
        confidence=finding.confidence,
        summary="" if short else name(finding.summary),
        evidence=[
            ShownSignal(
                shown.signal,
                rounded(shown.value) or 0.0,
                shown.unit,
                shown.threshold,
                "" if short else name(shown.source, 80),
                name(placed(shown.place)) if shown.place is not None else "",
            )
            for shown in first(finding.evidence, evidence)
        ],
        suggestions=[
            change(suggestion, run, short) for suggestion in first(finding.suggestions, changes)
        ],
        needs=needs(finding, run),
    )


def explain(rule: str, run: Run, whole: bool) -> Conclusion | None:
    """The finding of a rule in full, with the text of the rule; None where this run has no such
    finding."""
    finding = next((finding for finding in run.findings if finding.rule == rule), None)
    if finding is None:
        return None
    meaning = next((" ".join(each.text.split()) for each in all_rules() if each.id == rule), "")

    def level(evidence: int | None, changes: int | None, characters: int) -> Conclusion:
        full = conclusion(finding, run, evidence, changes)
        text = meaning if len(meaning) <= characters else f"{meaning[:characters]}…"
        return msgspec.structs.replace(full, text=text, note=DATA)

    if whole:
        return level(None, None, len(meaning))
    return fitting(level, ((None, None, 1200), (8, 4, 800), (6, 3, 500), (4, 2, 200), (2, 1, 0)))


def needs(finding: Finding, run: Run) -> list[str]:
    """What a finding still needs: for each missing signal its probe and why that has not run, or
    the reason of the signal."""
    wanted = []
    for signal in finding.missing:
        probe = PROBE_OF.get(signal)
        why = run.unavailable.get(f"probe.{probe}" if probe else signal, "")
        if why == NO_CONSENT:
            why = "needs the permission for probes (allow)"
        what = f"probe {probe}" if probe else f"signal {signal}"
        wanted.append(name(f"{what}: {why}" if why else what, 160))
    return list(dict.fromkeys(wanted))


def change(suggestion: Suggestion, run: Run, short: bool = False) -> SuggestedChange:
    tried = suggestion.tried
    return SuggestedChange(
        suggestion.changes,
        predicted(suggestion.predicted_speedup),
        Speedup(*(rounded(value) or 0.0 for value in (tried.estimate, tried.low, tried.high)))
        if tried is not None
        else None,
        run.effect(suggestion.changes),
        why="" if short else name(suggestion.why),
        not_possible=name(run.why_not(suggestion.changes), 160),
        code=from_job(suggestion.code, 300) if suggestion.code and not short else None,
    )


def predicted(interval: Interval | None) -> Interval | None:
    return (
        Interval(rounded(interval.low) or 0.0, rounded(interval.high) or 0.0)
        if interval is not None
        else None
    )


def prediction_of(view: View, changes: Knobs) -> Interval | None:
    """The predicted speedup of the suggestion with exactly these changes."""
    matching = (
        suggestion
        for _, suggestion in facts.suggestions(view).values()
        if suggestion.changes == changes
    )
    return next((suggestion.predicted_speedup for suggestion in matching), None)


# --- trials ---------------------------------------------------------------------------------------


def trial_answer(trial: Trial, next_step: str = "") -> TrialAnswer:
    speedup, expected = trial.speedup, trial.predicted
    against = ""
    if speedup is not None and expected is not None:
        against = (
            "below"
            if speedup.high < expected.low
            else "above"
            if speedup.low > expected.high
            else "inside"
        )
    loss = trial.perplexity or trial.held_out_loss
    return TrialAnswer(
        trial.id,
        trial.changes,
        trial.state,
        trial.kept,
        trial.verdict,
        speedup=Speedup(
            *(rounded(value) or 0.0 for value in (speedup.estimate, speedup.low, speedup.high))
        )
        if speedup
        else None,
        predicted_speedup=predicted(expected),
        measured_against_predicted=against,
        blocks=trial.blocks,
        elapsed_s=round(trial.elapsed_s, 1),
        limit_s=trial.limit_s,
        effect=trial.effect,
        loss_change_ratio=rounded(loss.cost_ratio) if loss is not None else None,
        error=from_job(trial.error, 300) if trial.error else None,
        next=next_step,
    )


# --- settings -------------------------------------------------------------------------------------


def settings(run: Run, only: str, whole: bool) -> SettingsAnswer:
    """The settings of a run, those that can change first; `only`: one of them."""
    names = (
        [only]
        if only
        else sorted(run.settings, key=lambda setting: (_applies(setting, run) == "fixed", setting))
    )
    changeable = [setting for setting in names if _applies(setting, run) != "fixed"]

    def level(chosen: list[str], meaning: bool) -> SettingsAnswer:
        return SettingsAnswer(
            [_setting(setting, run, meaning) for setting in chosen],
            EFFECTS if run.is_job else {},
            len(names) - len(chosen),
        )

    if whole or only:
        return level(names, True)
    return fitting(
        level,
        (
            (names, True),
            (names, False),
            (changeable, False),
            *((changeable[:most], False) for most in (16, 8, 4)),
        ),
    )


def _applies(setting: str, run: Run) -> str:
    if setting not in CATALOGUE or run.why_not({setting: run.settings[setting]}):
        return "fixed"
    if run.is_job:
        return "live" if setting in run.effects else "fixed"
    return APPLY[CATALOGUE[setting].apply]


def _setting(setting: str, run: Run, meaning: bool) -> SettingAnswer:
    applies, value = _applies(setting, run), run.settings[setting]
    knob = CATALOGUE.get(setting)
    if knob is None or applies == "fixed":
        return SettingAnswer(
            setting, value, applies, reason=name(run.why_not({setting: value}), 160)
        )
    effect = (
        run.effects.get(setting, "")
        if run.is_job
        else CHANGES_NUMERICS
        if knob.changes_numerics
        else ""
    )
    if knob.changes_training:
        effect = f"{effect}; changes what the model learns per step".removeprefix("; ")
    limit = knob.live_limit(run.facts)
    allowed = knob.allowed() + (f"; live up to {limit:g}" if limit is not None else "")
    return SettingAnswer(setting, value, applies, allowed, effect, knob.meaning if meaning else "")


# --- profile and devices --------------------------------------------------------------------------


def profile_answer(report: ProfileReport, view: View) -> ProfileAnswer:
    roof = roof_of(view.run, view.devices, view.environment) if view.run is not None else None

    def level(most: int) -> ProfileAnswer:
        return ProfileAnswer(
            report.steps,
            rounded(report.wall_s) or 0.0,
            rounded(report.busy_ratio) or 0.0,
            [
                Share(each.name, rounded(each.time_s) or 0.0, round(each.share_ratio, 3))
                for each in report.classes
            ],
            [_kernel(op, roof) for op in report.top[:most]],
            [name(implementation) for implementation in report.attention],
            clean(report.trace),
            [name(note) for note in report.notes[:3]],
        )

    return fitting(level, ((10,), (5,), (2,)))


def _kernel(op: TopOp, roof: Roof | None) -> Kernel:
    return Kernel(
        name(op.name, 100), rounded(op.time_s) or 0.0, round(op.share_ratio, 3), op.calls,
        rounded(op.flops_per_s), rounded(op.bytes_per_s),
        rounded(of_peak(op, roof)) if roof is not None else None, name(op.launched_by),
        rounded(op.blocks_per_sm),
    )  # fmt: skip


def devices(view: View, whole: bool) -> DevicesAnswer:
    """Every device with its present readings. Where there are many, only the devices in use and the
    first others."""
    order = sorted(view.devices, key=lambda device: device.id != view.device)

    def level(most: int, reasons: bool) -> DevicesAnswer:
        return DevicesAnswer(
            [_device(view, device.id, reasons) for device in order[:most]],
            name(view.no_gpu_reason),
            max(0, len(order) - most),
        )

    if whole:
        return level(len(order), True)
    return fitting(level, ((16, True), (16, False), (8, False), (4, False)))


def _device(view: View, device_id: str, reasons: bool) -> DeviceAnswer:
    device = next(device for device in view.devices if device.id == device_id)
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    for column in GPU_COLUMNS if device.is_gpu else HOST_COLUMNS:
        key = series_key(column.metric, device_id)
        if (value := view.latest.get(key)) is not None:
            values[column.metric] = rounded(value) or 0.0
        elif reasons:
            missing[column.metric] = name(
                _why_missing(view.unavailable, key, view.lost, device_id), 120
            )
    return DeviceAnswer(
        device.id, name(device.name), device.id == view.device, device.memory_bytes, values, missing
    )


def _why_missing(
    unavailable: Mapping[str, str], key: str, lost: Mapping[str, str], device_id: str
) -> str:
    return unavailable.get(key) or lost.get(device_id) or facts.NO_SAMPLE
