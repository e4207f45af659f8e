"""A report as a picture, for readers outside of a terminal."""

from __future__ import annotations

import io

from rich.console import Console


def svg(text: str, title: str) -> str:
    """`text` in a terminal window."""
    console = Console(
        record=True, width=max(map(len, text.splitlines())), file=io.StringIO(), color_system=None
    )
    console.print(text, markup=False, highlight=False)
    return console.export_svg(title=title)
