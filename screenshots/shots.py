"""Takes pictures of the running app: each at three sizes and in both themes, as PNG with the title
and the words of the picture in text chunks.

Needs Pillow, and `chromium` on the PATH or resvg-py: Textual's SVG needs CSS that other converters
do not support.
"""

from __future__ import annotations

import asyncio
import html
import importlib.util
import io
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from textual.pilot import Pilot

from gpuconsole import __version__
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.theme import DARK, LIGHT

HERE = Path(__file__).parent
TITLE = f"gpuconsole {__version__}"
ONE = {"120x40": (120, 40)}
SIZES = {"80x24": (80, 24), **ONE, "200x50": (200, 50)}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FONT = "DejaVu Sans Mono"
"""A font that has the box and block characters. The SVG names a font on the web."""
COLOURS = 200
_DRAWN = re.compile("(<text class=[^>]*)(>(?:[\u2580-\u2588\u2591-\u259f]|&#160;)+</text>)")
"""Text of blocks that fill the width of their cells."""


async def until(condition: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the run did not get there in {timeout_s:.0f} s")
        await asyncio.sleep(0.2)


async def shoot(
    pilot: Pilot[int],
    name: str,
    sizes: dict[str, tuple[int, int]] = SIZES,
    *,
    title: str = TITLE,
    themes: Iterable[str] = (DARK, LIGHT),
    settle_s: float = 2.0,
) -> list[Path]:
    """The present moment of the app, at every size and in every theme. The app is at 120x40 and
    dark before and after.

    `settle_s`: seconds before each picture. A new size costs CPU time, and the screen shows the
    overhead of the last seconds.
    """
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    taken: list[tuple[Path, Cells]] = []
    for label, size in sizes.items():
        await pilot.resize_terminal(*size)
        for theme in themes:
            app.theme = theme
            await pilot.pause(settle_s)
            taken.append((HERE / f"{name}-{label}{'-light' * (theme == LIGHT)}.png", Cells.of(app)))
    app.theme = DARK
    await pilot.resize_terminal(*ONE["120x40"])
    await pilot.pause(0.2)
    await asyncio.to_thread(
        lambda: [write_png(path, cells.svg(title), title) for path, cells in taken]
    )
    return [path for path, _ in taken]


class Cells(NamedTuple):
    """The screen at one moment. To make an SVG of it is costly: done at once, it would be a part of
    the overhead that the next picture shows."""

    rows: RenderableType
    size: tuple[int, int]
    theme: str

    @classmethod
    def of(cls, app: ConsoleApp, *, simplify: bool = False) -> Cells:
        rows = app.screen._compositor.render_update(
            full=True, screen_stack=app._background_screens, simplify=simplify
        )
        return cls(rows, app.size, app.theme)

    def svg(self, title: str) -> str:
        """On a light background in the light theme."""
        width, height = self.size
        console = Console(
            width=width,
            height=height,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            record=True,
        )
        console.print(self.rows)
        return console.export_svg(
            title=title, theme=DEFAULT_TERMINAL_THEME if self.theme == LIGHT else SVG_EXPORT_THEME
        )


def browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def check_tools() -> None:
    """Raises SystemExit where no picture can be made. The pictures have the colours of a terminal
    that has them all."""
    os.environ["COLORTERM"] = "truecolor"
    os.environ.pop("NO_COLOR", None)
    if importlib.util.find_spec("PIL") is None or (
        importlib.util.find_spec("resvg_py") is None and browser() is None
    ):
        raise SystemExit(
            "pictures need `pip install pillow resvg-py`, or pillow and a chromium on the PATH"
        )


def write_png(target: Path, text: str, title: str) -> None:
    """Render an SVG. Blocks are a little larger than their cells, so that they touch as they do in
    a terminal."""
    words = text_of(text)
    text = re.sub(r' clip-path="url\([^)]*-line-[^)]*\)"', "", text)
    text = (
        _DRAWN.sub(r'\1 font-size="21.4px" style="font-size: 21.4px"\2', text)
        .replace("Fira Code", FONT)
        .replace("arial", "DejaVu Sans")
    )
    save_png(
        target,
        _by_resvg(text) if importlib.util.find_spec("resvg_py") else _by_browser(text),
        title,
        words,
    )


def text_of(svg: str) -> str:
    """The lines of text in the SVG of a screen. The SVG leaves out blanks; each text has its
    place."""
    lines: dict[float, str] = {}
    texts = re.findall(
        r'<text class="[^"]*" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"[^>]*>([^<]*)</text>',
        svg,
    )
    for x, y, length, escaped in sorted(texts, key=lambda found: float(found[0])):
        text = html.unescape(escaped).replace("\xa0", " ")
        column = round(float(x) / float(length) * len(text))
        lines[float(y)] = f"{lines.get(float(y), ''):<{column}}{text}"
    return "\n".join(line for _, line in sorted(lines.items()))


def save_png(target: Path, rendered: bytes, title: str, words: str) -> None:
    """Few colours, so that the file is small. The title, with the version of the program, and the
    words of the picture are text chunks: tests read them."""
    image, plugin = (
        importlib.import_module("PIL.Image"),
        importlib.import_module("PIL.PngImagePlugin"),
    )
    told: Any = plugin.PngInfo()
    told.add_text("Title", title)
    told.add_itxt("Description", words, zip=True)
    image.open(io.BytesIO(rendered)).convert("RGB").quantize(COLOURS, method=1, dither=0).save(
        target, optimize=True, pnginfo=told
    )


def _by_resvg(text: str) -> bytes:
    return bytes(
        importlib.import_module("resvg_py").svg_to_bytes(
            svg_string=text, monospace_family=FONT, font_family=FONT
        )
    )


def _by_browser(text: str) -> bytes:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    chromium = browser()
    assert found is not None and chromium is not None
    width, height = (int(float(value)) for value in found.groups())
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "screen.svg", Path(folder) / "screen.png"
        source.write_text(text)
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
        ]
        options += [
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={folder}/profile",
            "--hide-scrollbars",
        ]
        where = [f"--screenshot={target}", f"--window-size={width},{height}", source.as_uri()]
        subprocess.run([chromium, *options, *where], check=True, capture_output=True)
        return target.read_bytes()
