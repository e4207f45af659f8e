"""How often does the gate call a change at its limit a regression, where the two sides are
unequally noisy? Simulated runs.

    python -m benchmarks.gate.simulated [--times 4000] [--keep]           about two minutes

A run is one log rate from a normal distribution; each side has its own standard deviation. At most
1 in 40 changes at the limit should be called a regression. Exit code 1: a row has more, and the
number of simulations does not explain it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from typing import Any

from benchmarks.machine import keep
from gpuconsole.experiments.gate import decide
from gpuconsole.experiments.runs import RunRate, ratio_of

LIMIT = 0.97
ALLOWED = 1 / 40
DAY = 86_400.0
ROWS = [
    ("ABABAB", 0.05, 0.005),
    ("ABBBBA", 0.05, 0.005),
    ("ABBBBA", 0.10, 0.01),
    ("ABBBBBBBBBBA", 0.05, 0.005),
    ("BBBABBB", 0.05, 0.005),
    ("AAABAAA", 0.005, 0.05),
    ("ABABAB", 0.02, 0.02),
    ("ABBA", 0.02, 0.02),
    ("ABBAABBAAB", 0.02, 0.02),
    ("ABBAABBAAB", 0.10, 0.01),
    ("AB", 0.02, 0.02),
    ("AB", 0.05, 0.05),
    ("AA/AA/AA/AA/BB", 0.02, 0.02),
    ("A/A/A/B/B/B/B/B/B/B/B/B/B", 0.05, 0.05),
    ("A/A/A/B/B/B/B/B/B/B/B/B/B", 0.05, 0.02),
    ("A/A/A/B/B/B/B/B/B", 0.05, 0.02),
    ("A/A/A/B/B/B/B", 0.05, 0.02),
    ("A/A/B/B/B/B/B/B/B/B/B/B", 0.05, 0.05),
    ("A/A/A/A/A/B", 0.02, 0.02),
    ("A/A/A/A/A/B", 0.01, 0.05),
    ("A/A/A/A/A/B", 0.10, 0.10),
]
"""The order of the runs (`/`: a day later), and the deviations of A and of B."""


def runs(
    order: str, deviations: tuple[float, float], ratio: float, chance: random.Random
) -> tuple[list[RunRate], list[RunRate]]:
    """Runs of 20 s, ten seconds apart."""
    sides: dict[str, list[RunRate]] = {"A": [], "B": []}
    t = 1e9
    for label in order:
        if label == "/":
            t += DAY
            continue
        place = "AB".index(label)
        sides[label].append(
            RunRate(
                chance.gauss(0, deviations[place]) + math.log(ratio) * place, 0.0, "box", t, t + 20
            )
        )
        t += 30
    return sides["A"], sides["B"]


def outcomes(order: str, deviations: tuple[float, float], ratio: float, times: int) -> Counter[str]:
    return Counter(
        decide(ratio_of(*runs(order, deviations, ratio, random.Random(seed))), LIMIT)
        for seed in range(times)
    )


def table(times: int) -> list[dict[str, Any]]:
    """Print the row of each design, and return the rows."""
    print(
        "| order | deviation of A, B | regression at the limit | at ratio 1.0 | 5 % slower is found"
        " | the same again passes |"
    )
    print("|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for order, before, after in ROWS:
        at = {ratio: outcomes(order, (before, after), ratio, times) for ratio in (LIMIT, 1.0, 0.95)}
        counts = [
            at[LIMIT]["regression"],
            at[1.0]["regression"],
            at[0.95]["regression"],
            at[1.0]["no regression"],
        ]
        rows.append(
            {
                "order": order,
                "deviations": [before, after],
                **dict(zip(("limit", "same", "slower", "passes"), counts, strict=True)),
            }
        )
        print(
            (
                f"| {order} | {before:.1%}, {after:.1%} |"
                f" {' | '.join(f'{count / times:.1%}' for count in counts)} |"
            ),
            flush=True,
        )
    return rows


def misses(rows: list[dict[str, Any]], times: int) -> list[str]:
    """The designs with more than 1 in 40 at the limit, by more than two standard errors of the
    simulation."""
    most = times * ALLOWED + 2 * math.sqrt(times * ALLOWED * (1 - ALLOWED))
    return [str(row["order"]) for row in rows if row["limit"] > most]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=4000, help="simulated comparisons of each row")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/gate-simulated-DATE.json"
    )
    args = parser.parse_args()
    rows = table(args.times)
    if args.keep:
        print(keep("gate-simulated", {"times": args.times, "limit": LIMIT, "rows": rows}))
    return 1 if misses(rows, args.times) else 0


if __name__ == "__main__":
    sys.exit(main())
