"""The peaks that a run is compared with: FLOP/s for MFU, bytes per second for MBU. The summary, the live series and the models all call these functions."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine.device import Peaks
from gpuconsole.model.serving import served_precision

Peak = tuple[float, str]
"""A rate per second, and the source of that figure."""


def world_size(knobs: Knobs, facts: Mapping[str, float]) -> int:
    """Number of processes of the run: from the workload's facts, otherwise from the knobs."""
    return max(1, int(facts.get("world_size", knobs.get("nproc", 1))))


def flops_peak(
    knobs: Knobs,
    facts: Mapping[str, float],
    peaks: Peaks,
    is_gpu: bool,
    *,
    serves: bool = False,
    calibration: Mapping[str, float] | None = None,
    measured_as: str = "",
) -> Peak | None:
    """FLOP/s of all devices of the run at its precision; None where no figure is known.

    Sources in order: the dense datasheet peak of each GPU; the matrix product that the workload measured (fact `peak_flops_per_s`, for all
    processes together); the matrix product of `gpuconsole calibrate`. All processes of a CPU run share one CPU. `measured_as` describes the
    workload's matrix product.
    """
    precision = served_precision(knobs) if serves else str(knobs.get("precision", "fp32"))
    count = world_size(knobs, facts) if is_gpu else 1
    datasheet: float | None = getattr(peaks, f"{precision}_flops_per_s", None) if is_gpu else None
    if datasheet:
        return datasheet * count, f"{_times(count)}{precision} dense, {peaks.source}"
    measured = facts.get("peak_flops_per_s")
    if measured:
        threads = facts.get("threads", 1.0)
        return (
            measured,
            f"{measured_as or f'{precision} matrix product'} measured here, {threads:.0f} {'thread' if threads == 1 else 'threads'}",
        )
    return calibrated_product(knobs, facts, is_gpu, calibration or {})


def calibrated_product(knobs: Knobs, facts: Mapping[str, float], is_gpu: bool, calibration: Mapping[str, float]) -> Peak | None:
    """FLOP/s of all devices of the run in the matrix product of the calibration."""
    precision = str(knobs.get("precision", "fp32"))
    reached = calibration.get(f"gemm_{precision}_flops_per_s")
    count = world_size(knobs, facts) if is_gpu else 1
    return (reached * count, f"{precision} matrix product, calibrated") if reached else None


def bandwidth_peak(
    knobs: Knobs,
    facts: Mapping[str, float],
    peaks: Peaks,
    is_gpu: bool,
    *,
    serves: bool = False,
    calibration: Mapping[str, float] | None = None,
) -> Peak | None:
    """Memory bandwidth of all devices of the run in bytes per second; None if it is not known. The order of sources is that of `flops_peak`."""
    count = world_size(knobs, facts) if is_gpu else 1
    if is_gpu and peaks.memory_bytes_per_s:
        return peaks.memory_bytes_per_s * count, f"{_times(count)}{peaks.source}"
    measured = facts.get("peak_bytes_per_s")
    if measured:
        return measured * count, f"{'the layers of the model' if serves else 'a copy'} measured here"
    copied = (calibration or {}).get("copy_bytes_per_s")
    return (copied * count, "copy, calibrated") if copied else None


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""
