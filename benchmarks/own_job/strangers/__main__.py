"""Programs of strangers, alone and under gpuconsole: what changes, and what gpuconsole says.

    python -m benchmarks.own_job.strangers --python PYTHON [--only NAME ...] [--mirrors FOLDER]
        [--alone] [--keep FILE]

Each program of programs.py is fetched at a pinned commit, made small by the edits of its row, and
run with PYTHON: alone, and as `gpuconsole run --headless -- PROGRAM` (with --apply-top where a
fault with a live fix is built in). Both runs are stamped by torch's public hooks
(stamps/sitecustomize.py). A row of the table says:

- same: output, exit code and files as without gpuconsole (times and rates that the program prints
  are left out; where runs of the program differ by themselves, the exit code and the names of the
  files);
- steps: those that gpuconsole counted, and the calls of `optimizer.step()` by the program;
- worst phase: the largest difference between a phase's share and that by the stamps of the same
  run, in points;
- finding: the first line of the diagnosis; right: the fault that was built in is on top, or,
  without one, no rule is accused against the stamps and a clean bill leaves no wait of a tenth of a
  step;
- patch: what a kept change brought by the proof, and what its patch brings in the program alone:
  the time of the first PART of the steps without the patch by that with it, medians of PAIRS runs
  each, in turn.

PYTHON needs torch, and the modules that a row names; rows whose modules are missing are left out
with their names. Exit code 1: a row is not right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.own_job.strangers import material
from benchmarks.own_job.strangers.programs import PROGRAMS, Program
from benchmarks.own_job.strangers.stamps.sitecustomize import SKIPPED
from gpuconsole.model.run import PHASES, PROBE, Step
from gpuconsole.wire.events import Steps
from gpuconsole.wire.recording import read_recording

HERE = Path(__file__).resolve().parent
MAX_S = 240.0
PAIRS, PART = 3, 1 / 3
WAIT, POINTS = 0.1, 3.0
"""A share of the step that a clean bill must not leave to waiting; points by which a phase may
differ from the stamps."""
VOLATILE = (
    re.compile(r"\d+[.:]?\d*\s*(?:ms|s|sec|it|batch|samples|steps|examples)\b(?:/\w+)?"),
    re.compile(r"\d\d:\d\d(:\d\d)?"),
    re.compile(r"0x[0-9a-f]+"),
)
STAMP = re.compile(r"\d{8}-\d{6}")
LEFT_OUT = (
    "__pycache__",
    ".pyc",
    "events.out.tfevents",
    ".log",
    "lightning_logs",
    "runs",
    ".hydra",
)


class Ran(NamedTuple):
    """A run. `stamps`: of the process with most steps; empty without any."""

    code: int
    output: str
    files: dict[str, str]
    stamps: dict[str, Any]
    wall_s: float


class Difference(NamedTuple):
    """A phase's share as told by the console and as stamped."""

    phase: str
    told: float
    stamped: float

    @property
    def points(self) -> float:
        return 100 * abs(self.told - self.stamped)

    def __str__(self) -> str:
        return f"{self.points:.1f}: {self.phase} {self.told:.1%}, stamped {self.stamped:.1%}"


class Row(NamedTuple):
    """A row of the table. `problems`: what is not right; empty if all is."""

    program: str
    source: str
    same: str
    steps: str
    worst: str
    finding: str
    patch: str
    problems: list[str]

    def markdown(self) -> str:
        cells = (
            self.program,
            self.source,
            self.same,
            self.steps,
            self.worst,
            self.finding,
            self.patch,
            "; ".join(self.problems) or "yes",
        )
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


HEAD = "| program | source | same | steps | worst phase | finding | patch | right |\n|" + "---|" * 8


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="the Python of the programs")
    parser.add_argument("--only", nargs="*", help="names of programs, or parts of them")
    parser.add_argument(
        "--mirrors",
        type=Path,
        help="a folder with git directories OWNER+NAME/repo, in place of GitHub",
    )
    parser.add_argument(
        "--alone", action="store_true", help="run the programs without gpuconsole only"
    )
    parser.add_argument(
        "--keep", type=Path, help="a file to which the rows are added as JSON lines"
    )
    parser.add_argument(
        "--table",
        type=Path,
        help="run nothing: print the newest row of each program in this file of --keep",
    )
    args = parser.parse_args()
    if args.table:
        kept = [json.loads(line) for line in args.table.read_text(encoding="utf-8").splitlines()]
        newest = {row.pop("program"): row for row in kept}
        rows = [
            Row(program.name, *(newest[program.name][name] for name in Row._fields[1:]))
            for program in PROGRAMS
            if program.name in newest
        ]
        print("\n".join([HEAD, *(row.markdown() for row in rows)]))
        print(f"\n{sum(not row.problems for row in rows)} of {len(rows)} right")
        return 0
    chosen = [
        program
        for program in PROGRAMS
        if not args.only or any(part in program.name for part in args.only)
    ]
    if not chosen:
        print(
            "no program has such a name; the programs are: "
            + ", ".join(program.name for program in PROGRAMS),
            file=sys.stderr,
        )
        return 2
    there = _there(args.python, {module for program in chosen for module in program.needs})
    print(HEAD, flush=True)
    rows = []
    for program in chosen:
        if lacking := [module for module in program.needs if module not in there]:
            print(
                f"{program.name}: left out, {args.python} has no {', '.join(lacking)}",
                file=sys.stderr,
            )
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = compared(program, args.python, Path(folder), args.mirrors, args.alone)
            except (subprocess.SubprocessError, OSError, ValueError) as problem:
                row = Row(program.name, _source(program), "", "", "", "", "", [str(problem)])
        print(row.markdown(), flush=True)
        rows.append(row)
        if args.keep:
            with args.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"date": date.today().isoformat(), **row._asdict()}) + "\n")
    right = sum(not row.problems for row in rows)
    print(f"\n{right} of {len(rows)} right")
    return 0 if right == len(rows) else 1


def _there(python: str, modules: set[str]) -> set[str]:
    code = (
        "import importlib.util, sys; print('\\n'.join(name for name in sys.argv[1:] if"
        " importlib.util.find_spec(name)))"
    )
    return set(
        subprocess.run(
            [python, "-c", code, *modules], check=True, capture_output=True, text=True
        ).stdout.split()
    )


def _source(program: Program) -> str:
    return (
        f"{program.source.repository}@{program.source.commit[:7]}"
        if program.source
        else "drivers.py"
    )


# --- a program ------------------------------------------------------------------------------------


def prepared(program: Program, folder: Path, mirrors: Path | None) -> Path:
    """The source with its data and edits, in a folder of its own."""
    folder.mkdir()
    if program.source:
        material.source(
            program.source.repository, program.source.commit, program.source.paths, folder, mirrors
        )
    for place, recipe in program.data.items():
        recipe(folder / place)
    for file, old, new in program.edits:
        text = (folder / file).read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{file} does not hold {old!r}")
        (folder / file).write_text(text.replace(old, new), encoding="utf-8")
    return folder


def run(
    program: Program, python: str, folder: Path, before: tuple[str, ...] = (), last_step: int = 0
) -> Ran:
    """Run the program in a copy of `folder`. `before`: words before its command. `last_step`: where
    the program ends; 0: at its own end.

    Raises subprocess.TimeoutExpired after MAX_S.
    """
    place = folder.parent / "run"  # the same path for each run: programs print it
    shutil.copytree(folder, place)
    stamps = Path(tempfile.mkdtemp(dir=folder.parent))
    words = [
        word.format(python=python, here=HERE) if "{" in word else word for word in program.command
    ]
    env = {
        **os.environ,
        "STAMPS": str(stamps),
        "PYTHONPATH": str(HERE / "stamps"),
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "PYTHONHASHSEED": "0",
        "LAST_STEP": str(last_step),
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
    }
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [*before, *words],
            cwd=place / program.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAX_S,
            errors="replace",
        )
        wall_s = time.monotonic() - begun
        known = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        files = {
            STAMP.sub("TIME", name): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(place.rglob("*"))
            if path.is_file()
            and (name := str(path.relative_to(place))) not in known
            and not any(part in name for part in LEFT_OUT)
        }
        told = [json.loads(path.read_text(encoding="utf-8")) for path in stamps.glob("*.json")]
        return Ran(
            done.returncode,
            done.stdout,
            files,
            max(told, key=lambda stamp: stamp["calls"], default={}),
            wall_s,
        )
    finally:
        shutil.rmtree(place)


def compared(
    program: Program, python: str, folder: Path, mirrors: Path | None, alone_only: bool
) -> Row:
    source = prepared(program, folder / "source", mirrors)
    alone = run(program, python, source)
    if alone_only:
        last = (alone.output.strip().splitlines() or [""])[-1][-90:]
        return Row(
            program.name,
            _source(program),
            f"exit {alone.code}, {alone.wall_s:.1f} s",
            str(alone.stamps.get("calls", 0)),
            "",
            last,
            "",
            [],
        )
    snapshot, summary, patch = (
        folder / "snapshot.json",
        folder / "summary.txt",
        folder / "changes.patch",
    )
    record = folder / "record.jsonl"
    options = [
        "--headless",
        "--quiet",
        "--snapshot",
        str(snapshot),
        "--summary",
        str(summary),
        "--record",
        str(record),
    ]
    options += [*program.options, *(["--patch", str(patch), "--apply-top"] if program.gain else [])]
    before = (sys.executable, "-m", "gpuconsole", "run", *options, "--")
    watched = run(program, python, source, before)
    problems: list[str] = []
    if alone.code:
        problems.append(f"the program alone ends with exit code {alone.code}")
    same = sameness(program, alone, watched)
    if not same.startswith("yes"):
        again = run(program, python, source)
        same = (
            f"varies by itself: {same}"
            if not sameness(program, alone, again).startswith("yes")
            else same
        )
        if not same.startswith("varies"):
            problems.append(f"not the same: {same}")
    told = json.loads(snapshot.read_text(encoding="utf-8"))
    # a kept change has mended the runs after it
    tried = {trial["baseline_run"] for trial in told["trials"]}
    own = max(
        [entry for entry in told["runs"] if entry["id"] in tried] or told["runs"],
        key=lambda entry: entry["summary"].get("steps", 0),
    )
    text = summary.read_text(encoding="utf-8")
    calls, steps = watched.stamps.get("calls", 0) / program.per_step, counted(record)
    worst, share = phases(watched.stamps, steps, program)
    if worst is not None and worst.points > POINTS:
        problems.append(f"{worst.phase} is off")
    if calls and abs(len(steps) - calls) >= 1:  # a step of some programs is a mean number of calls
        problems.append("steps")
    finding, faults = verdict(program, own, text, share)
    problems += faults
    return Row(
        program.name, _source(program), same, f"{len(steps)} of {calls:g}",
        "" if worst is None else str(worst), finding,
        patched(program, python, source, told, text, patch, alone.stamps.get("calls", 0), problems),
        problems,
    )  # fmt: skip


def sameness(program: Program, alone: Ran, other: Ran) -> str:
    """ "yes", with what was compared; otherwise what differs."""
    if alone.code != other.code:
        return f"exit code {other.code}, alone {alone.code}"
    if set(alone.files) != set(other.files):
        return "other files: " + ", ".join(sorted(set(alone.files) ^ set(other.files))[:3])
    if program.varies:
        return f"yes, but its output and bytes are not compared: {program.varies}"
    if changed := [name for name, digest in alone.files.items() if other.files[name] != digest]:
        return "other bytes in " + ", ".join(changed[:3])
    first, second = _steady(alone.output), _steady(other.output)
    if first != second:
        line, beside = next(
            ((a, b) for a, b in zip(first, second, strict=False) if a != b),
            ("", f"{len(second)} lines, alone {len(first)}"),
        )
        return f"other output: {beside[:60]!r}, alone {line[:60]!r}"
    return f"yes: {len(first)} lines, {len(alone.files)} files"


def _steady(output: str) -> list[str]:
    """The lines of an output without times, rates and progress bars."""
    lines = [line.rpartition("\r")[2] for line in output.splitlines()]
    for pattern in VOLATILE:
        lines = [pattern.sub("", line) for line in lines]
    return [line for line in lines if "%|" not in line]


def counted(record: Path) -> list[Step]:
    """The steps that the console received from the process with most steps."""
    trainings: list[list[Step]] = []
    latest: dict[int, list[Step]] = {}
    for event in read_recording(record):
        for step in event.steps if isinstance(event, Steps) else ():
            # another process trains now
            if event.rank not in latest or step.index <= latest[event.rank][-1].index:
                latest[event.rank] = []
                trainings.append(latest[event.rank])
            latest[event.rank].append(step)
    return max(trainings, key=len, default=[])


def phases(
    stamps: dict[str, Any], steps: list[Step], program: Program
) -> tuple[Difference | None, dict[str, float]]:
    """The largest difference of a phase's share from the stamps, in points, and the shares by the
    stamps."""
    steps = [step for step in steps[math.ceil(SKIPPED / program.per_step) :] if step.kind != PROBE]
    wall_s = sum(step.wall_s for step in steps)
    if not stamps.get("wall_s") or not wall_s:
        return None, {}
    shares = {
        phase: stamps[phase] / stamps["wall_s"] for phase in ("data_wait", "backward", "optimizer")
    }
    # without a loader, the lines that make a batch (an environment, perhaps) have no stamps
    if not stamps["batches"]:
        del shares["data_wait"]
    if stamps["closure"]:  # the optimizer's step holds the passes
        del shares["optimizer"]
    told = {
        phase: sum(step.phases[PHASES.index(phase)] for step in steps) / wall_s
        for phase in ("data_wait", "backward", "optimizer", "comm")
    }
    # DistributedDataParallel exchanges gradients within the backward pass
    told["backward"] += told["comm"]
    evaluated = (
        sum(step.phases[PHASES.index("eval")] for step in steps) / wall_s
    )  # the batches of some evaluations are stamped as waits, too
    if "data_wait" in shares:
        told["data_wait"] = min(
            max(told["data_wait"], shares["data_wait"]), told["data_wait"] + evaluated
        )
    phase = max(shares, key=lambda phase: abs(told[phase] - shares[phase]))
    return Difference(phase, told[phase], shares[phase]), shares


def verdict(
    program: Program, own: dict[str, Any], text: str, shares: dict[str, float]
) -> tuple[str, list[str]]:
    """What the console says on top, and what is wrong with it."""
    fired = [finding for finding in own["findings"] if finding["state"] == "fires"]
    faults = [
        finding["rule"]
        for finding in fired
        if not finding.get("note") and not finding["rule"].endswith("_healthy")
    ]
    lines = re.split(r"(?:findings|diagnosis):", text, maxsplit=1)[-1].strip().splitlines()
    said = re.sub(r"^\d+ |\s{2,}.*", "", lines[0].strip()) if lines else ""
    claims = [finding["rule"] for finding in fired if finding["rule"] in program.truth]
    problems = []
    if (
        program.truth
        and not (faults and faults[0] in program.truth)
        and not (not faults and claims)
    ):
        problems.append(f"built in: {program.truth[0]}")
    waits = shares.get("data_wait", 0.0)
    if not program.truth:
        if faults and faults[0].startswith("input.") and waits < 0.05:
            problems.append(f"{faults[0]} beside {waits:.0%} of data wait")
        if not faults and waits >= WAIT and said.lower().startswith("no fault"):
            problems.append(f"a clean bill beside {waits:.0%} of data wait")
    top = (faults or [finding["rule"] for finding in fired] or ["-"])[0]
    return f"{top}: {said}", problems


def patched(
    program: Program,
    python: str,
    source: Path,
    told: dict[str, Any],
    text: str,
    patch: Path,
    calls: int,
    problems: list[str],
) -> str:
    """What a kept change brought, and what its patch brings in the program alone. `calls`: of
    `optimizer.step()` in the whole program."""
    kept = [
        trial
        for trial in told["trials"]
        if trial.get("verdict") == "win" and trial.get("kept", True)
    ]
    if not kept:
        if program.gain:
            problems.append("no change was proven")
        return ""
    gain = kept[-1]["speedup"]
    proven = f"{gain['estimate']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}] proven"
    if not patch.exists():
        problems.append("no patch")
        return f"{proven}, no patch: {(re.findall(r'not in the patch: (.*)', text) or ['?'])[-1]}"
    changed = source.parent / "patched"
    shutil.copytree(source, changed)
    changes = patch.read_text(encoding="utf-8").replace(str(source.parent / "run") + "/", "")
    done = subprocess.run(
        ["git", "apply", "--directory=", "-"],
        input=changes,
        text=True,
        cwd=changed / program.folder,
        capture_output=True,
    )
    if done.returncode:
        problems.append(f"the patch does not apply: {done.stderr.strip().splitlines()[-1]}")
        return proven
    times: dict[Path, list[float]] = {source: [], changed: []}
    for place in [source, changed] * PAIRS:
        times[place].append(
            run(program, python, place, last_step=round(PART * calls)).stamps["wall_s"]
        )
    plain_s, patched_s = (statistics.median(of_place) for of_place in times.values())
    real = plain_s / patched_s
    if real < 1 + (gain["estimate"] - 1) / 2:
        problems.append("the patch brings less than half of what was proven")
    lines = "; ".join(
        line[1:].strip() for line in changes.splitlines() if re.match(r"\+(?!\+\+)", line)
    )
    return (
        f"{proven}, {real:.2f}x by the patch ({_times(times[source])} to {_times(times[changed])}):"
        f" `{lines}`"
    )


def _times(seconds: list[float]) -> str:
    return "/".join(f"{value:.1f}" for value in sorted(seconds)) + " s"


if __name__ == "__main__":
    sys.exit(main())
