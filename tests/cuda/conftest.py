"""Machines with simulated cards. Without a C++ compiler all tests of this folder are skipped, with
the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.cuda.build import NotHereError
from tests.fakes.cuda.machine import SimulatedMachine

Machines = Callable[..., SimulatedMachine]


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory, fake_library: Path) -> Iterator[Machines]:
    """Makes a machine from the lines of a script (see tests/fakes/cuda/cards.py); it is open until
    the end of the session."""
    with ExitStack() as stack:

        def make(*script: str) -> SimulatedMachine:
            try:
                return stack.enter_context(
                    SimulatedMachine(tmp_path_factory.mktemp("cards"), script, fake_library)
                )
            except NotHereError as error:
                pytest.skip(str(error))

        yield make


def run_script(machine: SimulatedMachine, script: Path, **environment: str) -> dict[str, Any]:
    """What a script of this folder prints as JSON, on that machine."""
    command = [sys.executable, str(script)]
    env = machine.environment(**{"OMP_NUM_THREADS": "1", **environment})
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=270, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]
