"""What a user's type checker and `import *` see of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gpuconsole
from tests.conftest import ROOT

BEFORE = """def train(model: object, loader: object) -> None: ...
model, loader = object(), object()
"""
AFTER = """
session.report().splitlines()
session.try_change(num_workers=4)
gpuconsole.watch(no_such_option=True)
"""


def test_each_public_name_is_there() -> None:
    assert sorted(gpuconsole.__all__) == gpuconsole.__all__
    assert all(getattr(gpuconsole, name) is not None for name in gpuconsole.__all__)


@pytest.mark.slow
def test_a_users_mypy_understands_the_example_of_the_page(tmp_path: Path) -> None:
    """The last line is the only mistake: an option that watch() does not have."""
    page = (ROOT / "docs" / "notebooks.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    program = tmp_path / "train.py"
    program.write_text(BEFORE + example + AFTER)
    words = (
        "--strict",
        "--config-file",
        "/dev/null",
        "--cache-dir",
        str(tmp_path / "cache"),
        program.name,
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    mistakes = [line for line in done.stdout.splitlines() if " error: " in line]
    assert [line.partition(":")[2].partition(":")[0] for line in mistakes] == [
        str(len((BEFORE + example + AFTER).splitlines()))
    ], done.stdout
