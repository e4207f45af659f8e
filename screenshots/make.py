"""Pictures of the main screen from a real run: `python screenshots/make.py`; `--box` makes those of a GPU box, `--serving` of a model server.

Runs `data-starved` on this machine, waits for the finding, applies it, waits for the verdict, and keeps SVG and PNG at each point;
with --record the session is kept for `gpuconsole replay` too. A box of GPUs is the tests' fake driver, and the picture's title says so.
PNG needs `chromium` on the PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.fake_box import FakeBox, build_driver
from gpuconsole.engine.engine import Engine
from gpuconsole.tui.app import ConsoleApp

HERE = Path(__file__).parent
SIZES = {"120x40": (120, 40), "80x24": (80, 24)}


async def until(condition: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the run never got there")
        await asyncio.sleep(0.2)


async def session(scenario: str, size: tuple[int, int], label: str, record: Path | None, whole: bool) -> list[Path]:
    """One run at one size; returns the SVG files."""
    engine = Engine()
    app = ConsoleApp(engine, scenario=scenario, record=record)
    files = []

    def keep(name: str) -> None:
        svg = app.export_screenshot(title="gpuconsole")
        path = HERE / f"{name}-{label}.svg"
        path.write_text(svg)
        files.append(path)

    async with app.run_test(size=size) as pilot:

        async def look(key: str, name: str) -> None:
            await pilot.press(key)
            await pilot.pause(1.0)
            keep(name)
            await pilot.press("escape")

        await until(lambda: any(f.suggestions for r in engine.view().runs for f in r.findings), 90)
        await pilot.pause(2.5)
        keep("finding")
        if whole:
            await look("d", "details")
        await pilot.press("enter")
        await until(lambda: any(trial.state != "running" for trial in engine.view().trials), 90)
        await pilot.pause(16 if whole else 8)
        keep("main")
        if whole:
            for key, name in (("h", "history"), ("k", "knobs"), ("i", "device"), ("s", "scenarios")):
                await look(key, name)
        await pilot.press("q")
    return files


async def serving(scenario: str, size: tuple[int, int], label: str) -> Path:
    """A model server once its finding stands."""
    engine = Engine()
    app = ConsoleApp(engine, scenario=scenario)
    path = HERE / f"serving-{label}.svg"
    async with app.run_test(size=size) as pilot:
        await until(lambda: any(f.suggestions for r in engine.view().runs for f in r.findings), 90)
        await pilot.pause(15)
        path.write_text(app.export_screenshot(title="gpuconsole"))
        await pilot.press("q")
    return path


async def box(gpus: int) -> list[Path]:
    """The monitoring screens of a box; the fake driver must be in the environment already."""
    app = ConsoleApp(Engine(interval_s=0.5))
    files = []
    async with app.run_test(size=SIZES["120x40"]) as pilot:
        await pilot.pause(4)
        await pilot.press("escape")
        await pilot.pause(60)
        for key, name in (("", "main"), ("p", "processes"), ("l", "topology")):
            if key:
                await pilot.press(key)
                await pilot.pause(1.5)
            path = HERE / f"box-{gpus}-{name}.svg"
            path.write_text(app.export_screenshot(title="gpuconsole on a fake driver: the figures are scripted"))
            files.append(path)
            if key:
                await pilot.press("escape")
                await pilot.pause(0.5)
        await pilot.press("q")
    return files


def in_a_box(gpus: int) -> list[Path]:
    """Pictures of a box of fake GPUs whose figures move."""
    with tempfile.TemporaryDirectory() as folder, FakeBox(Path(folder) / "box", build_driver(Path(folder)), gpus) as fake:
        os.environ.update(fake.environment())
        return asyncio.run(box(gpus))


def to_png(svg: Path) -> None:
    """Render with a browser: Textual's SVG relies on CSS that lighter converters do not know."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print(f"no chromium: {svg.with_suffix('.png').name} not made")
        return
    width, height = (float(value) for value in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg.read_text()).groups())  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
        options += ["--disable-component-update", "--disable-sync", f"--user-data-dir={profile}", "--hide-scrollbars"]
        target = f"--screenshot={svg.with_suffix('.png')}"
        subprocess.run(
            [browser, *options, target, f"--window-size={int(width)},{int(height)}", svg.resolve().as_uri()],
            check=True,
            capture_output=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="data-starved")
    parser.add_argument("--record", type=Path, help="keep the 120x40 session as a recording")
    parser.add_argument("--box", type=int, metavar="GPUS", help="a box of so many fake GPUs instead")
    parser.add_argument("--serving", metavar="SCENARIO", help="a model server instead, such as kv-pressure")
    args = parser.parse_args()
    if args.serving:
        for label, size in SIZES.items():
            svg = asyncio.run(serving(args.serving, size, label))
            to_png(svg)
            print(svg.name)
        return
    if args.box:
        for svg in in_a_box(args.box):
            to_png(svg)
            print(svg.name)
        return
    for label, size in SIZES.items():
        whole = label == "120x40"
        for svg in asyncio.run(session(args.scenario, size, label, args.record if whole else None, whole)):
            to_png(svg)
            print(svg.name)


if __name__ == "__main__":
    main()
