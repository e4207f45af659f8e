"""Does the finding name the slow part of loading, with its share and the gain without it?

    python -m benchmarks.own_job.loading_parts [--only PIPELINE ...] [--workers 1] [--seconds 14]
        [--pairs 3]

For each pipeline of `benchmarks/own_job/slow_part.py`: a watched run, whose program also stamps the
times of the slow part and of all loading; and runs without gpuconsole with and without the slow
part, in turn, which give the gain. Needs torchvision, albumentations, tokenizers and transformers.
Exit code 1: another part is named, the share is off by more than 5 points, or the predicted gain by
more than 15 %.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.own_job.slow_part import PIPELINES
from gpuconsole.cli.files import read_snapshot
from gpuconsole.diagnosis.families.loader import PARTS, without_part
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.run import Run
from gpuconsole.model.stacks import placed

PROGRAM = str(Path(__file__).with_name("slow_part.py"))
POINTS, ERROR = 0.05, 0.15


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=14.0)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    print(
        "| pipeline | samples | named | share | true share | predicted gain | gain | right |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    right = [row(pipeline, args.workers, args.seconds, args.pairs) for pipeline in args.only]
    return 0 if all(right) else 1


def row(pipeline: str, workers: int, seconds: float, pairs: int) -> bool:
    run, true_share = watched(pipeline, workers, seconds)
    gains = [
        told(pipeline, workers, "--without")[0] / told(pipeline, workers)[0] for _ in range(pairs)
    ]
    gain = statistics.median(gains)
    signal = run.signals.get(PARTS[0])
    if signal is None:
        print(
            (
                f"| {pipeline} | {run.unavailable.get('probe.loading_parts', 'nothing')} | | |"
                f" {true_share:.1%} | | {gain:.2f}x | no |"
            ),
            flush=True,
        )
        return False
    named = placed(signal.place) if signal.place is not None else ""
    predicted = without_part(Case.of(run, run.signals), signal.value) or 1.0
    right = (
        named.startswith(PIPELINES[pipeline].named)
        and abs(signal.value - true_share) <= POINTS
        and abs(predicted / gain - 1) <= ERROR
    )
    print(
        (
            f"| {pipeline} | {signal.source.split()[0]} | {named} | {signal.value:.1%} |"
            f" {true_share:.1%} | {predicted:.2f}x | {gain:.2f}x"
            f" ({min(gains):.2f}-{max(gains):.2f}) | {'yes' if right else 'no'} |"
        ),
        flush=True,
    )
    return right


def watched(pipeline: str, workers: int, seconds: float) -> tuple[Run, float]:
    """A run with gpuconsole, and the share of the slow part by the stamps of its program."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, PROGRAM, pipeline, str(seconds), "--workers", str(workers)]
        words = [
            sys.executable,
            "-m",
            "gpuconsole",
            "run",
            "--headless",
            "--snapshot",
            f"{folder}/s.json",
            "--",
            *command,
        ]
        done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=folder)
        return read_snapshot(Path(folder) / "s.json").runs[-1], figures(done.stdout)[1]


def told(pipeline: str, workers: int, *options: str) -> tuple[float, float]:
    """The figures of a run without gpuconsole."""
    command = [sys.executable, PROGRAM, pipeline, "8", "--workers", str(workers), *options]
    return figures(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def figures(output: str) -> tuple[float, float]:
    """Samples a second, and the share of the slow part."""
    rate, share = re.findall(r"samples/s ([\d.]+), slow part ([\d.]+|nan)", output)[-1]
    return float(rate), float(share)


if __name__ == "__main__":
    sys.exit(main())
