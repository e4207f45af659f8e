"""Every analytical model compared with its measurement over several scenarios: a table in
docs/models.md.

    python -m benchmarks.models [--duration 12] [--only SCENARIO ...] [--keep]

Calibrates first, into a folder of its own. Then it runs each scenario through the real command line
and reads the figures of its snapshot.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from benchmarks.doc_table import put, table
from benchmarks.headless import options, session
from benchmarks.machine import fingerprint, keep
from benchmarks.own_program import own_command
from gpuconsole.model.figures import Figure
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.units import quantity
from gpuconsole.report.run.models import error


class Case(NamedTuple):
    scenario: str
    sets: Knobs = {}

    @property
    def title(self) -> str:
        return f"{self.scenario}, {describe_changes(self.sets)}" if self.sets else self.scenario


CASES = (
    Case("train-gpt"),
    Case("train-gpt", {"precision": "bf16"}),
    Case("naive-attention"),
    Case("long-sequence"),
    Case("finetune-lora", {"peft": "lora"}),
    Case("optimizer-heavy", {"optim": "adamw_fused"}),
    Case("zero-memory"),
    Case("zero-memory", {"sharding": "zero3"}),
    Case("ddp-small-batch"),
    Case("embedding-bound"),
    Case("gemm-peak"),
    Case("memory-bandwidth"),
)


BOUNDS = ("flops.step_s", "bandwidth.optimizer_s", "bandwidth.step_s", "roofline.flops_per_s")
"""Limits, not predictions: the table shows the share that was reached."""


def measured(figures: Sequence[Figure]) -> list[Figure]:
    """Figures with a prediction and a measurement."""
    return [figure for figure in figures if figure.error_ratio is not None]


def markdown(found: Mapping[str, Sequence[Figure]]) -> str:
    """Rows by figure, then by scenario; limits have a separate table."""
    machine = fingerprint()
    where = (
        f"({machine['cores']} cores of {machine['cpu']}, {machine['date']}; `python -m"
        " benchmarks.models`)"
    )
    predictions = table(
        ("figure", "scenario", "model", "measured", "error"), _rows(found, bounds=False)
    )
    bounds = table(("bound", "scenario", "model", "measured", "reached"), _rows(found, bounds=True))
    return f"{predictions}\nLimits that a step can come near and not pass:\n\n{bounds}\n{where}\n"


def _rows(found: Mapping[str, Sequence[Figure]], bounds: bool) -> list[list[str]]:
    chosen = [
        (figure, scenario)
        for scenario, figures in found.items()
        for figure in figures
        if (figure.name in BOUNDS) == bounds
    ]
    titles = list(dict.fromkeys(figure.title for figure, _ in chosen))
    return [
        [
            figure.title,
            scenario,
            quantity(figure.predicted, figure.unit),
            quantity(figure.measured, figure.unit),
            _last(figure),
        ]
        for figure, scenario in sorted(chosen, key=lambda one: titles.index(one[0].title))
    ]


def _last(figure: Figure) -> str:
    if figure.name not in BOUNDS or figure.error_ratio is None:
        return error(figure)
    over = 1 + figure.error_ratio
    return f"{over if figure.unit == 's' else 1 / over:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--duration", type=float, default=12.0)
    parser.add_argument("--only", nargs="*", metavar="SCENARIO")
    parser.add_argument(
        "--keep", action="store_true", help="keep the result and put the table into docs/models.md"
    )
    args = parser.parse_args()
    found: dict[str, list[Figure]] = {}
    with tempfile.TemporaryDirectory() as cache:
        env = {"XDG_CACHE_HOME": cache}
        subprocess.run(
            own_command("calibrate"), env={**os.environ, **env}, check=True, capture_output=True
        )
        for case in CASES:
            if not args.only or case.scenario in args.only:
                run = session(
                    case.scenario, args.duration, *options("--set", case.sets), env=env
                ).runs[0]
                found[case.title] = measured(run.figures)
                print(
                    case.title,
                    *(f"{figure.name} {error(figure)}" for figure in found[case.title]),
                    sep="\n  ",
                    flush=True,
                )
    text = markdown(found)
    print(text)
    if args.keep:
        put("models.md", "figures", text)
        figures = msgspec.to_builtins(found)
        print(f"kept in {keep('models', {'duration_s': args.duration, 'figures': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
