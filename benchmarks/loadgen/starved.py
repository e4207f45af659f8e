"""How far the load generator is wrong when it lacks CPU, against the truth of the scripted server,
by its run-queue wait.

    python -m benchmarks.loadgen.starved [--rounds 3] [--seconds 5] [--niceness 0,-10] [--core 3]
        [--keep]

The server runs with a real-time priority, so that only the generator is starved: generator and hogs
share one core. Needs the right to set priorities. Rounds alternate between the niceness values. The
truth is the script plus the server's own median delay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import keep
from gpuconsole.model.knobs.catalogue import CATALOGUE
from gpuconsole.wire.events import Requests, Start, decode_event, encode

HOGS = (0, 1, 2, 4, 8)
SCRIPTS = {"200 ms, 20 ms": (0.2, 0.02), "20 ms, 5 ms": (0.02, 0.005)}
"""TTFT and time per token: a server of the size of a GPU's, and a small model on a CPU."""
USERS, OUTPUT, WARM_S = 8, 64, 1.5
SERVER = (
    "import asyncio, os, tests.fakes.model_server as server; server.TTFT_S, server.ITL_S = {}, {}; "
    "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)); asyncio.run(server.main())"
)
GENERATOR = (
    "import gpuconsole.workloads.serving.load.generator as generator; generator.NICENESS = {};"
    " generator.main()"
)
HOG = "import os; os.sched_setaffinity(0, {{{}}})\nwhile True: pass"


@contextmanager
def scripted_server(ttft_s: float, itl_s: float) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(ttft_s, itl_s)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[1]
    finally:
        process.kill()
        process.wait()


@contextmanager
def hogs(number: int, core: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", HOG.format(core)]) for _ in range(number)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def told(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/lateness", timeout=10) as answer:
        return dict(json.load(answer))


def measure(
    url: str, seconds: float, niceness: int, core: int, script: tuple[float, float]
) -> dict[str, float]:
    """Relative errors of the medians and of tokens/s, and the run-queue wait over time."""
    knobs = {
        name: knob.default
        for name, knob in CATALOGUE.items()
        if knob.serving and knob.apply == "hot" and knob.default is not None
    }
    knobs |= {
        "concurrency": USERS,
        "output_tokens": OUTPUT,
        "prompt_tokens": 64,
        "length_spread": 0.0,
    }
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-c", GENERATOR.format(niceness), "--fd", str(theirs.fileno())]
    process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
    os.sched_setaffinity(process.pid, {core})
    theirs.close()
    events: list[Requests] = []
    slices: list[int] = []
    schedstat = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat")
    try:
        start = Start(
            "starved",
            knobs,
            "cpu",
            options={"url": f"{url}/steady", "model": "m", "characters_per_token": "4"},
        )
        ours.sendall(encode(start) + b"\n")
        file, first = ours.makefile("rb"), 0.0
        while line := file.readline():
            event = decode_event(line)
            if isinstance(event, Requests):
                if not first and (event.requests or event.active):
                    first = event.t
                    told(url)
                if first and event.t > first + WARM_S:
                    events.append(event)
                    slices.append(int(schedstat.read_text().split()[2]))
                if first and event.t > first + WARM_S + seconds:
                    break
    finally:
        process.kill()
        process.wait()
        ours.close()
    late, (ttft_s, itl_s) = told(url), script
    window = events[-1].t - events[0].t
    done = sorted(
        (one for event in events[1:] for one in event.requests if not one.error),
        key=lambda one: one.t,
    )
    # whole answers: the users are in step
    cycle = USERS * (done[-1].t - done[USERS - 1].t) / (len(done) - USERS)
    truth = {
        "ttft": ttft_s + late["first"],
        "tpot": itl_s + (late["last"] - late["first"]) / (OUTPUT - 1),
    }
    truth["e2e"] = ttft_s + (OUTPUT - 1) * itl_s + late["last"]
    truth["tokens_per_s"] = USERS * OUTPUT / truth["e2e"]
    found = {
        "ttft": statistics.median(one.ttft_s or 0.0 for one in done),
        "tpot": statistics.median(one.tpot_s or 0.0 for one in done),
        "e2e": statistics.median(one.e2e_s or 0.0 for one in done),
        "tokens_per_s": USERS * OUTPUT / cycle,
    }
    waited = (events[-1].runq_s or 0.0) - (events[0].runq_s or 0.0)
    errors = {name: found[name] / truth[name] - 1 for name in truth}
    cpu = (events[-1].cpu_s - events[0].cpu_s) / window
    return {
        **errors,
        "runq_ratio": waited / window,
        "wait_s": waited / (slices[-1] - slices[0]),
        "ttft_late_s": found["ttft"] - truth["ttft"],
        "cpu_ratio": cpu,
        "lateness_s": statistics.median(e.lateness_s for e in events),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--niceness", default="0,-10")
    parser.add_argument("--core", type=int, default=(os.cpu_count() or 1) - 1)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    levels = [int(word) for word in args.niceness.split(",")]
    rows = []
    begun = time.monotonic()
    print(
        f"{'server':14} {'hogs':>4} {'nice':>4} {'runq':>6} {'cpu':>5} {'late ms':>7}"
        f" {'wait ms':>7} {'TTFT ms':>7} {'TTFT':>7} {'TPOT':>7} {'E2E':>7} {'tok/s':>7}"
    )
    for name, script in SCRIPTS.items():
        with scripted_server(*script) as url:
            for number in HOGS:
                with hogs(number, args.core):
                    taken = [
                        (nice, measure(url, args.seconds, nice, args.core, script))
                        for _, nice in itertools.product(range(args.rounds), levels)
                    ]
                for nice in levels:
                    mine = [one for level, one in taken if level == nice]
                    row = {key: statistics.median(one[key] for one in mine) for key in mine[0]}
                    rows.append(
                        {"server": name, "hogs": number, "nice": nice, **row, "rounds": mine}
                    )
                    print(
                        (
                            f"{name:14} {number:4} {nice:4} {row['runq_ratio']:6.1%}"
                            f" {row['cpu_ratio']:5.1%} {1e3 * row['lateness_s']:7.2f}"
                            f" {1e3 * row['wait_s']:7.2f} {1e3 * row['ttft_late_s']:+7.2f}"
                            f" {row['ttft']:+7.1%} {row['tpot']:+7.1%} {row['e2e']:+7.1%}"
                            f" {row['tokens_per_s']:+7.1%}"
                        ),
                        flush=True,
                    )
    if args.keep:
        keep("loadgen-starved", {"seconds": round(time.monotonic() - begun), "rows": rows})


if __name__ == "__main__":
    main()
