"""`gpuconsole baselines`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.files import read_snapshot
from gpuconsole.cli.options import JSON, Option, UsageError
from gpuconsole.engine import catalog
from gpuconsole.experiments.baselines import (
    BaselineError,
    baselines_folder,
    parts,
    read_all,
    remove,
)
from gpuconsole.experiments.gate import work_key
from gpuconsole.experiments.throughput import MeasuredRun, others_of
from gpuconsole.model import units
from gpuconsole.model.figures import FIGURES
from gpuconsole.model.knobs.knob import show
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Distribution
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.text import percent, visible
from gpuconsole.report.run.figures import with_unit

HELP = "list or delete what later runs are compared with"
DESCRIPTION = f"""List the runs that later runs are compared with, by scenario, hardware and
software. They are sessions, in a folder for each key below {baselines_folder()}."""
EXAMPLES = """examples:
  gpuconsole run train-gpt --headless --save-baseline       keep a run (on the screen: key b)
  gpuconsole baselines                                      list all
  gpuconsole baselines --json
  gpuconsole baselines --remove train-gpt-1f3a9c07
  gpuconsole compare ~/.local/share/gpuconsole/baselines/train-gpt-1f3a9c07 new/ --fail-below 0.97
      the gate, with all kept runs
  gpuconsole baselines --key new.json    in CI: the same name for the same work on the same hardware
"""
OPTIONS = (
    Option("--remove", "delete the runs with this key (see the list)", "KEY"),
    Option(
        "--key",
        (
            "print the name of the hardware and the work of a snapshot, and nothing else: the key"
            " of a cache in CI"
        ),
        "SNAPSHOT",
        Path,
        refused={"--remove": "does not go with --remove"},
    ),
    JSON._replace(
        help="print the baselines as JSON",
        refused={
            "--remove": "does not go with --remove, which prints no baselines",
            "--key": "does not go with --key, which prints a name",
        },
    ),
)


def run(args: argparse.Namespace) -> int:
    if args.key is not None:
        print(_key(args.key))
        return OK
    folder = baselines_folder()
    if args.remove is not None:
        try:
            print(f"removed {remove(folder, args.remove)}")
        except BaselineError as error:
            raise UsageError(str(error)) from None
        return OK
    baselines, mistakes = read_all(folder)
    if args.json:
        print(
            output.to_json(
                {key: [_as_json(side) for side in kept] for key, kept in baselines.items()}
            )
        )
    elif baselines:
        scenarios = catalog.scenarios()[0]
        print("\n\n".join(visible_lines(key, kept, scenarios) for key, kept in baselines.items()))
    else:
        print(
            "there are no baselines: `gpuconsole run SCENARIO --headless --save-baseline` keeps a"
            " run"
        )
    for mistake in mistakes.values():
        output.problem(mistake)
    return OK


def _key(path: Path) -> str:
    """The name of the work and the hardware of the last run of a snapshot. Raises UsageError."""
    snapshot = read_snapshot(path)
    if not snapshot.runs:
        raise UsageError(f"{path}: this snapshot has no run")
    return work_key(snapshot.runs[-1], snapshot.environment)


def visible_lines(key: str, kept: Sequence[MeasuredRun], scenarios: Mapping[str, Scenario]) -> str:
    """The key with its meaning, and one line for each of its runs."""
    words = [*parts(kept[-1]).values(), *_settings(kept[-1], scenarios)]
    head = f"{key}  {kept[-1].run.scenario}: {', '.join(dict.fromkeys(words))}"
    return "\n".join(visible(line) for line in (head, *map(_run_line, kept)))


def _settings(side: MeasuredRun, scenarios: Mapping[str, Scenario]) -> list[str]:
    """The settings that are not the scenario's own. The settings of a job of the user's own are all
    its own."""
    run, scenario = side.run, scenarios.get(side.run.scenario)
    device = next(
        (device for device in side.session.environment.devices if device.id == run.device),
        Device(run.device, ""),
    )
    usual = scenario.knobs_on(device) if scenario is not None and not run.is_job else {}
    changed = [
        f"{name}={show(value)}" for name, value in run.knobs.items() if usual.get(name) != value
    ]
    return changed or ["the scenario's own settings"]


def _run_line(side: MeasuredRun) -> str:
    summary, (rate, unit) = side.run.summary, side.run.throughput
    figures = [units.quantity(rate.mean, unit), f"{rate.n} blocks"] if rate is not None else []
    values = [
        (figure, _single(getattr(summary, figure.field)))
        for figure in FIGURES.values()
        if figure.short
    ]
    figures += [
        f"{figure.short} {with_unit(figure, value)}"
        for figure, value in values
        if value is not None
    ]
    if summary.tokens_per_j:
        figures.append(units.quantity(1 / summary.tokens_per_j, "J/token"))
    if (others := others_of(side)) is not None:
        figures.append(f"others used {percent(others)} of the cores")
    return f"  {side.run.started}  {'  '.join(figures)}  (gpuconsole {side.session.gpuconsole})"


def _as_json(side: MeasuredRun) -> dict[str, object]:
    """The file with the session, and the figures of its run."""
    return {
        "file": side.name,
        "gpuconsole": side.session.gpuconsole,
        "started": side.run.started,
        "summary": side.run.summary,
    }


def _single(value: Distribution | float | None) -> float | None:
    return value.p50 if isinstance(value, Distribution) else value
