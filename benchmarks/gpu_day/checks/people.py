"""For people: a recorded session with pictures of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu_day.check import Day, check

SCENARIO = "data-starved"
SIZE = (120, 40)
FINDING_S, TRIAL_S = 90.0, 120.0


@check(value=93, seconds=80)
def story(day: Day) -> None:
    """The console shows a finding, Enter tries its fix; the session is recorded, with two
    pictures."""
    recording = day.folder / "story.jsonl"
    recording.unlink(missing_ok=True)
    verdict = asyncio.run(_story(day.device, recording, day.folder, day.simulated))
    day.require("the trial of the fix", verdict == "win", verdict)
    day.require(
        "recording",
        recording.stat().st_size > 10_000,
        f"{recording.name}, {recording.stat().st_size} bytes",
    )
    day.note("pictures", "story-finding.svg, story-proven.svg")


async def _story(device: str, recording: Path, folder: Path, simulated: bool) -> str:
    from gpuconsole.experiments.session import LiveSession
    from gpuconsole.tui.app import ConsoleApp

    engine = LiveSession(device=device)
    app = ConsoleApp(engine, scenario=SCENARIO, record=recording)
    title = f"gpuconsole{' on a simulated device' if simulated else ''}"
    async with app.run_test(size=SIZE) as pilot:
        await _until(
            lambda: any(one.suggestions for run in engine.view().runs for one in run.findings),
            FINDING_S,
        )
        await pilot.pause(2.5)
        (folder / "story-finding.svg").write_text(app.export_screenshot(title=title))
        await pilot.press("enter")
        await _until(
            lambda: any(trial.state != "running" for trial in engine.view().trials), TRIAL_S
        )
        await pilot.pause(5.0)
        (folder / "story-proven.svg").write_text(app.export_screenshot(title=title))
        verdict = engine.view().trials[-1].verdict
        await pilot.press("q")
    return verdict or engine.view().trials[-1].state


async def _until(condition: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the session did not get there in {timeout_s:.0f} s")
        await asyncio.sleep(0.2)
