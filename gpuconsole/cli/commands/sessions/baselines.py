"""`gpuconsole baselines`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.files import read_snapshot
from gpuconsole.cli.options import JSON, Option, UsageError
from gpuconsole.experiments.baselines import BaselineError, baselines_folder, read_all, remove
from gpuconsole.experiments.gate import work_key
from gpuconsole.model import units
from gpuconsole.model.baseline import Baseline, BaselineRun
from gpuconsole.model.knobs.knob import show
from gpuconsole.model.summary_figures import FIGURES
from gpuconsole.model.text import visible
from gpuconsole.report.run.figures import with_unit

HELP = "list or delete what later runs are compared with"
DESCRIPTION = f"List the runs that later runs are compared with, by scenario, hardware and software. They are kept in {baselines_folder()}."
EXAMPLES = """examples:
  gpuconsole run train-gpt --headless --save-baseline       keep a run (on the screen: key b)
  gpuconsole baselines                                      list all
  gpuconsole baselines --json
  gpuconsole baselines --remove train-gpt-1f3a9c07
  gpuconsole baselines --key new.json                       in CI: the same name for the same work on the same hardware
"""
OPTIONS = (
    Option("--remove", "delete the runs with this key (see the list)", "KEY"),
    Option(
        "--key",
        "print the name of the hardware and the work of a snapshot, and nothing else: the key of a cache in CI",
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
        print(output.to_json({baseline.key.name: baseline for baseline in baselines}))
    elif baselines:
        print("\n\n".join(visible_lines(baseline) for baseline in baselines))
    else:
        print("there are no baselines: `gpuconsole run SCENARIO --headless --save-baseline` keeps a run")
    for mistake in mistakes.values():
        output.problem(mistake)
    return OK


def _key(path: Path) -> str:
    """The name of the work and the hardware of the last run of a snapshot. Raises UsageError."""
    snapshot = read_snapshot(path)
    if not snapshot.runs:
        raise UsageError(f"{path}: this snapshot has no run")
    return work_key(snapshot.runs[-1], snapshot.environment)


def visible_lines(baseline: Baseline) -> str:
    """The key with its meaning, and one line for each of its runs."""
    parts = baseline.key.parts()
    changed = [f"{name}={show(value)}" for name, value in baseline.key.changed.items()] or ["the scenario's own settings"]
    head = f"{baseline.key.name}  {baseline.key.scenario}: {', '.join(dict.fromkeys([*parts.values(), *changed]))}"
    return "\n".join(visible(line) for line in (head, *(_run_line(run, baseline.unit) for run in baseline.runs)))


def _run_line(run: BaselineRun, unit: str) -> str:
    figures = [units.quantity(run.rate, unit), f"{len(run.rates)} blocks"]
    kept = [(figure, getattr(run, figure.field)) for figure in FIGURES.values() if figure.short]
    figures += [f"{figure.short} {with_unit(figure, value)}" for figure, value in kept if value is not None]
    if run.energy_per_token_j is not None:
        figures.append(units.quantity(run.energy_per_token_j, "J/token"))
    if run.others_ratio is not None:
        figures.append(f"others used {units.percent(run.others_ratio).strip()} of the cores")
    return f"  {run.date}  {'  '.join(figures)}  (gpuconsole {run.gpuconsole})"
