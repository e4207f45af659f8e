"""Makes every picture in this folder again: `python screenshots/make.py`. `--only runs|serving|job|box|pages` makes a part.

`runs`: `data-starved` on this machine, with the finding, the sub-screens, and the verdict of its trial; `--record` keeps the session for
`gpuconsole replay` too. `serving`: the embedded model server with too small a KV cache. `box`: eight GPUs of the tests' fake driver; the
title of the picture says so. `job`: a Hugging Face Trainer of the user's own (needs transformers). `pages`: the HTML report (`pages.py` says what it needs). PNG needs `chromium` on the PATH, or resvg-py; without them the SVG files are made
and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pages import pages

from benchmarks.fake_box import FakeBox, build_driver
from gpuconsole.engine.engine import Engine
from gpuconsole.processes.job import JobCommand
from gpuconsole.report import facts
from gpuconsole.tui.app import ConsoleApp

HERE = Path(__file__).parent
SIZES = {"120x40": (120, 40), "80x24": (80, 24)}


async def until(condition: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the run did not get there in {timeout_s:.0f} s")
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

        async def keep_screen(key: str, name: str) -> None:
            await pilot.press(key)
            await pilot.pause(1.0)
            keep(name)
            await pilot.press("escape")

        await until(lambda: any(f.suggestions for r in engine.view().runs for f in r.findings), 90)
        await pilot.pause(2.5)
        keep("finding")
        if whole:
            await keep_screen("d", "details")
        await pilot.press("enter")
        await until(lambda: any(trial.state != "running" for trial in engine.view().trials), 90)
        await pilot.pause(16 if whole else 8)
        keep("main")
        if whole:
            for key, name in (("h", "history"), ("k", "knobs"), ("i", "device"), ("s", "scenarios")):
                await keep_screen(key, name)
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


async def job(size: tuple[int, int], label: str) -> list[Path]:
    """A Hugging Face Trainer that waits for its data: the finding, the trial, the proof, and the output of the job."""
    engine = Engine()
    command = JobCommand((sys.executable, str(HERE / "hf_starved.py"), "20000"))

    async def start(columns: int, rows: int) -> None:
        await engine.start_job_on_terminal(command, columns, rows, None)

    app = ConsoleApp(engine, start_job=start)
    files = []

    def keep(name: str) -> None:
        path = HERE / f"job-{name}-{label}.svg"
        path.write_text(app.export_screenshot(title="gpuconsole run -- python hf_starved.py"))
        files.append(path)

    async with app.run_test(size=size) as pilot:
        await until(lambda: facts.suggestions(engine.view()), 120)
        await pilot.pause(4)
        keep("finding")
        await pilot.press("enter")
        await until(lambda: any(trial.blocks >= 4 for trial in engine.view().trials), 60)
        await pilot.pause(1)
        keep("trial")
        await until(lambda: any(trial.state != "running" for trial in engine.view().trials), 90)
        await pilot.pause(12)
        keep("proven")
        await pilot.press("o")
        await pilot.pause(1)
        keep("output")
        assert engine.job is not None
        engine.job.signal(signal.SIGTERM)
        await until(lambda: engine.job is None or engine.job.ended, 20)
        await pilot.press("q")
    return files


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


def to_png(svg: Path) -> bool:
    """Render with a browser, else with resvg (`pip install resvg-py`): Textual's SVG needs CSS that other converters do not support.

    False where there is neither.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        try:
            resvg = importlib.import_module("resvg_py")
        except ImportError:
            return False
        font = "DejaVu Sans Mono"  # has the box and block characters; the SVG asks for a font from the web
        text = svg.read_text().replace("Fira Code", font)
        svg.with_suffix(".png").write_bytes(bytes(resvg.svg_to_bytes(svg_string=text, monospace_family=font)))
        return True
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
    return True


def runs(scenario: str, record: Path | None) -> list[Path]:
    files = []
    for label, size in SIZES.items():
        whole = label == "120x40"
        files += asyncio.run(session(scenario, size, label, record if whole else None, whole))
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("runs", "serving", "job", "box", "pages"), help="a part of the pictures")
    parser.add_argument("--scenario", default="data-starved")
    parser.add_argument("--record", type=Path, help="keep the 120x40 session as a recording")
    args = parser.parse_args()
    parts: dict[str, Callable[[], list[Path]]] = {
        "runs": lambda: runs(args.scenario, args.record),
        "serving": lambda: [asyncio.run(serving("kv-pressure", size, label)) for label, size in SIZES.items()],
        "job": lambda: asyncio.run(job(SIZES["120x40"], "120x40")),
        "box": lambda: in_a_box(8),
        "pages": pages,
    }
    made: list[Path] = []
    for name, make in parts.items():
        if args.only in (None, name):
            made += make()
    rendered = [to_png(path) for path in made if path.suffix == ".svg"]
    if args.only is None:
        kept = {path.with_suffix(suffix) for path in made for suffix in (".svg", ".png")}
        for path in HERE.glob("*.[sp][vn]g"):
            if path not in kept:
                print(f"removed {path.name}: nothing makes it any more")
                path.unlink()
    print("\n".join(path.name for path in made))
    if not all(rendered):
        print("no chromium and no resvg-py: the PNG files are older than the SVG files")
    return 0 if all(rendered) else 1


if __name__ == "__main__":
    sys.exit(main())
