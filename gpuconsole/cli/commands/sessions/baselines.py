"""`gpuconsole baselines`."""

from __future__ import annotations

import argparse

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options.files import to_json
from gpuconsole.cli.options.usage import UsageError, refuse_given
from gpuconsole.experiments.baselines import BaselineError, baselines_folder, read_all, remove
from gpuconsole.model import units
from gpuconsole.model.baseline import Baseline, BaselineRun
from gpuconsole.model.knobs.knob import show
from gpuconsole.model.summary_figures import FIGURES
from gpuconsole.model.text import visible
from gpuconsole.report.run.figures import with_unit

EXAMPLES = """examples:
  gpuconsole run train-gpt --headless --save-baseline       keep a run (on the screen: key b)
  gpuconsole baselines                                      list all
  gpuconsole baselines --json
  gpuconsole baselines --remove train-gpt-1f3a9c07
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "baselines",
        help="list or delete what later runs are compared with",
        description=f"List the runs that later runs are compared with, by scenario, hardware and software. They are kept in {baselines_folder()}.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--remove", metavar="KEY", help="delete the runs with this key (see the list)")
    parser.add_argument("--json", action="store_true", help="print the baselines as JSON")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    folder = baselines_folder()
    if args.remove is not None:
        refuse_given(args, "does not go with --remove, which prints no baselines", "json")
        try:
            print(f"removed {remove(folder, args.remove)}")
        except BaselineError as error:
            raise UsageError(str(error)) from None
        return OK
    found, mistakes = read_all(folder)
    if args.json:
        print(to_json({one.key.name: one for one in found}))
    elif found:
        print("\n\n".join(visible_lines(one) for one in found))
    else:
        print("there are no baselines: `gpuconsole run SCENARIO --headless --save-baseline` keeps a run")
    for mistake in mistakes.values():
        output.problem(mistake)
    return OK


def visible_lines(baseline: Baseline) -> str:
    """The key with its meaning, and one line for each of its runs."""
    parts = baseline.key.parts()
    changed = [f"{name}={show(value)}" for name, value in baseline.key.changed.items()] or ["the scenario's own knobs"]
    head = f"{baseline.key.name}  {baseline.key.scenario}: {', '.join(dict.fromkeys([*parts.values(), *changed]))}"
    return "\n".join(visible(line) for line in (head, *(_run_line(one, baseline.unit) for one in baseline.runs)))


def _run_line(run: BaselineRun, unit: str) -> str:
    figures = [units.quantity(run.rate, unit), f"{len(run.rates)} blocks"]
    kept = [(figure, getattr(run, figure.field)) for figure in FIGURES.values() if figure.short]
    figures += [f"{figure.short} {with_unit(figure, value)}" for figure, value in kept if value is not None]
    if run.energy_per_token_j is not None:
        figures.append(units.quantity(run.energy_per_token_j, "J/token"))
    if run.others_ratio is not None:
        figures.append(f"others used {units.percent(run.others_ratio).strip()} of the cores")
    return f"  {run.date}  {'  '.join(figures)}  (gpuconsole {run.gpuconsole})"
