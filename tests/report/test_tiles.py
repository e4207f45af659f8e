"""The live tiles at the width of a usual terminal."""

from __future__ import annotations

import pytest

from gpuconsole.report.machine.tiles import tiles
from gpuconsole.tui.widgets.tile import paint_tiles
from tests.tui.fake_session import gpu_view, steps
from tests.tui.test_paint import text


@pytest.mark.parametrize("mean_s", [12.3e-6, 1.23e-3, 0.0123, 0.123, 0.44, 0.92, 1.24, 12.4])
def test_the_step_tile_keeps_its_title_at_120_columns(mean_s: float) -> None:
    shown = gpu_view(step_times=steps(mean_s))
    painted = text(paint_tiles(tiles(shown, True), lambda key, columns: [None] * columns, 120, 4, 6))
    (head,) = [row for row in painted.splitlines() if "p50" in row]
    assert "─ step " in head and "…" not in head
    assert len(head) == 120
