"""The pictures of the README and the docs: each exists, and shows this version of the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuconsole import __version__

ROOT = Path(__file__).parent.parent
PICTURES = sorted((ROOT / "screenshots").glob("*.svg"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_has_the_version_of_the_program(path: Path) -> None:
    titles = re.findall(r'-title"[^>]*>([^<]*)<', path.read_text(encoding="utf-8"))
    assert titles, "no title"
    for title in titles:
        assert title.replace("&#160;", " ").startswith(f"gpuconsole {__version__}"), f"{title}: python screenshots/make.py"


def test_every_picture_of_a_page_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"\(((?:\.\./)?screenshots/[^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / name).is_file(), f"{page.name}: {name}"
