"""`gpuconsole` whose spare worker stays for one second in place of a minute."""

from __future__ import annotations

import sys
from typing import Any

from gpuconsole.cli import main
from gpuconsole.engine import engine


class BriefSpare(engine.Engine):
    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options, spare_s=1.0)


if __name__ == "__main__":
    engine.Engine = BriefSpare  # type: ignore[misc]
    sys.exit(main.main([]))
