"""The pictures of the README and the docs: each exists, and shows this version of the program and
its words."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import pytest

from gpuconsole import __version__
from tests.program_words import ProgramWords

pytestmark = pytest.mark.xdist_group("pictures")  # the words of the program are read once

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "screenshots"
PICTURES = sorted([*FOLDER.glob("*.svg"), *FOLDER.glob("*.png")])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MOMENTS = ("first", "healthy", "finding", "trial", "kept", "serving", "eight-gpus", "tuning")
SIZES = ("80x24", "120x40", "200x50")
MAX_BYTES = 12 << 20


def text_chunks(path: Path) -> dict[str, str]:
    """The text chunks of a PNG, by keyword."""
    data, chunks, at = path.read_bytes(), {}, 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        keyword, _, value = data[at + 8 : at + 8 + size].partition(b"\0")
        if kind == b"tEXt":
            chunks[keyword.decode()] = value.decode("latin-1")
        elif kind == b"iTXt":
            compressed, (_, _, text) = value[0], value[2:].split(b"\0", 2)
            chunks[keyword.decode()] = (zlib.decompress(text) if compressed else text).decode()
        at += 12 + size
    return chunks


def titles(path: Path) -> list[str]:
    """The titles inside an SVG, or that of a PNG."""
    if path.suffix == ".svg":
        return [
            title.replace("&#160;", " ")
            for title in re.findall(r'-title"[^>]*>([^<]*)<', path.read_text())
        ]
    return [title for keyword, title in text_chunks(path).items() if keyword == "Title"]


@pytest.fixture(scope="module")
def program_words() -> ProgramWords:
    return ProgramWords()


@pytest.mark.parametrize(
    "path", [path for path in PICTURES if path.suffix == ".png"], ids=lambda path: path.name
)
def test_a_picture_shows_only_words_that_the_program_has(
    path: Path, program_words: ProgramWords
) -> None:
    words = text_chunks(path).get("Description", "")
    assert len(words.split()) > 20, "no words: python screenshots/make.py"
    assert not program_words.unknown(words), "python screenshots/make.py"


@pytest.mark.parametrize(
    "former",
    ["precision bf16 failed: broken off", "agent not yet", "0.4 synchronisations per step"],
)
def test_former_words_are_found(former: str, program_words: ProgramWords) -> None:
    assert program_words.unknown(former)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_has_the_version_of_the_program(path: Path) -> None:
    assert titles(path), "no title: python screenshots/make.py"
    for title in titles(path):
        assert title.startswith(f"gpuconsole {__version__}"), f"{title}: python screenshots/make.py"


def test_each_moment_has_a_picture_at_every_size_in_both_themes() -> None:
    names = {path.stem for path in PICTURES}
    assert {
        f"{moment}-{size}{theme}"
        for moment in MOMENTS
        for size in SIZES
        for theme in ("", "-light")
    } <= names


def test_figures_of_a_fake_driver_say_so() -> None:
    for path in FOLDER.glob("eight-gpus*"):
        assert "fake driver" in titles(path)[0], path.name


def test_the_pictures_are_small() -> None:
    assert sum(path.stat().st_size for path in PICTURES) < MAX_BYTES


def test_every_picture_of_a_page_exists() -> None:
    for page in PAGES:
        for name in re.findall(
            r"\(((?:\.\./)?screenshots/[^)]+)\)", page.read_text(encoding="utf-8")
        ):
            assert (page.parent / name).is_file(), f"{page.name}: {name}"
