"""The recorded session of `gpuconsole --demo`."""

from __future__ import annotations

import asyncio
from importlib import resources

from gpuconsole.engine.recording import DEMO, Replay
from gpuconsole.report.screen.answer import narrate
from gpuconsole.wire.recording import read_recording

MAX_BYTES = 200_000


def test_the_demo_finds_proves_and_keeps() -> None:
    """All events are read one after the other; the hint line tells the steps in order."""
    with resources.as_file(DEMO) as path:
        assert path.stat().st_size < MAX_BYTES
        events = list(read_recording(path))
        replay = Replay(path, 0)
    steps: list[int] = []
    for event in events:
        replay.state.apply(event)
        view = replay.view()
        if (step := narrate(view)[0]) not in steps:
            steps.append(step)
    assert steps == [1, 2, 3, 4] and view.recording
    (trial,) = view.trials
    assert trial.verdict == "win" and trial.kept and trial.changes == {"num_workers": 2}
    assert narrate(view)[1].startswith("Faster: kept")
    assert [run.changes for run in view.runs] == [{}, {"num_workers": 2}]
    assert view.run is not None and view.run.findings
    assert not any(process.command for process in view.processes)
    asyncio.run(replay.close())
