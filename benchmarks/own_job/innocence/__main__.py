"""Is a watched job the same job?

    python -m benchmarks.own_job.innocence [PATH ...] [--only NAME ...] [--changes] [--bare]
        [--python PATH] [--rows FILE] [--show]

Runs training programs, each without gpuconsole (a bare run) and under `gpuconsole run`. Compares
stdout, stderr, exit code, the files left behind, and, where a program writes them, the facts of
`facts.py`: weights, optimizer states, random generators, signal dispositions, threads, children,
open files, modules. Times, addresses and process numbers are taken out before. If something
differs, there is a second bare run: what differs between the two bare runs differs by chance, and
counts as "n/a". Prints a line for each program and a count; `--show` prints the differences. Exit
code 1: a program differs.

PATH is a program, a program with its arguments ("train.py --epochs 2"), or a folder of programs.
Without a PATH: the small programs of `habits.py`, each with one habit, and the folder `programs/`,
which has code as users write it. The first lines of a file may say how it is to be run:

    # needs: lightning, cloudpickle       modules without which the program is skipped
    # command: coverage run {program}     {python}: the interpreter, {program}: the file;
                                          `--command` sets it for files that do not say it
    # exit: 3                             the exit code (0)
    # python: 3.12                        the oldest version of Python
    # design: stdout: the reason          what may differ by design
    # design on 3.11: stdout: the reason  what may differ by design on this version of Python

With `--changes`, each small program takes more steps and runs twice more (`switched.py`): once with
all possible changes, made and taken back one after the other, and once with all these changes kept.
If such a run differs from the bare run, the program runs again with each change alone, so that the
report names the change that causes the difference. `--bare` compares two bare runs only.
`--python`: the Python of the programs; it needs torch only, and not gpuconsole. `--options`:
options for gpuconsole, such as "--try num_workers=2". `--rows`: the file to which a JSON line for
each run is appended.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from ast import literal_eval
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.own_job.innocence.habits import PROGRAMS, Program

HERE = Path(__file__).parent
LONG = {"STEPS": "500", "PAUSE_S": "0.003"}
"""For changes: a loop of 2 s, or of 6 s where it loads."""
LIMIT_S = 400
NOT_COMPARED = (
    (re.compile(r"0x[0-9a-f]{6,}"), "ADDRESS"),
    (
        re.compile(r"\bpid(?:s|\(s\))?[ =:(]+\d+(?:, \d+)*|(?<=python )\d{3,}|(?<=\bPID )\d+"),
        "PROCESS",
    ),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DATE"),
    (re.compile(r"\b\d\d:\d\d(:\d\d)?([.,]\d+)?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?(s|ms|us|µs|sec|secs|seconds|it/s|s/it)\b"), "TIME"),
    (re.compile(r"^([\[\w]*[VIWEF]\d{4} TIME) \d+ ", re.MULTILINE), r"\1 PROCESS "),
)
"""What differs between any two runs, and what is written in its place."""
HEADER = re.compile(r"^# (needs|command|exit|python|design(?: on [0-9.]+)?): (.*)$", re.MULTILINE)


OUTPUT = ("exit code", "stdout", "stderr", "files left")
"""What is compared of every program. A program of which this differs between two bare runs is not
compared; other facts that do are left out."""


class Outcome(NamedTuple):
    """What is compared, by name. `seconds`: the time of the run."""

    values: dict[str, str]
    seconds: float = 0.0

    def differences(self, other: Outcome) -> dict[str, tuple[str, str]]:
        names = {**self.values, **other.values}
        return {
            name: pair
            for name in names
            if (pair := (self.values.get(name, ""), other.values.get(name, "")))[0] != pair[1]
        }


ACCEPTED = {
    "callbacks of gc": "the agent counts pauses of the garbage collector by a callback",
    "modules": (
        "the agent imports modules of the standard library and of torch, and those of its own"
    ),
    "threads": (
        "an epoch with workers that is not over has a thread for each queue of indices, as with any"
        " num_workers"
    ),
    "files": (
        "the agent has the file `doorbell` open, by which the console says that a command waits; a"
        " batch of a worker lies in a file of /dev/shm, as with any num_workers"
    ),
}
"""What a watched program can notice, by the name of the fact, with the reason. Everything else is a
difference."""


SHARED_BATCH = re.compile(r"torch_\d+_\d+_\d+( \(deleted\))?$")


class Row(NamedTuple):
    """One program under one form of watching. `differences`: what differs from the bare run.
    `reason`: why the program was not run, or cannot be compared. `told`: the result of each change.
    `bare_s`, `watched_s`: seconds of the two runs. `steps`: the steps that the console has seen."""

    program: str
    change: str
    differences: dict[str, tuple[str, str]] = {}
    reason: str = ""
    told: str = ""
    bare_s: float = 0.0
    watched_s: float = 0.0
    steps: int | None = None

    def state(self) -> str:
        if self.differences:
            return f"DIFFERS: {', '.join(self.differences)}"
        return f"n/a: {self.reason}" if self.reason else "same"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="a program, a program with arguments, or a folder"
    )
    parser.add_argument("--only", nargs="*", metavar="NAME", help="names of programs")
    parser.add_argument(
        "--changes", action="store_true", help="try the changes of each small program too"
    )
    parser.add_argument("--bare", action="store_true", help="compare two bare runs")
    parser.add_argument(
        "--at-a-time", type=int, default=1, help="programs that run at the same time"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python of the programs")
    parser.add_argument(
        "--command",
        default=Program("").command,
        help="how a file is started that does not say it itself",
    )
    parser.add_argument("--options", default="", help="options for gpuconsole")
    parser.add_argument("--rows", type=Path, help="append a JSON line for each run to this file")
    parser.add_argument("--show", action="store_true", help="print what differs")
    args = parser.parse_args()
    chosen = (
        {name: made for path in args.paths for name, made in read(path, args.command).items()}
        if args.paths
        else every_program()
    )
    if unknown := set(args.only or ()) - set(chosen):
        parser.error(f"no program of the name {', '.join(sorted(unknown))}")
    chosen = {name: chosen[name] for name in args.only or chosen}
    one = functools.partial(rows_of, python=shutil.which(args.python) or args.python, how=args)
    rows: list[Row] = []
    with concurrent.futures.ThreadPoolExecutor(args.at_a_time) as pool:
        for row in (
            row for of_program in pool.map(one, chosen, chosen.values()) for row in of_program
        ):
            rows.append(row)
            if args.rows is not None:
                with args.rows.open("a") as file:
                    file.write(json.dumps(row._asdict()) + "\n")
            seconds = f"{row.bare_s:.1f} -> {row.watched_s:.1f} s" if row.watched_s else ""
            steps = "" if row.steps is None else f"{row.steps} steps"
            told = f" ({row.told})" if row.told else ""
            change = row.change or ("bare again" if args.bare else "watched")
            print(
                f"{row.program:<36} {change:<12} {seconds:>16} {steps:>12}  {row.state()}{told}",
                flush=True,
            )
            if args.show:
                print("".join(map(shown, row.differences.items())), end="")
    differing, not_compared = (
        [row for row in rows if row.differences],
        [row for row in rows if row.reason and not row.differences],
    )
    same = len(rows) - len(differing) - len(not_compared)
    print(f"{len(rows)} runs: {same} the same, {len(differing)} differ, {len(not_compared)} n/a")
    return 1 if differing else 0


def every_program() -> dict[str, Program]:
    """The small programs, and those of the folder."""
    return {**PROGRAMS, **read(str(HERE / "programs"), Program("").command)}


def read(path: str, command: str) -> dict[str, Program]:
    """The programs of a folder or a file by name. A file may have arguments, and its first lines
    may say how it is run."""
    if Path(path).is_dir():
        return {
            name: made
            for file in sorted(Path(path).glob("*.py"))
            for name, made in read(shlex.quote(str(file)), command).items()
        }
    file, *arguments = shlex.split(path)
    text = Path(file).read_text()
    said = dict(HEADER.findall(text[:1000]))
    designs = {"design", f"design on {sys.version_info.major}.{sys.version_info.minor}"}
    made = Program(
        text,
        needs=tuple(filter(None, said.get("needs", "").split(", "))),
        file=Path(file).name,
        command=" ".join([said.get("command", command), *map(shlex.quote, arguments)]),
        exit=None if said.get("exit") == "any" else int(said.get("exit", "0")),
        python=said.get("python", "3.11"),
        design=tuple(
            (what, why)
            for what, _, why in (
                value.partition(": ") for key, value in said.items() if key in designs
            )
        ),
    )
    return {" ".join([Path(file).stem, *arguments]): made}


def shown(difference: tuple[str, tuple[str, str]]) -> str:
    """What differs: of lists what was added and what is gone."""
    name, (bare, watched) = difference
    if all(
        text.startswith("[") and text.endswith("]") and "\n" not in text for text in (bare, watched)
    ):
        before, after = literal_eval(bare), literal_eval(watched)
        return (
            f"    {name}: added {[part for part in after if part not in before]}, gone"
            f" {[part for part in before if part not in after]}\n"
        )
    return f"    {name}: {bare[-1000:]!r}\n        -> {watched[-1000:]!r}\n"


def rows_of(name: str, program: Program, python: str, how: argparse.Namespace) -> list[Row]:
    """The rows of one program: watched, with all changes tried, and with all changes kept."""
    if version(python) < tuple(map(int, program.python.split("."))):
        return [Row(name, "", reason=f"Python {program.python} or newer")]
    if missing := [module for module in program.needs if not has(python, module)]:
        return [Row(name, "", reason=f"{', '.join(missing)} is not installed")]
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(
            name,
            program,
            python,
            Path(folder),
            LONG if how.changes and program.changes else {},
            shlex.split(how.options),
        )
        if runs.fails:
            return [Row(name, "", reason=f"it fails without gpuconsole: {runs.fails}")]
        if how.bare:
            return [runs.again()]
        rows = [runs.watched()]
        for keep in (False, True) if how.changes and program.changes else ():
            rows.append(runs.changed(program.changes, keep))
            if rows[-1].differences and len(program.changes) > 1:
                rows += [runs.changed((change,), keep) for change in program.changes]
    return rows


@functools.cache
def version(python: str) -> tuple[int, ...]:
    return tuple(map(int, asked(python, "import sys; print(*sys.version_info[:2])").split()))


@functools.cache
def has(python: str, module: str) -> bool:
    return (
        asked(
            python,
            f"import importlib.util; print(importlib.util.find_spec({module!r}) is not None)",
        ).strip()
        == "True"
    )


def asked(python: str, code: str) -> str:
    return subprocess.run(
        [python, "-P", "-c", code], capture_output=True, text=True, check=False
    ).stdout


class Runs:
    """The runs of one program in one folder. `fails`: why its bare run is not the right one, empty
    where it is."""

    def __init__(
        self,
        name: str,
        program: Program,
        python: str,
        folder: Path,
        environment: dict[str, str],
        options: list[str] | None = None,
    ) -> None:
        self._name, self._program, self._python, self._folder, self._environment = (
            name,
            program,
            python,
            folder,
            environment,
        )
        self._options = options or []
        self._bare = self._run([])
        self._by_chance: set[str] | None = None
        """What differs between two bare runs; None where the second has not been made."""
        code, errors = self._bare.values["exit code"], self._bare.values["stderr"]
        if program.exit is None:
            fails = (
                "Traceback" in errors
                and "Error" not in program.text
                and "raise" not in program.text
            )
        else:
            fails = code != str(program.exit)
        self.fails = (
            " ".join([f"exit code {code}:", *errors.splitlines()[-1:]])[:160] if fails else ""
        )

    def again(self) -> Row:
        return self._row("", self._run([]))

    def watched(self) -> Row:
        snapshot = self._folder / "snapshot.json"
        snapshot.unlink(missing_ok=True)
        words = [
            "gpuconsole",
            "run",
            "--headless",
            "--quiet",
            "--summary",
            os.devnull,
            "--snapshot",
            str(snapshot),
            *self._options,
        ]
        row = self._compared("", ["-m", *words])
        return row._replace(steps=steps_in(snapshot))

    def changed(self, changes: tuple[str, ...], keep: bool) -> Row:
        """The program with `changes`, made one after the other: each taken back, or all kept."""
        told = self._folder / "told"
        told.unlink(missing_ok=True)
        told_by = [
            "--told",
            str(told),
            *(["--keep"] if keep else []),
            *(["--allow-loader"] if not self._program.asks else []),
        ]
        words = [str(HERE / "switched.py"), *told_by, *changes]
        row = self._compared(f"{'kept' if keep else 'tried'}: {', '.join(changes)}", words)
        return row._replace(told="; ".join(told.read_text().splitlines()) if told.exists() else "")

    def _compared(self, change: str, words: list[str]) -> Row:
        row = self._row(change, self._run([sys.executable, "-P", *words, "--"]))
        if not row.differences:
            return row
        if self._by_chance is None:
            self._by_chance = set(self._bare.differences(self._run([])))
        chance, design = self._by_chance & set(row.differences), dict(self._program.design)
        left = {
            what: pair
            for what, pair in row.differences.items()
            if what not in chance and what not in design
        }
        reasons = [f"{what} differs bare against bare" for what in OUTPUT if what in chance]
        reasons += [
            f"by design: {what}: {why}"
            for what, why in design.items()
            if what in row.differences and what not in chance
        ]
        return row._replace(differences=left, reason="; ".join(reasons))

    def _row(self, change: str, other: Outcome) -> Row:
        differences = {
            what: pair
            for what, pair in self._bare.differences(other).items()
            if not accepted(what, *pair)
        }
        return Row(
            self._name, change, differences, bare_s=self._bare.seconds, watched_s=other.seconds
        )

    def _run(self, before: list[str]) -> Outcome:
        stands_for = {"{python}": self._python, "{program}": self._program.file}
        words = [
            functools.reduce(lambda text, pair: text.replace(*pair), stands_for.items(), word)
            for word in shlex.split(self._program.command)
        ]
        path = f"{Path(self._python).parent}{os.pathsep}{os.environ['PATH']}"
        return outcome(
            self._folder, self._program, [*before, *words], {"PATH": path, **self._environment}
        )


def steps_in(snapshot: Path) -> int | None:
    """The steps of the runs in a snapshot."""
    try:
        return sum(run["summary"]["steps"] or 0 for run in json.loads(snapshot.read_text())["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


FEEDERS = {"QueueFeederThread"}
"""A thread that feeds a queue ends a moment after its queue: whether it is there at the end of the
program is chance."""


def accepted(what: str, bare: str, watched: str) -> bool:
    """Whether a difference is one of ACCEPTED: something of the agent's own was added, and nothing
    was taken away."""
    kind = what.split(" (")[0]
    if not (bare and watched):  # one of the two did not come to its end
        return False
    if kind == "callbacks of gc":
        return int(watched) == int(bare) + 1
    if kind not in ACCEPTED:
        return False
    added, gone = (
        set(literal_eval(watched)) - set(literal_eval(bare)),
        set(literal_eval(bare)) - set(literal_eval(watched)),
    )
    own = {"files": {"doorbell"}, "threads": FEEDERS}.get(kind, {*sys.stdlib_module_names, "torch"})
    if kind == "threads":
        gone -= FEEDERS
    return not gone and all(
        name.split(".")[0] in own or (kind == "files" and SHARED_BATCH.match(name))
        for name in added
    )


def outcome(
    folder: Path, program: Program, words: list[str], environment: dict[str, str]
) -> Outcome:
    """Run the program in a folder of its own, always of the same name."""
    here, facts = folder / "job", folder / "facts"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    facts.unlink(missing_ok=True)
    (here / program.file).write_text(program.text)
    shutil.copy(HERE / "facts.py", here)
    env = {
        **os.environ,
        "FACTS": str(facts),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **environment,
    }
    begun = time.monotonic()
    out, errors, code = finished(words, here, env)
    seconds = time.monotonic() - begun
    values = {"stdout": out, "stderr": without_ours(errors), "exit code": code}
    files = sorted(
        path
        for path in here.rglob("*")
        if path.is_file() and path.name != "facts.py" and "events.out" not in path.name
    )
    files = [path for path in files if "__pycache__" not in path.parts]
    values["files left"] = "\n".join(
        f"{path.relative_to(here)} {hashlib.blake2s(path.read_bytes()).hexdigest()[:16]}"
        for path in files
    )
    for number, line in enumerate(facts.read_text().splitlines() if facts.exists() else []):
        values |= {
            f"{what}{f' ({number})' if number else ''}": str(value)
            for what, value in json.loads(line).items()
        }
    return Outcome({what: compared(text) for what, text in values.items()}, seconds)


def finished(words: list[str], here: Path, env: dict[str, str]) -> tuple[str, str, str]:
    """Run a command to its end: stdout, stderr, and the exit code in words."""
    with subprocess.Popen(
        words,
        cwd=here,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
    ) as process:
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.kill()
            process.communicate()
            return "", "", f"none within {LIMIT_S // 60} minutes"
        return out, errors, str(process.returncode)


def compared(text: str) -> str:
    """A text without what differs between any two runs."""
    for pattern, instead in NOT_COMPARED:
        text = pattern.sub(instead, text)
    return text


def without_ours(text: str) -> str:
    """Stderr without the lines of gpuconsole's own."""
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("gpuconsole: ")
    )


if __name__ == "__main__":
    raise SystemExit(main())
