"""Labelled GPU jobs of a user's own, on simulated cards: the finding on top, without probes.

    python -m benchmarks.own_job.gpu_cases [--only NAME ...] [--seconds 20] [--probe]

Each case is `benchmarks/own_job/gpu_jobs/script.py` with one fault built in, run by the real command line with the real agent on a machine with
simulated cards (tests/fakes/cuda): `gpuconsole run --headless -- python script.py ...`. Prints a Markdown table. The figures are no GPU data: kernels
take the time that datasheets predict, and the host's speed is this machine's. Exit code 1 where fewer than 90 % of the cases are right, or where a
healthy case is accused, or a faulty one is called healthy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.headless import last_line
from tests.fakes.cuda.machine import SimulatedMachine

SCRIPT = Path(__file__).parent / "gpu_jobs" / "script.py"
LEAST_RIGHT = 0.9
COMMAND_S = 240.0


class Case(NamedTuple):
    """`truth`: the rules that name the fault; empty for a healthy job. `options`: of the script. `cards`: lines of the machine (cards.py).
    `least_s`: seconds of training without which the fault cannot be seen. `environment`: variables of the job."""

    name: str
    truth: tuple[str, ...]
    options: str = ""
    cards: tuple[str, ...] = ("card h100",)
    processes: int = 1
    least_s: float = 0.0
    environment: Mapping[str, str] = {}


LOADER = ("input.cpu_transform", "input.too_few_workers", "input.slow_storage")
CASES = (
    Case("GPT, bf16, H100", (), ""),
    Case("GPT, bf16, L4", (), "--batch 4 --layers 6", ("card l4",)),
    Case("GPT, bf16, RTX 4090", (), "--batch 8", ("card rtx4090",)),
    Case("GPT, TF32", (), "--precision tf32"),
    Case("GPT with checkpointing", (), "--checkpointing --batch 32"),
    Case("ResNet with cuDNN's TF32", (), "--model resnet --width 128 --seq 128 --batch 128 --precision fp32"),
    Case("ResNet, bf16", (), "--model resnet --width 192 --seq 128 --batch 256"),
    Case("wide MLP, bf16", (), "--model mlp --width 8192 --layers 8 --batch 4096"),
    Case("GPT fed by workers", (), "--workers 2 --pin"),
    Case("fp32, H100", ("gpu.fp32_no_tensor_core",), "--precision fp32 --batch 8"),
    Case("fp32, L4", ("gpu.fp32_no_tensor_core",), "--precision fp32 --batch 4 --layers 6", ("card l4",)),
    Case("fp32, RTX 4090", ("gpu.fp32_no_tensor_core",), "--precision fp32 --batch 4", ("card rtx4090",)),
    Case("fp32 MLP", ("gpu.fp32_no_tensor_core",), "--model mlp --width 4096 --layers 8 --batch 8192 --precision fp32"),
    Case("launch-bound, batch 1", ("host.launch_bound", "gpu.small_batch"), "--width 256 --batch 1 --seq 128 --layers 16"),
    Case("launch-bound MLP", ("host.launch_bound", "gpu.small_batch"), "--model mlp --width 512 --layers 60 --batch 16"),
    Case("small batch", ("gpu.small_batch", "host.launch_bound"), "--width 512 --batch 1 --seq 256 --layers 12"),
    Case("wait for the GPU in the loop", ("host.sync_stall",), "--width 384 --batch 24 --seq 512 --layers 8 --sync 6"),
    Case("samples from slow storage", LOADER, "--workers 2 --sleep-ms 20 --batch 16"),
    Case("slow transform", LOADER, "--workers 1 --cpu-ms 6 --batch 16"),
    Case("loading in the training thread", LOADER, "--workers 0 --cpu-ms 4 --batch 16"),
    Case("workers started anew each epoch", ("input.epoch_restart",), "--workers 2 --epoch 128 --batch 16 --pin --cpu-ms 1 --layers 4"),
    Case("pageable copies", ("h2d.pageable_or_serial",), "--model resnet --width 16 --seq 224 --batch 256 --in-host-memory"),
    Case("checkpoint every few steps", ("host.checkpoint_stall",), "--save-every 5 --width 512 --layers 4"),
    Case("evaluation every few steps", ("host.eval_stall",), "--eval-every 4 --workers 2 --pin"),
    Case("memory near its limit", ("mem.near_capacity", "mem.activation_capped"), "--batch 16", ("card h100 memory=17.8e9",),
         environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    Case("memory leak", ("mem.leak_gpu",), "--leak-mb 25", least_s=28.0),
    Case("attention by hand", ("gpu.attention_math",), "--attention math --batch 8 --seq 2048"),
    Case("optimizer in a loop", ("gpu.optimizer_unfused",), "--optim loop --width 512 --layers 48 --batch 1 --seq 256"),
    Case("pointwise chain", ("gpu.elementwise_membw",), "--model chain --width 1024 --layers 24 --batch 16384"),
    Case("autocast within the model, H100", (), "--autocast-within"),
    Case("autocast within the model, A100", (), "--autocast-within --batch 8", ("card a100-40",)),
    Case("autocast within the model, L4", (), "--autocast-within --batch 4 --layers 6", ("card l4",)),
    Case("FSDP 2 with mixed precision", (), "--shards fsdp2 --batch 32", ("card h100", "card h100"), 2),
    Case("exposed all-gather, FSDP 2 over PCIe", ("comm.exposed", "comm.slow_link"), "--shards fsdp2 --batch 2", ("card l4", "card l4"), 2),
    Case("exposed all-gather, FSDP 2 over PCIe, NCCL is timed", ("comm.exposed", "comm.slow_link"), "--shards fsdp2 --batch 2", ("card l4", "card l4"), 2,
         environment={"TORCH_NCCL_ENABLE_TIMING": "1"}),
    Case("FSDP 2 with parameters on the host", ("host.optimizer_offloaded", "h2d.pageable_or_serial", "comm.exposed"),
         "--shards offload --batch 4 --layers 6", ("card h100", "card h100"), 2),
    Case("selections by masks, a busy H100", (), "--masks 1"),
    Case("selections by masks, a busy A100", (), "--masks 1 --batch 8", ("card a100-40",)),
    Case("selections by masks, a busy L4", (), "--masks 1 --batch 4 --layers 6", ("card l4",)),
    Case("numbers copied in each block, a busy H100", (), "--scalars"),
    Case("numbers copied in each block, a busy A100", (), "--scalars --batch 8", ("card a100-40",)),
    Case("numbers copied in each block, a busy L4", (), "--scalars --batch 4 --layers 6", ("card l4",)),
    Case("numbers copied in recomputed blocks, A100", ("host.sync_stall",), "--scalars --checkpointing --layers 24 --batch 8", ("card a100-40",)),
    Case("empty_cache in each step", ("mem.cache_emptied",), "--empty-cache --batch 4"),
    Case("GPT, bf16, GB10 with the memory of the host", (), "--batch 4 --layers 6", ("card gb10",)),
    Case("fp32, GB10", ("gpu.fp32_no_tensor_core",), "--precision fp32 --batch 2 --layers 6", ("card gb10",)),
    Case("launch-bound, GB10", ("host.launch_bound", "gpu.small_batch"), "--width 256 --batch 1 --seq 128 --layers 16", ("card gb10",)),
    Case("GPT, bf16, GH200", (), "", ("card gh200",)),
    Case("pageable copies, GH200", ("h2d.pageable_or_serial",), "--model resnet --width 16 --seq 224 --batch 256 --in-host-memory", ("card gh200",)),
    Case("GPT, fp16, T4", (), "--precision fp16 --batch 2 --layers 6", ("card t4",)),
    Case("fp32 and a mask, L4", ("gpu.fp32_no_tensor_core",), "--masks 1 --precision fp32 --batch 4 --layers 6", ("card l4",)),
    Case("fp32, A100", ("gpu.fp32_no_tensor_core",), "--precision fp32 --batch 4", ("card a100-40",)),
    Case("augmentation on the GPU", (), "--model resnet --width 192 --seq 128 --batch 256 --augment 12"),
    Case("Python between batch and pass", ("host.python_overhead", "host.slow_function"), "--prepare-ms 60 --batch 8"),
    Case("experts found by torch.where", ("host.sync_stall", "host.launch_bound"), "--model experts --width 512 --layers 8 --batch 512"),
    Case("CUDA_LAUNCH_BLOCKING", ("host.environment",), "--batch 8", environment={"CUDA_LAUNCH_BLOCKING": "1"}),
    Case("CUDA_LAUNCH_BLOCKING, A100", ("host.environment",), "--batch 4", ("card a100-40",), environment={"CUDA_LAUNCH_BLOCKING": "1"}),
    Case("launch-bound, A100", ("host.launch_bound", "gpu.small_batch"), "--width 256 --batch 1 --seq 128 --layers 16", ("card a100-40",)),
    Case("launch-bound, RTX 4090", ("host.launch_bound", "gpu.small_batch"), "--width 256 --batch 1 --seq 128 --layers 16", ("card rtx4090",)),
    Case("slow transform, A100", LOADER, "--workers 1 --cpu-ms 6 --batch 16 --layers 4", ("card a100-40",)),
    Case("DDP over PCIe", ("comm.exposed", "comm.slow_link"), "--width 1024 --layers 8 --batch 2 --seq 256", ("card l4", "card l4"), 2),
)  # fmt: skip


class Verdict(NamedTuple):
    """What the console said: the rule on top without notes, the rules that are notes, and the number of rules that cannot tell."""

    top: str
    notes: list[str]
    cannot_tell: int


def verdict(run: dict[str, Any]) -> Verdict:
    """The verdict of a run of a snapshot."""
    findings = run.get("findings", [])
    fired = [finding for finding in findings if finding["state"] == "fires" and not finding.get("note")]
    faults = [finding["rule"] for finding in fired if not finding["rule"].endswith("_healthy")]
    healthy = [finding["rule"] for finding in fired if finding["rule"].endswith("_healthy")]
    unknown = sum(finding["state"] == "cant_tell" for finding in findings)
    notes = [finding["rule"] for finding in findings if finding["state"] == "fires" and finding.get("note")]
    return Verdict((faults or healthy or ["-"])[0], notes, unknown)


def watch(case: Case, seconds: float, probe: bool) -> tuple[Verdict, dict[str, Any]]:
    """Run a case. Raises RuntimeError where the command fails."""
    with tempfile.TemporaryDirectory() as folder:
        with SimulatedMachine(Path(folder) / "machine", [*case.cards, "values none"]) as machine:
            snapshot = Path(folder) / "snapshot.json"
            python = [sys.executable]
            if case.processes > 1:
                python += ["-m", "torch.distributed.run", f"--nproc-per-node={case.processes}"]
            command = [sys.executable, "-m", "gpuconsole", "run", "--headless", "--snapshot", str(snapshot)]
            script = [str(SCRIPT), *case.options.split(), "--seconds", f"{max(seconds, case.least_s):g}"]
            command += [*(["--probe"] if probe else []), "--", *python, *script]
            env = machine.environment(OMP_NUM_THREADS="1", **case.environment)
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False, env=env, cwd=folder)
        if not snapshot.exists():
            raise RuntimeError(last_line(done.stderr))
        run = json.loads(snapshot.read_text(encoding="utf-8"))["runs"][-1]
    return verdict(run), run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of cases, or parts of them")
    parser.add_argument("--seconds", type=float, default=20.0, help="of training in each case, after the first step")
    parser.add_argument("--probe", action="store_true", help="permit probes")
    args = parser.parse_args()
    chosen = [case for case in CASES if not args.only or any(part in case.name for part in args.only)]
    if not chosen:
        print("no case has such a name; the cases are: " + ", ".join(case.name for case in CASES), file=sys.stderr)
        return 2
    print("| case | step | MFU | finding on top | built in | right | can't tell |\n" + "|---" * 7 + "|", flush=True)
    right = harmful = 0
    for case in chosen:
        try:
            said, run = watch(case, args.seconds, args.probe)
        except (RuntimeError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
            print(f"| {case.name} | | | {error} | {', '.join(case.truth) or '-'} | no | |", flush=True)
            continue
        noted = [rule for rule in said.notes if rule in case.truth] if said.top == "-" else []  # a full memory is a note: no time is lost
        healthy = not noted and (said.top == "-" or said.top.endswith("_healthy"))
        good = said.top in case.truth or bool(noted) if case.truth else healthy
        right += good
        harmful += healthy if case.truth else not healthy
        top = f"{noted[0]} (note)" if noted else said.top
        truth = ", ".join(case.truth) or "-"
        print(f"| {case.name} | {figures(run)} | {top} | {truth} | {'yes' if good else 'no'} | {said.cannot_tell} |", flush=True)
    print(f"\n{right} of {len(chosen)} right; {harmful} healthy jobs accused or faulty ones called healthy")
    return 0 if right >= LEAST_RIGHT * len(chosen) and not harmful else 1


def figures(run: dict[str, Any]) -> str:
    """Step time and MFU of a run, as cells of the table."""
    summary = run.get("summary", {})
    step_s, mfu = summary.get("step_time_s", {}).get("p50"), summary.get("mfu_ratio")
    return f"{'' if step_s is None else f'{1e3 * step_s:.3g} ms'} | {'' if mfu is None else f'{mfu:.2f}'}"


if __name__ == "__main__":
    sys.exit(main())
