"""The overview of the screen, as the real sampler and a scripted driver make it."""

from __future__ import annotations

import pytest

from gpuconsole.engine.children.once import read_devices
from gpuconsole.model.snapshot import Environment
from gpuconsole.report.machine.overview import paint_overview
from gpuconsole.session.api import View
from gpuconsole.session.view import make_view

IDLE = ("gpu * utilization_pct 0", "gpu * gpm 2 0", "gpu * memory_used_bytes 7.8e6")
"""Lines of a script: GPUs that do nothing."""


def view_of(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> View:
    """The machine after two rounds of the real sampler."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    state, error = read_devices(timeout_s=15)
    assert not error
    return make_view(
        state,
        now=state.now,
        environment=Environment(),
        device="gpu:0",
        probing="",
        recording=False,
        recording_to="",
        ended=False,
    )


def screen(view: View, width: int = 120, height: int = 37) -> list[str]:
    rows = paint_overview(view, [], lambda key, columns: [None] * columns, width, height).rows
    return ["".join(text for text, _ in row) for row in rows]


def row_of(view: View, gpu: str, width: int = 120) -> str:
    return next(row for row in screen(view, width) if row.strip("│ ").startswith(f"{gpu} "))
