"""Which driver puts the screen on the terminal."""

from __future__ import annotations

from textual.driver import Driver


def driver_class() -> type[Driver] | None:
    """None: Textual's own. The place for a driver that keeps a wanted and a sent screen and sends the cells that differ."""
    return None
