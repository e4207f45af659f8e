"""Profiler windows through the real engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuconsole.engine.recording import Replay
from gpuconsole.experiments.session import LiveSession
from gpuconsole.session.api import SessionError
from tests.engine.test_engine import running, with_engine
from tests.waiting import until


@pytest.mark.slow
def test_a_profile_excludes_changes_is_kept_with_the_run_and_ends_with_it(tmp_path: Path) -> None:
    recording = tmp_path / "r.jsonl"

    async def play(engine: LiveSession) -> None:
        engine.profile_dir = tmp_path / "traces"
        with pytest.raises(SessionError, match="nothing is running"):
            await engine.profile()
        await running(engine)
        window = asyncio.create_task(engine.profile(2))
        await until(lambda: engine.view().probing == "profiler")
        with pytest.raises(SessionError, match="a profile is under way"):
            await engine.set_knobs({"batch_size": 4})
        report = await window
        assert engine.view().probing != "profiler"
        run = engine.view().run
        assert run is not None
        assert run.profile == report == engine.snapshot().runs[0].profile
        assert Path(report.trace).parent == tmp_path / "traces"
        # and with other knobs it is another run, which has none yet
        await engine.set_knobs({"batch_size": 4})
        changed = engine.view().run
        assert changed is not None
        assert changed.profile is None
        await engine.profile(1)
        engine.toggle_recording(recording)
        again = asyncio.create_task(engine.profile(20))
        await until(lambda: engine.view().probing == "profiler")
        await engine.stop()
        with pytest.raises(SessionError, match="the run ended before its profile was there"):
            await again

    with_engine(play)
    replay = Replay(recording, speed=0)
    asyncio.run(replay.open())
    shown = replay.view().run
    assert shown is not None
    assert shown.profile is not None
    assert shown.profile.steps == 1
    with pytest.raises(SessionError, match="recording"):
        asyncio.run(replay.profile())
