"""Labelled GPU jobs of a user's own, on simulated cards: the finding on top, without probes.

    python -m benchmarks.own_job.gpu_cases [--only NAME ...] [--common] [--seconds 20] [--probe]
        [--keep]
    python -m benchmarks.own_job.gpu_cases --table
            the common faults on each card, from the kept results of the day

Each case is `benchmarks/own_job/gpu_jobs/script.py` with one fault built in, or a program of
`between.py`, which works on the GPU between the phases of a step. Each case is run by the real
command line with the real agent on a machine with simulated cards (tests/fakes/cuda): `gpuconsole
run --headless -- python script.py ...`. Prints a Markdown table. The figures are no GPU data:
kernels take the time that datasheets predict, and the host's speed is this machine's. Exit code 1
where fewer than 95 % of the cases are right, or where a healthy case is accused, or a faulty one is
called healthy, or where an MFU is above 100 %.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.headless import last_line
from benchmarks.machine import RESULTS, commit, keep
from tests.fakes.cuda.machine import SimulatedMachine

SCRIPT = Path(__file__).parent / "gpu_jobs" / "script.py"
BETWEEN = SCRIPT.with_name("between.py")
MIN_RIGHT_SHARE = 0.95
COMMAND_S = 240.0
MIN_GAIN = 1.10
"""A fault that costs less of a step than this is none: the host has done it while the GPU works."""
BARE_S = 5.0
"""Seconds of training of a job that runs bare, to find what its fault costs."""
KEPT = "gpu-cases"
COLUMNS = {"h100": "H100", "a100-40": "A100", "l4": "L4", "rtx4090": "RTX 4090"}
"""The cards of the table of common faults. The other cards have some of the cases only."""


class Case(NamedTuple):
    """`truth`: the rules that name the fault; empty for a healthy job. `options`: of the script.
    `cards`: lines of the machine (cards.py). `least_s`: seconds of training without which the fault
    cannot be seen. `environment`: variables of the job. `common`: the row of the table of common
    faults in which the case stands. `probe`: the fault needs a probe. `script`: the program.
    `fault`: the options that are the fault. Without these options the job is as fast where the host
    is quick enough: where no finding is on top, the job runs bare, with and without the fault, and
    "no finding" is right if the fault costs less than MIN_GAIN."""

    name: str
    truth: tuple[str, ...]
    options: str = ""
    cards: tuple[str, ...] = ("card h100",)
    processes: int = 1
    least_s: float = 0.0
    environment: Mapping[str, str] = {}
    common: str = ""
    probe: bool = False
    script: Path = SCRIPT
    fault: str = ""

    @property
    def card(self) -> str:
        return self.cards[0].split()[1]


LOADER = ("input.cpu_transform", "input.too_few_workers", "input.slow_storage")
LAUNCHES, BATCH, COPIES, EXPOSED = (
    ("host.launch_bound", "gpu.small_batch"),
    ("gpu.small_batch", "host.launch_bound"),
    ("h2d.pageable_or_serial",),
    ("comm.exposed", "comm.slow_link"),
)
FULL = ("mem.near_capacity", "mem.activation_capped")
GROWS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
NO_FAULT, STARVED, LAUNCH_BOUND, READS, FP32, SMALL, DDP, FSDP, POWER, MEMORY, PAGEABLE = COMMON = (
    "no fault", "data starvation", "launch-bound", "a read of the GPU in each block",
    "fp32 without TF32", "small batch, with a probe", "DDP exchange exposed",
    "FSDP 2 gather exposed", "lowered power limit", "memory near its limit", "pageable copies",
)  # fmt: skip
"""The rows of the table of common faults."""
STARVING = "--width 256 --layers 4 --batch 16 --seq 256 --workers 1 --cpu-ms 6"
MANY_LAUNCHES = "--width 256 --batch 1 --seq 128 --layers 16"
PAGES = "--model resnet --width 16 --seq 224 --batch 256 --in-host-memory"
NO_NVLINK = "peer=10e9 nvlinks=0"
SCRIPT_WAITS = ("host.sync_stall", "host.python_overhead")
WORK_BETWEEN = {
    "an average of the weights, with loss.item()": "average",
    "torch's averaged model": "swa",
    "a target network and a replay buffer on the GPU": "target",
    "images turned and blurred on the GPU": "augmented",
    "mixed images": "mixed_up",
    "a simulation on the GPU": "simulation",
    "a static buffer that copy_ fills": "static_buffer",
    "two optimizers of a GAN": "adversaries",
    "gradients of four batches": "accumulated",
    "metrics on the GPU": "metrics",
    "samples drawn on the GPU": "on_gpu_data",
    "batches copied in a side stream": "prefetched",
    "a scaler of gradients": "scaled",
    "clipping, with the norm read": "clipped",
    "evaluation on the GPU": "evaluated",
    "a teacher": "distilled",
    "a finder of the learning rate": "rate_finder",
}
"""Healthy jobs that keep the GPU busy between the phases of a step."""


def between(name: str, truth: tuple[str, ...], options: str) -> Case:
    """A case of between.py. Kernels take 20 times as long, so that a busy host keeps the GPU
    busy."""
    return Case(name, truth, options, ("card h100", "slowdown 20"), script=BETWEEN)


CASES = (
    Case("GPT, bf16, H100", (), "", common=NO_FAULT),
    Case("GPT, bf16, L4", (), "--batch 4 --layers 6", ("card l4",), common=NO_FAULT),
    Case("GPT, bf16, RTX 4090", (), "--batch 8", ("card rtx4090",), common=NO_FAULT),
    Case("GPT, TF32", (), "--precision tf32"),
    Case("GPT with checkpointing", ("host.avoidable_work",), "--checkpointing --batch 32"),
    Case(
        "ResNet with cuDNN's TF32",
        (),
        "--model resnet --width 128 --seq 128 --batch 128 --precision fp32",
    ),
    Case("ResNet, bf16", (), "--model resnet --width 192 --seq 128 --batch 256"),
    Case("wide MLP, bf16", (), "--model mlp --width 8192 --layers 8 --batch 4096"),
    Case("GPT fed by workers", (), "--workers 2 --pin"),
    Case("fp32, H100", ("gpu.fp32_no_tensor_core",), "--precision fp32 --batch 8", common=FP32),
    Case(
        "fp32, L4",
        ("gpu.fp32_no_tensor_core",),
        "--precision fp32 --batch 4 --layers 6",
        ("card l4",),
        common=FP32,
    ),
    Case(
        "fp32, RTX 4090",
        ("gpu.fp32_no_tensor_core",),
        "--precision fp32 --batch 4",
        ("card rtx4090",),
        common=FP32,
    ),
    Case(
        "fp32 MLP",
        ("gpu.fp32_no_tensor_core",),
        "--model mlp --width 4096 --layers 8 --batch 8192 --precision fp32",
    ),
    Case("launch-bound, batch 1", LAUNCHES, MANY_LAUNCHES, common=LAUNCH_BOUND),
    Case(
        "launch-bound MLP",
        ("host.launch_bound", "gpu.small_batch"),
        "--model mlp --width 512 --layers 60 --batch 16",
    ),
    Case(
        "small batch",
        ("gpu.small_batch", "host.launch_bound"),
        "--width 512 --batch 1 --seq 256 --layers 12",
    ),
    Case(
        "wait for the GPU in the loop",
        ("host.sync_stall",),
        "--width 384 --batch 24 --seq 512 --layers 8 --sync 6",
        fault="--sync 6",
    ),
    Case(
        "a read of the GPU in each block, H100",
        ("host.sync_stall",),
        "--check-blocks --batch 4",
        common=READS,
        fault="--check-blocks",
    ),
    Case(
        "a read of the GPU in each block, A100",
        ("host.sync_stall",),
        "--check-blocks --batch 2",
        ("card a100-40",),
        common=READS,
        fault="--check-blocks",
    ),
    Case(
        "a read of the GPU in each block, L4",
        ("host.sync_stall",),
        "--check-blocks --batch 1 --seq 512 --width 512 --layers 16",
        ("card l4",),
        common=READS,
        fault="--check-blocks",
    ),
    Case(
        "a read of the GPU in each block, RTX 4090",
        ("host.sync_stall",),
        "--check-blocks --batch 1",
        ("card rtx4090",),
        common=READS,
        fault="--check-blocks",
    ),
    Case("samples from slow storage", LOADER, "--workers 2 --sleep-ms 20 --batch 16"),
    Case("slow transform", LOADER, "--workers 1 --cpu-ms 6 --batch 16", common=STARVED),
    Case("loading in the training thread", LOADER, "--workers 0 --cpu-ms 4 --batch 16"),
    Case(
        "workers started anew each epoch",
        ("input.epoch_restart",),
        "--workers 2 --epoch 128 --batch 16 --pin --cpu-ms 1 --layers 4",
    ),
    Case("pageable copies", COPIES, PAGES, common=PAGEABLE),
    Case(
        "checkpoint every few steps",
        ("host.checkpoint_stall",),
        "--save-every 5 --width 512 --layers 4",
        least_s=20.0,
    ),
    Case("evaluation every few steps", ("host.eval_stall",), "--eval-every 4 --workers 2 --pin"),
    Case(
        "memory near its limit",
        FULL,
        "--batch 16",
        ("card h100 memory=17.8e9",),
        environment=GROWS,
        common=MEMORY,
    ),
    Case("memory leak", ("mem.leak_gpu",), "--leak-mb 25", least_s=28.0),
    Case("attention by hand", ("gpu.attention_math",), "--attention math --batch 8 --seq 2048"),
    Case(
        "optimizer in a loop",
        ("gpu.optimizer_unfused",),
        "--optim loop --width 512 --layers 48 --batch 1 --seq 256",
        probe=True,
    ),
    Case(
        "pointwise chain",
        ("gpu.elementwise_membw",),
        "--model chain --width 1024 --layers 24 --batch 16384",
    ),
    Case("autocast within the model, H100", (), "--autocast-within"),
    Case("autocast within the model, A100", (), "--autocast-within --batch 8", ("card a100-40",)),
    Case(
        "autocast within the model, L4", (), "--autocast-within --batch 4 --layers 6", ("card l4",)
    ),
    Case(
        "FSDP 2 with mixed precision",
        (),
        "--shards fsdp2 --batch 32",
        ("card h100", "card h100"),
        2,
    ),
    Case(
        "exposed all-gather, FSDP 2 over PCIe",
        EXPOSED,
        "--shards fsdp2 --batch 2",
        ("card l4", "card l4"),
        2,
        common=FSDP,
    ),
    Case(
        "exposed all-gather, FSDP 2 over PCIe, NCCL is timed",
        EXPOSED,
        "--shards fsdp2 --batch 2",
        ("card l4", "card l4"),
        2,
        environment={"TORCH_NCCL_ENABLE_TIMING": "1"},
    ),
    Case(
        "FSDP 2 with parameters on the host",
        ("host.optimizer_offloaded", "h2d.pageable_or_serial", "comm.exposed"),
        "--shards offload --batch 4 --layers 6",
        ("card h100", "card h100"),
        2,
    ),
    Case("selections by masks, a busy H100", (), "--masks 1"),
    Case("selections by masks, a busy A100", (), "--masks 1 --batch 8", ("card a100-40",)),
    Case("selections by masks, a busy L4", (), "--masks 1 --batch 4 --layers 6", ("card l4",)),
    Case("numbers copied in each block, a busy H100", (), "--scalars"),
    Case("numbers copied in each block, a busy A100", (), "--scalars --batch 8", ("card a100-40",)),
    Case(
        "numbers copied in each block, a busy L4",
        (),
        "--scalars --batch 4 --layers 6",
        ("card l4",),
    ),
    Case(
        "numbers copied in recomputed blocks, A100",
        ("host.sync_stall", "host.avoidable_work"),
        "--scalars --checkpointing --layers 24 --batch 8",
        ("card a100-40",),
    ),
    Case("empty_cache in each step", ("mem.cache_emptied",), "--empty-cache --batch 4"),
    Case("GPT, bf16, GB10 with the memory of the host", (), "--batch 4 --layers 6", ("card gb10",)),
    Case(
        "fp32, GB10",
        ("gpu.fp32_no_tensor_core",),
        "--precision fp32 --batch 2 --layers 6",
        ("card gb10",),
    ),
    Case("launch-bound, GB10", LAUNCHES, MANY_LAUNCHES, ("card gb10",)),
    Case("GPT, bf16, GH200", (), "", ("card gh200",)),
    Case("pageable copies, GH200", COPIES, PAGES, ("card gh200",)),
    Case("GPT, fp16, T4", (), "--precision fp16 --batch 2 --layers 6", ("card t4",)),
    Case(
        "fp32 and a mask, L4",
        ("gpu.fp32_no_tensor_core",),
        "--masks 1 --precision fp32 --batch 4 --layers 6",
        ("card l4",),
    ),
    Case(
        "fp32, A100",
        ("gpu.fp32_no_tensor_core",),
        "--precision fp32 --batch 4",
        ("card a100-40",),
        common=FP32,
    ),
    Case(
        "augmentation on the GPU",
        (),
        "--model resnet --width 192 --seq 128 --batch 256 --augment 12",
    ),
    Case(
        "Python between batch and pass",
        ("host.python_overhead", "host.slow_function"),
        "--prepare-ms 60 --batch 8",
    ),
    Case(
        "experts found by torch.where",
        ("host.sync_stall", "host.launch_bound"),
        "--model experts --width 512 --layers 8 --batch 512",
    ),
    Case(
        "CUDA_LAUNCH_BLOCKING",
        ("host.environment",),
        "--batch 8",
        environment={"CUDA_LAUNCH_BLOCKING": "1"},
    ),
    Case(
        "CUDA_LAUNCH_BLOCKING, A100",
        ("host.environment",),
        "--batch 4",
        ("card a100-40",),
        environment={"CUDA_LAUNCH_BLOCKING": "1"},
    ),
    Case("launch-bound, A100", LAUNCHES, MANY_LAUNCHES, ("card a100-40",), common=LAUNCH_BOUND),
    Case("launch-bound, RTX 4090", LAUNCHES, MANY_LAUNCHES, ("card rtx4090",), common=LAUNCH_BOUND),
    Case(
        "slow transform, A100",
        LOADER,
        "--workers 1 --cpu-ms 6 --batch 16 --layers 4",
        ("card a100-40",),
        common=STARVED,
    ),
    Case(
        "DDP over PCIe",
        EXPOSED,
        "--width 1024 --layers 8 --batch 2 --seq 256",
        ("card l4", "card l4"),
        2,
        common=DDP,
    ),
    Case("GPT, bf16, A100", (), "--batch 8", ("card a100-40",), common=NO_FAULT),
    Case("slow transform, L4", LOADER, STARVING, ("card l4",), common=STARVED),
    Case("slow transform, RTX 4090", LOADER, STARVING, ("card rtx4090",), common=STARVED),
    Case("launch-bound, L4", LAUNCHES, MANY_LAUNCHES, ("card l4",), common=LAUNCH_BOUND),
    Case(
        "small batch, probed, H100",
        BATCH,
        "--width 512 --batch 1 --seq 256 --layers 12",
        common=SMALL,
        probe=True,
    ),
    Case(
        "small batch, probed, A100",
        BATCH,
        "--width 512 --batch 1 --seq 256 --layers 12",
        ("card a100-40",),
        common=SMALL,
        probe=True,
    ),
    Case(
        "small batch, probed, L4",
        BATCH,
        "--width 512 --batch 1 --seq 64 --layers 12",
        ("card l4",),
        common=SMALL,
        probe=True,
    ),
    Case(
        "small batch, probed, RTX 4090",
        BATCH,
        "--width 512 --batch 1 --seq 256 --layers 12",
        ("card rtx4090",),
        common=SMALL,
        probe=True,
    ),
    Case(
        "DDP without NVLink, H100",
        EXPOSED,
        "--width 1024 --layers 8 --batch 2 --seq 256",
        (f"card h100 {NO_NVLINK}",) * 2,
        2,
        common=DDP,
    ),
    Case(
        "DDP without NVLink, A100",
        EXPOSED,
        "--width 1024 --layers 8 --batch 2 --seq 256",
        (f"card a100-40 {NO_NVLINK}",) * 2,
        2,
        common=DDP,
    ),
    Case(
        "DDP over PCIe, RTX 4090",
        EXPOSED,
        "--width 1024 --layers 8 --batch 2 --seq 256",
        ("card rtx4090",) * 2,
        2,
        common=DDP,
    ),
    Case(
        "exposed all-gather without NVLink, H100",
        EXPOSED,
        "--shards fsdp2 --batch 8",
        (f"card h100 {NO_NVLINK}",) * 2,
        2,
        common=FSDP,
    ),
    Case(
        "exposed all-gather without NVLink, A100",
        EXPOSED,
        "--shards fsdp2 --batch 2",
        (f"card a100-40 {NO_NVLINK}",) * 2,
        2,
        common=FSDP,
    ),
    Case(
        "exposed all-gather, RTX 4090",
        EXPOSED,
        "--shards fsdp2 --batch 2",
        ("card rtx4090",) * 2,
        2,
        common=FSDP,
    ),
    Case(
        "lowered power limit, H100",
        ("hw.power",),
        "",
        ("card h100 power_w=350 default_w=700 demand_w=800",),
        common=POWER,
    ),
    Case(
        "lowered power limit, A100",
        ("hw.power",),
        "--batch 8",
        ("card a100-40 power_w=200 default_w=400 demand_w=450",),
        common=POWER,
    ),
    Case(
        "lowered power limit, L4",
        ("hw.power",),
        "--batch 4 --layers 6",
        ("card l4 power_w=40 default_w=72",),
        common=POWER,
    ),
    Case(
        "lowered power limit, RTX 4090",
        ("hw.power",),
        "--batch 8",
        ("card rtx4090 power_w=225 default_w=450 demand_w=500",),
        common=POWER,
    ),
    Case(
        "memory near its limit, A100",
        FULL,
        "--batch 16",
        ("card a100-40 memory=17.8e9",),
        environment=GROWS,
        common=MEMORY,
    ),
    Case(
        "memory near its limit, L4",
        FULL,
        "--batch 16",
        ("card l4 memory=17.8e9",),
        environment=GROWS,
        common=MEMORY,
    ),
    Case(
        "memory near its limit, RTX 4090",
        FULL,
        "--batch 16",
        ("card rtx4090 memory=17.8e9",),
        environment=GROWS,
        common=MEMORY,
    ),
    Case("pageable copies, A100", COPIES, PAGES, ("card a100-40",), common=PAGEABLE),
    Case("pageable copies, L4", COPIES, PAGES, ("card l4",), common=PAGEABLE),
    Case("pageable copies, RTX 4090", COPIES, PAGES, ("card rtx4090",), common=PAGEABLE),
    *(between(name, (), options) for name, options in WORK_BETWEEN.items()),
    between("an average of the weights on the host", SCRIPT_WAITS, "average_on_host"),
    between("Python between two steps", ("host.python_overhead",), "python_between"),
    between("Python at the start of forward()", ("host.slow_function",), "python_in_forward"),
    between("150 values are read after each step", ("host.sync_stall",), "many_reads"),
)


class Verdict(NamedTuple):
    """What the console said: the rule on top without notes, the rules that are notes, and the
    number of rules that cannot tell."""

    top: str
    notes: list[str]
    cannot_tell: int


def verdict(run: dict[str, Any]) -> Verdict:
    """The verdict of a run of a snapshot."""
    findings = run.get("findings", [])
    fired = [
        finding for finding in findings if finding["state"] == "fires" and not finding.get("note")
    ]
    faults = [finding["rule"] for finding in fired if not finding["rule"].endswith("_healthy")]
    healthy = [finding["rule"] for finding in fired if finding["rule"].endswith("_healthy")]
    unknown = sum(finding["state"] == "cant_tell" for finding in findings)
    notes = [
        finding["rule"]
        for finding in findings
        if finding["state"] == "fires" and finding.get("note")
    ]
    return Verdict((faults or healthy or ["-"])[0], notes, unknown)


def watch(case: Case, seconds: float, probe: bool) -> dict[str, Any]:
    """Return the run of a case as its snapshot has it. Raises RuntimeError where the command
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        with SimulatedMachine(Path(folder) / "machine", [*case.cards, "values none"]) as machine:
            snapshot = Path(folder) / "snapshot.json"
            python = [sys.executable]
            if case.processes > 1:
                python += ["-m", "torch.distributed.run", f"--nproc-per-node={case.processes}"]
            command = [
                sys.executable,
                "-m",
                "gpuconsole",
                "run",
                "--headless",
                "--snapshot",
                str(snapshot),
            ]
            command += ["--probe"] * (probe or case.probe)
            command += ["--", *python, *_script(case, case.options, max(seconds, case.least_s))]
            env = machine.environment(OMP_NUM_THREADS="1", **case.environment)
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                check=False,
                env=env,
                cwd=folder,
            )
        if not snapshot.exists():
            raise RuntimeError(last_line(done.stderr))
        run: dict[str, Any] = json.loads(snapshot.read_text(encoding="utf-8"))["runs"][-1]
    return run


def _script(case: Case, options: str, seconds: float) -> list[str]:
    return [str(case.script), *options.split(), "--seconds", f"{seconds:g}"]


def cost_of_fault(case: Case) -> float:
    """Return how many times as many steps the job of one process makes without its fault, without
    the agent. Both ways run in turn (with, without, without, with). Raise RuntimeError where the
    job fails."""
    without = case.options.replace(case.fault, "")
    steps = [
        _steps_alone(case, options) for options in (case.options, without, without, case.options)
    ]
    return (steps[1] + steps[2]) / (steps[0] + steps[3])


def _steps_alone(case: Case, options: str) -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        SimulatedMachine(Path(folder) / "machine", [*case.cards, "values none"]) as machine,
    ):
        done = subprocess.run(
            [sys.executable, *_script(case, options, BARE_S)],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
            env=machine.environment(OMP_NUM_THREADS="1", **case.environment),
            cwd=folder,
        )
    if done.returncode:
        raise RuntimeError(last_line(done.stderr))
    return int(done.stdout.split()[-1])


class Row(NamedTuple):
    """A case with what was said of it. `harmful`: a healthy job is accused, or a faulty one is
    called healthy. It is not called healthy where a rule that knows the fault cannot tell: the
    report then says "no conclusion", and what is missing."""

    name: str
    card: str
    common: str
    truth: tuple[str, ...]
    said: str
    right: bool
    harmful: bool
    step_s: float | None = None
    mfu: float | None = None
    recoverable: float | None = None
    confidence: str = ""
    notes: tuple[str, ...] = ()
    cannot_tell: int = 0
    commit: str = ""
    fault_cost: float | None = None


def judged(case: Case, run: dict[str, Any]) -> Row:
    """Compare the verdict of a run with the label of its case."""
    said = verdict(run)
    # a full memory is a note: no time is lost
    noted = [rule for rule in said.notes if rule in case.truth] if said.top == "-" else []
    healthy = not noted and (said.top == "-" or said.top.endswith("_healthy"))
    right = said.top in case.truth or bool(noted) if case.truth else healthy
    is_open = said.top == "-" and any(
        finding["rule"] in case.truth and finding["state"] == "cant_tell"
        for finding in run.get("findings", [])
    )
    top = noted[0] if noted else said.top
    finding: dict[str, Any] = next(
        (finding for finding in run.get("findings", []) if finding["rule"] == top), {}
    )
    summary = run.get("summary", {})
    return Row(
        case.name, case.card, case.common, case.truth, f"{top} (note)" if noted else top, right,
        healthy and not is_open if case.truth else not healthy,
        summary.get("step_time_s", {}).get("p50"),
        summary.get("mfu_ratio"), finding.get("recoverable_ratio"), finding.get("confidence", ""),
        tuple(said.notes), said.cannot_tell, commit(),
    )  # fmt: skip


def with_cost(case: Case, row: Row) -> Row:
    """Return the row of a job without a finding, by what its fault costs on this host."""
    cost = cost_of_fault(case)
    costs = cost >= MIN_GAIN
    return row._replace(right=not costs, harmful=costs and row.harmful, fault_cost=cost)


def table_row(row: Row) -> str:
    step = "" if row.step_s is None else f"{1e3 * row.step_s:.3g} ms"
    mfu = "" if row.mfu is None else f"{row.mfu:.2f}"
    right = "yes" if row.right else "no"
    if row.fault_cost is not None:
        right += f": {row.fault_cost:.2f}x without the fault"
    return (
        f"| {row.name} | {step} | {mfu} | {row.said} | {', '.join(row.truth) or '-'} | {right} |"
        f" {row.cannot_tell} |"
    )


def common_faults(rows: Iterable[Row]) -> str:
    """Return the table of common faults: a row for each fault, a column for each card, in each cell
    what is on top."""
    cells = {(row.common, row.card): row for row in rows if row.common}
    lines = ["| fault | " + " | ".join(COLUMNS.values()) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for fault in COMMON:
        lines.append(
            f"| {fault} | " + " | ".join(_cell(cells.get((fault, card))) for card in COLUMNS) + " |"
        )
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return "not run"
    gain = f", {row.recoverable:.0%}" if row.recoverable else ""
    sure = f", {row.confidence}" if row.confidence else ""
    return f"{row.said}{gain}{sure}{'' if row.right else ' **(wrong)**'}"


def kept_today() -> dict[str, Row]:
    """Return the kept results of the day by the name of the case."""
    path = RESULTS / f"{KEPT}-{datetime.date.today().isoformat()}.json"
    return (
        {row["name"]: Row(**row) for row in json.loads(path.read_text())["cases"]}
        if path.exists()
        else {}
    )


def keep_rows(rows: Iterable[Row]) -> Path:
    """Write these results beside those of the day; a case that ran again has its newest result."""
    whole = kept_today() | {row.name: row for row in rows}
    return keep(
        KEPT, {"cases": [whole[case.name]._asdict() for case in CASES if case.name in whole]}
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", help="names of cases, or parts of them")
    parser.add_argument(
        "--common", action="store_true", help="only the cases of the table of common faults"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of training in each case, after the first step"
    )
    parser.add_argument("--probe", action="store_true", help="permit probes")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="write the results under benchmarks/results, beside those of the day",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="run nothing; print the table of common faults from the kept results of the day",
    )
    args = parser.parse_args()
    if args.table:
        print(common_faults(kept_today().values()))
        return 0
    chosen = [
        case for case in CASES if not args.only or any(part in case.name for part in args.only)
    ]
    chosen = [case for case in chosen if case.common or not args.common]
    if not chosen:
        print(
            "no case has such a name; the cases are: " + ", ".join(case.name for case in CASES),
            file=sys.stderr,
        )
        return 2
    print(
        "| case | step | MFU | finding on top | built in | right | can't tell |\n"
        + "|---" * 7
        + "|",
        flush=True,
    )
    rows = []
    for case in chosen:
        try:
            row = judged(case, watch(case, args.seconds, args.probe))
            rows.append(with_cost(case, row) if case.fault and row.said == "-" else row)
        except (RuntimeError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
            rows.append(
                Row(
                    case.name,
                    case.card,
                    case.common,
                    case.truth,
                    str(error),
                    right=False,
                    harmful=False,
                    commit=commit(),
                )
            )
        print(table_row(rows[-1]), flush=True)
        if args.keep:
            keep_rows(rows)
    return summed_up(rows)


def summed_up(rows: list[Row]) -> int:
    """Print how many are right; return the exit code."""
    right, harmful, above = (
        sum(row.right for row in rows),
        sum(row.harmful for row in rows),
        sum((row.mfu or 0.0) > 1 for row in rows),
    )
    print(
        f"\n{right} of {len(rows)} right; {harmful} healthy jobs accused or faulty ones called"
        f" healthy; {above} with an MFU above 100 %"
    )
    return 0 if right >= MIN_RIGHT_SHARE * len(rows) and not harmful and not above else 1


if __name__ == "__main__":
    sys.exit(main())
