"""The stages of a calibration: what is measured on a device, and the figures of each stage."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from gpuconsole.host.cores import cores
from gpuconsole.model.machine import Reached
from gpuconsole.workloads.calibration.allreduce import all_reduce
from gpuconsole.workloads.calibration.measures import (
    as_rate,
    convolution,
    copy,
    disk,
    fitting_side,
    missing,
    not_native,
    product,
    repeats_s,
    threads_text,
    transfer,
    triad,
)
from gpuconsole.workloads.device import DTYPES, build, set_matmul_precision, set_threads
from gpuconsole.workloads.serving.engine.packing import BLOCK, WIDTH, reading

ONE_THREAD = "gemm_fp32_1_thread_flops_per_s"
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
READ = ("fp32", "bf16", "fp16")
ON_CPU = "the device is the host's CPU: nothing is transferred"


@dataclass(frozen=True)
class Bench:
    """What is measured, and how long. `gpus`: number of visible GPUs; `visible`:
    CUDA_VISIBLE_DEVICES before this process set it."""

    device: torch.device
    threads: int
    budget_s: float
    scratch: Path
    gpus: int = 0
    visible: str | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """The numbers of CPU threads to measure with: that of a workload (all cores but one), and
        all cores. On a GPU there is no difference."""
        return (self.threads,) if self.on_gpu else tuple(sorted({self.threads, cores()}))

    def by(self, threads: int) -> str:
        """The number of threads, as the end of a detail; empty on a GPU."""
        return "" if self.on_gpu else f", {threads_text(threads)}"


class Stage(NamedTuple):
    """`measure` returns the figures `names`. Where it raises, they read n/a with the error as the
    reason."""

    title: str
    names: tuple[str, ...]
    measure: Callable[[Bench], list[Reached]]


def stages(bench: Bench) -> list[Stage]:
    todo = []
    if not bench.on_gpu:
        todo.append(Stage("matrix product fp32", (ONE_THREAD, gemm_name("fp32")), _fp32_on_cpu))
    for precision in PRECISIONS[len(todo) :]:
        todo.append(
            Stage(f"matrix product {precision}", (gemm_name(precision),), _product(precision))
        )
    todo.append(Stage("convolution fp32", ("conv_fp32_flops_per_s",), _convolution))
    todo.append(Stage("memory copy", ("copy_bytes_per_s",), _copy))
    todo.append(Stage("memory triad", ("triad_bytes_per_s",), _triad))
    for precision in READ:
        todo.append(
            Stage(f"matrix times vector {precision}", (gemv_name(precision),), _reading(precision))
        )
    for direction in ("h2d", "d2h"):
        for kind in ("pinned", "pageable"):
            name = f"{direction}_{kind}_bytes_per_s"
            todo.append(Stage(f"{direction.upper()} {kind}", (name,), _transfer(name)))
    todo.append(Stage("all-reduce", ("allreduce_latency_s", "allreduce_bytes_per_s"), _all_reduce))
    todo.append(Stage("disk", ("disk_write_bytes_per_s", "disk_read_bytes_per_s"), _disk))
    return todo


def gemm_name(precision: str) -> str:
    return f"gemm_{precision}_flops_per_s"


def gemv_name(precision: str) -> str:
    return f"gemv_{precision}_bytes_per_s"


def _fp32_on_cpu(bench: Bench) -> list[Reached]:
    """With one thread, and with the fastest number of threads."""
    return [_gemm(bench, ONE_THREAD, "fp32", 1), *_product("fp32")(bench)]


def _fastest(bench: Bench, measure: Callable[[int], Reached]) -> list[Reached]:
    """The figure of the fastest of the numbers of threads. `measure` gets the number that is in
    force."""
    reached = []
    try:
        for threads in bench.thread_counts:
            torch.set_num_threads(threads)
            reached.append(measure(threads))
    finally:
        torch.set_num_threads(bench.threads)
    return [max(reached, key=lambda figure: figure.sustained or 0.0)]


def _product(precision: str) -> Callable[[Bench], list[Reached]]:
    return lambda bench: _fastest(
        bench, lambda threads: _gemm(bench, gemm_name(precision), precision, threads)
    )


def _gemm(bench: Bench, name: str, precision: str, threads: int) -> Reached:
    reason = not_native(bench.device, precision)
    if reason:
        return missing(name, reason)
    torch.set_num_threads(threads)
    set_matmul_precision(precision)
    try:
        side = fitting_side(bench.device, precision, bench.budget_s)
        flops, work = product(bench.device, precision, side)
        times = repeats_s(work, bench.device, bench.budget_s)
    finally:
        torch.set_num_threads(bench.threads)
        set_matmul_precision("fp32")
    return as_rate(name, flops, times, f"{side} x {side}{bench.by(threads)}")


def _convolution(bench: Bench) -> list[Reached]:
    flops, work = convolution(bench.device, "fp32")

    def measure(threads: int) -> Reached:
        times = repeats_s(work, bench.device, bench.budget_s)
        return as_rate(
            "conv_fp32_flops_per_s", flops, times, f"3x3, 256 channels{bench.by(threads)}"
        )

    return _fastest(bench, measure)


def _copy(bench: Bench) -> list[Reached]:
    return _fastest(bench, lambda threads: copy(bench.device, bench.budget_s, threads))


def _triad(bench: Bench) -> list[Reached]:
    return _fastest(bench, lambda threads: triad(bench.device, bench.budget_s, threads))


def _reading(precision: str) -> Callable[[Bench], list[Reached]]:
    def measure(bench: Bench) -> list[Reached]:
        name = gemv_name(precision)
        if reason := not_native(bench.device, precision):
            return [missing(name, reason)]
        width = WIDTH[bench.device.type]

        def with_threads(threads: int) -> Reached:
            moved, work, _ = reading(width, bench.device, DTYPES[precision], BLOCK)
            return as_rate(
                name,
                moved,
                repeats_s(work, bench.device, bench.budget_s),
                f"transformer blocks of width {width}, one row{bench.by(threads)}",
            )

        return _fastest(bench, with_threads)

    return measure


def _transfer(name: str) -> Callable[[Bench], list[Reached]]:
    def measure(bench: Bench) -> list[Reached]:
        if not bench.on_gpu:
            return [missing(name, ON_CPU)]
        return [
            transfer(
                name,
                "h2d" if name.startswith("h2d") else "d2h",
                "pinned" in name,
                bench.device,
                bench.budget_s,
            )
        ]

    return measure


def _all_reduce(bench: Bench) -> list[Reached]:
    return all_reduce(
        bench.gpus,
        bench.on_gpu,
        bench.scratch,
        bench.budget_s,
        {"CUDA_VISIBLE_DEVICES": bench.visible},
    )


def _disk(bench: Bench) -> list[Reached]:
    return disk(bench.scratch, bench.budget_s)


def prepare(device: str, uuid: str, budget_s: float, scratch: Path) -> Bench:
    """Set torch up for that device. Raises RuntimeError where this torch cannot use it."""
    threads = set_threads(0)
    set_matmul_precision("fp32")
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    if device == "cpu":
        return Bench(torch.device("cpu"), threads, budget_s, scratch)
    gpus, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid or device.partition(":")[2]
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} ({build()}) cannot use {device}; the host is calibrated"
            " with --device cpu"
        )
    return Bench(torch.device("cuda", 0), threads, budget_s, scratch, gpus, visible)


def measured(stage: Stage, bench: Bench) -> list[Reached]:
    """The stage's figures. An error affects these figures only."""
    try:
        return stage.measure(bench)
    except (RuntimeError, OSError, MemoryError) as error:
        lines = str(error).strip().splitlines()
        return [
            missing(name, f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}")
            for name in stage.names
        ]
