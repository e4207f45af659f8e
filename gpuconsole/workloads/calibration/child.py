"""The calibration process: measures what the machine reaches, reports each figure, and ends.

The console starts it as `python -m gpuconsole.workloads.calibration.child --fd N --scratch DIR`.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuconsole import __version__
from gpuconsole.agent.clock import now
from gpuconsole.model.machine import Reached
from gpuconsole.wire.channel import ChildChannel, die_with_parent, kill_own_group
from gpuconsole.wire.events import AnyCommand, Calibrated, Failed, Hello, Progress

if TYPE_CHECKING:
    import torch

ONE_THREAD = "gemm_fp32_1_thread_flops_per_s"
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
READ = ("fp32", "bf16", "fp16")
ON_CPU = "the device is the host's CPU: nothing is transferred"


@dataclass(frozen=True)
class Bench:
    """What is measured, and how long. `gpus`: number of visible GPUs; `visible`: CUDA_VISIBLE_DEVICES before this process set it."""

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
        """The numbers of CPU threads to measure with: that of a workload (all cores but one), and all cores. On a GPU there is no difference."""
        from gpuconsole.workloads.arithmetic import cores

        return (self.threads,) if self.on_gpu else tuple(sorted({self.threads, cores()}))


class Stage(NamedTuple):
    """`measure` returns the figures `names`. Where it raises, they read n/a with the error as the reason."""

    title: str
    names: tuple[str, ...]
    measure: Callable[[Bench], list[Reached]]


def stages(bench: Bench) -> list[Stage]:
    found = []
    if not bench.on_gpu:
        found.append(Stage("matrix product fp32", (ONE_THREAD, gemm_name("fp32")), _fp32_on_cpu))
    for precision in PRECISIONS[len(found) :]:
        found.append(Stage(f"matrix product {precision}", (gemm_name(precision),), _product(precision)))
    found.append(Stage("convolution fp32", ("conv_fp32_flops_per_s",), _convolution))
    found.append(Stage("memory copy", ("copy_bytes_per_s",), _copy))
    found.append(Stage("memory triad", ("triad_bytes_per_s",), _triad))
    for precision in READ:
        found.append(Stage(f"matrix times vector {precision}", (gemv_name(precision),), _reading(precision)))
    for direction in ("h2d", "d2h"):
        for kind in ("pinned", "pageable"):
            name = f"{direction}_{kind}_bytes_per_s"
            found.append(Stage(f"{direction.upper()} {kind}", (name,), _transfer(name)))
    found.append(Stage("all-reduce", ("allreduce_latency_s", "allreduce_bytes_per_s"), _all_reduce))
    found.append(Stage("disk", ("disk_write_bytes_per_s", "disk_read_bytes_per_s"), _disk))
    return found


def gemm_name(precision: str) -> str:
    return f"gemm_{precision}_flops_per_s"


def gemv_name(precision: str) -> str:
    return f"gemv_{precision}_bytes_per_s"


def _fp32_on_cpu(bench: Bench) -> list[Reached]:
    """With one thread, and with the fastest number of threads."""
    return [_gemm(bench, ONE_THREAD, "fp32", 1), *_product("fp32")(bench)]


def _fastest(bench: Bench, measure: Callable[[int], Reached]) -> list[Reached]:
    """The figure of the fastest of the numbers of threads. `measure` gets the number that is in force."""
    import torch

    found = []
    try:
        for threads in bench.thread_counts:
            torch.set_num_threads(threads)
            found.append(measure(threads))
    finally:
        torch.set_num_threads(bench.threads)
    return [max(found, key=lambda one: one.sustained or 0.0)]


def _product(precision: str) -> Callable[[Bench], list[Reached]]:
    return lambda bench: _fastest(bench, lambda threads: _gemm(bench, gemm_name(precision), precision, threads))


def _gemm(bench: Bench, name: str, precision: str, threads: int) -> Reached:
    import torch

    from gpuconsole.workloads.arithmetic import set_matmul_precision
    from gpuconsole.workloads.calibration.dense import fitting_side, not_native, product
    from gpuconsole.workloads.calibration.repeats import as_rate, missing, repeats_s
    from gpuconsole.workloads.calibration.transfers import threads_text

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
    return as_rate(name, flops, times, f"{side} x {side}" + ("" if bench.on_gpu else f", {threads_text(threads)}"))


def _convolution(bench: Bench) -> list[Reached]:
    from gpuconsole.workloads.calibration.dense import convolution
    from gpuconsole.workloads.calibration.repeats import as_rate, repeats_s
    from gpuconsole.workloads.calibration.transfers import threads_text

    flops, work = convolution(bench.device, "fp32")

    def measure(threads: int) -> Reached:
        times = repeats_s(work, bench.device, bench.budget_s)
        by = "" if bench.on_gpu else f", {threads_text(threads)}"
        return as_rate("conv_fp32_flops_per_s", flops, times, f"3x3, 256 channels{by}")

    return _fastest(bench, measure)


def _copy(bench: Bench) -> list[Reached]:
    from gpuconsole.workloads.calibration.transfers import copy

    return _fastest(bench, lambda threads: copy(bench.device, bench.budget_s, threads))


def _triad(bench: Bench) -> list[Reached]:
    from gpuconsole.workloads.calibration.transfers import triad

    return _fastest(bench, lambda threads: triad(bench.device, bench.budget_s, threads))


def _reading(precision: str) -> Callable[[Bench], list[Reached]]:
    def measure(bench: Bench) -> list[Reached]:
        from gpuconsole.workloads.arithmetic import DTYPES
        from gpuconsole.workloads.calibration.dense import not_native
        from gpuconsole.workloads.calibration.reading import BLOCK, WIDTH, reading
        from gpuconsole.workloads.calibration.repeats import as_rate, missing, repeats_s
        from gpuconsole.workloads.calibration.transfers import threads_text

        name = gemv_name(precision)
        if reason := not_native(bench.device, precision):
            return [missing(name, reason)]
        width = WIDTH[bench.device.type]

        def with_threads(threads: int) -> Reached:
            moved, work, _ = reading(width, bench.device, DTYPES[precision], BLOCK)
            by = "" if bench.on_gpu else f", {threads_text(threads)}"
            return as_rate(name, moved, repeats_s(work, bench.device, bench.budget_s), f"transformer blocks of width {width}, one row{by}")

        return _fastest(bench, with_threads)

    return measure


def _transfer(name: str) -> Callable[[Bench], list[Reached]]:
    def measure(bench: Bench) -> list[Reached]:
        from gpuconsole.workloads.calibration.repeats import missing
        from gpuconsole.workloads.calibration.transfers import transfer

        if not bench.on_gpu:
            return [missing(name, ON_CPU)]
        return [transfer(name, "h2d" if name.startswith("h2d") else "d2h", "pinned" in name, bench.device, bench.budget_s)]

    return measure


def _all_reduce(bench: Bench) -> list[Reached]:
    from gpuconsole.workloads.calibration.allreduce import all_reduce

    return all_reduce(bench.gpus, bench.on_gpu, bench.scratch, bench.budget_s, {"CUDA_VISIBLE_DEVICES": bench.visible})


def _disk(bench: Bench) -> list[Reached]:
    from gpuconsole.workloads.calibration.transfers import disk

    return disk(bench.scratch, bench.budget_s)


def prepare(device: str, uuid: str, budget_s: float, scratch: Path) -> Bench:
    """Set torch up for that device. Raises RuntimeError where this torch cannot use it."""
    import torch

    from gpuconsole.workloads.arithmetic import set_matmul_precision, set_threads
    from gpuconsole.workloads.device import accelerator, build

    threads = set_threads(0)
    set_matmul_precision("fp32")
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    if device == "cpu":
        return Bench(torch.device("cpu"), threads, budget_s, scratch)
    gpus, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid or device.partition(":")[2]
    if not torch.cuda.is_available():
        kind = accelerator()
        known = f"{kind} is not calibrated" if kind else f"torch {torch.__version__} ({build()}) cannot use {device}"
        raise RuntimeError(f"{known}; the host is calibrated with --device cpu")
    return Bench(torch.device("cuda", 0), threads, budget_s, scratch, gpus, visible)


def measured(stage: Stage, bench: Bench) -> list[Reached]:
    """The stage's figures. An error affects these figures only."""
    from gpuconsole.workloads.calibration.repeats import missing

    try:
        return stage.measure(bench)
    except (RuntimeError, OSError, MemoryError) as error:
        lines = str(error).strip().splitlines()
        return [missing(name, f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}") for name in stage.names]


def serve(channel: ChildChannel, device: str, uuid: str, budget_s: float, scratch: Path) -> int:
    """Run all stages in order. Returns the exit code; a failure has been reported to the console by then."""
    try:
        channel.send(Progress(now(), "importing", "torch"))
        bench = prepare(device, uuid, budget_s, scratch)
        todo = stages(bench)
        for number, stage in enumerate(todo, 1):
            channel.send(Progress(now(), "calibrating", f"{number}/{len(todo)} {stage.title}"))
            for reached in measured(stage, bench):
                channel.send(Calibrated(now(), reached))
    except ModuleNotFoundError as error:
        channel.send(Failed(now(), f'{error.name} is not installed: pip install "gpuconsole[torch]"'))
        return 1
    except Exception as error:  # the last line of defence: the user sees whatever ended it
        channel.send(Failed(now(), str(error) or type(error).__name__, "".join(traceback.format_exception(error)[-6:])))
        return 1
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description="calibration process of gpuconsole; the console starts it")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--uuid", default="")
    parser.add_argument("--budget", type=float, default=1.0)
    args = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the console handles Ctrl-C
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    channel = ChildChannel(args.fd)

    def obey(command: AnyCommand) -> None:
        kill_own_group()  # Stop is the only command that comes, and there is nothing to save

    channel.listen(obey, kill_own_group)
    channel.send(Hello(now(), "calibration", os.getpid(), __version__, time.time()))
    code = serve(channel, args.device, args.uuid, args.budget, args.scratch)
    channel.end(code)


if __name__ == "__main__":
    main()
