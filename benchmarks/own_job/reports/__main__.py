"""Is the cause of a public report of slow training named, with its line?

    python -m benchmarks.own_job.reports [--only NAME ...] [--seconds 30] [--libraries FOLDER]
        [--keep] [--show]

Runs each program of `programs` (one for each report of `cases.py`) under
`gpuconsole run --headless`, then four times without gpuconsole: with the fault, twice without it
(`--fixed`), with it. A row of the table says:

- share: the share of the time of a step that the slow part takes by the program's own stamps, in
  the watched run;
- gain: the rate without the fault over the rate with it, without gpuconsole;
- cause: the rank of the finding that names the right cause, among the findings that fire (1: on
  top; other true findings do not count); "open": no finding does, and the diagnosis says so; or
  "missed";
- line: whether that finding, or the open diagnosis, names a line that carries `# slow` in the
  program;
- accused: rules that fire although they are wrong; notes do not count;
- recoverable: the gain that the finding promises, 1 / (1 - recoverable). If the suggestion of the
  finding does the same as `--fixed`, also the predicted interval, with "held" if the interval
  contains the gain.

Exit code 1: a cause is missed or not on top, a line is missing, or something else is accused.
`--libraries`: a folder with modules of the programs that this Python lacks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import keep
from benchmarks.own_job.reports.cases import CASES, Case

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 240.0


class Row(NamedTuple):
    """One report. `missing`: why it was not run to its end. `cause`: the rank of the finding with
    the right cause, or None. `is_open`: no finding has it, and the diagnosis says "no conclusion".
    """

    name: str
    missing: str = ""
    share: float = 0.0
    gain: float | None = None
    cause: int | None = None
    is_open: bool = False
    rule: str = ""
    line: bool | None = None
    accused: tuple[str, ...] = ()
    recoverable: float | None = None
    predicted: tuple[float, float] | None = None

    @property
    def right(self) -> bool:
        return self.cause == 1 and self.line is not False and not self.accused

    @property
    def held(self) -> bool | None:
        """Whether the predicted interval holds the gain. None: nothing is predicted, or the fix
        gains no time."""
        return (
            None
            if self.predicted is None or self.gain is None
            else self.predicted[0] <= self.gain <= self.predicted[1]
        )

    def text(self) -> str:
        if self.missing:
            return f"{self.name:<20} not run: {self.missing}"
        gain = f"{self.gain:.2f}x" if self.gain is not None else "n/a"
        cause = str(self.cause or ("open" if self.is_open else "missed"))
        line = {None: "n/a", True: "yes", False: "NO"}[self.line]
        promised = (
            f"{1 / (1 - min(self.recoverable, 0.99)):.2f}x"
            if self.recoverable is not None
            else "n/a"
        )
        if self.predicted is not None:
            held = {None: "", True: " held", False: " NOT held"}[self.held]
            promised += f", {self.predicted[0]:.2f}-{self.predicted[1]:.2f}x{held}"
        accused = ", ".join(self.accused)
        return (
            f"{self.name:<20} {self.share:5.0%}  {gain:>7}  {cause:>6}  {line:>4}  {self.rule:<24}"
            f" {promised:<28} {accused}"
        )


HEADER = (
    f"{'report':<20} {'share':>5}  {'gain':>7}  {'cause':>6}  {'line':>4}  {'rule':<24}"
    f" {'recoverable':<28} accused"
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", choices=list(CASES), metavar="NAME", help="names of reports"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="length of the watched run; each of the others takes a third of it",
    )
    parser.add_argument(
        "--libraries", type=Path, help="a folder with modules that this Python lacks"
    )
    parser.add_argument("--keep", action="store_true", help="write the rows to benchmarks/results")
    parser.add_argument("--show", action="store_true", help="print the summary of each watched run")
    args = parser.parse_args()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            [os.getcwd(), *([str(args.libraries)] if args.libraries else [])]
        ),
    }
    rows = []
    print(HEADER, flush=True)
    for name in args.only or CASES:
        try:
            rows.append(examined(name, CASES[name], args.seconds, environment, args.show))
        except RuntimeError as error:
            rows.append(Row(name, missing=str(error)))
        print(rows[-1].text(), flush=True)
    ran = [row for row in rows if not row.missing]
    lines, held = (
        [row for row in ran if row.line is not None],
        [row for row in ran if row.held is not None],
    )
    print(
        f"{len(ran)} reports: cause on top {sum(row.cause == 1 for row in ran)}, named"
        f" {sum(row.cause is not None for row in ran)}, left open with a line"
        f" {sum(row.is_open and bool(row.line) for row in ran)}, with a line"
        f" {sum(bool(row.line) for row in lines)} of {len(lines)}, accused something else"
        f" {sum(bool(row.accused) for row in ran)}, interval held"
        f" {sum(bool(row.held) for row in held)} of {len(held)}"
    )
    if args.keep:
        print(
            keep(
                "own_job_reports",
                {"rows": [{**row._asdict(), "right": row.right, "held": row.held} for row in ran]},
            )
        )
    return 0 if all(row.right for row in ran) else 1


def examined(name: str, case: Case, seconds: float, environment: dict[str, str], show: bool) -> Row:
    for module in case.needs:
        if subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            env=environment,
            capture_output=True,
            check=False,
        ).returncode:
            return Row(name, missing=f"{module} is not installed")
    with tempfile.TemporaryDirectory() as place:
        snapshot, summary = Path(place) / "snapshot.json", Path(place) / "summary.txt"
        before = (
            sys.executable,
            "-m",
            "gpuconsole",
            "run",
            "--headless",
            "--quiet",
            "--snapshot",
            str(snapshot),
            "--summary",
            str(summary),
            "--",
        )
        told = ran(name, case, place, {**environment, "SECONDS": f"{seconds}"}, before)
        shorter = {**environment, "SECONDS": f"{seconds / 3}"}
        rates = dict.fromkeys((False, True), 0.0)
        for fixed in (False, True, True, False):  # a slow change of the machine's speed cancels out
            rates[fixed] += ran(name, case, place, shorter, fixed=fixed)["rate"]
        text = summary.read_text(encoding="utf-8")
        if show:
            print(text, flush=True)
        run = json.loads(snapshot.read_text(encoding="utf-8"))["runs"][0]
    fired = [
        finding
        for finding in run["findings"]
        if finding["state"] == "fires"
        and not (finding["note"] and finding["rule"] not in case.truth)
    ]
    right = [finding for finding in fired if finding["rule"] in case.truth]
    accused = tuple(
        finding["rule"] for finding in fired if finding["rule"] not in (*case.truth, *case.also)
    )
    row = Row(
        name,
        share=told["share"],
        gain=None if case.memory else rates[True] / rates[False],
        accused=accused,
    )
    if not right:
        is_open = not fired and "no conclusion" in text
        return row._replace(
            is_open=is_open,
            line=is_open and named(name, diagnosis_in(text)) if case.line else None,
        )
    finding = right[0]
    intervals = [
        suggestion["predicted_speedup"]
        for suggestion in finding["suggestions"]
        if suggestion["predicted_speedup"]
    ]
    return row._replace(
        cause=[
            other for other in fired if other["rule"] not in case.also or other is finding
        ].index(finding)
        + 1,
        rule=finding["rule"],
        line=named(name, json.dumps(finding)) if case.line else None,
        recoverable=None
        if finding["resource"] == "memory" or finding["note"]
        else finding["recoverable_ratio"],
        predicted=(intervals[0]["low"], intervals[0]["high"])
        if intervals and case.same_fix
        else None,
    )


def ran(
    name: str,
    case: Case,
    place: str,
    environment: dict[str, str],
    before: tuple[str, ...] = (),
    fixed: bool = False,
) -> dict[str, float]:
    """Run a program, and return the figures that its first rank prints at the end. Raises
    `RuntimeError` if the program failed."""
    launched = (
        ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}")
        if case.ranks > 1
        else ()
    )
    command = [
        *before,
        sys.executable,
        *launched,
        str(PROGRAMS / f"{name}.py"),
        *(("--fixed",) if fixed else ()),
    ]
    done = subprocess.run(
        command,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = re.search(r'\{"rate".*?\}', done.stderr)  # two ranks may print into one line
    told = {key: float(value) for key, value in json.loads(said[0]).items()} if said else {}
    if done.returncode or not told.get("steps"):
        raise RuntimeError(
            f"{name} ended with exit code {done.returncode} after {told.get('steps', 0):.0f}"
            f" counted steps: {done.stderr[-2000:]}"
        )
    return told


def diagnosis_in(summary: str) -> str:
    """Return the open question of a headless summary, below notes if there are any."""
    return summary.partition("no conclusion: ")[2].partition("\n\n")[0]


def named(name: str, text: str) -> bool:
    """Return whether a finding or a diagnosis names a line of the cause."""
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8").splitlines()
    slow = {number for number, line in enumerate(source, 1) if "# slow" in line}
    return any(int(number) in slow for number in re.findall(rf"{name}\.py:(\d+)", text))


if __name__ == "__main__":
    sys.exit(main())
