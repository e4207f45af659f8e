"""Every metric of every device, with its source or the reason why there is none."""

from __future__ import annotations

from gpuconsole.runtime.front import View
from gpuconsole.tui.paint.cells import Row
from gpuconsole.tui.paint.devices import paint_devices
from gpuconsole.tui.screens.base import PageScreen


class DeviceScreen(PageScreen):
    TITLE_TEXT = "Devices and metrics"

    def paint(self, view: View, width: int) -> list[Row]:
        return paint_devices(view, width)
