"""The console with its own terminal driver compared with the same console with Textual's driver.

    python -m benchmarks.console_cost.drivers [--gpus 1 8 64] [--rounds 6] [--seconds 20]
        [--presses 10] [--line-kb-s 20] [--keep]

Every round starts the console once with each driver under each condition, in turn, so that drift
affects both. The conditions: each number of GPUs at 1 Hz and 8 GPUs at 10 Hz on a line that is
never full, and 8 GPUs at 10 Hz on a line of --line-kb-s. All at 120x40 in a pty, over the fake
driver with moving values. Measured: bytes per second to the terminal and CPU share of the console
process while nobody types, and the time from `?` to the help screen.
A figure is a median with its 95 % bootstrap interval. A ratio is Textual's figure over ours, taken
within each round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.console_cost.measure import SETTLE_S, window
from benchmarks.fake_box import build_driver
from benchmarks.intervals import interval
from benchmarks.key_latency.presses import Condition, Latencies, main_screen, press
from benchmarks.machine import keep
from benchmarks.slow_line import SlowLine

OWN, TEXTUAL = "gpuconsole", "Textual"
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    OWN: {},
    TEXTUAL: {"TEXTUAL_DRIVER": "textual.drivers.linux_driver:LinuxDriver"},
}
BUSY_GPUS, BUSY_INTERVAL_S = 8, 0.1
FIGURES = (
    ("bytes_per_s", "bytes/s", "{:.0f}"),
    ("cpu_percent", "CPU of the console, %", "{:.2f}"),
    ("first_row_ms", "? to the first row, ms", "{:.0f}"),
    ("all_rows_ms", "? to all rows, ms", "{:.0f}"),
)


@dataclass(frozen=True)
class Session:
    """One start of the console. The figures are those of `FIGURES`; of the keys, the medians over
    the presses."""

    condition: str
    driver: str
    turn: int
    figures: Mapping[str, float]
    unanswered: int


def conditions(
    gpus: Sequence[int], line_kb_s: float, environment: Mapping[str, str]
) -> list[Condition]:
    def slow() -> SlowLine:
        return SlowLine(line_kb_s * 1000)

    busy = f"{BUSY_GPUS} GPUs, {1 / BUSY_INTERVAL_S:g} Hz"
    return [
        *(
            Condition(f"{count} GPU{'s' * (count > 1)}, 1 Hz", count, 1.0, environment=environment)
            for count in gpus
        ),
        Condition(busy, BUSY_GPUS, BUSY_INTERVAL_S, environment=environment),
        Condition(
            f"{busy}, {line_kb_s:g} KB/s", BUSY_GPUS, BUSY_INTERVAL_S, slow, environment=environment
        ),
    ]


def measure(
    condition: Condition,
    name: str,
    turn: int,
    folder: Path,
    fake_driver: Path,
    seconds: float,
    presses: int,
) -> Session:
    """One session with the terminal driver `name`."""
    latencies = Latencies()
    with main_screen(condition, folder, fake_driver) as (program, box):
        program.read_for(SETTLE_S)
        row = window(program, box, seconds)
        if presses:
            press(program, presses, latencies)
    figures = {"bytes_per_s": row["bytes_per_s"], "cpu_percent": row["console_cpu_percent"]}
    if latencies.help_s:
        figures["first_row_ms"] = 1000 * statistics.median(latencies.shows_s)
        figures["all_rows_ms"] = 1000 * statistics.median(latencies.help_s)
    return Session(condition.name, name, turn, figures, latencies.unanswered)


def summarized(
    sessions: Sequence[Session], condition: str, figure: str
) -> dict[str, tuple[float, float, float]]:
    """Median, low end and high end of `figure` for each driver, then for the ratio. Empty if no
    round has both drivers."""
    by_turn: dict[int, dict[str, float]] = {}
    for session in sessions:
        if session.condition == condition and figure in session.figures:
            by_turn.setdefault(session.turn, {})[session.driver] = session.figures[figure]
    pairs = [(values[OWN], values[TEXTUAL]) for values in by_turn.values() if len(values) == 2]
    if not pairs:
        return {}
    return {
        OWN: interval([own for own, _ in pairs]),
        TEXTUAL: interval([textual for _, textual in pairs]),
        "ratio": interval([textual / own for own, textual in pairs]),
    }


def table(sessions: Sequence[Session]) -> list[str]:
    """A Markdown table, as in results/README.md."""
    lines = [
        "| condition | figure | Textual's driver | gpuconsole's driver | ratio |",
        "|---|---|---|---|---|",
    ]
    for condition in dict.fromkeys(session.condition for session in sessions):
        for figure, title, form in FIGURES:
            if summary := summarized(sessions, condition, figure):
                cells = [_shown(summary[name], form) for name in (TEXTUAL, OWN)] + [
                    _shown(summary["ratio"], "{:.2f}")
                ]
                lines.append(f"| {condition} | {title} | {' | '.join(cells)} |")
    return lines


def _shown(summary: tuple[float, float, float], form: str) -> str:
    median, low, high = (form.format(value) for value in summary)
    return f"{median} [{low}, {high}]"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="without keys, for bytes and CPU"
    )
    parser.add_argument("--presses", type=int, default=10, help="of ? in each session")
    parser.add_argument("--line-kb-s", type=float, default=20.0)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    sessions: list[Session] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake_driver = build_driver(folder / "driver")
        for turn in range(args.rounds):
            order = (OWN, TEXTUAL) if turn % 2 == 0 else (TEXTUAL, OWN)
            by_driver = [
                conditions(args.gpus, args.line_kb_s, ENVIRONMENTS[driver]) for driver in order
            ]
            for number, same_condition in enumerate(zip(*by_driver, strict=True)):
                for driver, condition in zip(order, same_condition, strict=True):
                    at = folder / f"{turn}-{number}-{driver}"
                    session = measure(
                        condition, driver, turn, at, fake_driver, args.seconds, args.presses
                    )
                    sessions.append(session)
                    figures = ", ".join(
                        f"{title} {form.format(session.figures.get(key, float('nan')))}"
                        for key, title, form in FIGURES
                    )
                    print(
                        f"round {turn + 1}, {condition.name}, {driver}: {figures}",
                        file=sys.stderr,
                        flush=True,
                    )
    print(*table(sessions), sep="\n")
    unanswered = {
        driver: sum(session.unanswered for session in sessions if session.driver == driver)
        for driver in ENVIRONMENTS
    }
    print(f"keys without an answer: {unanswered}; load at the end: {os.getloadavg()[0]:.1f}")
    if args.keep:
        rows = [
            {
                "condition": s.condition,
                "driver": s.driver,
                "round": s.turn + 1,
                **s.figures,
                "unanswered": s.unanswered,
            }
            for s in sessions
        ]
        cost = {"seconds": args.seconds, "presses": args.presses, "sessions": rows}
        print(f"kept in {keep('console-drivers', cost)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
