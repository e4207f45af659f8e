"""`gpuconsole scenarios`."""

from __future__ import annotations

import argparse
import textwrap

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options import JSON, Option, UsageError
from gpuconsole.cli.output import to_json
from gpuconsole.cli.scenario import scenario
from gpuconsole.diagnosis.models.run_memory import CONTEXT_BYTES, PEAKS
from gpuconsole.engine.catalog import scenarios, scenarios_folder
from gpuconsole.model import units
from gpuconsole.model.knobs.catalogue import CATALOGUE, show
from gpuconsole.model.knobs.knob import APPLY, Knobs
from gpuconsole.model.scenario import Scenario, ScenarioError, gigabytes, grouped

EXAMPLES = """examples:
  gpuconsole scenarios
  gpuconsole scenarios data-starved       its settings with values and allowed values
  gpuconsole scenarios --json
"""
HELP = "list the scenarios, or show one"
DESCRIPTION = f"""List scenarios, or show one. Your own scenarios are the files
{scenarios_folder()}/*.toml; `gpuconsole run` also takes a path.

A scenario has values for CPUs ([cpu]) and for GPUs ([gpu]). A table such as [gpu.80GB] applies to
GPUs with about 80 GB of memory or more, after the tables of smaller sizes."""
OPTIONS = (
    Option("name", "the scenario to show (default: all)", "NAME", nargs="?", completes="scenario"),
    JSON,
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if args.name:
        chosen = scenario(args.name)
        print(to_json(chosen) if args.json else details(chosen))
        return OK
    try:
        by_name, mistakes = scenarios()
    except ScenarioError as error:
        raise UsageError(str(error)) from None
    if args.json:
        print(to_json(list(by_name.values())))
    else:
        print(listed(by_name))
    for mistake in mistakes:
        output.problem(mistake)
    return OK


def listed(by_name: dict[str, Scenario]) -> str:
    """The scenarios with one line each, by group."""
    width = max(map(len, by_name))
    rules = {
        name: f"  [{scenario.teaches.rule}]" if scenario.teaches.rule else ""
        for name, scenario in by_name.items()
    }
    groups = (
        [
            title,
            *(
                f"  {scenario.name:<{width}}  {scenario.title}{rules[scenario.name]}"
                for scenario in group
            ),
        ]
        for title, group in grouped(by_name.values()).items()
    )
    return "\n\n".join("\n".join(lines) for lines in groups)


def details(chosen: Scenario) -> str:
    """One scenario: summary, what to see, and all settings."""
    lines = [f"{chosen.name}: {chosen.title}", *textwrap.wrap(chosen.summary, 100), ""]
    if chosen.teaches.see:
        lines += textwrap.wrap(f"What to see: {chosen.teaches.see}", 100)
    if chosen.teaches.rule:
        lines.append(
            f"Rule that fires: {chosen.teaches.rule}"
            + (f"; fix: {_assigned(chosen.teaches.fix)}" if chosen.teaches.fix else "")
        )
    if chosen.teaches.gpu_fix:
        lines.append(f"Fix on a GPU: {_assigned(chosen.teaches.gpu_fix)}")
    scales: dict[str, Knobs] = {"cpu": chosen.knobs_for("cpu"), "gpu": chosen.knobs_for("gpu")}
    scales |= {
        f"gpu {size}": chosen.knobs_for("gpu", gigabytes(size) * 1e9) for size in chosen.gpu_sizes
    }
    lines += [
        "",
        f"{'setting':<28} {''.join(f'{head:<12} ' for head in scales)}{'applies':<8} allowed",
    ]
    for name in chosen.workload.knobs:
        knob = CATALOGUE[name]
        values = "".join(f"{show(values[name]):<12} " for values in scales.values())
        lines.append(f"{name:<28} {values}{APPLY[knob.apply]:<8} {knob.allowed()}")
    needed = "".join(f"{_memory(chosen, scale, knobs):<12} " for scale, knobs in scales.items())
    return "\n".join([*lines, "", f"{'GPU memory, predicted':<28} {needed}".rstrip()])


def _memory(chosen: Scenario, scale: str, knobs: Knobs) -> str:
    """Return the memory that a GPU needs for the scenario, computed from the settings."""
    if scale == "cpu":
        return "n/a"
    needed = PEAKS[chosen.workload.name](knobs)
    return "n/a" if needed is None else units.size_bytes(needed + CONTEXT_BYTES).strip()


def _assigned(changes: Knobs) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in changes.items())
