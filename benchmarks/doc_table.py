"""Measured tables inside pages that people write: each table stands between two comments with its
name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def put(page: str, name: str, text: str) -> None:
    """Put `text` in place of what stands between `<!-- NAME -->` and `<!-- end of NAME -->` in
    docs/PAGE."""
    path = DOCS / page
    before, _, rest = path.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not end:
        raise ValueError(f"{path} has no place for {name}")
    path.write_text(f"{before}<!-- {name} -->\n{text}{end}{after}", encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n" for cells in lines
    )
