"""The peaks that a run is compared with: FLOP/s for MFU, bytes per second for MBU. The summary, the live series and the models all call
these functions."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Peaks, sustained_name
from gpuconsole.model.serving import served_precision

Peak = tuple[float, str]
"""A rate per second, and the source of that figure."""


CONVOLVES = "dense_is_convolution"
"""A fact: 1 where the dense arithmetic of the workload is convolution, which is faster than a matrix product on some CPUs."""


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
        or measured_flops(knobs, facts, serves, measured_as)
        or calibrated_product(knobs, facts, is_gpu, calibration or {})
    )


def _datasheet_flops(knobs: Knobs, facts: Mapping[str, float], peaks: Peaks, is_gpu: bool, serves: bool) -> Peak | None:
    precision, count = _precision(knobs, serves), world_size(knobs, facts)
    peak: float | None = getattr(peaks, f"{precision}_flops_per_s", None) if is_gpu else None
    return (peak * count, f"{_times(count)}{precision} dense, {peaks.source}") if peak else None


def measured_flops(knobs: Knobs, facts: Mapping[str, float], serves: bool, measured_as: str = "") -> Peak | None:
    """FLOP/s that the workload measured at its start."""
    measured, threads = facts.get("peak_flops_per_s"), facts.get("threads", 1.0)
    if not measured:
        return None
    kernel = measured_as or f"{_precision(knobs, serves)} matrix product"
    return measured, f"{kernel} measured here, {threads:.0f} {'thread' if threads == 1 else 'threads'}"


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
        or measured_bandwidth(knobs, facts, is_gpu, serves)
        or _calibrated_bandwidth(knobs, facts, is_gpu, calibration or {})
    )


def _datasheet_bandwidth(knobs: Knobs, facts: Mapping[str, float], peaks: Peaks, is_gpu: bool) -> Peak | None:
    count = world_size(knobs, facts)
    return (peaks.memory_bytes_per_s * count, f"{_times(count)}{peaks.source}") if is_gpu and peaks.memory_bytes_per_s else None


def measured_bandwidth(knobs: Knobs, facts: Mapping[str, float], is_gpu: bool, serves: bool) -> Peak | None:
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
    """FLOP/s and bytes/s that the devices of the run can keep up; None where no figure is known.

    Sources in order: the sustained rate of `gpuconsole calibrate`; the rate that the workload measured at its start, with its number of
    threads; the datasheet of the GPU, which no program reaches completely. The rate is of the kind of the work: convolution or matrix product;
    reading weights for one row (serving, where it was calibrated), or the better of copy and triad.
    """
    calibrated = {name: value * (world_size(knobs, facts) if is_gpu else 1) for name, value in (calibration or {}).items()}
    precision, convolves = _precision(knobs, serves), bool(facts.get(CONVOLVES))
    product = {
        f"{'conv' if convolves else 'gemm'}_{precision}_flops_per_s": f"{precision} {'convolution' if convolves else 'matrix product'}"
    }
    streams = {"copy_bytes_per_s": "copy", "triad_bytes_per_s": "triad"}
    reads = {f"gemv_{precision}_bytes_per_s": f"{precision} matrix times vector"} if serves else {}
    return (
        _calibrated(calibrated, product) or measured_flops(knobs, facts, serves) or _datasheet_flops(knobs, facts, peaks, is_gpu, serves),
        _calibrated(calibrated, reads)
        or (measured_bandwidth(knobs, facts, is_gpu, serves) if serves else None)
        or _calibrated(calibrated, streams)
        or measured_bandwidth(knobs, facts, is_gpu, serves)
        or _datasheet_bandwidth(knobs, facts, peaks, is_gpu),
    )


def _calibrated(calibrated: Mapping[str, float], names: Mapping[str, str]) -> Peak | None:
    """The highest of the calibrated figures `names`, with the words for its source. Older calibrations have no sustained rates, only the
    best ones."""
    rates = [(calibrated.get(sustained_name(name), calibrated.get(name, 0.0)), f"{kernel}, calibrated") for name, kernel in names.items()]
    return max((rate for rate in rates if rate[0]), key=lambda rate: rate[0], default=None)


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""
