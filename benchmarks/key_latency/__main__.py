"""How long does a key wait for its screen, and how long does a start take?

    python -m benchmarks.key_latency [--gpus 64] [--interval 0.1] [--line-kb-s 20] [--presses 100]
        [--keep]

The real program at 120x40 in a pty over the fake driver: at rest (1 GPU, 1 Hz) and busy (--gpus,
--interval), each on a line that is never full and on a line of --line-kb-s; and busy with a slow
driver (20 ms for a PCIe call, sometimes 200 ms for any call). The conditions alternate, so that
drift affects all of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.fake_box import FakeBox, build_driver
from benchmarks.key_latency.presses import Condition, Latencies, press_keys
from benchmarks.key_latency.startup import Row, start_once
from benchmarks.machine import keep
from benchmarks.slow_line import SlowLine

HICCUPS = (200, 500)
UNCHANGED_S = 0.01
"""A p95 with the slow driver that is within this of the p95 without is called unchanged."""


def conditions(gpus: int, interval_s: float, line_kb_s: float) -> list[Condition]:
    rate, hz, slow = (
        f"{line_kb_s:g} KB/s",
        f"{1 / interval_s:g} Hz",
        lambda: SlowLine(line_kb_s * 1000),
    )
    return [
        Condition("at rest: 1 GPU, 1 Hz", 1, 1.0),
        Condition(f"{gpus} GPUs, {hz}", gpus, interval_s),
        Condition(f"{gpus} GPUs, {hz}, slow driver", gpus, interval_s, pcie_ms=20, hiccups=HICCUPS),
        Condition(f"at rest, {rate}", 1, 1.0, slow),
        Condition(f"{gpus} GPUs, {hz}, {rate}", gpus, interval_s, slow),
    ]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def print_presses(known: dict[str, Latencies]) -> None:
    print(
        f"{'? to the help screen, ms':<34}{'first row':>16}{'all rows':>24}{'':>14}{'Escape':>10}"
    )
    print(
        f"{'':<34}{'p50':>8}{'p95':>8}{'p50':>8}{'p95':>8}{'p99':>8}{'n':>6}{'lost':>6}{'p50':>8}"
        f"{'p95':>8}{'B/s':>8}"
    )

    def ms(values: Sequence[float], *shares: float) -> str:
        return "".join(f"{1000 * percentile(values, share):>8.0f}" for share in shares)

    for name, found in known.items():
        help_, count = (
            ms(found.help_s, 0.5, 0.95, 0.99),
            f"{len(found.help_s):>6}{found.unanswered:>6}",
        )
        rate = f"{statistics.fmean(found.bytes_per_s):>8.0f}"
        print(
            f"{name:<34}{ms(found.shows_s, 0.5, 0.95)}{help_}{count}{ms(found.escape_s, 0.5, 0.95)}"
            f"{rate}"
        )
    print("Escape: Textual waits 100 ms whether more of a special key follows")


def print_starts(rows: Sequence[Row]) -> None:
    print(
        f"\n{'start, 8 GPUs, s':<34}{'median':>8}{'least':>8}{'most':>8}{'x python':>10}"
        f"{'x textual':>10}"
    )
    names = {
        "first_screen_s": "first screen",
        "first_data_s": "first measured number",
        "python_s": "python -c pass",
        "import_textual_s": "python -c 'import textual.app'",
    }
    base = {
        name: statistics.median(row[name] for row in rows)
        for name in ("python_s", "import_textual_s")
    }
    for name, label in names.items():
        values = [row[name] for row in rows]
        middle = statistics.median(values)
        ratios = "".join(f"{middle / known:>10.1f}" for known in base.values())
        print(f"{label:<34}{middle:>8.3f}{min(values):>8.3f}{max(values):>8.3f}{ratios}")


def judge(known: dict[str, Latencies], starts: Sequence[Row]) -> list[str]:
    """One line per target."""

    def line(what: str, own_s: float, limit_s: float) -> str:
        return (
            f"{'met' if own_s <= limit_s else 'MISSED':<8} {what}: {1000 * own_s:.0f} ms, limit"
            f" {1000 * limit_s:.0f} ms"
        )

    lines = []
    if len(known) == 5:
        _, busy, slow_driver, _, slow_line = known.items()
        without = percentile(busy[1].help_s, 0.95)
        lines += [
            line(f"p95, {busy[0]}: all rows", without, 0.050),
            line(f"p95, {slow_line[0]}: first row", percentile(slow_line[1].shows_s, 0.95), 0.150),
            line(f"p95, {slow_line[0]}: all rows", percentile(slow_line[1].help_s, 0.95), 0.150),
            line(
                f"p95, {slow_driver[0]}: unchanged",
                percentile(slow_driver[1].help_s, 0.95),
                without + UNCHANGED_S,
            ),
        ]
    if starts:
        lines += [
            line(
                "first recognisable screen",
                statistics.median(row["first_screen_s"] for row in starts),
                0.100,
            ),
            line(
                "first measured number",
                statistics.median(row["first_data_s"] for row in starts),
                0.700,
            ),
        ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between two samples")
    parser.add_argument("--line-kb-s", type=float, default=20.0)
    parser.add_argument("--presses", type=int, default=100, help="of each key under each condition")
    parser.add_argument(
        "--rounds", type=int, default=2, help="the presses are spread over so many starts"
    )
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    all_conditions = conditions(args.gpus, args.interval, args.line_kb_s)
    known = {condition.name: Latencies() for condition in all_conditions} if args.presses else {}
    starts: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = build_driver(folder / "driver")
        with FakeBox(folder / "starts", driver, 8) as box:
            for turn in range(args.starts + 1):
                starts.append(start_once(box, folder / f"start-{turn}"))
        for turn in range(args.rounds if args.presses else 0):
            for number, condition in enumerate(all_conditions):
                print(f"round {turn + 1}: {condition.name}", file=sys.stderr, flush=True)
                press_keys(
                    condition,
                    folder / f"keys-{turn}-{number}",
                    driver,
                    -(-args.presses // args.rounds),
                    known[condition.name],
                )
    starts = starts[1:]  # the first fills the disk's cache
    if known:
        print_presses(known)
    if starts:
        print_starts(starts)
    verdicts = judge(known, starts)
    print("\nTargets", *verdicts, sep="\n")
    if args.keep:
        found = {
            "gpus": args.gpus,
            "interval_s": args.interval,
            "line_kb_s": args.line_kb_s,
            "starts": starts,
            "targets": verdicts,
        }
        found["keys"] = {name: asdict(value) for name, value in known.items()}
        print(f"kept in {keep('key-latency', found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
