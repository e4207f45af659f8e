"""Memory and time of gradient checkpointing, measured and predicted: a table in docs/models.md.

    python -m benchmarks.checkpointing [--duration 12] [--batch-tokens 2048] [--set NAME=VALUE]...
        [--keep]

Each step has the same number of tokens, in sequences of 256 to 2048. Memory: the bytes that a
forward pass keeps for its backward pass (saved tensors), compared with the activation model. Time:
a trial in ABBA blocks, compared with the FLOPs with and without recomputation (not causal).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from benchmarks.doc_table import put, table
from benchmarks.headless import options, session
from benchmarks.machine import fingerprint, keep
from gpuconsole.cli.scenario import assignments
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.model.units import change, quantity

SCENARIO = "train-gpt"
SEQ_LENS = (256, 512, 1024, 2048)
CHANGE: Knobs = {"gradient_checkpointing": True}
ACTIVATIONS = "memory.activations_bytes"


class Pair(msgspec.Struct):
    """Measured and predicted."""

    measured: float
    predicted: float

    def words(self, unit: str) -> list[str]:
        return [
            quantity(self.measured, unit),
            quantity(self.predicted, unit),
            change(self.predicted / self.measured - 1),
        ]


class Shape(msgspec.Struct):
    """One shape with and without checkpointing. `step_time_ratio` is with / without; its interval
    is `low` to `high`."""

    batch_size: int
    seq_len: int
    plain: Pair
    checkpointed: Pair
    step_time_ratio: Pair
    low: float
    high: float


def measure(knobs: Knobs, duration_s: float) -> Shape:
    """A trial, then a run with checkpointing that measures its memory and models. Raises
    RunError."""
    tried = session(SCENARIO, duration_s, *options("--set", knobs), *options("--try", CHANGE))
    changed = session(SCENARIO, duration_s, *options("--set", {**knobs, **CHANGE})).runs[0]
    speedup = _speedup(tried.trials)
    flops = {figure.name: figure.predicted or 0.0 for figure in changed.figures}
    return Shape(
        batch_size=int(knobs["batch_size"]),
        seq_len=int(knobs["seq_len"]),
        plain=_activations(tried.runs[0]),
        checkpointed=_activations(changed),
        step_time_ratio=Pair(
            1 / speedup.estimate, flops["flops.hardware_per_sample"] / flops["flops.per_sample"]
        ),
        low=1 / speedup.high,
        high=1 / speedup.low,
    )


def _speedup(trials: Sequence[Trial]) -> Speedup:
    found = trials[0].speedup if trials else None
    if found is None:
        raise ValueError(f"the trial told nothing: {trials}")
    return found


def _activations(run: Run) -> Pair:
    figure = next(figure for figure in run.figures if figure.name == ACTIVATIONS)
    if figure.measured is None or figure.predicted is None:
        raise ValueError(f"{ACTIVATIONS}: {figure.note}")
    return Pair(figure.measured, figure.predicted)


def markdown(shapes: Sequence[Shape], knobs: Knobs) -> str:
    machine = fingerprint()
    head = (
        "batch x tokens",
        "kept, plain",
        "model",
        "error",
        "kept, checkpointed",
        "model",
        "error",
        "saved",
        "step time",
        "by FLOPs",
    )
    rows = [
        [
            f"{one.batch_size} x {one.seq_len}",
            *one.plain.words("B"),
            *one.checkpointed.words("B"),
            f"{1 - one.checkpointed.measured / one.plain.measured:.0%}",
            f"{one.step_time_ratio.measured:.2f}x ({one.low:.2f}-{one.high:.2f})",
            f"{one.step_time_ratio.predicted:.2f}x",
        ]
        for one in shapes
    ]
    where = (
        f"d_model {knobs['d_model']}, n_layer {knobs['n_layer']}, {knobs['precision']}, sdpa,"
        f" {machine['cpu']}, {machine['date']}"
    )
    return f"{table(head, rows)}\n({where}; `python -m benchmarks.checkpointing`)\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--duration", type=float, default=12.0, help="seconds of a run; the trial comes on top"
    )
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="knobs")
    parser.add_argument("--seq-lens", type=int, nargs="*", default=SEQ_LENS)
    parser.add_argument(
        "--keep", action="store_true", help="keep the result and put the table into docs/models.md"
    )
    args = parser.parse_args()
    scenario = find_scenario(SCENARIO)
    sets = assignments(args.knobs, scenario)
    shapes = []
    for seq_len in args.seq_lens:
        shapes.append(
            measure(
                {**sets, "seq_len": seq_len, "batch_size": max(1, args.batch_tokens // seq_len)},
                args.duration,
            )
        )
        print(shapes[-1], flush=True)
    knobs = {**scenario.knobs_for("cpu"), **sets}
    text = markdown(shapes, knobs)
    print(text)
    if args.keep:
        put("models.md", "checkpointing", text)
        print(
            "kept in "
            f"{keep('checkpointing', {'knobs': knobs, 'shapes': msgspec.to_builtins(shapes)})}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
