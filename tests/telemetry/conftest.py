from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.nvml.build import Script, build_fake_nvml

Machine = Callable[..., tuple[Script, dict[str, str]]]


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(fake_library: Path, tmp_path: Path) -> Machine:
    """A fake machine from script lines: its script, and the environment of a child that is to see it."""

    def make(*lines: str) -> tuple[Script, dict[str, str]]:
        script = Script(tmp_path / "machine.txt", *lines)
        return script, script.environment(fake_library)

    return make
