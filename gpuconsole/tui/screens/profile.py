"""A profiler window of the run: taken when the screen opens on a run that has none, and again on `f`."""

from __future__ import annotations

from collections.abc import Callable

from textual.binding import Binding

from gpuconsole.report.cells import Row
from gpuconsole.report.run.profile import paint_profile
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.screens.base import PageScreen


class ProfileScreen(PageScreen):
    """Painted anew when there is another profile, and not with every tick."""

    TITLE_TEXT = "Profile"
    KEYS = (("f", "profile a few steps"),)
    BINDINGS = [Binding("f", "take", show=False)]

    def __init__(self, api: SessionApi, take: Callable[[], None]) -> None:
        super().__init__(api)
        self._take = take
        self._painted: tuple[object, int, list[Row]] = (None, 0, [])

    def on_mount(self) -> None:
        run = self._view.run
        if run is not None and run.state == "running" and run.profile is None and not self._view.recording:
            self._take()

    def show(self, view: View) -> None:
        changed = _shown(view) != _shown(self._view)
        self._view = view
        if changed:
            self._body.repaint()

    def paint(self, view: View, width: int) -> list[Row]:
        what, wide, rows = self._painted
        if what != _shown(view) or wide != width:
            rows = paint_profile(view, width)
            self._painted = _shown(view), width, rows
        return rows

    def action_take(self) -> None:
        self._take()


def _shown(view: View) -> object:
    """What the page depends on."""
    run = view.run
    return (run.id, run.state, run.profile, run.unavailable.get("profile"), view.probing) if run is not None else view.probing
