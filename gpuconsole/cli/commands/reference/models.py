"""`gpuconsole models`."""

from __future__ import annotations

import argparse

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options import JSON, SCENARIO, SET, Option, UsageError
from gpuconsole.cli.scenario import assignments, scenario
from gpuconsole.diagnosis.models.inputs import VOCABULARY, lengths
from gpuconsole.diagnosis.models.training import training_figures
from gpuconsole.model import units
from gpuconsole.model.figures import Figure
from gpuconsole.model.knobs.catalogue import Knobs, nearest
from gpuconsole.model.machine import Peaks
from gpuconsole.model.peaks import known_devices, peaks_of, published_of
from gpuconsole.model.run import Summary
from gpuconsole.report.parts import Report, text
from gpuconsole.report.run.models import prediction_table

WORKLOAD = "training.gpt"
HELP = "predict memory, FLOPs and time of a step"
DESCRIPTION = """Predict by arithmetic, without a run: memory by part and its peak, FLOPs,
collectives, and the time of a step if arithmetic or memory were the only limit. With --device-name
the prediction is at GPU scale and uses the datasheet of that GPU. Without it the prediction is at
CPU scale. Only scenarios of training.gpt can be predicted, because the settings give the shape of
their model."""
EXAMPLES = """examples:
  gpuconsole models train-gpt --device-name "NVIDIA H200"
  gpuconsole models train-gpt --device-name "NVIDIA H200" --set gradient_checkpointing=true
  gpuconsole models train-gpt --device-name "NVIDIA H200" --set nproc=8 --set sharding=zero3 --json
"""
OPTIONS = (
    SCENARIO._replace(help="a scenario of training.gpt", nargs=None),
    SET,
    Option("--device-name", "the name that NVML gives the GPU, such as 'NVIDIA H200'", "NAME"),
    JSON._replace(help="print the numbers as JSON in SI units, and nothing else on stdout"),
)


def run(args: argparse.Namespace) -> int:
    chosen = scenario(args.scenario)
    if chosen.workload.name != WORKLOAD:
        raise UsageError(
            f"{chosen.name} runs {chosen.workload.name}: only scenarios of {WORKLOAD} can be"
            " predicted"
        )
    peaks = peaks_of(args.device_name) if args.device_name else Peaks()
    if args.device_name and not peaks.source:
        names = known_devices()
        near = nearest(args.device_name, names)
        raise UsageError(
            f"--device-name {args.device_name}: no datasheet peaks for this name{near}; known:"
            f" {', '.join(names)}"
        )
    scale = "gpu" if args.device_name else "cpu"
    knobs = {**chosen.knobs_for(scale, peaks.memory_bytes or 0), **assignments(args.knobs, chosen)}
    figures = predicted(knobs, peaks, args.device_name)
    title = f"{chosen.name} on {args.device_name or 'a CPU'}"
    compiled = knobs.get("torch_compile", "off") != "off"
    output.show_result(args, figures, lambda: as_report(figures, title, peaks, compiled))
    return OK


def predicted(knobs: Knobs, peaks: Peaks, device_name: str | None) -> list[Figure]:
    """Every figure that needs no run. The memory of a compiled step is predicted as without
    compilation, which is an upper bound."""
    knobs = {**knobs, "torch_compile": "off"}
    facts = {"vocabulary": float(VOCABULARY), "tokens_per_sample": sum(lengths(knobs)) / 2}
    published = published_of(device_name) if device_name else ()
    figures = training_figures(
        knobs, facts, {}, Summary(), peaks, {}, device_name is not None, published
    )
    return [figure for figure in figures if figure.predicted is not None]


def as_report(figures: list[Figure], title: str, peaks: Peaks, compiled: bool = False) -> Report:
    report: Report = [
        text(f"{title}: predicted, not measured" + (f"; {peaks.source}" if peaks.source else ""))
    ]
    report.append(prediction_table(figures))
    peak = next(
        (figure.predicted for figure in figures if figure.name == "memory.allocated_peak_bytes"),
        None,
    )
    if peak and peaks.memory_bytes:
        share = units.percent(peak / peaks.memory_bytes).strip()
        memory = units.quantity(peaks.memory_bytes, "bytes")
        report.append(
            text(
                f"The peak of {units.quantity(peak, 'bytes')} is {share} of the {memory} of the"
                " datasheet."
            )
        )
    if compiled:
        report.append(
            text(
                "The memory is that without torch.compile: a compiled step keeps fewer activations."
            )
        )
    return report
