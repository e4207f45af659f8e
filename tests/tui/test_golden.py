"""The main screen as a whole, compared with the files in `golden/`. After an intended change:
`python -m tests.tui.golden --write`."""

from __future__ import annotations

import difflib

import pytest

from tests.tui.golden.pictures import ALL, path_of, picture


@pytest.mark.parametrize(("name", "size"), ALL)
def test_main_screen(name: str, size: str) -> None:
    path = path_of(name, size)
    expected, shown = path.read_text(), picture(name, size)
    difference = difflib.unified_diff(
        expected.splitlines(), shown.splitlines(), path.name, "the screen", lineterm="", n=1
    )
    assert shown == expected, "\n".join(difference)
