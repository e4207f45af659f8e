"""The console on a scripted api, for the terminal tests: `python -m tests.pty.shown_console
[own|plain] [moving|restless] [skeleton] [eco]`."""

from __future__ import annotations

import math
import os
import sys
import time

import msgspec

from gpuconsole.session.api import View
from gpuconsole.tui import app, skeleton
from tests.tui.fake_session import FakeSession, gpu_view

MOVES_S = 1.2
NEWEST = "running 16:39"
"""The header of a moving session after it has stopped."""


class MovingSession(FakeSession):
    """Every number changes with each view, until `moves_s` seconds after the start."""

    def __init__(self, moves_s: float) -> None:
        super().__init__(gpu_view())
        self._still_from = time.monotonic() + moves_s

    def view(self) -> View:
        shown = super().view()
        if time.monotonic() > self._still_from:
            return msgspec.structs.replace(shown, running_s=999.0)
        n = self.views % 97
        moved = {key: value * (1 + n / 200) for key, value in shown.latest.items()}
        return msgspec.structs.replace(shown, latest=moved, running_s=float(n))

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        history = super().history(key, columns, seconds)
        moved = 0 if time.monotonic() > self._still_from else self.views % columns if columns else 0
        return history[moved:] + history[:moved]


class Console(app.ConsoleApp):
    BINDINGS = [("z", "shell", "a shell for a moment")]

    def action_shell(self) -> None:
        with self.suspend():
            os.system("echo hello from the shell")


def main(words: list[str]) -> int:
    if "skeleton" in words:
        skeleton.paint()
    if "plain" in words:
        # as the variable TEXTUAL_DRIVER sets it
        app.constants.DRIVER = "textual.drivers.linux_driver:LinuxDriver"
    api = FakeSession(gpu_view())
    if "moving" in words or "restless" in words:
        api = MovingSession(MOVES_S if "moving" in words else math.inf)
    return int(app.asyncio.run(app.show(Console(api, refresh_hz=40.0, eco="eco" in words))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
