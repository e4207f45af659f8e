"""The driver between Textual and the terminal: it sends only the cells of an update that differ.

    Textual's writes -> `Screen.feed` -> the wanted screen
                        `Screen.take` -> the bytes that turn what the terminal shows into it -> `Writer` -> the terminal

`Writer` takes the next bytes when the terminal has taken the last ones. A slow line gets fewer frames, and never an outdated frame.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.driver import Driver


def driver_class() -> type[Driver] | None:
    """The driver for `App`; None where there are no POSIX terminals: Textual's own."""
    if sys.platform == "win32":
        return None
    from gpuconsole.tui.driver.posix import CellDriver

    return CellDriver
