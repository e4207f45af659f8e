"""Runs a program that watches itself."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil

PROGRAMS = Path(__file__).parent / "programs"
CONSOLE = "gpuconsole.cli.detached"
FIRST = """
import json, sys
import gpuconsole
from training import *

def tell(**facts):
    print("told:" + json.dumps(facts), flush=True)
"""


def environment() -> dict[str, str]:
    root = Path(__file__).parents[2]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROGRAMS), str(root)]),
        "CUDA_VISIBLE_DEVICES": "",
    }


def start(tmp_path: Path, code: str, first: str = FIRST, **options: Any) -> subprocess.Popen[str]:
    """`code` as a program, after the lines `first`."""
    program = tmp_path / "program.py"
    program.write_text(first + textwrap.dedent(code))
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, str(program)], cwd=tmp_path, env=environment(), **{**pipes, **options}
    )


def run(tmp_path: Path, code: str) -> tuple[dict[str, Any], str]:
    """What the program has told, and its stderr."""
    program = start(tmp_path, code)
    out, err = program.communicate(timeout=120)
    assert program.returncode == 0, err
    return told(out), err


def console_of(pid: int) -> list[psutil.Process]:
    """The console of the process `pid`, and its children. The console is no child of that
    process."""
    consoles = list[psutil.Process]()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if CONSOLE in words and str(pid) in words:
            # the process that starts the console ends at once
            with contextlib.suppress(psutil.NoSuchProcess):
                consoles += [*process.children(recursive=True), process]
    return consoles


def told(out: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith("told:"):
            facts |= json.loads(line.removeprefix("told:"))
    return facts
