"""What stands between Textual and the terminal: of every update only the cells that differ are sent.

    Textual's writes -> `Screen.feed` -> the wanted screen
                        `Screen.take` -> the bytes that turn what the terminal shows into it -> `Writer` -> the terminal

`Writer` takes the next bytes only when the terminal has taken the last ones, so a slow line gets fewer frames and never old ones.
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
