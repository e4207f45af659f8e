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
    return (
        _datasheet_flops(knobs, facts, peaks, is_gpu, serves)
        or _measured_flops(knobs, facts, serves, measured_as)
        or calibrated_product(knobs, facts, is_gpu, calibration or {})
    )


def _datasheet_flops(knobs: Knobs, facts: Mapping[str, float], peaks: Peaks, is_gpu: bool, serves: bool) -> Peak | None:
    precision, count = _precision(knobs, serves), world_size(knobs, facts)
    found: float | None = getattr(peaks, f"{precision}_flops_per_s", None) if is_gpu else None
    return (found * count, f"{_times(count)}{precision} dense, {peaks.source}") if found else None


def _measured_flops(knobs: Knobs, facts: Mapping[str, float], serves: bool, measured_as: str = "") -> Peak | None:
    """FLOP/s that the workload measured at its start."""
    measured, threads = facts.get("peak_flops_per_s"), facts.get("threads", 1.0)
    if not measured:
        return None
    words = measured_as or f"{_precision(knobs, serves)} matrix product"
    return measured, f"{words} measured here, {threads:.0f} {'thread' if threads == 1 else 'threads'}"


def _precision(knobs: Knobs, serves: bool) -> str:
    return served_precision(knobs) if serves else str(knobs.get("precision", "fp32"))


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
    return (
        _datasheet_bandwidth(knobs, facts, peaks, is_gpu)
        or _measured_bandwidth(knobs, facts, is_gpu, serves)
        or _calibrated_bandwidth(knobs, facts, is_gpu, calibration or {})
    )


def _datasheet_bandwidth(knobs: Knobs, facts: Mapping[str, float], peaks: Peaks, is_gpu: bool) -> Peak | None:
    count = world_size(knobs, facts)
    return (peaks.memory_bytes_per_s * count, f"{_times(count)}{peaks.source}") if is_gpu and peaks.memory_bytes_per_s else None


def _measured_bandwidth(knobs: Knobs, facts: Mapping[str, float], is_gpu: bool, serves: bool) -> Peak | None:
    """Bytes/s that the workload measured at its start."""
    measured, count = facts.get("peak_bytes_per_s"), world_size(knobs, facts) if is_gpu else 1
    return (measured * count, f"{'the layers of the model' if serves else 'a copy'} measured here") if measured else None


def _calibrated_bandwidth(knobs: Knobs, facts: Mapping[str, float], is_gpu: bool, calibration: Mapping[str, float]) -> Peak | None:
    copied, count = calibration.get("copy_bytes_per_s"), world_size(knobs, facts) if is_gpu else 1
    return (copied * count, "copy, calibrated") if copied else None


def ceilings(
    knobs: Knobs,
    facts: Mapping[str, float],
    peaks: Peaks,
    is_gpu: bool,
    *,
    serves: bool = False,
    calibration: Mapping[str, float] | None = None,
) -> tuple[Peak | None, Peak | None]:
    """FLOP/s and bytes/s that the devices of the run can reach; None where no figure is known.

    Every measured rate was reached on this machine, so the highest of them is attainable: by `gpuconsole calibrate`, or at the start of the
    workload. Where nothing was measured: the datasheet of the GPU, which no program reaches completely.
    """
    calibrated = calibration or {}
    flops = _highest(_measured_flops(knobs, facts, serves), calibrated_product(knobs, facts, is_gpu, calibrated))
    moved = _highest(_measured_bandwidth(knobs, facts, is_gpu, serves), _calibrated_bandwidth(knobs, facts, is_gpu, calibrated))
    return flops or _datasheet_flops(knobs, facts, peaks, is_gpu, serves), moved or _datasheet_bandwidth(knobs, facts, peaks, is_gpu)


def _highest(*known: Peak | None) -> Peak | None:
    return max((one for one in known if one is not None), key=lambda one: one[0], default=None)


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""
