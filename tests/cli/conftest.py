"""What each test of a command begins with."""

import pytest

from gpuconsole.cli import output


@pytest.fixture(autouse=True)
def _output_of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins as a new process does: a test that runs a command in this process leaves
    `--quiet` and `--color` behind."""
    monkeypatch.setattr(output, "_quiet", False)
    monkeypatch.setattr(output, "_color", output.COLORS[0])
