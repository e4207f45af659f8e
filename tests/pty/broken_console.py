"""`gpuconsole` whose engine cannot be made: what is left of the terminal then?"""

from __future__ import annotations

import sys

from gpuconsole.cli import main
from gpuconsole.experiments import session


class Broken:
    def __init__(self, *_: object, **__: object) -> None:
        raise RuntimeError("no engine today")


if __name__ == "__main__":
    session.LiveSession = Broken  # type: ignore[misc, assignment]
    sys.exit(main.main([]))
