"""The shared report of a session: what was slow, what was tried, what it was measured on, and
whether the figures are valid."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model import units
from gpuconsole.model.experiments import Sweep, Trial
from gpuconsole.model.knobs.knob import show
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.model.text import visible
from gpuconsole.report.experiments import measured, setting, sweep_report, trial_report, verdict
from gpuconsole.report.machine.environment import device_kinds, environment_report
from gpuconsole.report.parts import BLANK, Column, Report, Table, labelled, text
from gpuconsole.report.run.diagnosis import (
    core_wait_words,
    failure,
    finding_report,
    firing_report,
    other_rules,
    rule_counts,
)
from gpuconsole.report.run.figures import client_report, work
from gpuconsole.report.run.figures import verdict as validity
from gpuconsole.report.run.models import rank_table
from gpuconsole.report.run.runs import run_head, runs_report, runs_table
from gpuconsole.report.run.serving import server_report
from gpuconsole.report.session import run_report
from gpuconsole.report.share.blocks import (
    attainable_blocks,
    memory_layers,
    pair_table,
    step_bars,
    tiles,
    timeline,
)
from gpuconsole.report.share.document import (
    Document,
    Folded,
    Range,
    Ranges,
    Section,
    StoryAnswer,
    TextBlock,
    Verbatim,
)
from gpuconsole.report.share.story import RunChain, answer, cause, chains, sweep_answer
from gpuconsole.session import facts

NOTHING = "The session has no run: there is nothing to report"
PROOF = (
    "A trial measures both settings in turn, in paired blocks, and its interval holds with 95 %"
    " probability. The numbers before and after come from different times: they show the size of"
    " the change, the trial proves it."
)


def session_document(snapshot: Snapshot) -> Document:
    """The whole report of a snapshot."""
    all_chains = chains(snapshot)
    answers = [(chain.title, answer(chain)) for chain in all_chains]
    answers += [
        (f"sweep of {sweep.scenario} on {sweep.device}", sweep_answer(sweep))
        for sweep in snapshot.sweeps
    ]
    sections: list[Section] = []
    for chain in all_chains:
        about = f": {chain.title}" if len(all_chains) > 1 else ""
        sections += [
            section._replace(title=section.title + about) for section in _chain_sections(chain)
        ]
    sections += [_sweep_section(sweep) for sweep in snapshot.sweeps]
    used = sorted(
        {run.device for run in snapshot.runs} | {sweep.device for sweep in snapshot.sweeps}
    )
    environment = environment_report(snapshot.environment, used, snapshot.runs)
    sections.append(
        Section("Environment", [TextBlock([*environment, *_kinds(snapshot)]), *_knobs(all_chains)])
    )
    sections.append(Section("Can the numbers be trusted?", _validity(snapshot)))
    if snapshot.runs:
        # their findings have sections of their own
        told = {run.id for chain in all_chains for run in (chain.first, chain.last)}
        sections.append(
            Section(
                "Every number",
                [
                    every_figure(run, snapshot.environment, run.id not in told)
                    for run in snapshot.runs
                ],
            )
        )
    return Document(
        answers[0][1].headline if answers else NOTHING,
        " · ".join(
            [title for title, _ in answers[:3]]
            + ([f"{len(answers) - 3} more"] if len(answers) > 3 else [])
        ),
        device_kinds(snapshot),
        answers or [("", StoryAnswer(NOTHING, style="alert"))],
        sections,
        foot(snapshot),
    )


def foot(snapshot: Snapshot) -> str:
    """When the session was measured, and with what."""
    day, _, clock = snapshot.created.partition("T")
    when = f"{day} {clock[:5]} UTC" if clock.endswith(("Z", "+00:00")) else snapshot.created
    client = snapshot.runs[-1].client if snapshot.runs else ""
    if client and clock and not when.endswith("UTC"):
        when = f"{day} {clock[:5]} by the clock of the client"
    return visible(
        f"measured {when or 'at an unknown time'} with"
        f" {client or f'gpuconsole {snapshot.gpuconsole or units.NA}'}"
    )


def _chain_sections(chain: RunChain) -> list[Section]:
    first, last = chain.first, chain.last
    several = len(chain.runs) > 1
    runs = [first, last] if several else [first]
    labels = list(zip(("before", "after") if several else ("",), runs, strict=True))
    if first.client:  # no rule and no model reads its file
        return [
            Section(
                "What was measured",
                [tiles(runs, None), timeline(chain), TextBlock([pair_table(runs)])],
            )
        ]
    sections = [
        Section(
            "Before and after" if several else "What was measured",
            [
                tiles(runs, chain.gain),
                *([TextBlock([text(chain.apart)])] if chain.apart else []),
                timeline(chain),
                step_bars(labels),
                *(layers for label, run in labels for layers in memory_layers(label, run)),
                TextBlock([pair_table(runs)]),
            ],
        ),
        Section("Evidence", _evidence(chain)),
        Section("What was tried", _tried(chain)),
    ]
    if several:
        sections.append(
            Section("What is left", [TextBlock([run_head(last), *firing_report(last)])])
        )
    sections.append(
        Section(
            "What this hardware could reach",
            [block for label, run in labels for block in attainable_blocks(label, run)],
        )
    )
    return sections


def _evidence(chain: RunChain) -> list[TextBlock | Folded]:
    """The cause with its signals; the other findings and rules behind a title."""
    run, finding = chain.first, cause(chain)
    shown = firing_report(run) if finding is None else finding_report(1, finding, run)
    blocks: list[TextBlock | Folded] = [TextBlock(shown)]
    if finding is not None and (words := core_wait_words(run)):
        blocks.append(TextBlock([text(words, "dim")]))
    if len(run.ranks) > 1:
        blocks.append(
            TextBlock([BLANK, text(f"{len(run.ranks)} processes", "title"), rank_table(run)])
        )
    others = [other for other in facts.firing(run) if other is not finding]
    if others:
        title = _counted(len(others), "more finding", "more findings")
        parts = [
            part
            for number, other in enumerate(others, 2)
            for part in [*finding_report(number, other, run), BLANK]
        ]
        blocks.append(Folded(title, [TextBlock(parts)]))
    if counts := rule_counts(run.findings):
        blocks.append(Folded(counts, [TextBlock(other_rules(run))]))
    return blocks


def _counted(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _tried(chain: RunChain) -> list[Ranges | TextBlock]:
    """The trials: intervals on one scale, then every figure of each."""
    if not chain.trials:
        return [TextBlock([text("Nothing was tried in this session.", "dim")])]
    blocks: list[Ranges | TextBlock] = []
    rows = [
        _range(chain, trial)
        for trial in chain.trials
        if trial.speedup is not None and trial is not chain.proof
    ]
    if rows:
        blocks.append(
            Ranges(
                rows, "speedup of each change: throughput after over throughput before", "x", 1.0
            )
        )
    parts: Report = []
    for trial in chain.trials:
        parts += [*trial_report(trial, chain.knobs_before(trial)), BLANK]
    if chain.proof is not None:
        parts += [
            text(
                f"Trial {chain.proof.id} goes back to the settings of the start. It measures all"
                " kept changes together."
            ),
            BLANK,
        ]
    if len(chain.runs) > 1:
        # of one, the figures before and after are explained already
        several = sum(trial.kept for trial in chain.trials) > 1
        parts += (
            runs_report(chain.runs, chain.trials)
            if several
            else [runs_table(chain.runs, chain.trials)]
        )
    return [*blocks, TextBlock(parts)]


def _range(chain: RunChain, trial: Trial) -> Range:
    speedup, expected = trial.speedup, trial.predicted
    return Range(
        chain.change(trial),
        f"{measured(trial)}  {verdict(trial)}",
        (speedup.low, speedup.estimate, speedup.high) if speedup else None,
        (expected.low, expected.high) if expected else None,
        "good" if trial.kept else "alert" if trial.verdict == "worse" else "",
    )


def _sweep_section(sweep: Sweep) -> Section:
    rows = [
        Range(
            setting(point, sweep.varied),
            f"{units.spread(point.mean, point.std, 0)} {sweep.unit}",
            (point.low, point.mean, point.high)
            if point.low is not None and point.mean is not None and point.high is not None
            else None,
            None,
            "good" if point is sweep.best else "",
        )
        for point in sweep.points
    ]
    return Section(
        f"Sweep of {sweep.scenario} on {sweep.device}",
        [
            Ranges(rows, f"throughput of each setting, {sweep.unit}", sweep.unit),
            TextBlock(sweep_report(sweep, sweep.varied)),
        ],
    )


def _kinds(snapshot: Snapshot) -> Report:
    """What kind of device the figures belong to, and the reason where there is no GPU."""
    why = snapshot.unavailable.get("gpu")
    kinds = [labelled("numbers of", visible(kind), "title") for kind in device_kinds(snapshot)]
    return [*kinds, *([labelled("GPU", f"{units.NA}: {visible(why)}", "dim")] if why else [])]


def _knobs(all_chains: Sequence[RunChain]) -> list[Folded]:
    """The knobs of the first run and of the last run of each chain."""
    blocks = []
    for chain in all_chains:
        table = knob_table([chain.first, chain.last] if len(chain.runs) > 1 else [chain.first])
        blocks.append(
            Folded(
                f"{_counted(len(table.rows), 'setting', 'settings')} of {chain.title}",
                [TextBlock([table])],
            )
        )
    return blocks


def knob_table(runs: Sequence[Run]) -> Table:
    """All knobs of one run or of two runs. A knob that differs is marked, unless the program
    changes it by itself."""
    names = dict.fromkeys(name for run in runs for name in run.knobs)
    heads = ["before", "after"] if len(runs) > 1 else ["value"]
    rows = [
        [
            (f"{name} (varies in the program)" if _varies(runs, name) else name, ""),
            *((_knob(run, name), "accent" if _changed(runs, name) else "") for run in runs),
        ]
        for name in names
    ]
    return Table([Column("setting"), *(Column(head) for head in heads)], rows)


def _knob(run: Run, name: str) -> str:
    return show(run.knobs[name]) if name in run.knobs else units.NA


def _changed(runs: Sequence[Run], name: str) -> bool:
    return len({_knob(run, name) for run in runs}) > 1 and not _varies(runs, name)


def _varies(runs: Sequence[Run], name: str) -> bool:
    return name in runs[-1].varies


def _validity(snapshot: Snapshot) -> list[TextBlock | Folded]:
    """What each run was measured over, how changes were proven, and what could not be measured."""
    parts: Report = []
    for run in snapshot.runs:
        parts += [
            labelled(f"run {run.id}", extent(run), "alert" if run.state == "failed" else ""),
            *client_report(run),
        ]
    if snapshot.trials:
        parts.append(labelled("proof", PROOF))
    for sweep in snapshot.sweeps:
        fewest = min((len(point.rates) for point in sweep.points), default=0)
        repeats = (
            f"{sweep.repeats} interleaved repeats, at least {fewest} of each setting;"
            f" {sweep.clock.replace('_', '-')} clock"
        )
        parts.append(labelled("sweep", repeats))
    overheads = [
        run.summary.overhead_s_per_step
        for run in snapshot.runs
        if run.summary.overhead_s_per_step is not None
    ]
    if overheads:
        parts.append(
            labelled(
                "agent cost",
                (
                    f"at most {units.duration(max(overheads)).strip()} per step, measured by the"
                    " agent itself"
                ),
            )
        )
    if probes_s := sum(run.summary.probes_s or 0.0 for run in snapshot.runs):
        parts.append(labelled("probes", f"{units.duration(probes_s).strip()} in all"))
    if not parts:
        parts.append(text(f"{units.NA}: nothing was measured"))
    blocks: list[TextBlock | Folded] = [TextBlock(parts)]
    if missing := _missing(snapshot):
        blocks.append(
            Folded(
                f"{_counted(len(missing.rows), 'reason', 'reasons')} for values that are n/a",
                [TextBlock([missing])],
            )
        )
    return blocks


def extent(run: Run) -> str:
    """`valid; 127 requests of a run of 44.8 s`. The duration has also steps that do not count, and
    trials."""
    measured_over = f"{work(run)} of a run of {run.duration_s:.1f} s"
    if run.state == "failed":
        return visible(f"{failure(run)}; {measured_over}")
    if run.validity is not None:
        return f"{validity(run)}; {measured_over}"
    if run.steady_from_s is None:
        return f"not steady: the numbers hold all steps; {measured_over}"
    return (
        f"steady {units.duration(run.steady_from_s).strip()} after the first step; {measured_over}"
    )


def _missing(snapshot: Snapshot) -> Table | None:
    """Each reason once, with the values that it explains."""
    reasons: dict[str, list[str]] = {}
    for unavailable in (snapshot.unavailable, *(run.unavailable for run in snapshot.runs)):
        for name, why in unavailable.items():
            reasons.setdefault(why, []).append(name)
    rows = [
        [(visible(", ".join(dict.fromkeys(names))), ""), (visible(why), "dim")]
        for why, names in reasons.items()
    ]
    return Table([Column("n/a"), Column("reason")], rows) if rows else None


def every_figure(run: Run, environment: Environment, findings: bool) -> Folded:
    """The figures of a run as the terminal shows them. `findings`: also its findings."""
    parts: Report = [
        run_head(run),
        *server_report(run),
        *run_report(run, environment),
        *(firing_report(run) if findings else []),
    ]
    return Folded(f"Run {run.id}: {run.scenario} {run.place}", [Verbatim(run, parts)])
