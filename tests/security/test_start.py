"""H1: files in the current folder are not run as modules of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOREIGN = "open(__file__ + '.ran', 'w').close()\nraise ImportError('a foreign module')\n"
MODULES = ("psutil", "msgspec", "torch", "gpuconsole", "types", "queue", "aiohttp", "numpy")


@pytest.mark.parametrize(
    "words",
    [
        ("devices",),
        # a worker starts in the same way alone and beside others
        pytest.param(
            ("run", "tiny-batch", "--headless", "--duration", "1"),
            marks=[pytest.mark.slow, pytest.mark.matrix],
        ),
        pytest.param(
            ("run", "ddp-small-batch", "--headless", "--duration", "1", "--device", "cpu"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("run", "kv-pressure", "--headless", "--duration", "5"), marks=pytest.mark.slow
        ),
        ("run", "--headless", "--", "true"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_foreign_module_in_the_current_folder_never_runs(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """`python -m` puts the current folder first on the path. The installed command itself does not,
    which is `-P` here."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(FOREIGN)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gpuconsole", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert [path.name for path in tmp_path.rglob("*.ran")] == []
    assert done.returncode == 0, done.stderr


def test_the_users_own_job_finds_its_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('found')")
    words = [
        sys.executable,
        "-P",
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--",
        sys.executable,
        "-m",
        "mine",
    ]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr


def test_a_console_that_was_started_in_a_clone_finds_its_own_modules(tmp_path: Path) -> None:
    """`python -m gpuconsole` in a clone that is not installed: the children are not started in that
    way."""
    clone = Path(__file__).parents[2]
    words = [sys.executable, "-m", "gpuconsole", "devices"]
    done = subprocess.run(
        words,
        cwd=clone,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "cpu" in done.stdout, done.stderr
