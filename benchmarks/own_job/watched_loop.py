"""The program of the overhead benchmark: a plain loop of about 6 ms a step, with the borders and
without them in turn, in one process.

Prints one JSON line. `plain_s`, `added_s`: for each pair of blocks the CPU seconds of a step
without borders, and what a step with them takes more. `new_work_s`, `work_s`: CPU seconds of the
agent's work between steps, for each step of an uninterrupted run: while the job is new, and at the
low rate that follows. `sampler_ratio`, `fast_sampler_ratio`: CPU seconds of the thread that samples
stacks, for each second, at its low rate and at its fast one. The last arguments say who starts the
agent (`run`, the environment of the process; `watch`, the block of `gpuconsole.watch()`), and how
many further threads wait in the process.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gpuconsole
from gpuconsole.agent.service import LOW_RATE_AFTER_S

WARM, BLOCK = 15, 20
"""Pairs of blocks before the first one that counts: Python specializes its code for the classes
that it meets; and the steps of a block."""
SAMPLED_S = 8.0
SAMPLE = torch.randn(256)


class Samples(Dataset):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return SAMPLE, index % 10


class Loop:
    """The objects of the program. `hooks` switches on and off what Python shows the agent
    (`monitor`, on Python 3.12 and newer)."""

    def __init__(self, width: int, batch: int, device: str, monitor: Any, recorder: Any) -> None:
        self.device, self.recorder = device, recorder
        self.model = nn.Sequential(
            nn.Linear(256, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batches = iter(DataLoader(Samples(), batch_size=batch))
        self._monitor = monitor

    def seen(self) -> None:
        """The borders of the loop are known: `hooks` switches them from now on."""
        tool, hot = self._monitor._tool, {id(code) for code, *_ in self._monitor._hot}
        self._rare = [
            (code, sys.monitoring.get_local_events(tool, code))
            for code in self._monitor._codes
            if id(code) not in hot
        ]

    def hooks(self, on: bool) -> None:
        for code, events in self._rare:
            sys.monitoring.set_local_events(self._monitor._tool, code, events if on else 0)
        self._monitor._arm(0)
        if on:
            self._monitor._mark(not self.recorder.counted)
            self._monitor._seek_call()
        else:
            for code, *_ in self._monitor._hot:
                sys.monitoring.set_local_events(self._monitor._tool, code, 0)


def step(loop: Any) -> None:
    x, y = (part.to(loop.device) for part in next(loop.batches))
    loss = nn.functional.cross_entropy(loop.model(x), y)
    loop.optimizer.zero_grad()
    loss.backward()
    loop.optimizer.step()


def main() -> None:
    pairs, width, batch = (int(word) for word in sys.argv[1:4])
    device, by_run = sys.argv[4], sys.argv[5] == "run"
    for _ in range(int(sys.argv[6])):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with contextlib.nullcontext() if by_run else gpuconsole.watch(quiet=True):
        agent = "_gpuconsole_agent" if by_run else "gpuconsole.agent"
        recorder, sampler = (
            sys.modules[f"{agent}.hooks.watch"].recorder,
            sys.modules[f"{agent}.hooks.sampler"].sampler,
        )
        measure(
            recorder,
            sampler,
            pairs,
            Loop(
                width, batch, device, sys.modules[f"{agent}.hooks.install"]._monitors[0], recorder
            ),
        )


def measure(recorder: Any, sampler: Any, pairs: int, loop: Loop) -> None:
    def steps(n: int) -> None:
        for _ in range(n):
            step(loop)

    steps(100)
    loop.seen()
    work = Work(recorder.at_end)
    recorder.at_end = work
    begun = time.monotonic()
    new_work_s = work.of(steps, pairs // 4)
    while time.monotonic() - begun < LOW_RATE_AFTER_S + 2.0:
        steps(20)
    low = sampler_ratio(sampler, steps)
    sampler.faster(2 * SAMPLED_S)
    fast = sampler_ratio(sampler, steps)
    sampler.faster(0.0)
    work_s = work.of(steps, pairs // 2)
    chance = random.Random(0)
    plain_s, added_s = [], []
    for _ in range(WARM + pairs // BLOCK):
        took = {}
        for hooked in chance.sample((True, False), 2):
            loop.hooks(hooked)
            steps(2)  # Python prepares the functions whose calls are seen, or not seen any longer
            before, begun = work.cpu_s, time.thread_time()
            steps(BLOCK)
            took[hooked] = (time.thread_time() - begun - (work.cpu_s - before)) / BLOCK
        plain_s.append(took[False])
        added_s.append(took[True] - took[False])
    loop.hooks(True)
    steps(2)
    measured = {
        "new_work_s": new_work_s,
        "work_s": work_s,
        "plain_s": plain_s[WARM:],
        "added_s": added_s[WARM:],
        "sampler_ratio": low,
        "fast_sampler_ratio": fast,
    }
    print(json.dumps(measured), flush=True)


def sampler_ratio(sampler: Any, steps: Callable[[int], None]) -> float:
    """CPU seconds per second of the sampling thread, measured over SAMPLED_S seconds of steps."""
    before, begun = sampler.cpu_s, time.monotonic()
    while time.monotonic() - begun < SAMPLED_S:
        steps(5)
    return float(sampler.cpu_s - before) / (time.monotonic() - begun)


class Work:
    """The agent's work between two steps, with its CPU time."""

    def __init__(self, plain: Callable[[], None]) -> None:
        self.cpu_s = 0.0
        self._plain = plain

    def of(self, steps: Callable[[int], None], n: int) -> float:
        """Its CPU seconds for each of `n` steps."""
        before = self.cpu_s
        steps(n)
        return (self.cpu_s - before) / n

    def __call__(self) -> None:
        begun = time.thread_time()
        self._plain()
        self.cpu_s += time.thread_time() - begun


if __name__ == "__main__":
    main()
