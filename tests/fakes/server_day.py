"""A day of a model server and its GPUs, as events of the wire at one reading per second, with
things that happen at given times."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from gpuconsole.model.machine import Device, Process
from gpuconsole.model.serving import WATCHED
from gpuconsole.wire.events import (
    AnyEvent,
    Devices,
    Hello,
    Processes,
    Requests,
    RunOpened,
    Sample,
    ServerState,
)

WALL = 1_780_000_000.0
HOUR = 3600.0
OWN = Process(pid=100, device="gpu:0", name="vllm", started=1.0)
OTHER = Process(pid=777, device="gpu:0", name="python", user="somebody", started=2.0)
KINDS = ("preemptions", "prompts", "answers", "clock", "restart", "process", "arrivals", "slow")
"""What can happen. `slow`: the latency rises, and nothing else changes. Two more kinds:
`standstill`: no token and no end of a request comes. `outage`: no reading comes."""


def day(
    happens: dict[float, str | tuple[str, float]],
    seconds: float = 24 * HOUR,
    lasts: float = 60.0,
    seed: int = 1,
    gpus: int = 1,
    url: str = "",
) -> Iterator[AnyEvent]:
    """`happens`: a kind, or a kind and its seconds, by the second in which it begins; each lasts
    `lasts` seconds and raises the latencies four times. `url`: the server that is watched."""
    lasting = {
        begun: (what, lasts) if isinstance(what, str) else what for begun, what in happens.items()
    }
    late = 0.0
    """The seconds of the last standstill; 0 where the requests that stood have ended."""
    chance = random.Random(seed)
    yield Hello(t=0.0, role="recording", pid=1, version="1", wall_time=WALL)
    yield Devices(
        t=0.0,
        devices=[Device(f"gpu:{number}", "H100", memory_bytes=80 * 2**30) for number in range(gpus)]
        + [Device("cpu", "host")],
    )
    yield Processes(t=0.0, processes=[OWN])
    if url:
        yield RunOpened(0.0, "r1", url, WATCHED, {}, "cpu")
    totals = dict.fromkeys(
        (
            "requests",
            "preemptions",
            "prompt_tokens",
            "generation_tokens",
            "prefix_queries",
            "prefix_hits",
        ),
        0.0,
    )
    totals |= {
        f"{name}_{end}": 0.0
        for name in ("ttft_s", "e2e_s", "itl_s", "queue_s")
        for end in ("sum", "count")
    }
    used = 0.4
    outage_ends = {begun + lasts for begun, (kind, lasts) in lasting.items() if kind == "outage"}
    for second in range(int(seconds)):
        t = float(second)
        kind, begun, seconds_long = next(
            (
                (kind, begun, lasts)
                for begun, (kind, lasts) in lasting.items()
                if begun <= t < begun + lasts
            ),
            ("", 0.0, 0.0),
        )
        begins = kind if begun == t else ""
        if kind == "outage":
            yield Requests(t, [], down="cannot connect", down_since=begun - 1)
            continue
        if any(t == ended for ended in outage_ends):
            yield Requests(t, [])
        if begins == "process":
            yield Processes(t=t, processes=[OWN, OTHER])
        if begins == "restart":
            totals = dict.fromkeys(totals, 0.0)
        load = (
            1
            + 0.5 * math.sin(2 * math.pi * t / (24 * HOUR))
            + 0.05 * math.sin(2 * math.pi * t / 600)
        )
        rate = 4 * load * (2.0 if kind == "arrivals" else 1.0)
        ended = sum(chance.random() < rate / 10 for _ in range(10))
        slow = 4.0 if kind and kind != "standstill" else 1.0
        if kind == "standstill":
            ended, late = 0, seconds_long
        elif late:  # those that came during the standstill end all at once
            for name in ("ttft_s", "e2e_s", "queue_s"):
                totals[f"{name}_sum"] += late * rate * late / 2
                totals[f"{name}_count"] += late * rate
            totals["requests"] += late * rate
            totals["generation_tokens"] += late * rate * 100
            totals["prompt_tokens"] += late * rate * 300
            late = 0.0
        answer = 400.0 if kind == "answers" else 100.0
        prompt = 1200.0 if kind == "prompts" else 300.0
        for _ in range(ended):
            for name, mean in (("ttft_s", 0.12), ("e2e_s", 2.0), ("queue_s", 0.01)):
                totals[f"{name}_sum"] += slow * mean * chance.gammavariate(8, 1 / 8)
                totals[f"{name}_count"] += 1
            totals["requests"] += 1
            totals["prompt_tokens"] += prompt * chance.uniform(0.8, 1.2)
            totals["generation_tokens"] += answer * chance.uniform(0.8, 1.2)
            totals["prefix_queries"] += prompt
            totals["prefix_hits"] += prompt * 0.3
            gap = 0.02 if kind == "answers" else 0.02 * slow
            totals["itl_s_sum"] += answer * gap
            totals["itl_s_count"] += answer
        totals["preemptions"] += chance.random() < 0.7 if kind == "preemptions" else 0.0
        if kind != "standstill":  # nothing moves, the KV cache neither
            used = 0.99 if kind == "preemptions" else 0.4 + 0.05 * chance.random()
        gauges = {
            "requests_running": rate * 2.0 * slow,
            "requests_waiting": 12.0
            if slow > 1 or kind == "standstill"
            else float(chance.random() < 0.1),
            "kv_cache_usage_ratio": used,
        }
        yield ServerState(t=t, gauges=gauges, totals=dict(totals))
        for number in range(gpus):
            clock = 1.2e9 if kind == "clock" else 1.98e9
            heat = {
                "gpu.thermal_time_ratio": 0.9 if kind == "clock" else 0.0,
                "gpu.power_cap_time_ratio": 0.0,
            }
            busy = {
                "gpu.sm_active_ratio": 0.8 + 0.1 * chance.random(),
                "gpu.power_w": 500 + 50 * chance.random(),
                "gpu.temperature_c": 60.0,
            }
            more = {
                f"gpu.{name}": chance.random() * 1e9
                for name in (
                    "hbm_bytes_per_s",
                    "pcie_rx_bytes_per_s",
                    "pcie_tx_bytes_per_s",
                    "hbm_used_bytes",
                )
            }
            yield Sample(
                t=t,
                device=f"gpu:{number}",
                values={"gpu.sm_clock_hz": clock, **heat, **busy, **more},
            )
        yield Sample(
            t=t,
            device="cpu",
            values={
                "host.run_queue_delay_ratio": 0.02 * chance.random(),
                "host.io_pressure_ratio": 0.0,
                "host.memory_pressure_ratio": 0.0,
            },
        )
