"""Training: the efficiency of the healthy run, the account of the steps, the ladder of
precisions."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.gpu_day.check import Day, NotHereError, check
from benchmarks.gpu_day.tools import run, summary
from benchmarks.headless import last_line
from gpuconsole.model.run import Run

SMALL = ("d_model=768", "n_layer=12", "seq_len=1024", "batch_size=16")
"""A model of 85 M parameters, as GPT-2 small: a step in fp32 takes less than a second on every
card, and twice the batch fits."""
LADDER = (
    ("fp32", ("precision=fp32",)),
    ("tf32", ("precision=tf32",)),
    ("bf16", ("precision=bf16",)),
    ("bf16, compiled", ("precision=bf16", "torch_compile=default")),
    ("bf16, compiled, batch of 32", ("precision=bf16", "torch_compile=default", "batch_size=32")),
)
SIZES = (
    ("bf16", ()),
    ("fp32", ("precision=fp32",)),
    ("half the batch", ("batch_size=8",)),
    ("short sequences", ("seq_len=256",)),
    ("checkpointing", ("gradient_checkpointing=true",)),
    ("accumulation", ("gradient_accumulation_steps=4",)),
    ("compiled", ("torch_compile=default",)),
    ("SGD", ("optim=sgd",)),
)
POINTS = 3.0
"""Largest difference of the account and the profiler in percent points of the step."""


def tokens_per_s(found: Run) -> float:
    rate = summary(found).get("tokens_per_s")
    return float(rate["mean"]) if isinstance(rate, dict) else float("nan")


@check(value=720, seconds=60)
def train_gpt_mfu(day: Day) -> None:
    """train-gpt is a healthy run: at least half of the bf16 peak, phases that sum to 1, an overhead
    below 1 %."""
    found = run(day, "train-gpt", 20.0).runs[-1]
    figures = summary(found)
    phases = figures.get("phases_ratio") or {}
    day.note("tokens/s", tokens_per_s(found))
    day.note("memory peak", float(figures.get("memory_peak_bytes") or 0) / 1e9, "GB")
    day.expect("MFU", figures.get("mfu_ratio"), low=0.5, high=1.0)
    day.expect("sum of the phases", sum(phases.values()), low=0.999, high=1.001)
    step_s = (figures.get("step_time_s") or {}).get("mean")
    overhead_s = figures.get("overhead_s_per_step")
    day.expect(
        "overhead per step",
        overhead_s / step_s if step_s and overhead_s is not None else None,
        high=0.01,
    )
    day.note(
        "findings", ", ".join(one.rule for one in found.findings if one.state == "fires") or "none"
    )
    day.data["phases_ratio"] = phases


@check(value=550, seconds=50)
def account_against_profiler(day: Day) -> None:
    """The account of the steps by CUDA events agrees with torch.profiler about the same steps."""
    from benchmarks.gpu_day.account import NO_KERNELS, shares

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_day.account"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if done.returncode == NO_KERNELS or "CUPTI" in last_line(done.stderr):
        raise NotHereError(f"torch.profiler saw no kernel: {last_line(done.stderr)}")
    if done.returncode:
        raise RuntimeError(last_line(done.stderr))
    account, profiler = shares(done.stdout)
    for phase in account:
        day.expect(
            f"{phase}: account less profiler",
            100 * (account[phase] - profiler[phase]),
            "points",
            low=-POINTS,
            high=POINTS,
        )
    day.data.update(account=account, profiler=profiler)


@check(value=86, seconds=60)
def probes_change_nothing(day: Day) -> None:
    """Every probe leaves weights, buffers, optimizer states and random states bit for bit as they
    were."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_day.probes"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(last_line(done.stderr))
    if day.simulated:
        day.note("values", "none: this shows only that the probes run")
    for probe, (same, answer) in json.loads(done.stdout.splitlines()[-1]).items():
        day.require(probe, same, answer if same else f"changed something; {answer}")


@check(value=82, seconds=200, limit_s=500)
def memory_model(day: Day) -> None:
    """The memory model predicts the measured peak of eight configurations within 10 %,
    checkpointing among them."""
    for name, knobs in SIZES:
        found = run(
            day, "train-gpt", 2.0, *(word for knob in knobs for word in ("--set", knob))
        ).runs[-1]
        predicted = next(
            (one.predicted for one in found.figures if one.name == "memory.allocated_peak_bytes"),
            None,
        )
        peak = summary(found).get("memory_peak_bytes")
        day.expect(
            f"{name}: predicted over measured",
            predicted / peak if predicted and peak else None,
            low=0.9,
            high=1.1,
        )


@check(value=92, seconds=200, limit_s=500)
def precision_ladder(day: Day) -> None:
    """train-gpt gets faster with tf32, bf16, compilation and a larger batch."""
    rates: dict[str, float] = {}
    for name, knobs in LADDER:
        found = run(
            day, "train-gpt", 8.0, *(word for knob in (*SMALL, *knobs) for word in ("--set", knob))
        ).runs[-1]
        rates[name] = tokens_per_s(found)
        day.note(name, rates[name], "tokens/s")
        day.note(f"{name}: MFU", summary(found).get("mfu_ratio") or "n/a")
    day.expect("bf16 over fp32", rates["bf16"] / rates["fp32"], low=1.5)
    day.expect("compiled over eager", rates["bf16, compiled"] / rates["bf16"], low=1.0)
