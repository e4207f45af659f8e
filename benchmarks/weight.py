"""How heavy is the project, and what did a change add?

    python -m benchmarks.weight [COMMIT]

Prints files and lines by folder, and the number of rules, knobs, signals, commands and options: at
COMMIT, in the working tree, and the difference. COMMIT: the merge base with `origin/main`, or the
commit before HEAD where there is none. Lines are those that `ruff format` makes at 100 columns, so
that a change of the line length changes no figure of the code. It cuts no comments and no texts:
those of a commit before the 100 columns count as they stand there. A count that this commit's code
does not give reads n/a.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from io import BytesIO
from pathlib import Path

FOLDERS = ("gpuconsole", "tests", "benchmarks", "docs")
COLUMNS = 100
COUNTS = """
import argparse, json
from gpuconsole.cli.parser import build_parser
from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.model.knobs.catalogue import CATALOGUE
console = build_parser()
kind = argparse._SubParsersAction
commands = next(action.choices for action in console._actions if isinstance(action, kind))
parsers = (console, *commands.values())
options = sum(bool(action.option_strings) for parser in parsers for action in parser._actions)
rules = list(all_rules())
signals = {signal for rule in rules for signal in rule.reads}
counts = {"rules": len(rules), "knobs": len(CATALOGUE), "signals": len(signals)}
print(json.dumps(counts | {"commands": len(commands), "options": options}))
"""
"""Prints the counts of the code on the path."""
COUNTED = ("rules", "knobs", "signals", "commands", "options")
Weight = Counter[tuple[str, str]]
"""A figure by its row and its name: (folder, "files"), (folder, "lines"), ("", "rules") ..."""


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], capture_output=True, check=True).stdout


def base() -> str:
    """The commit to compare with, where none is named."""
    for words in (("merge-base", "HEAD", "origin/main"), ("rev-parse", "HEAD~1")):
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        if (
            done.returncode == 0
            and done.stdout.strip() != git("rev-parse", "HEAD").decode().strip()
        ):
            return done.stdout.strip()
    raise SystemExit("there is no commit before this one: name one")


def folder_of(path: Path) -> str:
    """The row of a file: a folder of the package, or a folder of the project."""
    return "/".join(path.parts[: 2 if path.parts[0] == "gpuconsole" and len(path.parts) > 2 else 1])


def weight(tree: Path) -> Weight:
    """The figures of the files in `tree`, which this function formats."""
    formatter = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--quiet",
        "--isolated",
        "--line-length",
        str(COLUMNS),
        ".",
    ]
    found: Weight = Counter()
    counted = subprocess.run(
        [sys.executable, "-c", COUNTS], cwd=tree, capture_output=True, text=True, check=False
    )
    for name, count in (json.loads(counted.stdout) if counted.returncode == 0 else {}).items():
        found["", name] = count
    subprocess.run(formatter, cwd=tree, check=False)
    for path in tree.rglob("*"):
        if path.suffix not in (".py", ".md") or not path.is_file():
            continue
        folder, text = folder_of(path.relative_to(tree)), path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            found[folder, "files"] += 1
            found[folder, "lines"] += text.count("\n")
        else:
            found[folder, "words"] += len(text.split())
    return found


def at_commit(commit: str, tree: Path) -> Weight:
    """The figures of a commit, whose files are written to `tree`."""
    present = set(git("ls-tree", "--name-only", commit).decode().split())
    with tarfile.open(
        fileobj=BytesIO(
            git("archive", commit, *(folder for folder in FOLDERS if folder in present))
        )
    ) as files:
        files.extractall(tree, filter="data")
    return weight(tree)


def in_working_tree(tree: Path) -> Weight:
    """The figures of the files in the working tree that git knows or does not ignore, copied to
    `tree`."""
    for name in (
        git("ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS)
        .decode()
        .splitlines()
    ):
        if (path := Path(name)).is_file():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(path.read_bytes())
    return weight(tree)


def shown(before: Weight, after: Weight) -> list[str]:
    """The table, in lines."""
    folders = sorted({folder for folder, _ in before | after if folder})
    package = [folder for folder in folders if folder.startswith("gpuconsole")]
    rows = [f"{'':<24} {'files':>18} {'lines at 100':>24} {'words':>24}"]
    for name, parts in [
        *((folder, [folder]) for folder in folders),
        ("the package", package),
        ("all", folders),
    ]:
        figures = []
        for kind, width in (("files", 18), ("lines", 24), ("words", 24)):
            old, new = (sum(weight[folder, kind] for folder in parts) for weight in (before, after))
            figures.append(f"{f'{old} -> {new} {new - old:+}' if old or new else '':>{width}}")
        rows.append(f"{name:<24} {' '.join(figures)}".rstrip())
    for kind in COUNTED:
        counts = [weight.get(("", kind)) for weight in (before, after)]
        old, new = ("n/a" if count is None else str(count) for count in counts)
        change = (
            f" {counts[1] - counts[0]:+}" if counts[0] is not None and counts[1] is not None else ""
        )
        rows.append(f"{kind:<24} {old} -> {new}{change}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    commit = parser.parse_args().commit or base()
    with tempfile.TemporaryDirectory() as before, tempfile.TemporaryDirectory() as after:
        rows = shown(at_commit(commit, Path(before)), in_working_tree(Path(after)))
    print(
        "\n".join(
            [f"{git('rev-parse', '--short', commit).decode().strip()} -> the working tree", *rows]
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
