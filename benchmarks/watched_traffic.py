"""Trials of a live limit on a watched server, while an independent client sends the load: A/A
trials without a false win, and limits that harm or help.

    python -m benchmarks.watched_traffic [--trials 10] [--traffic steady bursty] [--cap 90] [--keep]
    python -m benchmarks.watched_traffic --simulated 200
            the statistics alone, on servers in a loop, without time
    python -m benchmarks.watched_traffic --url http://127.0.0.1:8000 --limit 8 --rate 2
        --tokens 64 ...
            a server that runs already, started with our scheduler class

The server is the embedded one in a process of its own, unless --url names another. The client is
another process, which knows nothing of gpuconsole. An A/A trial has the same limit on both sides,
and is run as a user's trial: random blocks, the usual statistics, a look after each pair.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.machine import keep
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.traffic_trial import TrafficTrial
from gpuconsole.experiments.trial import TrialLimits
from gpuconsole.model.experiments import Trial
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import TrialUpdate
from tests.experiments.test_traffic import THRASHES
from tests.fakes.served_traffic import trial

BURSTS = 1.8
"""In a burst of about three seconds, so many times the mean rate come; between bursts a fifth of
it."""
WARM_S = 12.0
MODEL = {"d_model": 64, "n_layer": 1}


@contextlib.contextmanager
def server(limit: int, **knobs: Any) -> Iterator[str]:
    """The address of an embedded server."""
    values = {
        **find_scenario("serve-chat").knobs_for("cpu"),
        **MODEL,
        "max_num_seqs": limit,
        **knobs,
    }
    words = [
        sys.executable,
        "-m",
        "gpuconsole.workloads.serving.engine",
        "--live-limits",
        "--knobs",
        json.dumps(values),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield next(line.split()[1] for line in process.stdout if line.startswith("serving "))
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def client(
    url: str, traffic: str, rate: float, users: int, tokens: int, prompt: int
) -> Iterator[None]:
    words = [
        sys.executable,
        "-m",
        "tests.fakes.independent_client",
        url,
        str(users),
        "36000",
        str(tokens),
        str(prompt),
    ]
    words += [str(rate), str(BURSTS if traffic == "bursty" else 1.0)] if traffic != "closed" else []
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def trials(
    url: str, limit: int, changed: int, count: int, cap_s: float, name: str
) -> list[dict[str, Any]]:
    """`count` trials of the limit of sequences on the server at `url`, which was started with at
    least `limit`."""
    engine = LiveSession(serving=ServingChoice({"server_url": url, "watch": "yes"}))
    await engine.open()
    found = []
    try:
        await engine.start(url, {})
        begun = time.monotonic()
        while time.monotonic() - begun < WARM_S or not engine.view().running_s:
            await asyncio.sleep(0.5)
        for number in range(count):
            record, worker = engine.control.running()
            run = run_now(engine.state, record)
            run.knobs = {**run.knobs, "max_num_seqs": limit}
            trial = Trial(str(number), record.run.id, {"max_num_seqs": changed})
            report = lambda trial: engine.emit(TrialUpdate(time.monotonic(), trial))  # noqa: E731
            outcome = await TrafficTrial(
                trial, run, record, worker, report, TrialLimits(traffic_cap_s=cap_s)
            ).run()
            found.append(row(outcome.trial, name))
            print(json.dumps(found[-1]), flush=True)
    finally:
        await engine.close()
    return found


def row(trial: Trial, name: str) -> dict[str, Any]:
    effects = ({trial.figure: trial.speedup} if trial.speedup else {}) | trial.effects
    return {
        "case": name,
        "verdict": trial.verdict,
        "reason": trial.error or trial.reason,
        "blocks": trial.blocks,
        "seconds": round(trial.elapsed_s, 1),
        "load": trial.load_ratio and round(trial.load_ratio, 3),
        **{
            figure: [round(value, 3) for value in msgspec.structs.astuple(effect)]
            for figure, effect in effects.items()
        },
    }


SIMULATED: dict[str, tuple[int, int, dict[str, Any]]] = {
    "A/A, steady": (8, 8, {"rate": 6.0}),
    "A/A, bursty": (8, 8, {"rate": 5.0, "bursts": 1.9}),
    "A/A, clients that wait": (8, 8, {"users": 16}),
    "A/A, steady, near the limit": (3, 3, {"rate": 4.0, "base_s": 0.012}),
    "A/A, bursty, near the limit": (3, 3, {"rate": 4.0, "bursts": 1.8, "base_s": 0.012}),
    "8 in place of 32 helps, steady": (32, 8, {**THRASHES, "rate": 14.0}),
    "8 in place of 32 helps, bursty": (32, 8, {**THRASHES, "rate": 11.0, "bursts": 1.8}),
    "2 in place of 32 harms, steady": (32, 2, {"rate": 8.0}),
    "2 in place of 32 harms, bursty": (32, 2, {"rate": 8.0, "bursts": 1.8}),
}
"""Both limits, and the traffic of each case."""


def simulated(count: int) -> list[dict[str, Any]]:
    rows = []
    for name, (before, after, traffic) in SIMULATED.items():
        verdicts = collections.Counter(
            trial(before, after, seed, **traffic).verdict or "undecided" for seed in range(count)
        )
        rows.append({"case": name, "trials": count, **verdicts})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10, help="of each traffic")
    parser.add_argument(
        "--traffic", nargs="+", default=["steady", "bursty"], choices=["steady", "bursty", "closed"]
    )
    parser.add_argument("--cap", type=float, default=90.0, help="seconds of a trial")
    parser.add_argument("--limit", type=int, default=2)
    parser.add_argument(
        "--changed", type=int, help="the limit of the other side (default: the same, an A/A trial)"
    )
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--users", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=40)
    parser.add_argument("--url", default="")
    parser.add_argument(
        "--set",
        type=json.loads,
        default={},
        help="further settings of the embedded server, as JSON",
    )
    parser.add_argument(
        "--simulated",
        type=int,
        default=0,
        metavar="N",
        help="N trials of each case on servers in a loop",
    )
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    if args.simulated:
        found = simulated(args.simulated)
        if args.keep:
            keep("watched-traffic-simulated", {"trials": found})
        return
    changed = args.changed or args.limit
    rows: list[dict[str, Any]] = []
    for traffic in args.traffic:
        name = f"{traffic}, {args.limit} and {changed}"
        with (
            contextlib.nullcontext(args.url)
            if args.url
            else server(max(args.limit, changed), **args.set) as url,
            client(url, traffic, args.rate, args.users, args.tokens, args.prompt),
        ):
            rows += asyncio.run(trials(url, args.limit, changed, args.trials, args.cap, name))
    verdicts = {
        verdict: sum(row["verdict"] == verdict for row in rows)
        for verdict in ("win", "worse", "no_gain", "undecided")
    }
    print(json.dumps(verdicts))
    if args.keep:
        keep("watched-traffic", {"settings": vars(args), "verdicts": verdicts, "trials": rows})


if __name__ == "__main__":
    main()
