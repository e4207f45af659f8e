"""Makes every picture in this folder again: `python screenshots/make.py`. `--only demo|runs|healthy|serving|job|box|pages` makes a part.

The title of each picture has the version of the program; a test compares it with the package. `demo`: the animated picture, made from the
recording of `gpuconsole --demo`. `runs`: the overview and the scenarios of this machine; then the same recording, with the
finding, the trial, the verdict and the sub-screens, at three sizes, and at 120x40 in the light theme too. `serving`: the embedded model server with too small a KV cache. `box`: eight GPUs of the tests' fake driver; the
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
from importlib import resources
from pathlib import Path

import rich.console
from pages import pages
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

from benchmarks.fake_box import FakeBox, build_driver
from gpuconsole import __version__
from gpuconsole.engine.engine import Engine
from gpuconsole.engine.replay import DEMO, Replay
from gpuconsole.processes.job import JobCommand
from gpuconsole.report import facts
from gpuconsole.report.guide import narrate
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.theme import DARK, LIGHT
from gpuconsole.tui.widgets.bars import KeyBar

HERE = Path(__file__).parent
TITLE = f"gpuconsole {__version__}"
SIZES = {"120x40": (120, 40), "80x24": (80, 24), "200x50": (200, 50)}


async def until(condition: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the run did not get there in {timeout_s:.0f} s")
        await asyncio.sleep(0.2)


async def session(size: tuple[int, int], label: str, whole: bool) -> list[Path]:
    """The recording of `gpuconsole --demo` at one size: the finding, its trial, the verdict; `whole`: the sub-screens too."""
    with resources.as_file(DEMO) as path:
        replay = Replay(path, 4.0)
    app = ConsoleApp(replay)
    files = []

    async with app.run_test(size=size) as pilot:

        async def keep(name: str) -> None:
            for theme in (DARK, LIGHT) if whole else (DARK,):
                app.theme = theme
                await pilot.pause(0.3)
                path = HERE / f"{name}-{label}{'-light' * (theme == LIGHT)}.svg"
                path.write_text(picture(app))
                files.append(path)
            app.theme = DARK

        await until(lambda: facts.suggestions(replay.view()), 60)
        await pilot.pause(0.6)
        await keep("finding")
        await until(lambda: any(trial.blocks >= 4 for trial in replay.view().trials), 60)
        await pilot.pause(0.6)
        await keep("trial")
        await until(lambda: replay.ended, 60)
        await pilot.pause(1.0)
        await keep("kept")
        if whole:
            for key, name in (("d", "details"), ("h", "history"), ("k", "knobs"), ("i", "device")):
                await pilot.press(key)
                await pilot.pause(1.0)
                await keep(name)
                await pilot.press("escape")
        await pilot.press("q")
    return files


def picture(app: ConsoleApp) -> str:
    """The screen as SVG, on a light background in the light theme."""
    rich.console.SVG_EXPORT_THEME = DEFAULT_TERMINAL_THEME if app.theme == LIGHT else SVG_EXPORT_THEME
    return app.export_screenshot(title=TITLE)


async def first_screens() -> list[Path]:
    """The machine overview of this machine, and the list of scenarios."""
    app = ConsoleApp(Engine())
    files = []
    async with app.run_test(size=SIZES["120x40"]) as pilot:
        await pilot.pause(20)
        for key, name in (("", "overview"), ("s", "scenarios")):
            if key:
                await pilot.press(key)
                await pilot.pause(1.0)
            files.append(HERE / f"{name}-120x40.svg")
            files[-1].write_text(app.export_screenshot(title=TITLE))
        await pilot.press("q", "q")
    return files


async def healthy(size: tuple[int, int], label: str) -> Path:
    """A training run without a finding that can be tried."""
    engine = Engine()
    app = ConsoleApp(engine, scenario="train-gpt")
    path = HERE / f"healthy-{label}.svg"
    async with app.run_test(size=size) as pilot:
        await until(lambda: any(run.steady_from_s is not None and run.findings for run in engine.view().runs), 60)
        await pilot.pause(20)
        path.write_text(app.export_screenshot(title=TITLE))
        await pilot.press("q")
    return path


async def serving(scenario: str, size: tuple[int, int], label: str) -> Path:
    """A model server once its finding stands."""
    engine = Engine()
    app = ConsoleApp(engine, scenario=scenario)
    path = HERE / f"serving-{label}.svg"
    async with app.run_test(size=size) as pilot:
        await until(lambda: any(f.suggestions for r in engine.view().runs for f in r.findings), 90)
        await pilot.pause(15)
        path.write_text(app.export_screenshot(title=TITLE))
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
        path.write_text(app.export_screenshot(title=f"{TITLE}: gpuconsole run -- python hf_starved.py"))
        files.append(path)

    async with app.run_test(size=size) as pilot:
        await until(lambda: facts.suggestions(engine.view()), 120)
        await pilot.pause(4)
        keep("finding")
        await pilot.press("enter")
        await until(lambda: any(trial.blocks >= 4 for trial in engine.view().trials), 60)
        await pilot.pause(1)
        await keep("trial")
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
        await pilot.pause(60)
        for key, name in (("", "main"), ("p", "processes"), ("l", "topology")):
            if key:
                await pilot.press(key)
                await pilot.pause(1.5)
            path = HERE / f"box-{gpus}-{name}.svg"
            path.write_text(app.export_screenshot(title=f"{TITLE} on a fake driver: the figures are scripted"))
            files.append(path)
            if key:
                await pilot.press("escape")
                await pilot.pause(0.5)
        await pilot.press("q")
    return files


FRAMES_S = 0.25
MOST_FRAMES = 16
LAST_S = 5.0


async def demo(size: tuple[int, int]) -> list[Path]:
    """The recording of `gpuconsole --demo` at twice its speed: a frame when something happens, put together to one animated picture."""
    with resources.as_file(DEMO) as path:
        replay = Replay(path, 2.0)
    KeyBar.demo = True
    app = ConsoleApp(replay)
    frames: list[tuple[float, str]] = []
    happened: set[object] = set()

    def moment() -> object:
        """What is worth a frame: a step of the session, a block of the trial, some seconds of a run."""
        view = replay.view()
        blocks = view.trials[-1].blocks // 2 if view.trials else 0
        return narrate(view)[0], len(view.runs), blocks, bool(facts.firing(view.run)), int(view.running_s // 6) if view.run else -1

    async with app.run_test(size=size) as pilot:
        await until(lambda: replay.view().runs, 20)
        begun = time.monotonic()
        while not replay.ended:
            await pilot.pause(FRAMES_S)
            if (now := moment()) not in happened and len(frames) < MOST_FRAMES:
                happened.add(now)
                frames.append((time.monotonic() - begun, app.export_screenshot(title=f"{TITLE} --demo: a recorded session", simplify=True)))
        frames.append((time.monotonic() - begun, app.export_screenshot(title=f"{TITLE} --demo: a recorded session", simplify=True)))
        await pilot.press("q")
    KeyBar.demo = False
    target = HERE / "demo.svg"
    target.write_text(animated(frames))
    return [target]


def animated(frames: list[tuple[float, str]]) -> str:
    """One SVG that shows the frames one after the other, each from its second on, the last one for `LAST_S`. It needs no script."""
    whole = frames[-1][0] + LAST_S
    head = re.match(r"<svg[^>]*>", frames[0][1])
    assert head is not None
    styles, bodies = [], []
    for n, (start, svg) in enumerate(frames):
        first = 0.0 if n == 0 else start
        end = frames[n + 1][0] if n + 1 < len(frames) else whole
        a, b = 100 * first / whole, 100 * end / whole
        steps = [f"{a:.2f}% {{visibility:visible}}", *([f"{b:.2f}% {{visibility:hidden}}"] if b < 100 else [])]
        steps = [*(["0% {visibility:hidden}"] if a > 0 else []), *steps]
        styles.append(f"@keyframes f{n} {{{' '.join(steps)}}} .f{n} {{visibility:hidden; animation: f{n} {whole:.1f}s step-end infinite}}")
        body = svg[svg.index(head[0]) + len(head[0]) if n == 0 else svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
        body = re.sub(r"<clipPath.*?</clipPath>| clip-path=\"url\([^\"]*\)\"", "", body, flags=re.DOTALL)
        bodies.append(f'<g class="f{n}">{body}</g>')
    return f"{head[0]}<style>{' '.join(styles)}</style>{''.join(bodies)}</svg>"


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


def runs() -> list[Path]:
    files = asyncio.run(first_screens())
    for label, size in SIZES.items():
        files += asyncio.run(session(size, label, label == "120x40"))
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("demo", "runs", "healthy", "serving", "job", "box", "pages"), help="a part of the pictures")
    args = parser.parse_args()
    parts: dict[str, Callable[[], list[Path]]] = {
        "demo": lambda: asyncio.run(demo(SIZES["120x40"])),
        "runs": runs,
        "healthy": lambda: [asyncio.run(healthy(size, label)) for label, size in SIZES.items()],
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
