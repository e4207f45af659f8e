"""The pictures of the README and the docs: each exists, and shows this version of the program."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from gpuconsole import __version__

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "screenshots"
PICTURES = sorted([*FOLDER.glob("*.svg"), *FOLDER.glob("*.png")])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MOMENTS = ("first", "healthy", "finding", "trial", "kept", "serving", "eight-gpus", "tuning")
SIZES = ("80x24", "120x40", "200x50")
MOST_BYTES = 12 << 20


def titles(path: Path) -> list[str]:
    """The titles inside an SVG, or in the text chunk `Title` of a PNG."""
    data = path.read_bytes()
    if path.suffix == ".svg":
        return [title.replace("&#160;", " ") for title in re.findall(r'-title"[^>]*>([^<]*)<', data.decode())]
    found, at = [], 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind == b"tEXt" and data[at + 8 :].startswith(b"Title\0"):
            found.append(data[at + 14 : at + 8 + size].decode("latin-1"))
        at += 12 + size
    return found


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_has_the_version_of_the_program(path: Path) -> None:
    assert titles(path), "no title: python screenshots/make.py"
    for title in titles(path):
        assert title.startswith(f"gpuconsole {__version__}"), f"{title}: python screenshots/make.py"


def test_each_moment_has_a_picture_at_every_size_in_both_themes() -> None:
    names = {path.stem for path in PICTURES}
    assert {f"{moment}-{size}{theme}" for moment in MOMENTS for size in SIZES for theme in ("", "-light")} <= names


def test_figures_of_a_fake_driver_say_so() -> None:
    for path in FOLDER.glob("eight-gpus*"):
        assert "fake driver" in titles(path)[0], path.name


def test_the_pictures_are_small() -> None:
    assert sum(path.stat().st_size for path in PICTURES) < MOST_BYTES


def test_every_picture_of_a_page_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"\(((?:\.\./)?screenshots/[^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / name).is_file(), f"{page.name}: {name}"
