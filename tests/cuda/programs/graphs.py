"""CUDA graphs on a simulated card: what a capture takes, refuses and replays; prints the results as JSON. Values are computed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch

found: dict[str, Any] = {}
device: Any = torch.simulated_cuda  # type: ignore[attr-defined]  # runtime.py
x = torch.ones(4096, 4096, device="cuda")
host, pageable = torch.zeros(4096, 4096, pin_memory=True), torch.zeros(10)


def work(t: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        t = t * 1.0
    return t


def timed(run: Callable[[], object]) -> float:
    """Seconds on the stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    torch.cuda._sleep(int(0.02 * device.CLOCK_HZ))  # the host is ahead
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 - 0.02


def error_of(run: Callable[[], object]) -> str:
    try:
        run()
    except (RuntimeError, ValueError) as error:
        return str(error).split("\n", 1)[0]
    return "none"


def launches(run: Callable[[], object]) -> dict[str, float]:
    before = device.clock()
    run()
    return {name: value - before[name] for name, value in device.clock().items()}


class Counted(torch.cuda.CUDAGraph):
    """A program may wrap `replay`."""

    replays = 0

    def replay(self) -> None:
        Counted.replays += 1
        super().replay()


found["eager"] = launches(lambda: work(x))
graph = Counted()
states = [torch.cuda.is_current_stream_capturing()]


def capture() -> None:
    global y, inside
    with torch.cuda.graph(graph):
        states.append(torch.cuda.is_current_stream_capturing())
        y = work(x)
        inside = torch.cuda.Event(enable_timing=True)
        inside.record()


found["while_capturing"] = launches(capture)
states.append(torch.cuda.is_current_stream_capturing())
found["states"] = states
found["replay_s"] = timed(graph.replay)
found["replayed"] = launches(graph.replay)
found["replays"] = Counted.replays
found["event_after"] = [error_of(inside.query), error_of(inside.synchronize), error_of(lambda: inside.elapsed_time(inside))]
inside.record()
found["event_recorded_again"] = inside.query() or True


def in_capture(run: Callable[[], object]) -> list[str]:
    """The error of a call in a capture, and that of the capture's end."""
    broken, call_error = torch.cuda.CUDAGraph(), "none"

    def whole() -> None:
        nonlocal call_error
        with torch.cuda.graph(broken):
            work(x)
            call_error = error_of(run)

    end_error = error_of(whole)
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch.cuda.graph leaves its stream current when the capture's end fails
    return [call_error, end_error]


ready = torch.cuda.Event(enable_timing=True)
ready.record()
other = torch.cuda.Stream()
refused: dict[str, Callable[[], object]] = {
    "query": ready.query,
    "wait": ready.synchronize,
    "stream": torch.cuda.current_stream().synchronize,
    "device": torch.cuda.synchronize,
    "item": lambda: x[0, 0].item(),
    "to_pageable": lambda: x[0, :10].cpu(),
    "from_pageable": lambda: x[0, :10].copy_(pageable, non_blocking=True),
    "pinned": lambda: torch.empty(3, pin_memory=True),
    "empty_cache": torch.cuda.empty_cache,
    "nonzero": lambda: x[:10].nonzero(),
}
found["refused"] = {name: in_capture(run) for name, run in refused.items()}
found["allowed"] = {
    "pinned_copy": in_capture(lambda: host.copy_(x, non_blocking=True)),
    "record": in_capture(torch.cuda.Event().record),
    "allocate": in_capture(lambda: torch.empty(1000, device="cuda")),
}
found["usable_after"] = (x[0, :3].sum().item(), torch.cuda.is_current_stream_capturing())

# A side stream that waits for the capturing one takes part; the two halves overlap
fork = torch.cuda.CUDAGraph()
side, main = torch.cuda.Stream(), torch.cuda.Stream()
with torch.cuda.graph(fork, stream=main):
    side.wait_stream(main)
    work(x)
    with torch.cuda.stream(side):
        found["side_captures"] = torch.cuda.is_current_stream_capturing()
        work(x)
    main.wait_stream(side)
found["overlapped_s"] = timed(fork.replay)
found["default_stream"] = error_of(torch.cuda.CUDAGraph().capture_begin)
found["never_captured"] = error_of(torch.cuda.CUDAGraph().replay)

torch.cuda.empty_cache()
held = torch.cuda.memory_reserved()
big = torch.cuda.CUDAGraph()
with torch.cuda.graph(big, pool=torch.cuda.graph_pool_handle()):
    kept = torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda") + 1
    del kept
torch.cuda.empty_cache()
found["pool_bytes"] = torch.cuda.memory_reserved() - held
big.reset()
torch.cuda.empty_cache()
found["pool_bytes_after_reset"] = torch.cuda.memory_reserved() - held

read = torch.ones(4096, device="cuda")
reading = torch.cuda.CUDAGraph()
with torch.cuda.graph(reading):
    doubled = read * 2.0
    del doubled  # the graph's own memory stays
reading.replay()
del read
found["freed"] = error_of(reading.replay)

layer = torch.nn.Linear(64, 64).cuda()
sample = torch.randn(8, 64, device="cuda", requires_grad=True)
graphed = torch.cuda.make_graphed_callables(layer, (sample,))


def step() -> None:
    graphed(sample).sum().backward()


step()
found["graphed_launches"] = launches(step)
found["graphed_grad"] = layer.weight.grad is not None

dynamo: Any = torch._dynamo


def broken(t: torch.Tensor) -> torch.Tensor:
    """Dynamo must leave its graph where a value is read."""
    return t * 2 if t.sum().item() > 0 else t


compiled = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).cuda(), mode="reduce-overhead")
for rows in (4, 4, 5, 6):
    compiled(torch.ones(rows, 8, device="cuda")).sum().backward()
found["graphs_by_dynamo"] = dynamo.utils.counters["stats"]["unique_graphs"]  # the second one is for every number of rows
torch.compile(broken)(torch.ones(3, device="cuda"))
found["graph_breaks"] = sum(dynamo.utils.counters["graph_break"].values())
double = torch.compile(lambda t: t * 2.0, mode="reduce-overhead")
outputs = [double(torch.full((3,), float(value), device="cuda")) for value in (1, 2)]
found["overwritten"] = [output.isnan().all().item() for output in outputs]


def slow(trouble: str) -> tuple[float, str, str]:
    """Seconds of the first two calls, and the errors of both passes."""
    os.environ["SIMULATED_CUDA_COMPILE"] = trouble
    call = torch.compile(lambda t: (t * 3.0).sum())
    begun, seconds, errors = time.perf_counter(), list[float](), list[str]()
    for _ in range(2):
        errors = [error_of(lambda: made.append(call(weight)))]
        seconds.append(time.perf_counter() - begun)
        begun = time.perf_counter()
    errors.append(error_of(lambda: made[-1].backward()))
    return seconds[0] - seconds[1], *errors


made, weight = [torch.ones((), device="cuda", requires_grad=True) * 1.0], torch.ones(3, device="cuda", requires_grad=True)
found["compiling_s"], *found["compiled"] = slow("0.5")
found["no_forward"], found["no_backward"] = slow("forward")[1], slow("backward")[1:]
print(json.dumps(found))
