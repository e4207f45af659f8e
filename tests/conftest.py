"""What all tests share: a home of their own, and the real command line in a subprocess."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's own scenarios and caches."""
    home = tmp_path_factory.mktemp("home")
    before = dict(os.environ)
    os.environ.update(
        XDG_CONFIG_HOME=str(home / "config"), XDG_CACHE_HOME=str(home / "cache"), XDG_DATA_HOME=str(home / "data"), PYTHONPATH=str(ROOT)
    )
    os.environ.pop("NO_COLOR", None)
    yield
    os.environ.clear()
    os.environ.update(before)


Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `gpuconsole ARGS` in an empty folder, without a terminal."""

    def run(*args: str, timeout: float = 120, **kwargs: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpuconsole", *args]
        options: dict[str, object] = {"cwd": tmp_path, "stdin": subprocess.DEVNULL, **kwargs}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)  # type: ignore[call-overload,no-any-return]

    return run
