"""Half an hour of the real console at 10 Hz on 8 fake GPUs: does its memory grow, and does every
sample arrive?

    python -m benchmarks.soak [--minutes 30] [--accelerate] [--keep]

Reads the memory of console and sampler every few seconds and fits a line through means of 30 s;
prints its slope with the 95 % interval. The time in which histories fill is left out, at most half
of the total. The expected samples are those between the first and the last sample in a recording of
the same session; the program must have reported the missing ones. --accelerate: 20 Hz, and a walk
through all screens.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.fake_box import FakeBox, build_driver
from benchmarks.machine import keep
from benchmarks.own_program import (
    own_command,
    own_environment,
    roles,
    to_main_screen,
    wait_for_idle_worker,
)
from benchmarks.pty_program import Program, cpu_s, rss_bytes
from benchmarks.soak.samples import Account, read
from benchmarks.soak.slope import BLOCK_S, Slope, slope
from gpuconsole.model.series import BUCKETS, FOLD, RAW

GPUS = 8
LOOK_S = 3.0
WALK = b"?\x1bi\x1bh\x1bs\x1bk\x1bd\x1b"
STEP_S = 1.0
FLAT_BYTES_PER_MIN = 20_000
"""Growth surely below this (29 MB a day) is not called growth."""
PARTS = ("console", "sampler")

Look = dict[str, float]


def watch(program: Program, minutes: float, walk: bool) -> list[Look]:
    """Memory and CPU time of both processes every `LOOK_S`, `t` in seconds from now."""
    begun, looks = time.monotonic(), []
    keys = itertools.cycle(WALK)
    next_look = next_step = begun
    while (now := time.monotonic()) < begun + 60 * minutes and not program.ended:
        if now >= next_look:
            next_look += LOOK_S
            found = roles(program.process.pid)
            look = {"t": now - begun}
            for part in PARTS:
                look |= {
                    f"{part}_rss_bytes": rss_bytes(found[part]),
                    f"{part}_cpu_s": cpu_s(found[part]),
                }
            looks.append(look)
        if walk and now >= next_step:
            next_step += STEP_S
            program.press(bytes([next(keys)]))
        program.read(0.05)
        del program.chunks[:-500]
    return looks


def say_memory(looks: list[Look], warm_s: float) -> dict[str, Slope | None]:
    """Print how memory went; returns the slopes in bytes per minute."""
    steady = [look for look in looks if look["t"] >= warm_s]
    slopes: dict[str, Slope | None] = {}
    for part in PARTS:
        values = [look[f"{part}_rss_bytes"] for look in steady]
        found = slope([look["t"] for look in steady], values)
        per_min = (
            Slope(60 * found.estimate, 60 * found.low, 60 * found.high, found.blocks)
            if found
            else None
        )
        slopes[part] = per_min
        first, last = looks[0][f"{part}_rss_bytes"] / 1e6, looks[-1][f"{part}_rss_bytes"] / 1e6
        cpu = (
            100
            * (looks[-1][f"{part}_cpu_s"] - looks[0][f"{part}_cpu_s"])
            / (looks[-1]["t"] - looks[0]["t"])
        )
        grew = (
            f"{per_min.estimate:+.0f} [{per_min.low:+.0f}, {per_min.high:+.0f}] bytes/min"
            if per_min
            else "too short for a slope"
        )
        print(
            f"{part:<9} {first:.1f} MB at first, {values[0] / 1e6:.1f} when warm, {last:.1f} at"
            f" last; {grew}; CPU {cpu:.1f} %"
        )
    return slopes


def say_samples(account: Account, interval_s: float) -> list[str]:
    """Print how many of the expected samples arrived; returns verdicts."""
    expected = {gpu: rounds.expected(interval_s) for gpu, rounds in account.gpus.items()}
    lost = {gpu: expected[gpu] - rounds.received for gpu, rounds in account.gpus.items()}
    worst = max(lost.values(), default=0)
    print(
        f"samples: {sum(r.received for r in account.gpus.values())} of {sum(expected.values())},"
        f" {len(lost)} GPUs; the worst lost {worst}"
    )
    print(
        f"the program told: {account.told_missed} rounds missed, slowest beat"
        f" {account.slowest_period_s:.2f} s, {len(account.notes)} notes"
    )
    told = worst <= account.told_missed + 1
    return [
        f"{'met' if len(lost) == GPUS else 'MISSED':<8} samples of all {GPUS} GPUs",
        (
            f"{'met' if told else 'MISSED':<8} what was lost was told: {worst} lost,"
            f" {account.told_missed} told"
        ),
    ]


def verdict(part: str, found: Slope | None) -> str:
    if found is None:
        return f"unknown  {part}: too short"
    state = "met" if found.low <= 0 or found.high < FLAT_BYTES_PER_MIN else "MISSED"
    return (
        f"{state:<8} {part} does not grow: [{found.low:+.0f}, {found.high:+.0f}] bytes/min,"
        f" {found.blocks} means of {BLOCK_S:.0f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--accelerate", action="store_true", help="20 Hz and a walk through the screens"
    )
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    interval_s = 0.05 if args.accelerate else 0.1
    fills_s = (RAW + BUCKETS * FOLD) * interval_s
    warm_s = min(fills_s + 60, 30 * args.minutes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with FakeBox(folder / "box", build_driver(folder / "driver"), GPUS, pcie_ms=0) as box:
            command = own_command("--interval", str(interval_s), "--record", "soak.jsonl")
            with Program(command, environment=own_environment(box, folder), cwd=folder) as program:
                if not program.read_until_shown(r"H200", 60) or not to_main_screen(program):
                    raise SystemExit(f"no main screen; the screen:\n{program.picture()}")
                wait_for_idle_worker(program)
                looks = watch(program, args.minutes, args.accelerate)
                if program.ended:
                    raise SystemExit(
                        f"it ended after {looks[-1]['t']:.0f} s; the screen:\n{program.picture()}"
                    )
                program.press(b"\x1b")
                program.read_for(1.0)
                program.press(b"q")
                program.wait_end(15.0)
        account = read(folder / "soak.jsonl")
    print(
        f"{looks[-1]['t'] / 60:.1f} min at {1 / interval_s:.0f} Hz; the first {warm_s / 60:.1f}"
        " min, in which histories fill, left out"
    )
    slopes = say_memory(looks, warm_s)
    verdicts = say_samples(account, interval_s) + [
        verdict(part, found) for part, found in slopes.items()
    ]
    print("\nTargets", *verdicts, sep="\n")
    if args.keep:
        told = {part: found._asdict() if found else None for part, found in slopes.items()}
        result = {
            "interval_s": interval_s,
            "warm_s": warm_s,
            "bytes_per_min": told,
            "samples": asdict(account),
            "looks": looks[::10],
        }
        print(f"kept in {keep('soak', {**result, 'targets': verdicts})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
