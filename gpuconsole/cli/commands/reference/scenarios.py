"""`gpuconsole scenarios`."""

from __future__ import annotations

import argparse
import sys
import textwrap

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options import JSON, Option, UsageError
from gpuconsole.cli.output import to_json
from gpuconsole.cli.scenario import scenario
from gpuconsole.engine.catalog import scenarios, user_folder
from gpuconsole.engine.children.once import read_devices
from gpuconsole.expected.card import Card
from gpuconsole.expected.check import Check, check
from gpuconsole.model.knobs.catalogue import CATALOGUE, nearest, show
from gpuconsole.model.knobs.knob import APPLY, Knobs
from gpuconsole.model.peaks import known_devices, peaks_of
from gpuconsole.model.scenario import Scenario, ScenarioError, gigabytes, grouped
from gpuconsole.report.machine.scenario_check import check_report
from gpuconsole.report.parts import printed

EXAMPLES = """examples:
  gpuconsole scenarios
  gpuconsole scenarios data-starved       its settings with values and allowed values
  gpuconsole scenarios --check            what each scenario should show on the GPUs of this machine
  gpuconsole scenarios --check --device-name "NVIDIA L4"
  gpuconsole scenarios --json
"""
HELP = "list the scenarios, show one, or check them"
DESCRIPTION = f"""List scenarios, show one, or check them. Your own scenarios are the files {user_folder()}/*.toml; `gpuconsole run` also takes a path.

A scenario has values for CPUs ([cpu]) and for GPUs ([gpu]). A table such as [gpu.80GB] applies to GPUs with about 80 GB of memory or more, after
the tables of smaller sizes. --check computes for each scenario the memory, the limit of a step, and whether the scenario teaches what it says
there. --check runs nothing."""
OPTIONS = (
    Option("name", "the scenario to show or to check (default: all)", "NAME", nargs="?", completes="scenario"),
    Option("--check", "memory, limit and expected finding of each scenario on a GPU, by arithmetic"),
    Option(
        "--device-name", "with --check: the name that NVML gives the GPU (default: the GPUs of this machine)", "NAME",
        refused={"no --check": "needs --check"},
    ),
    JSON,
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if args.check:
        return run_check(args)
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
    rules = {name: f"  [{scenario.teaches.rule}]" if scenario.teaches.rule else "" for name, scenario in by_name.items()}
    groups = (
        [title, *(f"  {scenario.name:<{width}}  {scenario.title}{rules[scenario.name]}" for scenario in group)]
        for title, group in grouped(by_name.values()).items()
    )
    return "\n\n".join("\n".join(lines) for lines in groups)


def run_check(args: argparse.Namespace) -> int:
    """Print a table for each kind of GPU, or JSON."""
    try:
        chosen, mistakes = ([scenario(args.name)], []) if args.name else _all_scenarios()
    except ScenarioError as error:
        raise UsageError(str(error)) from None
    cards = [named_card(args.device_name)] if args.device_name else cards_here()
    checks = [(card, [check(scenario, card) for scenario in chosen]) for card in cards]
    if args.json:
        print(to_json([_as_data(*pair) for pair in checks]))
    else:
        print("\n\n".join(printed(check_report(*pair), paint=output.paint(sys.stdout)) for pair in checks))
    for mistake in mistakes:
        output.problem(mistake)
    return OK


def named_card(name: str) -> Card:
    """The card with NVML's name `name`, with the memory of its datasheet. Raises UsageError with the names that are known."""
    peaks = peaks_of(name)
    if not peaks.memory_bytes:
        names = known_devices()
        raise UsageError(f"--device-name {name!r}: no datasheet numbers for this name{nearest(name, names)}; known: {', '.join(names)}")
    return Card(name, peaks.memory_bytes, peaks)


def cards_here() -> list[Card]:
    """The GPUs of this machine, each kind once. Raises UsageError where there is none."""
    reading = read_devices()
    gpus = [device for device in reading.state.devices if device.is_gpu]
    if not gpus:
        why = reading.error or reading.state.no_gpu_reason or "there is no GPU"
        raise UsageError(f"--check needs a GPU: {why}. Name one, for example: --device-name 'NVIDIA L4'")
    kinds = {(gpu.name, gpu.memory_bytes): gpu for gpu in gpus}
    return [
        Card(gpu.name, gpu.memory_bytes, gpu.peaks, sum((other.name, other.memory_bytes) == kind for other in gpus))
        for kind, gpu in kinds.items()
    ]


def _all_scenarios() -> tuple[list[Scenario], list[str]]:
    by_name, mistakes = scenarios()
    return list(by_name.values()), mistakes


def _as_data(card: Card, checks: list[Check]) -> dict[str, object]:
    return {"device": card.name, "memory_bytes": card.memory_bytes, "peaks": card.peaks, "scenarios": checks}


def details(chosen: Scenario) -> str:
    """One scenario: summary, what to see, and all settings."""
    lines = [f"{chosen.name}: {chosen.title}", *textwrap.wrap(chosen.summary, 100), ""]
    if chosen.teaches.see:
        lines += textwrap.wrap(f"What to see: {chosen.teaches.see}", 100)
    if chosen.teaches.rule:
        lines.append(f"Rule that fires: {chosen.teaches.rule}" + (f"; fix: {_assigned(chosen.teaches.fix)}" if chosen.teaches.fix else ""))
    if chosen.teaches.gpu_fix:
        lines.append(f"Fix on a GPU: {_assigned(chosen.teaches.gpu_fix)}")
    scales: dict[str, Knobs] = {"cpu": chosen.knobs_for("cpu"), "gpu": chosen.knobs_for("gpu")}
    scales |= {f"gpu {size}": chosen.knobs_for("gpu", gigabytes(size) * 1e9) for size in chosen.gpu_sizes}
    lines += ["", f"{'setting':<28} {''.join(f'{head:<12} ' for head in scales)}{'applies':<8} allowed"]
    for name in chosen.workload.knobs:
        knob = CATALOGUE[name]
        values = "".join(f"{show(values[name]):<12} " for values in scales.values())
        lines.append(f"{name:<28} {values}{APPLY[knob.apply]:<8} {knob.allowed()}")
    return "\n".join(lines)


def _assigned(changes: Knobs) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in changes.items())
