"""Is a watched job the same job?

    python -m benchmarks.own_job.innocence [--only NAME ...] [--changes] [--at-a-time 2] [--python PATH] [--rows FILE] [--show]

Runs small training programs (`programs.py`), each without gpuconsole (a bare run) and under `gpuconsole run`. With `--changes`, each program takes more steps and
runs twice more (`switched.py`): once with all possible changes, made and taken back one after the other, and once with all these changes kept. If such a run
differs from the bare run, the program runs again with each change alone, so that the report names the change that causes the difference. Compares stdout, stderr,
exit code, the files left behind, and the facts of `facts.py`: weights, optimizer states, random generators, signal
dispositions, threads, children, open files, modules.
If something differs, there is a second bare run. What differs between the two bare runs differs by chance, and is left out. Prints a line for each program
that differs; `--show` prints the differences. Exit code 1: a program differs.

`--python`: the Python of the programs; it needs torch only. `--rows`: the file to which a JSON line for each run is appended.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from ast import literal_eval
from pathlib import Path
from typing import NamedTuple

from benchmarks.own_job.innocence.programs import PROGRAMS, Program

HERE = Path(__file__).parent
LONG = {"STEPS": "500", "PAUSE_S": "0.003"}
"""For changes: a loop of 2 s, or of 6 s where it loads."""
LIMIT_S = 240
ADDRESS = re.compile(r"0x[0-9a-f]{6,}|\bpid[ =]\d+")


class Outcome(NamedTuple):
    """What is compared, by name."""

    values: dict[str, str]

    def differences(self, other: Outcome) -> dict[str, tuple[str, str]]:
        names = {**self.values, **other.values}
        return {name: pair for name in names if (pair := (self.values.get(name, ""), other.values.get(name, "")))[0] != pair[1]}


ACCEPTED = {
    "callbacks of gc": "the agent counts pauses of the garbage collector by a callback",
    "modules": "the agent imports modules of the standard library and of torch, and those of its own",
    "threads": "an epoch with workers that is not over has a thread for each queue of indices, as with any num_workers",
    "files": "the agent has the file `doorbell` open, by which the console says that a command waits; a batch of a worker lies in a file of"
    " /dev/shm, as with any num_workers",
}
"""What a watched program can notice, by the name of the fact, with the reason. Everything else is a difference."""


SHARED_BATCH = re.compile(r"torch_\d+_\d+_\d+( \(deleted\))?$")


class Row(NamedTuple):
    """One program under one form of watching. `differences`: what differs from the bare run. `reason`: why the program was not run. `told`: the result of
    each change."""

    program: str
    change: str
    differences: dict[str, tuple[str, str]] = {}
    reason: str = ""
    told: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS), metavar="NAME", help="names of programs")
    parser.add_argument("--changes", action="store_true", help="try the changes of each program too")
    parser.add_argument("--at-a-time", type=int, default=2, help="programs that run at the same time")
    parser.add_argument("--python", default=sys.executable, help="the Python of the programs")
    parser.add_argument("--rows", type=Path, help="append a JSON line for each run to this file")
    parser.add_argument("--show", action="store_true", help="print what differs")
    args = parser.parse_args()
    rows: list[Row] = []
    with concurrent.futures.ThreadPoolExecutor(args.at_a_time) as pool:
        for of_program in pool.map(lambda name: rows_of(name, args.changes, args.python), args.only or list(PROGRAMS)):
            for row in of_program:
                rows.append(row)
                if args.rows is not None:
                    with args.rows.open("a") as file:
                        file.write(json.dumps(row._asdict()) + "\n")
                state = row.reason or ("the same" if not row.differences else f"DIFFERS: {', '.join(row.differences)}")
                print(f"{row.program:<36} {row.change or 'watched':<24} {state}{f' ({row.told})' if row.told else ''}", flush=True)
                if args.show:
                    print("".join(map(shown, row.differences.items())), end="")
    ran = [row for row in rows if not row.reason]
    differing = [row for row in ran if row.differences]
    print(f"{len(ran) - len(differing)} of {len(ran)} runs the same; {len(rows) - len(ran)} not run")
    return 1 if differing else 0


def shown(difference: tuple[str, tuple[str, str]]) -> str:
    """What differs: of lists what was added and what is gone."""
    name, (bare, watched) = difference
    if bare.startswith("[") and watched.startswith("["):
        before, after = literal_eval(bare), literal_eval(watched)
        return (
            f"    {name}: added {[part for part in after if part not in before]}, gone {[part for part in before if part not in after]}\n"
        )
    return f"    {name}: {bare[-1000:]!r}\n        -> {watched[-1000:]!r}\n"


def rows_of(name: str, changes: bool, python: str) -> list[Row]:
    """The rows of one program: watched, with all changes tried, and with all changes kept."""
    program = PROGRAMS[name]
    if missing := [module for module in program.needs if not has(python, module)]:
        return [Row(name, "", reason=f"not run: {', '.join(missing)} is not installed")]
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(name, program, python, Path(folder), LONG if changes and program.changes else {})
        if runs.fails:
            return [Row(name, "", reason=f"not run: it fails without gpuconsole: {runs.fails}")]
        rows = [runs.watched()]
        for keep in (False, True) if changes and program.changes else ():
            rows.append(runs.changed(program.changes, keep))
            if rows[-1].differences and len(program.changes) > 1:
                rows += [runs.changed((change,), keep) for change in program.changes]
    return rows


def has(python: str, module: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec(module) is not None
    return not subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode


class Runs:
    """The runs of one program in one folder. `fails`: the last line of its error where it fails without gpuconsole."""

    def __init__(self, name: str, program: Program, python: str, folder: Path, environment: dict[str, str]) -> None:
        self._name, self._program, self._python, self._folder, self._environment = name, program, python, folder, environment
        self._bare = self._run([])
        self._by_chance: set[str] | None = None
        """What differs between two bare runs; None where the second has not been made."""
        fails = "Traceback" in self._bare.values["stderr"] and "Error" not in program.text and "raise" not in program.text
        self.fails = self._bare.values["stderr"].splitlines()[-1][:120] if fails else ""

    def watched(self) -> Row:
        return self._compared("", ["gpuconsole", "run", "--headless", "--quiet", "--summary", os.devnull])

    def changed(self, changes: tuple[str, ...], keep: bool) -> Row:
        """The program with `changes`, made one after the other: each taken back, or all kept."""
        told = self._folder / "told"
        told.unlink(missing_ok=True)
        module = "benchmarks.own_job.innocence.switched"
        options = ["--keep"] * keep + ["--allow-loader"] * (not self._program.asks)
        row = self._compared(f"{'kept' if keep else 'tried'}: {', '.join(changes)}", [module, "--told", str(told), *options, *changes])
        return row._replace(told="; ".join(told.read_text().splitlines()) if told.exists() else "")

    def _compared(self, change: str, module: list[str]) -> Row:
        watched = self._run([sys.executable, "-m", *module, "--"])
        differences = self._bare.differences(watched)
        differences = {what: pair for what, pair in differences.items() if not accepted(what, *pair)}
        if differences and self._by_chance is None:
            self._by_chance = set(self._bare.differences(self._run([])))
        return Row(self._name, change, {what: pair for what, pair in differences.items() if what not in (self._by_chance or ())})

    def _run(self, before: list[str]) -> Outcome:
        return outcome(self._folder, self._program, [*before, self._python, "program.py"], self._environment)


FEEDERS = {"QueueFeederThread"}
"""A thread that feeds a queue ends a moment after its queue: whether it is there at the end of the program is chance."""


def accepted(what: str, bare: str, watched: str) -> bool:
    """Whether a difference is one of ACCEPTED: something of the agent's own was added, and nothing was taken away."""
    kind = what.split(" (")[0]
    if not (bare and watched):  # one of the two did not come to its end
        return False
    if kind == "callbacks of gc":
        return int(watched) == int(bare) + 1
    if kind not in ACCEPTED:
        return False
    added, gone = set(literal_eval(watched)) - set(literal_eval(bare)), set(literal_eval(bare)) - set(literal_eval(watched))
    own = {"files": {"doorbell"}, "threads": FEEDERS}.get(kind, {*sys.stdlib_module_names, "torch"})
    if kind == "threads":
        gone -= FEEDERS
    return not gone and all(name.split(".")[0] in own or (kind == "files" and SHARED_BATCH.match(name)) for name in added)


def outcome(folder: Path, program: Program, words: list[str], environment: dict[str, str]) -> Outcome:
    """Run the program in a folder of its own, always of the same name."""
    here, facts = folder / "job", folder / "facts"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    facts.unlink(missing_ok=True)
    (here / "program.py").write_text(program.text)
    shutil.copy(HERE / "facts.py", here)
    env = {**os.environ, "FACTS": str(facts), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", **environment}
    env["PYTHONPATH"] = str(HERE.parents[2])  # for our own commands; the same in a bare run
    try:
        done = subprocess.run(
            words,
            cwd=here,
            env=env,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        values = {"stdout": done.stdout, "stderr": without_ours(done.stderr), "exit code": str(done.returncode)}
    except subprocess.TimeoutExpired:
        values = {"stdout": "", "stderr": "", "exit code": f"did not end within {LIMIT_S} s"}
    files = sorted(path for path in here.rglob("*") if path.is_file() and path.name != "facts.py" and "events.out" not in path.name)
    values["files left"] = "\n".join(f"{path.relative_to(here)} {hashlib.blake2s(path.read_bytes()).hexdigest()[:16]}" for path in files)
    for number, line in enumerate(facts.read_text().splitlines() if facts.exists() else []):
        values |= {f"{what}{f' ({number})' if number else ''}": str(value) for what, value in json.loads(line).items()}
    return Outcome({what: ADDRESS.sub("ADDRESS", text) for what, text in values.items()})


def without_ours(text: str) -> str:
    """Stderr without the lines of gpuconsole's own."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("gpuconsole: "))


if __name__ == "__main__":
    raise SystemExit(main())
