"""The same steps by the step breakdown and by torch.profiler:
`python -m benchmarks.gpu_day.account`. Prints both as JSON.

A GPT-like model is trained. The account reads CUDA events at the ends of the phases. The profiler's
trace holds each kernel with the time of its launch; a kernel belongs to the phase in which it was
launched, and a phase lasts from the end of the kernels before to the end of its own kernels.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PHASES = ("forward", "backward", "optimizer")
STEPS = 8
WARM_STEPS = 5
NO_KERNELS = 3
LAUNCHES = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def shares(output: str) -> tuple[dict[str, float], dict[str, float]]:
    """The shares of the phases by the account and by the profiler, from this program's output."""
    found = json.loads(output.splitlines()[-1])
    return found["account"], found["profiler"]


def of_trace(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Seconds of each phase on the stream, over all steps of a Chrome trace. Empty without
    kernels."""
    events = list(events)
    ranges = sorted(
        (one["ts"], one["ts"] + one["dur"], one["name"])
        for one in events
        if one.get("cat") == "user_annotation" and one["name"] in PHASES
    )
    launched = {
        one["args"]["correlation"]: one["ts"]
        for one in events
        if one.get("cat") in LAUNCHES and "correlation" in one.get("args", {})
    }
    work = sorted(
        (one["ts"], one["ts"] + one["dur"], launched.get(one["args"]["correlation"]))
        for one in events
        if one.get("cat") in WORK
    )
    # the end of the last kernel that each range launched
    ends: dict[int, float] = {}
    for _, end, at in work:
        number = next(
            (n for n, (low, high, _) in enumerate(ranges) if at is not None and low <= at <= high),
            None,
        )
        if number is not None:
            ends[number] = max(end, ends.get(number, 0.0))
    found: dict[str, float] = {}
    for (before, begun), (number, end) in itertools.pairwise(sorted(ends.items())):
        if number == before + 1:
            found[ranges[number][2]] = found.get(ranges[number][2], 0.0) + (end - begun) * 1e-6
    return found


def relative(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {phase: seconds.get(phase, 0.0) / total for phase in PHASES}


def main() -> int:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from gpuconsole.agent.clock import ThreadTimes
    from gpuconsole.agent.step_breakdown import BACKWARD, FORWARD, OPTIMIZER, CudaStepBreakdown

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(16, 512, 1024, device="cuda")
    account = CudaStepBreakdown(ThreadTimes())

    def step() -> None:
        with record_function("forward"), torch.autocast("cuda", torch.bfloat16):
            loss = model(batch).float().square().mean()
        account.mark(FORWARD)
        with record_function("backward"):
            loss.backward()
        account.mark(BACKWARD)
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        account.mark(OPTIMIZER)
        account.end(16, 16 * 512, None, 0, 0)

    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        # the stream is empty when the first step begins: neither side counts it
        for number in range(STEPS):
            if number == 1:
                account.finish()
                account.take()
            step()
        torch.cuda.synchronize()
    account.finish()
    by_account: dict[str, float] = {}
    for marked in account.take():
        for phase, (begun, end) in zip(
            marked.ended, itertools.pairwise((marked.start, *marked.times)), strict=True
        ):
            name = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"}.get(phase)
            if name is not None:
                by_account[name] = by_account.get(name, 0.0) + end - begun
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        by_profiler = of_trace(json.loads(path.read_text())["traceEvents"])
    if not by_profiler:
        return NO_KERNELS
    print(json.dumps({"account": relative(by_account), "profiler": relative(by_profiler)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
