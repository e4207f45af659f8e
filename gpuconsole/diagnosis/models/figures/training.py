"""All figures of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuconsole.diagnosis.models.figures.bandwidth import bandwidth_figures
from gpuconsole.diagnosis.models.figures.flops import flops_figures
from gpuconsole.diagnosis.models.figures.inputs import ModelInputs
from gpuconsole.diagnosis.models.figures.memory import memory_figures
from gpuconsole.model.figure import Figure
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Peaks, Published
from gpuconsole.model.run import Summary


def training_figures(
    knobs: Knobs,
    facts: Mapping[str, float],
    signals: Mapping[str, Signal],
    summary: Summary,
    device_peaks: Peaks,
    calibration: Mapping[str, float],
    is_gpu: bool,
    published: Sequence[Published] = (),
) -> list[Figure]:
    """Memory by part, FLOPs, MFU, bandwidth, collectives and the roofline. `note` gives the reason for a missing value.

    Every argument except `knobs` may be empty. `published`: published training throughput of this device.
    """
    inputs = ModelInputs(knobs, facts, signals, summary, device_peaks, calibration, is_gpu, published)
    return [*memory_figures(inputs), *flops_figures(inputs), *bandwidth_figures(inputs)]
