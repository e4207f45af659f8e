"""The documentation is what the program is."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.knobs.rows import rows
from gpuconsole.cli.options import WATCHING_ON_SCREEN
from gpuconsole.cli.parser import COMMANDS, parse
from gpuconsole.cli.scenario import assignments, scenario
from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.model.knobs.catalogue import CATALOGUE

ROOT = Path(__file__).parent.parent
ELSEWHERE = ("venv", "site", "node_modules", "build", "dist")
"""Folders that are no part of the repository."""
PAGES = [
    page
    for page in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") or part in ELSEWHERE for part in page.relative_to(ROOT).parts)
]
"""Every page of the repository."""


def test_the_table_of_metrics_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_metrics.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_page_about_agents_has_a_transcript() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_transcript.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_table_of_knobs_has_every_knob() -> None:
    page = (ROOT / "docs" / "knobs.md").read_text(encoding="utf-8")
    assert [name for name in CATALOGUE if f"| `{name}` |" not in page] == []


def test_every_knob_is_measured_on_some_scenario_or_said_to_be_without_effect() -> None:
    assert CATALOGUE.keys() <= {name for row in rows() for name in row.changes}


def test_the_page_of_commands_has_every_command_and_every_common_option() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"| `{name.replace('_', '-')}` |" not in page] == []
    assert [
        option.name for option in WATCHING_ON_SCREEN.options if f"`{option.name}" not in page
    ] == []


def test_the_links_between_the_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target, anchor in re.findall(
            r"\]\(([^)#\s]*)(#[^)\s]*)?\)", page.read_text(encoding="utf-8")
        ):
            path = page.parent / target if target else page
            if "://" not in target and not (
                path.exists() and (not anchor or anchor in anchors(path))
            ):
                broken.append(f"{page.relative_to(ROOT)}: {target}{anchor}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


def names_in(path: Path) -> set[str]:
    """Functions, classes, methods and constants of a file: `Class`, `Class.method`, `function`,
    `CONSTANT`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{one.name}"
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_names_on_the_page_of_the_architecture_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)(?:::([\w.]+))?`", page)
    assert len(named) > 30
    wrong = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / "gpuconsole" / file).exists()
        or (name and name not in names_in(ROOT / "gpuconsole" / file))
    ]
    assert wrong == []


def test_the_table_of_keys_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_keys.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_page_about_troubles_has_the_words_of_the_program() -> None:
    """The first column of each table. What stands for "…" differs from case to case."""
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "gpuconsole").rglob("*.py")
    )
    source = re.sub(r'"\n\s+f?"', "", source)  # the parts of a string that has several lines
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)
    assert len(quoted) > 40
    assert [
        words for words in quoted for part in words.split("…") if part.strip() not in source
    ] == []


def test_every_rule_has_a_page_and_the_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_rules.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    index = (ROOT / "docs" / "rules" / "index.md").read_text(encoding="utf-8")
    assert [
        rule.id
        for rule in all_rules()
        if f"]({rule.id}.md)" not in index or not (ROOT / "docs/rules" / f"{rule.id}.md").exists()
    ] == []


FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def of_blocks() -> list[str]:
    """The lines of the blocks of code of every page."""
    found: list[str] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found += [line for line in text.splitlines() if line.startswith("    ")]
        found += [line for block in FENCED.findall(text) for line in block.splitlines()]
    return [without_remark(line) for line in found]


def of_sentences() -> list[str]:
    """The code within the sentences and tables of every page; without parts in [ ], which may be
    left out."""
    texts = [FENCED.sub("", page.read_text(encoding="utf-8")) for page in PAGES]
    found = [
        re.sub(r"\[--[^\]]*\]", "", line.replace("\\|", "|"))
        for text in texts
        for line in re.findall(r"`([^`\n]+)`", text)
    ]
    return [without_remark(line) for line in found]


def without_remark(line: str) -> str:
    return re.sub(r"\s{4,}.*|\s+#.*|\s+[|>&].*", "", line.strip())


def commands(lines: list[str]) -> list[str]:
    return sorted({line for line in lines if line.startswith("gpuconsole ") and "$" not in line})


def examples() -> list[str]:
    """Every command line `gpuconsole ...` in a block of code, or in the examples of a command's
    help."""
    helps = [
        getattr(importlib.import_module(module), "EXAMPLES", "") for module in COMMANDS.values()
    ]
    return commands(
        [*of_blocks(), *(without_remark(line) for text in helps for line in text.splitlines())]
    )


def mentions() -> list[str]:
    """Every command line `gpuconsole ...` within a sentence. The name of a command alone is
    none."""
    names = {f"gpuconsole {name.replace('_', '-')}" for name in (*COMMANDS, "COMMAND --help")}
    return sorted({*commands(of_sentences())} - names - {*examples()})


@pytest.mark.parametrize("line", mentions())
def test_every_command_line_in_a_sentence_is_understood(line: str) -> None:
    words = shlex.split(line)[1:]
    if {"--help", "--version"} & {*words}:  # they end the program
        with pytest.raises(SystemExit, match=r"^0$"):
            parse(words)
        return
    args = parse(words)
    name = getattr(args, "scenario", None)
    # SCENARIO stands for any
    if name is not None and not name.endswith(".toml") and not name.isupper():
        scenario(name)


@pytest.mark.parametrize("line", examples())
def test_every_command_line_on_the_pages_and_in_the_help_is_understood(line: str) -> None:
    args = parse(shlex.split(line)[1:])  # raises SystemExit if it is not
    if getattr(args, "connect", None) is not None or getattr(args, "verify", None) is not None:
        return None  # the console has the scenario, or the command; or the file has it
    name = getattr(args, "scenario", "my.toml")
    if args.job:
        return assert_a_command_line_of_a_job(args)
    if not name.endswith(".toml"):
        varied = [
            f"{word.partition('=')[0]}={value}"
            for word in getattr(args, "vary", [])
            for value in word.partition("=")[2].split(",")
        ]
        assignments(
            [*getattr(args, "knobs", []), *getattr(args, "tries", []), *varied], scenario(name)
        )
    if args.command == "run" and (
        args.tries or args.apply_top or args.profile or args.fail_on_regression
    ):
        assert args.headless or args.json


def assert_a_command_line_of_a_job(args: argparse.Namespace) -> None:
    """After `--` stands a command of the user's own, and no scenario before it."""
    assert getattr(args, "scenario", None) is None
    assert args.job[0] in ("python", "torchrun", "accelerate", "COMMAND")


def test_there_are_examples() -> None:
    assert len(examples()) > 60 and len(mentions()) > 60


def test_the_python_modules_scripts_extras_and_options_on_the_pages_exist() -> None:
    lines, wrong, seen = [*of_blocks(), *of_sentences()], [], 0
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for line in lines:
        for module, options in re.findall(
            r"-m ((?:benchmarks|tests|gpuconsole)[\w.]*)((?: (?!-m\b|--(?= ))[^`;&|]*)?)", line
        ):
            seen += 1
            path = ROOT / module.replace(".", "/")
            files = (
                [path.with_suffix(".py")]
                if path.with_suffix(".py").exists()
                else sorted(path.glob("*.py"))
            )
            source = "".join(file.read_text(encoding="utf-8") for file in files)
            # the options of the others are in `examples`
            known = module == "gpuconsole" or module.startswith("gpuconsole.workloads")
            unknown = (
                []
                if known
                else [
                    name
                    for name in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", options.partition(" -- ")[0])
                    if f'"{name}"' not in source
                ]
            )
            wrong += [f"{line}: {name}" for name in (*([] if files else [module]), *unknown)]
        for script in re.findall(
            r"(?:python3?|bash|sh) ((?:docs|benchmarks|screenshots|\.ci)/[\w./-]+)", line
        ):
            seen += 1
            wrong += [] if (ROOT / script).exists() else [f"{line}: {script}"]
        for names in re.findall(r'"\.\[([\w,]+)\]"', line):
            seen += 1
            wrong += [f"{line}: {name}" for name in names.split(",") if name not in extras]
    assert wrong == [] and seen > 100


def test_every_page_of_a_rule_shows_a_recorded_finding_or_says_that_there_is_none() -> None:
    recorded = 0
    for rule in all_rules():
        text = (ROOT / "docs" / "rules" / f"{rule.id}.md").read_text(encoding="utf-8")
        assert "\n## When to ignore it\n\n- " in text, rule.id
        example = text.partition("\n## Example\n")[2].partition("\n## Evidence\n")[0]
        if "There is no recorded example" in example:
            continue
        source = re.search(
            r"The figures come from .* \(file `(benchmarks/results/[\w.-]+)`", example
        )
        assert source and (ROOT / source[1]).exists() and f"rule {rule.id}\n" in example, rule.id
        recorded += 1
    assert recorded >= 39
