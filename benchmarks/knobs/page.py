"""docs/knobs.md from the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.knobs.measured import Measured
from benchmarks.knobs.rows import Row
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, describe_changes, show
from gpuconsole.model.knobs.knob import APPLY
from gpuconsole.model.units import quantity

HEAD = """# What the settings do

Made by `python -m benchmarks.knobs` on {machine}; the numbers are in
`benchmarks/results/knobs-*.json`.

Each row is one trial of `gpuconsole run SCENARIO --headless --try NAME=VALUE`: steps with and
without the change alternate in blocks, in random order. *speedup* is the throughput with the change
over the throughput without. *interval* is the interval at which the trial stopped (95 %, valid at
every stopping time). *Faster* or *slower* is proven beyond 2 %, *not faster* is proven to be less
than that, *undecided* was neither after 20 s (30 s for settings of the loader). The clock leaves
out the time for which the training thread waited for a core, unless the row says otherwise.
*predicted* is the speedup that the diagnosis predicted for the same change, if a rule suggests it.
Memory is that of the first process; only parts that changed are listed.

The device is a small CPU, and a GPU behaves differently. Here reduced precision pays off if the CPU
has instructions for it, larger batches hardly pay off, and compilation pays off only for
elementwise operations.
"""
FOOT = """
## All settings

*live*: applied between two steps; *restart*: the worker restarts. The last column names the tables
above that measure the setting.

| setting | values | applied | meaning | measured on |
|---|---|---|---|---|
"""
VERDICTS = {"win": "faster", "no_gain": "not faster", "worse": "slower", "undecided": "undecided"}
CHANGED_FROM = 0.01
"""Parts of memory that differ by less are the same."""


def page(machine: str, found: Mapping[str, Sequence[Measured]], plan: Sequence[Row]) -> str:
    notes = {row.key: row.note for row in plan}
    parts = [HEAD.format(machine=machine)]
    for scenario, made in found.items():
        parts.append(
            f"\n## {scenario}\n\n| change | speedup | interval | predicted | verdict | |\n"
            "|---|---|---|---|---|---|\n"
        )
        parts += [line for one in made for line in _lines(one, notes.get(one.key, ""))]
    where: dict[str, list[str]] = {}
    for scenario, made in found.items():
        for name in dict.fromkeys(name for one in made for name in one.changes):
            where.setdefault(name, []).append(scenario)
    return "".join([*parts, FOOT, *(_knob(name, where.get(name, [])) for name in CATALOGUE)])


def _lines(one: Measured, note: str) -> list[str]:
    if one.speedup is None:
        return [
            f"| {_change({name: one.changes[name]}, one)} | n/a | | | | {_cell(why)} |\n"
            for name, why in one.words.items()
        ]
    speedup = one.speedup
    cells = [
        _change(one.changes, one),
        f"{speedup.estimate:.2f}x",
        f"{speedup.low:.2f}-{speedup.high:.2f}",
        f"{one.predicted.low:.2f}-{one.predicted.high:.2f}x" if one.predicted else "",
        VERDICTS.get(one.verdict, one.verdict),
        "; ".join(filter(None, (note, _memory(one), _clock(one)))),
    ]
    return [f"| {' | '.join(cells)} |\n"]


def _change(changes: Knobs, one: Measured) -> str:
    given = (
        f" (at {', '.join(f'{name} {show(value)}' for name, value in one.sets.items())})"
        if one.sets
        else ""
    )
    return f"`{describe_changes(changes, one.before or None)}`{given}"


def _memory(one: Measured) -> str:
    changed = {
        part: pair
        for part, pair in one.memory.items()
        if abs(pair[1] - pair[0]) > CHANGED_FROM * max(pair)
    }
    return ", ".join(
        f"{part.replace('_', ' ')} {quantity(before, 'bytes')} → {quantity(after, 'bytes')}"
        for part, (before, after) in changed.items()
    )


def _clock(one: Measured) -> str:
    return "wall clock" if one.clock == "wall" else ""


def _knob(name: str, where: Sequence[str]) -> str:
    knob = CATALOGUE[name]
    return (
        f"| `{name}` | {_cell(knob.allowed())} | {APPLY[knob.apply]} | {_cell(knob.meaning)} |"
        f" {', '.join(where) or 'not yet'} |\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
