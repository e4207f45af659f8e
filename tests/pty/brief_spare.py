"""`gpuconsole` whose spare worker stays for one second in place of a minute."""

from __future__ import annotations

import sys
from typing import Any

from gpuconsole.cli import main
from gpuconsole.experiments import session


class BriefSpare(session.LiveSession):
    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options, spare_s=1.0)


if __name__ == "__main__":
    session.LiveSession = BriefSpare  # type: ignore[misc]
    sys.exit(main.main([]))
