"""Does probe P7's exposed communication equal the time that gradient accumulation then saves?

    python -m benchmarks.communication [--runs 8] [--duration 12] [--keep]

Each run is `ddp-small-batch` with a trial of `gradient_accumulation_steps` 1 -> 4. Accumulation
exchanges and updates once in four passes, so a pass saves 3/4 of (exposed communication + update);
the time of the update comes from the step breakdown. Both sides use contention-free time. Exit code
1: the interval of the median ratio (P7 over the trial) lies completely beyond 10 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.headless import RunError, session
from benchmarks.intervals import interval
from benchmarks.machine import keep
from gpuconsole.model.snapshot import Snapshot

SCENARIO = "ddp-small-batch"
PASSES = 4
WITHIN = 0.10


def compare(snapshot: Snapshot) -> dict[str, float]:
    """Exposed seconds per exchange by P7, and by the trial. Raises RunError if one of them is
    missing."""
    signals = {name: signal.value for name, signal in snapshot.runs[0].signals.items()}
    speedup = snapshot.trials[0].speedup if snapshot.trials else None
    if speedup is None or "comm.exposed_s" not in signals:
        raise RunError("no trial or no probe P7")
    step_s = signals["step_s"]
    update_s = step_s * signals["optimizer_ratio"]
    saved_s = step_s * (1 - 1 / speedup.estimate) * PASSES / (PASSES - 1)
    return {
        "step_s": step_s,
        "update_s": update_s,
        "probe_exposed_s": signals["comm.exposed_s"],
        "realised_exposed_s": saved_s - update_s,
        "speedup": speedup.estimate,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
    }


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--duration", type=float, default=12, metavar="S")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/communication-DATE.json"
    )
    args = parser.parse_args(argv)
    made = []
    for number in range(1, args.runs + 1):
        one = compare(
            session(SCENARIO, args.duration, "--try", f"gradient_accumulation_steps={PASSES}")
        )
        made.append(one)
        print(
            (
                f"{number}: step {one['step_s'] * 1e3:.1f} ms   P7"
                f" {one['probe_exposed_s'] * 1e3:.1f} ms   realised"
                f" {one['realised_exposed_s'] * 1e3:.1f} ms   {one['speedup']:.3f}x"
                f" [{one['speedup_low']:.3f}, {one['speedup_high']:.3f}]"
            ),
            flush=True,
        )
    ratio = (
        interval([one["probe_exposed_s"] for one in made])[0]
        / interval([one["realised_exposed_s"] for one in made])[0]
    )
    _, low, high = interval([one["probe_exposed_s"] / one["realised_exposed_s"] for one in made])
    print(f"median P7 / median realised {ratio:.3f}; of single runs [{low:.3f}, {high:.3f}]")
    if args.keep:
        print(
            keep(
                "communication",
                {"scenario": SCENARIO, "runs": made, "ratio": ratio, "low": low, "high": high},
            )
        )
    return int(high < 1 - WITHIN or low > 1 + WITHIN)


if __name__ == "__main__":
    sys.exit(main())
