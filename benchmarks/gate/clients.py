"""How often does the gate call two equal servers different, by the result files of other clients?
Simulated servers.

    python -m benchmarks.gate.clients [--times 60] [--keep]           about seven minutes

The files are made by `tests/fakes/client_results.py` and read as the command line reads them. A
server has 8 sequence slots and load that varies slowly; the log of its speed differs between runs
with the given standard deviation. `limit`: the new server has 0.97 of the speed, so that at most 1
in 40 answers may be a regression. `same`: both are equal. `slower`: 0.90 of the speed. Exit code 1:
a row has more, and the number of simulations does not explain it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.machine import keep
from gpuconsole.engine.clients import read_results, run_of
from gpuconsole.experiments.compare import compare
from gpuconsole.experiments.gate import GateError, judge
from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model.snapshot import Environment, Snapshot
from tests.fakes.client_results import BEGUN, Sent, aiperf, guidellm, serve, sglang, vllm

LIMIT = 0.97
ALLOWED = 1 / 40
COUNT = 120
APART_S = 90.0
ORDERS = {1: "AB", 3: "ABBAAB", 5: "ABBAABBAAB"}
CLOSED, BATCHED = {"users": 8}, {"users": 16}
RATES = {"50 %": 4.5, "80 %": 7.2, "95 %": 8.6}
"""Open loops, by the share of the capacity of the server."""
OPEN = (("50 %", 5), ("80 %", 1), ("80 %", 3), ("80 %", 5), ("95 %", 3), ("95 %", 5))
FORMATS: dict[str, Callable[..., dict[str, Any]]] = {
    "vllm": lambda sent, begun, **load: vllm(sent, begun=begun, **load),
    "vllm, percentiles only": lambda sent, begun, **load: vllm(
        sent, begun=begun, detailed=False, **load
    ),
    "aiperf": lambda sent, begun, **load: aiperf(sent, begun=begun, **load),
    "guidellm": lambda sent, begun, rate=0.0, users=8: guidellm(
        [sent], begun=begun, rates=[rate] if rate else [], users=users
    ),
    "sglang": lambda sent, begun, **load: sglang(sent, **load),
}


def side(result: dict[str, Any] | str, name: str) -> MeasuredRun:
    """The run of a result file, as a command reads it."""
    run = run_of(
        read_results((result if isinstance(result, str) else json.dumps(result)).encode())[0], "1"
    )
    return MeasuredRun(
        name,
        run,
        Snapshot(created="", gpuconsole="", environment=Environment(), runs=[run], trials=[]),
    )


def sides(
    name: str, load: dict[str, Any], runs: int, deviation: float, slower: float, seed: int
) -> list[list[MeasuredRun]]:
    """The runs of both sides, in the order of ORDERS."""
    made: list[list[MeasuredRun]] = [[], []]
    for place, label in enumerate(ORDERS[runs]):
        new = "AB".index(label)
        sent: Sequence[Sent] = serve(
            1000 * seed + place,
            count=COUNT,
            spread=deviation,
            slower=slower if new else 1.0,
            **load,
        )
        made[new].append(
            side(FORMATS[name](sent, BEGUN + APART_S * place, **load), f"{label}{place}")
        )
    return made


def outcomes(
    name: str, load: dict[str, Any], runs: int, deviation: float, slower: float, times: int
) -> Counter[str]:
    """The answers of the gate; `refused`: drawn lengths or loads differed by chance."""
    found: Counter[str] = Counter()
    for seed in range(times):
        base, new = sides(name, load, runs, deviation, slower, seed)
        try:
            found[judge(base, new, LIMIT).verdict] += 1
        except GateError:
            found["refused"] += 1
    return found


def rows(times: int) -> list[dict[str, Any]]:
    """Print the row of each design, and return the rows."""
    designs: list[tuple[str, str, dict[str, Any], int, float]] = [
        ("vllm", "8 users", CLOSED, runs, deviation)
        for runs, deviation in ((1, 0.05), (3, 0.015), (3, 0.05), (5, 0.015), (5, 0.05))
    ]
    designs += [
        (name, "8 users", CLOSED, 5, 0.015) for name in ("vllm, percentiles only", "sglang")
    ]
    designs += [("vllm", "16 users", BATCHED, 5, 0.015)]
    designs += [
        ("vllm", f"open, {share}", {"rate": RATES[share]}, runs, 0.015) for share, runs in OPEN
    ]
    print(
        "| file | load | runs of each side | deviation | regression at the limit | at equal speed |"
        " equal passes | 10 % slower is found | refused |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    made = []
    for name, words, load, runs, deviation in designs:
        at = {
            speed: outcomes(name, load, runs, deviation, 1 / speed, times)
            for speed in (LIMIT, 1.0, 0.90)
        }
        row = {
            "file": name, "load": words, "runs": runs, "deviation": deviation,
            "limit": at[LIMIT]["regression"], "same": at[1.0]["regression"],
            "passes": at[1.0]["no regression"], "slower": at[0.90]["regression"],
            "refused": at[1.0]["refused"],
        }  # fmt: skip
        made.append(row)
        shares = " | ".join(
            f"{row[key] / times:.1%}" for key in ("limit", "same", "passes", "slower", "refused")
        )
        print(f"| {name} | {words} | {runs} | {deviation:.1%} | {shares} |", flush=True)
    return made


def single(times: int) -> dict[str, dict[str, float]]:
    """The share of pairs of equal runs for which `compare` calls a metric better or worse, by load
    and metric: one run of each side."""
    shares = {}
    for words, load in (
        ("8 users", CLOSED),
        ("16 users", BATCHED),
        *((f"open, {share}", {"rate": rate}) for share, rate in RATES.items()),
    ):
        called: Counter[str] = Counter()
        for seed in range(times):
            (base,), (new,) = sides("vllm", load, 1, 0.03, 1.0, seed)
            called.update(
                f"{metric.metric} {metric.verdict}"
                for metric in compare(base, new).metrics
                if metric.verdict in ("better", "worse")
            )
        shares[words] = {name: count / times for name, count in sorted(called.items())}
        print(
            (
                f"compare, {words}: {max(shares[words].values(), default=0.0):.1%} at most;"
                f" {dict(called)}"
            ),
            flush=True,
        )
    return shares


def misses(made: list[dict[str, Any]], times: int) -> list[str]:
    """The rows with more than 1 in 40 at the limit, by more than two standard errors of the
    simulation."""
    most = times * ALLOWED + 2 * math.sqrt(times * ALLOWED * (1 - ALLOWED))
    return [
        f"{row['file']}, {row['load']}, {row['runs']} runs" for row in made if row["limit"] > most
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=60, help="simulated comparisons of each row")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/gate-clients-DATE.json"
    )
    args = parser.parse_args()
    made, pairs = rows(args.times), single(args.times)
    if args.keep:
        print(
            keep(
                "gate-clients", {"times": args.times, "limit": LIMIT, "rows": made, "single": pairs}
            )
        )
    failed = misses(made, args.times)
    print("\n".join(failed))
    return (
        1
        if failed
        or any(
            share > ALLOWED + 2 * math.sqrt(ALLOWED / args.times)
            for of in pairs.values()
            for share in of.values()
        )
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
