"""Makes every picture in this folder again: `python screenshots/make.py`. `--only PART` makes a
part. The machine should be quiet.

first: the overview of this machine, at three sizes in both themes, and the list of scenarios.
healthy: `train-gpt`, a run without a fault. runs: a live session of `data-starved` with its
finding, its trial and the kept change, and the sub-screens. serving: the embedded model server with
too small a KV cache. tuning: a tuning session under way, and its certificate. box: eight GPUs of
the tests' fake driver; the title of the picture says so. job: a Hugging Face Trainer of the user's
own (needs transformers). line: a program whose loss is slow, with the line that the finding names,
at 80x24 and 120x40, and the details. demo: the animated picture, from the recording of
`gpuconsole --demo`. pages: the HTML report (`pages.py` says what it needs).

The moments first, healthy, finding, trial, kept, serving, tuning and eight-gpus have a picture at
80x24, 120x40 and 200x50, each in the dark and in the light theme. Other screens are taken at
120x40. Every PNG has the version of the program in its `Title` chunk, and a test compares it with
the package. `shots.py` says what the pictures need.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from animation import demo
from pages import pages
from shots import HERE, ONE, SIZES, TITLE, check_tools, shoot, until

from benchmarks.fake_box import FakeBox, build_driver
from gpuconsole.engine.children.job import JobCommand
from gpuconsole.experiments.session import LiveSession
from gpuconsole.session import facts
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.theme import DARK

GPUS = 8
FAKE = f"{TITLE} on a fake driver: the figures are scripted"
JOB = f"{TITLE}: gpuconsole run -- python hf_starved.py"
LINE = f"{TITLE}: gpuconsole run -- python mask_in_loss.py"


async def first() -> list[Path]:
    """The machine overview of this machine, and the list of scenarios."""
    app = ConsoleApp(LiveSession())
    async with app.run_test(size=ONE["120x40"]) as pilot:
        await pilot.pause(60)
        files = await shoot(pilot, "first")
        await pilot.press("s")
        await pilot.pause(1.0)
        files += await shoot(pilot, "scenarios", ONE)
        await pilot.press("q", "q")
    return files


async def healthy() -> list[Path]:
    """A training run without a fault."""
    engine = LiveSession()
    app = ConsoleApp(engine, scenario="train-gpt")
    async with app.run_test(size=ONE["120x40"]) as pilot:
        await until(
            lambda: any(
                run.steady_from_s is not None and run.findings for run in engine.view().runs
            ),
            60,
        )
        await pilot.pause(40)
        files = await shoot(pilot, "healthy")
        await pilot.press("q")
    return files


async def runs() -> list[Path]:
    """A run that waits for storage: the finding, its trial, the verdict, and the sub-screens."""
    engine = LiveSession()
    app = ConsoleApp(engine, scenario="data-starved")
    async with app.run_test(size=ONE["120x40"]) as pilot:
        await until(lambda: facts.suggestions(engine.view()), 60)
        await pilot.pause(15)
        files = await shoot(pilot, "finding")
        await pilot.press("enter")
        await until(lambda: any(trial.blocks >= 3 for trial in engine.view().trials), 60)
        files += await shoot(pilot, "trial", settle_s=0.2)
        await until(lambda: any(trial.state != "running" for trial in engine.view().trials), 90)
        if not engine.view().trials[-1].kept:
            raise SystemExit(
                "the change was not kept: other programs disturbed the trial; run again"
            )
        await pilot.pause(20)
        files += await shoot(pilot, "kept")
        for key, name in (("d", "details"), ("h", "history"), ("S", "knobs"), ("i", "device")):
            await pilot.press(key)
            await pilot.pause(1.0)
            files += await shoot(pilot, name, ONE)
            await pilot.press("escape")
        await pilot.press("q")
    return files


async def serving() -> list[Path]:
    """A model server once its finding stands."""
    engine = LiveSession()
    app = ConsoleApp(engine, scenario="kv-pressure")
    async with app.run_test(size=ONE["120x40"]) as pilot:
        await until(lambda: any(f.suggestions for r in engine.view().runs for f in r.findings), 90)
        await pilot.pause(30)
        files = await shoot(pilot, "serving")
        await pilot.press("q")
    return files


async def tuning() -> list[Path]:
    """A tuning session with at least one finished trial, and the certificate at its end."""
    engine = LiveSession()
    app = ConsoleApp(engine, scenario="data-starved")

    def further() -> bool:
        """Whether a trial runs after another one has finished."""
        view = engine.view()
        return (
            view.tuning is not None
            and bool(view.tuning.certificate.attempts)
            and facts.running_trial(view) is not None
        )

    async with app.run_test(size=ONE["120x40"]) as pilot:
        await until(lambda: facts.suggestions(engine.view()), 60)
        await pilot.press("t")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await until(further, 240)
        await pilot.pause(5)
        files = await shoot(pilot, "tuning", settle_s=0.2)
        await until(lambda: (made := engine.view().tuning) is not None and not made.under_way, 360)
        await pilot.pause(1)
        files += await shoot(pilot, "tuned", ONE)
        await pilot.press("q", "q")
    return files


async def job() -> list[Path]:
    """A Hugging Face Trainer that waits for its data: the finding, the trial, the proof, and the
    output of the job."""
    engine = LiveSession()
    command = JobCommand((sys.executable, str(HERE / "hf_starved.py"), "20000"))

    async def start(columns: int, rows: int) -> None:
        await engine.start_job_on_terminal(command, columns, rows, None)

    app = ConsoleApp(engine, start_job=start)
    files = []
    async with app.run_test(size=ONE["120x40"]) as pilot:

        async def keep(name: str) -> None:
            files.extend(await shoot(pilot, f"job-{name}", ONE, title=JOB, themes=(DARK,)))

        await until(lambda: facts.suggestions(engine.view()), 120)
        await pilot.pause(4)
        await keep("finding")
        await pilot.press("enter")
        await pilot.pause(1)
        await pilot.press("up", "enter")  # yes: new loader workers need the user's permission
        await until(lambda: any(trial.blocks >= 4 for trial in engine.view().trials), 60)
        await pilot.pause(1)
        await keep("trial")
        await until(lambda: any(trial.state != "running" for trial in engine.view().trials), 90)
        await pilot.pause(12)
        await keep("proven")
        await pilot.press("o")
        await pilot.pause(1)
        await keep("output")
        assert engine.job is not None
        engine.job.signal(signal.SIGTERM)
        await until(lambda: engine.job is None or engine.job.ended, 20)
        await pilot.press("q")
    return files


async def line() -> list[Path]:
    """A program whose loss is slow: the finding with its line, and the details, which list the
    places that take most of a step."""
    engine = LiveSession()
    os.environ["SECONDS"] = "600"
    program = HERE.parent / "benchmarks" / "own_job" / "reports" / "programs" / "mask_in_loss.py"
    command = JobCommand((sys.executable, str(program)))

    async def start(columns: int, rows: int) -> None:
        await engine.start_job_on_terminal(command, columns, rows, None)

    app = ConsoleApp(engine, start_job=start)
    async with app.run_test(size=ONE["120x40"]) as pilot:
        await until(lambda: any(facts.firing(run) for run in engine.view().runs), 120)
        await pilot.pause(15)
        two = {size: SIZES[size] for size in ("80x24", "120x40")}
        files = await shoot(pilot, "line", two, title=LINE, themes=(DARK,))
        await pilot.press("d")
        await pilot.pause(1)
        files += await shoot(pilot, "line-details", ONE, title=LINE, themes=(DARK,))
        await pilot.press("escape")
        assert engine.job is not None
        engine.job.signal(signal.SIGTERM)
        await until(lambda: engine.job is None or engine.job.ended, 20)
        await pilot.press("q")
    return files


async def box() -> list[Path]:
    """The monitoring screens of a box; the fake driver must be in the environment already."""
    app = ConsoleApp(LiveSession(interval_s=0.5))
    async with app.run_test(size=ONE["120x40"]) as pilot:
        await pilot.pause(60)
        files = await shoot(pilot, "eight-gpus", title=FAKE)
        for key, name in (("p", "processes"), ("l", "topology")):
            await pilot.press(key)
            await pilot.pause(1.5)
            files += await shoot(pilot, f"eight-gpus-{name}", ONE, title=FAKE)
            await pilot.press("escape")
            await pilot.pause(0.5)
        await pilot.press("q")
    return files


def in_a_box() -> list[Path]:
    """Pictures of a box of fake GPUs whose figures move."""
    before = dict(os.environ)
    with (
        tempfile.TemporaryDirectory() as folder,
        FakeBox(Path(folder) / "box", build_driver(Path(folder)), GPUS) as fake,
    ):
        os.environ.update(fake.environment())
        try:
            return asyncio.run(box())
        finally:
            os.environ.clear()
            os.environ.update(before)


PARTS: dict[str, Callable[[], list[Path]]] = {
    "first": lambda: asyncio.run(first()),
    "healthy": lambda: asyncio.run(healthy()),
    "runs": lambda: asyncio.run(runs()),
    "serving": lambda: asyncio.run(serving()),
    "tuning": lambda: asyncio.run(tuning()),
    "box": in_a_box,
    "job": lambda: asyncio.run(job()),
    "line": lambda: asyncio.run(line()),
    "demo": lambda: asyncio.run(demo()),
    "pages": pages,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, help="a part of the pictures")
    args = parser.parse_args()
    check_tools()
    made: list[Path] = []
    for name, make in PARTS.items():
        if args.only in (None, name):
            made += make()
            print(f"{name}: {len(made)} pictures", flush=True)
    if args.only is None:
        for path in {*HERE.glob("*.png"), *HERE.glob("*.svg")} - set(made):
            print(f"removed {path.name}: nothing makes it any more")
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
