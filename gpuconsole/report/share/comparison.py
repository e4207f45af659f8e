"""The shared report of two runs: which one is faster, what differs between them, and every
metric."""

from __future__ import annotations

from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model import units
from gpuconsole.model.comparison import Comparison, MetricChange
from gpuconsole.model.run import Run
from gpuconsole.report.cells import Segment
from gpuconsole.report.comparison import (
    difference,
    difference_report,
    metric_table,
    relative_words,
    step_caution,
    throughput_of,
)
from gpuconsole.report.machine.environment import device_kinds, environment_report
from gpuconsole.report.parts import labelled, text
from gpuconsole.report.run.diagnosis import firing_report
from gpuconsole.report.run.figures import client_report
from gpuconsole.report.run.runs import run_head
from gpuconsole.report.share.blocks import (
    attainable_blocks,
    pair_table,
    side_by_side,
    step_bars,
    tiles,
)
from gpuconsole.report.share.document import Document, Folded, Section, StoryAnswer, TextBlock
from gpuconsole.report.share.session import every_figure, extent, foot, knob_table

CAUTION = (
    "The two runs come from different times or machines: equal runs are assumed to differ by 5 %. "
    "To prove a change, try it within one run (gpuconsole run --try)."
)
STYLES = {"better": "good", "worse": "alert"}


def comparison_document(
    comparison: Comparison, before: MeasuredRun, after: MeasuredRun
) -> Document:
    """The whole report of a comparison of `before` with `after`."""
    runs = [before.run, after.run]
    labels = dict.fromkeys([*device_kinds(before.alone), *device_kinds(after.alone)])
    sections = [
        Section(
            "What differs",
            [
                TextBlock(difference_report(comparison)),
                Folded("All settings", [TextBlock([knob_table(runs)])]),
            ],
        ),
        Section(
            "Before and after",
            [
                tiles(runs, None),
                side_by_side(*runs),
                step_bars([("before", before.run), ("after", after.run)]),
                TextBlock([pair_table(runs)]),
            ],
        ),
        _metrics(comparison),
        Section("Evidence", [TextBlock([run_head(run), *firing_report(run)]) for run in runs]),
        Section(
            "What this hardware could reach",
            [*attainable_blocks("before", before.run), *attainable_blocks("after", after.run)],
        ),
        Section("Environment", [_environment("Before", before), _environment("After", after)]),
        Section("Can the numbers be trusted?", [_validity(comparison, runs)]),
        Section(
            "Every number",
            [every_figure(side.run, side.session.environment, False) for side in (before, after)],
        ),
    ]
    result = comparison_answer(comparison)
    kicker = f"{comparison.before} compared with {comparison.after}"
    return Document(
        result.headline,
        kicker,
        list(labels),
        [("", result)],
        sections,
        f"before: {foot(before.session)}; after: {foot(after.session)}",
    )


def comparison_answer(comparison: Comparison) -> StoryAnswer:
    """The change of the throughput with its interval and verdict; then the knobs that differ."""
    rate = throughput_of(comparison)
    changes: list[list[Segment]] = [
        [(difference(setting), "alert")] for setting in comparison.unlike
    ]
    unlike = {setting.name for setting in comparison.unlike}
    if "scenario" not in unlike:  # the knobs of two scenarios say nothing about a change
        changes += [
            [(difference(knob), "title")] for knob in comparison.knobs if knob.name not in unlike
        ]
    changes += [
        [("environment: ", ""), (difference(setting), "")]
        for setting in comparison.environment
        if setting.name not in unlike
    ]
    changes += [
        [(line, "alert")] for line in (step_caution(comparison), *comparison.doubts) if line
    ]
    if comparison.same_run:
        return StoryAnswer(
            "Both are the same run: there is nothing to compare", "", changes, "alert"
        )
    if rate is None:
        return StoryAnswer("The two runs have no throughput in common", "", changes, "alert")
    values = " -> ".join(units.quantity(value, rate.unit) for value in (rate.before, rate.after))
    if comparison.unlike:
        return StoryAnswer(
            "The runs are not alike: their ratio is not the speedup of a change",
            f"{_verdict(rate)}: {values}",
            changes,
            "alert",
        )
    return StoryAnswer(_verdict(rate), values, changes, STYLES.get(rate.verdict, "plain"))


def _verdict(rate: MetricChange) -> str:
    if rate.change is None:
        return f"Throughput {rate.verdict}: {rate.why_not}"
    return f"Throughput {rate.verdict}: {' '.join(relative_words(rate))}"


def _metrics(comparison: Comparison) -> Section:
    moved, everything = metric_table(comparison, False), metric_table(comparison, True)
    shown = TextBlock([moved] if moved.rows else [text("No metric changed beyond noise.", "dim")])
    only = [
        labelled(f"only {side}", ", ".join(names))
        for side, names in (("before", comparison.only_before), ("after", comparison.only_after))
        if names
    ]
    return Section(
        "Metrics",
        [shown, Folded(f"All {len(everything.rows)} metrics", [TextBlock([everything, *only])])],
    )


def _environment(title: str, side: MeasuredRun) -> TextBlock:
    return TextBlock(
        [
            text(title, "title"),
            *environment_report(side.session.environment, [side.run.device], [side.run]),
        ]
    )


def _validity(comparison: Comparison, runs: list[Run]) -> TextBlock:
    parts = [
        part
        for name, run in zip(("before", "after"), runs, strict=True)
        for part in (labelled(name, extent(run)), *client_report(run))
    ]
    return TextBlock(
        [
            *parts,
            *(labelled("doubt", line, "alert") for line in comparison.doubts),
            labelled("proof", CAUTION),
        ]
    )
