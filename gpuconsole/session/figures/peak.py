"""The peaks that a run is compared with: FLOP/s for MFU, bytes per second for MBU. The summary, the
live series and the models all call these functions."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Peaks, sustained_name
from gpuconsole.model.run import Run
from gpuconsole.model.serving import served_precision
from gpuconsole.model.text import percent

Peak = tuple[float, str]
"""A rate per second, and the source of that figure."""


CONVOLVES = "dense_is_convolution"
"""A fact: 1 where the dense arithmetic of the workload is convolution, which is faster than a
matrix product on some CPUs."""


WHOLE = 0.95
"""From this share of the FLOPs on, the words leave out the rest."""
TF32_FACTS = "tf32_convolutions", "tf32_matmul"
"""Facts of a user's job: 1 where an fp32 convolution, or an fp32 matrix product, may use TF32.
cuDNN's default is 1, cuBLAS's is 0."""
COUNTED_TYPES = ("fp64", "fp32", "bf16", "fp16", "fp8", "fp4", "int8")
"""Number types of products that the agent counts, in the facts `flops_bf16_ratio` and so on."""
CHOSEN_TYPES = ("fp64", "fp32", "bf16", "fp16")
"""Those of them that the knob `precision` of a job may show."""
MAX_UTILIZATION = 1.05
"""No GPU is faster than its datasheet by more than its clock is above that of the datasheet."""
LINEAR = 0.5
"""A model with convolutions whose Linear layers have a smaller share of the parameters spends its
FLOPs in convolutions (ResNet-50: 8 % of the parameters, 0.1 % of the FLOPs; a vision transformer:
99 % and 99 %)."""


def world_size(knobs: Knobs, facts: Mapping[str, float]) -> int:
    """Number of processes of the run: from the workload's facts, otherwise from the knobs."""
    return max(1, int(facts.get("world_size", knobs.get("nproc", 1))))


def facts_of_rates(run: Run) -> Mapping[str, float]:
    """The facts with which the rates of a run are compared. The steps of a user's job count the
    samples of its leading process, so its rates are compared with one device; those of our own
    workloads count the samples of all processes."""
    return {**run.facts, "world_size": 1.0} if run.is_job else run.facts


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

    Sources in order: the dense datasheet peak of each GPU; the matrix product that the workload
    measured (fact `peak_flops_per_s`, for all processes together); the matrix product of
    `gpuconsole calibrate`. All processes of a CPU run share one CPU. `measured_as` describes the
    workload's matrix product.
    """
    return (
        _datasheet_flops(knobs, facts, peaks, is_gpu, serves)
        or measured_flops(knobs, facts, serves, measured_as)
        or calibrated_product(knobs, facts, is_gpu, calibration or {})
    )


def _datasheet_flops(
    knobs: Knobs, facts: Mapping[str, float], peaks: Peaks, is_gpu: bool, serves: bool
) -> Peak | None:
    precision, count = (
        served_precision(knobs) if serves else str(knobs.get("precision", "fp32")),
        world_size(knobs, facts),
    )
    shares = {precision: 1.0} if serves else types_of_flops(knobs, facts)
    tf32 = 0.0 if serves else tf32_ratio(knobs, facts)
    of_types = {name: peak for name in shares if is_gpu and (peak := _of_type(peaks, name))}
    if len(of_types) < len(shares):
        return None
    words = {
        name: name if share >= WHOLE else f"{name} ({percent(share)})"
        for name, share in shares.items()
    }
    if tf32 and "fp32" in shares and not peaks.precedes_ampere:
        if not peaks.tf32_flops_per_s:
            return None
        of_types["fp32"] = 1 / (tf32 / peaks.tf32_flops_per_s + (1 - tf32) / of_types["fp32"])
        words["fp32"] = (
            _in_tf32(facts, tf32)
            if len(shares) == 1
            else f"fp32 and TF32 ({percent(shares['fp32'])})"
        )
    peak = (
        next(iter(of_types.values()))
        if len(shares) == 1
        else 1 / sum(share / of_types[name] for name, share in shares.items())
    )
    which = " and ".join(
        words[name] for name in sorted(shares, key=shares.__getitem__, reverse=True)
    )
    return peak * count, f"{_times(count)}{which} dense, {peaks.source}"


def _of_type(peaks: Peaks, name: str) -> float | None:
    """FLOP/s of products in a number type."""
    peak: float | None = getattr(
        peaks, "int8_ops_per_s" if name == "int8" else f"{name}_flops_per_s", None
    )
    return peak


def utilization(rate: float, peak: Peak) -> float | None:
    """`rate` over `peak`, at most 1. None above MAX_UTILIZATION: then the peak is not that of the
    work."""
    ratio = rate / peak[0]
    return min(1.0, ratio) if ratio <= MAX_UTILIZATION else None


def why_above(rate: float, peak: Peak) -> str:
    """Why `rate`, which is above `peak`, has no utilization."""
    cause = (
        "the number type in which the program multiplies is not known, or other work slowed the"
        " measurement of the peak"
    )
    return f"{rate / peak[0]:.1f} times the peak ({peak[1]}): {cause}"


def types_of_flops(knobs: Knobs, facts: Mapping[str, float]) -> dict[str, float]:
    """The shares of the FLOPs by number type: what the agent has counted, or the precision of the
    run alone, where nothing was counted or the precision has changed since. Shares below 1 - WHOLE
    in all are left out."""
    precision = str(knobs.get("precision", "fp32"))
    counted = {
        name: share
        for name in COUNTED_TYPES
        if (share := facts.get(f"flops_{name}_ratio", 0.0)) > 0
    }
    most = max(counted, key=counted.__getitem__, default="")
    if not counted or (most in CHOSEN_TYPES and most != {"tf32": "fp32"}.get(precision, precision)):
        return {precision: 1.0}
    if "fp32" in counted and precision == "tf32":
        counted["tf32"] = counted.pop("fp32")
        most = max(counted, key=counted.__getitem__)
    return (
        {most: 1.0}
        if counted[most] >= WHOLE
        else {name: share / sum(counted.values()) for name, share in counted.items()}
    )


def _in_tf32(facts: Mapping[str, float], ratio: float) -> str:
    """The words for a run in fp32 of which tensor cores compute `ratio` in TF32."""
    if facts.get("tf32_matmul"):
        return "tf32" if ratio >= WHOLE else f"tf32 for products ({percent(ratio)}), else fp32"
    return (
        "tf32 for convolutions (cuDNN's default)"
        if ratio >= WHOLE
        else f"tf32 for convolutions ({percent(ratio)}), else fp32"
    )


def tf32_ratio(knobs: Knobs, facts: Mapping[str, float]) -> float:
    """The share of the FLOPs of an fp32 run that may use TF32, where the program sets nothing or
    sets it; 0 for other precisions, and where the workload does not report TF32_FACTS."""
    if knobs.get("precision", "fp32") != "fp32":
        return 0.0
    convolved = convolved_ratio(knobs, facts)
    return convolved * facts.get("tf32_convolutions", 0.0) + (1 - convolved) * facts.get(
        "tf32_matmul", 0.0
    )


def convolved_ratio(knobs: Knobs, facts: Mapping[str, float]) -> float:
    """The share of the FLOPs that are convolutions: the workload's count, else 1 for a model with
    convolutions and few Linear layers."""
    counted = facts.get("convolution_flops_ratio")
    if counted is not None:
        return counted
    has_convolutions = bool(facts.get(CONVOLVES)) or "channels_last" in knobs
    return float(
        has_convolutions
        and facts.get("linear_parameters", 0.0) < LINEAR * facts.get("parameters", 1.0)
    )


def measured_flops(
    knobs: Knobs, facts: Mapping[str, float], serves: bool, measured_as: str = ""
) -> Peak | None:
    """FLOP/s that the workload measured at its start."""
    measured, threads = facts.get("peak_flops_per_s"), facts.get("threads", 1.0)
    if not measured:
        return None
    kernel = measured_as or f"{_precision(knobs, facts, serves)} matrix product"
    return (
        measured,
        f"{kernel} measured here, {threads:.0f} {'thread' if threads == 1 else 'threads'}",
    )


def _precision(knobs: Knobs, facts: Mapping[str, float], serves: bool) -> str:
    """The precision of most of the FLOPs."""
    if serves:
        return served_precision(knobs)
    return "tf32" if tf32_ratio(knobs, facts) > 1 / 2 else str(knobs.get("precision", "fp32"))


def calibrated_product(
    knobs: Knobs, facts: Mapping[str, float], is_gpu: bool, calibration: Mapping[str, float]
) -> Peak | None:
    """FLOP/s of all devices of the run in the matrix product of the calibration."""
    precision = _precision(knobs, facts, serves=False)
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
    """Memory bandwidth of all devices of the run in bytes per second; None if it is not known. The
    order of sources is that of `flops_peak`."""
    return (
        _datasheet_bandwidth(knobs, facts, peaks, is_gpu)
        or measured_bandwidth(knobs, facts, is_gpu, serves)
        or _calibrated_bandwidth(knobs, facts, is_gpu, calibration or {})
    )


def _datasheet_bandwidth(
    knobs: Knobs, facts: Mapping[str, float], peaks: Peaks, is_gpu: bool
) -> Peak | None:
    count = world_size(knobs, facts)
    return (
        (peaks.memory_bytes_per_s * count, f"{_times(count)}{peaks.source}")
        if is_gpu and peaks.memory_bytes_per_s
        else None
    )


def measured_bandwidth(
    knobs: Knobs, facts: Mapping[str, float], is_gpu: bool, serves: bool
) -> Peak | None:
    """Bytes/s that the workload measured at its start."""
    measured, count = facts.get("peak_bytes_per_s"), world_size(knobs, facts) if is_gpu else 1
    return (
        (measured * count, f"{'the layers of the model' if serves else 'a copy'} measured here")
        if measured
        else None
    )


def _calibrated_bandwidth(
    knobs: Knobs, facts: Mapping[str, float], is_gpu: bool, calibration: Mapping[str, float]
) -> Peak | None:
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

    Sources in order: the sustained rate of `gpuconsole calibrate`; the rate that the workload
    measured at its start, with its number of threads; the datasheet of the GPU, which no program
    reaches completely. The rate is of the kind of the work: convolution or matrix product; reading
    weights for one row (serving, where it was calibrated), or the better of copy and triad.
    """
    calibrated = {
        name: value * (world_size(knobs, facts) if is_gpu else 1)
        for name, value in (calibration or {}).items()
    }
    precision, convolves = _precision(knobs, facts, serves), bool(facts.get(CONVOLVES))
    product = {
        f"{'conv' if convolves else 'gemm'}_{precision}_flops_per_s": (
            f"{precision} {'convolution' if convolves else 'matrix product'}"
        )
    }
    streams = {"copy_bytes_per_s": "copy", "triad_bytes_per_s": "triad"}
    reads = {f"gemv_{precision}_bytes_per_s": f"{precision} matrix times vector"} if serves else {}
    return (
        _calibrated(calibrated, product)
        or measured_flops(knobs, facts, serves)
        or _datasheet_flops(knobs, facts, peaks, is_gpu, serves),
        _calibrated(calibrated, reads)
        or (measured_bandwidth(knobs, facts, is_gpu, serves) if serves else None)
        or _calibrated(calibrated, streams)
        or measured_bandwidth(knobs, facts, is_gpu, serves)
        or _datasheet_bandwidth(knobs, facts, peaks, is_gpu),
    )


def _calibrated(calibrated: Mapping[str, float], names: Mapping[str, str]) -> Peak | None:
    """The highest of the calibrated figures `names`, with the words for its source. Older
    calibrations have no sustained rates, only the best ones."""
    rates = [
        (calibrated.get(sustained_name(name), calibrated.get(name, 0.0)), f"{kernel}, calibrated")
        for name, kernel in names.items()
    ]
    return max((rate for rate in rates if rate[0]), key=lambda rate: rate[0], default=None)


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""
