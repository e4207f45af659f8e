"""The live figures of the device at the width of a usual terminal."""

from __future__ import annotations

import pytest

from gpuconsole.report.screen.devices import paint_devices
from tests.tui.fake_session import gpu_view, steps
from tests.tui.test_paint import text


@pytest.mark.parametrize("mean_s", [12.3e-6, 1.23e-3, 0.0123, 0.123, 0.44, 0.92, 1.24, 12.4])
def test_the_step_tile_keeps_its_title_at_120_columns(mean_s: float) -> None:
    shown = gpu_view(step_times=steps(mean_s))
    painted = text(paint_devices(shown, lambda key, columns, seconds: [None] * columns, 60, 12, all_eight=True, boxed=True))
    (row,) = [row for row in painted.splitlines() if "p50" in row]
    assert " step " in row and "…" not in row
    assert len(row) == 60
