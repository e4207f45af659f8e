"""Called by a reference loop after each step: the loop pauses between blocks and reports each
block.

The contest writes a number of seconds on stdin; then a line of JSON with the block's figures comes
back on stdout. The first step after a pause does not count. Cost: one reading of the clock per
step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

from benchmarks.training import LOSS_AT


class Referee:
    def __init__(self) -> None:
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._step = 0
        self._counted = 0
        self._until = 0.0
        self._start = 0.0
        self._seconds = 0.0
        self._waited_s = 0.0
        self._loss: float | None = None
        self._resumed = False

    def step_done(self, loss: torch.Tensor) -> None:
        now = time.perf_counter()
        if self._step == LOSS_AT:
            self._loss = loss.item()
        self._step += 1
        if self._resumed:
            self._resumed, self._counted = False, 0
            self._waited_s, self._start = self._runq_s(), now
            self._until = now + self._seconds
            return
        self._counted += 1
        if now >= self._until:
            self._report(now)
            self._wait()

    def _report(self, now: float) -> None:
        told = {
            "steps": self._counted,
            "wall_s": now - self._start,
            "runq_s": self._runq_s() - self._waited_s,
            "loss": self._loss,
            "threads": torch.get_num_threads(),
        }
        print(json.dumps(told), flush=True)

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        self._seconds, self._resumed = float(line), True

    def _runq_s(self) -> float:
        """Seconds that this thread has waited for a core."""
        return int(os.pread(self._schedstat, 64, 0).split()[1]) * 1e-9


class Course:
    """What every contestant trains: model, data, seed and precision."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        for name in ("d_model", "n_layer", "batch_size", "seq_len", "num_threads", "seed"):
            parser.add_argument(f"--{name}", type=int, required=True)
        parser.add_argument("--precision", choices=("fp32", "bf16"), required=True)
        parser.add_argument("--text", type=Path, required=True)
        args = parser.parse_args()
        self.d_model, self.n_layer, self.num_threads = args.d_model, args.n_layer, args.num_threads
        self.seed, self.bf16 = args.seed, args.precision == "bf16"
        self.max_tokens = max(1024, 4 * args.seq_len)
        data = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8)
        self.text = data[: int(len(data) * 0.9)]
        self.stream_knobs = {
            "batch_size": args.batch_size,
            "seq_len": args.seq_len,
            "varied_lengths": False,
            "pad_to_multiple_of": 0,
        }
