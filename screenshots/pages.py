"""Pictures of the HTML report of a training session and of a serving session, in a real browser: a
phone and a desktop, light and dark.

The sessions come from the real command, and take about three minutes; run them on a machine that
does nothing else. The pictures need `pip install playwright pillow` and a chromium on the PATH.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shots import HERE, TITLE, browser, save_png

SESSIONS = {
    "training": ("data-starved", "--duration", "45"),
    "serving": ("kv-pressure", "--duration", "75"),
}
PICTURES = (("1280", 1280, "light"), ("390", 390, "light"), ("1280-dark", 1280, "dark"))
TOP = 1060
"""Pixels of the picture in the README: the answer and the chart."""
NO_BROWSER = (
    "no pictures of the report: they need `pip install playwright pillow` and a chromium on the"
    " PATH"
)


def gpuconsole(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "gpuconsole", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=HERE.parent,
    )


def pages() -> list[Path]:
    """Both reports, each in every size. Without a browser: the pictures as they are, and a
    message."""
    names = [f"report-{kind}-{label}.png" for kind in SESSIONS for label, _, _ in PICTURES] + [
        "report-training-top.png"
    ]
    found = browser()
    if found is None or importlib.util.find_spec("playwright") is None:
        print(NO_BROWSER)
        return [HERE / name for name in names]
    with tempfile.TemporaryDirectory() as folder:
        for kind, words in SESSIONS.items():
            session, page = (Path(folder) / f"{kind}.{suffix}" for suffix in ("json", "html"))
            gpuconsole("run", *words, "--headless", "--apply-top", "--snapshot", str(session))
            gpuconsole("report", str(session), "--html", str(page))
        playwright = importlib.import_module("playwright.sync_api")
        with playwright.sync_playwright() as started:
            chromium = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
            for kind in SESSIONS:
                for label, width, scheme in PICTURES:
                    picture(
                        chromium,
                        Path(folder) / f"{kind}.html",
                        HERE / f"report-{kind}-{label}.png",
                        width,
                        scheme,
                    )
            picture(
                chromium,
                Path(folder) / "training.html",
                HERE / "report-training-top.png",
                1280,
                "light",
                TOP,
            )
            chromium.close()
    return [HERE / name for name in names]


def picture(
    chromium: Any, page: Path, target: Path, width: int, scheme: str, height: int = 0
) -> None:
    """One picture of a page that has no network. `height`: only the top of the page. Fails where
    the page asks for anything but itself."""
    context = chromium.new_context(
        viewport={"width": width, "height": height or 900}, color_scheme=scheme, offline=True
    )
    shown = context.new_page()
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("console", lambda message: asked.append(message.text))
    shown.goto(page.as_uri())
    assert asked == [page.as_uri()], asked
    assert shown.evaluate("document.documentElement.scrollWidth") == width, (
        "the page is wider than the screen"
    )
    save_png(
        target,
        shown.screenshot(full_page=not height),
        TITLE,
        shown.evaluate("document.body.innerText"),
    )
    context.close()


if __name__ == "__main__":
    print("\n".join(path.name for path in pages()))
