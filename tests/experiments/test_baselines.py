"""Baselines on disk, also with hostile files; and a session whose runs are compared and kept."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from gpuconsole.engine.machine.load import OtherLoad
from gpuconsole.experiments.baselines import BaselineError, baselines_folder, check_folder, keep_run, read_all, read_baseline, remove
from gpuconsole.experiments.watch_baseline import BaselineWatch, Keeps, look_up
from gpuconsole.model.baseline import MOST_RUNS, BaselineKey, BaselineRun
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, RunState, Step, Validity
from gpuconsole.model.scenario import Scenario, Teaches, Workload
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.api import SessionError
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import AnyEvent, EnvironmentKnown, RunClosed, RunOpened, Started, Steps
from tests.waiting import until

KEY = BaselineKey("train-gpt", {"batch_size": 16}, "AMD EPYC", "AMD EPYC", 2, "2.13.0")
RUN = BaselineRun("2026-11-20T10:00:00Z", "0.1.0", (100.0,) * 8)


def keep(folder: Path, run: BaselineRun = RUN, key: BaselineKey = KEY, **knobs: int) -> str:
    return keep_run(folder, key, {"batch_size": 16, **knobs}, "tokens/s", run)


def test_runs_are_kept_under_their_key_the_oldest_making_room(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "baselines"
    for n in range(MOST_RUNS + 2):
        line = keep(folder, msgspec.structs.replace(RUN, rates=(100.0 + n,) * 8))
    assert line == f"kept as a baseline: {KEY.name}, {MOST_RUNS} runs"
    found = read_baseline(folder / f"{KEY.name}.json")
    assert [run.rate for run in found.runs] == [102.0 + n for n in range(MOST_RUNS)]
    keep(folder, key=msgspec.structs.replace(KEY, torch="2.11.0"))
    assert len(read_all(folder)[0]) == 2
    assert {path.suffix for path in folder.iterdir() if path.name != ".lock"} == {".json"}  # nothing half written


def test_a_changed_scenario_starts_a_new_baseline(tmp_path: Path) -> None:
    keep(tmp_path, seq_len=128)
    assert "earlier runs are deleted, the scenario had other values: seq_len 128 -> 256" in keep(tmp_path, seq_len=256)
    assert len(read_baseline(tmp_path / f"{KEY.name}.json").runs) == 1
    keep(tmp_path, seq_len=256, n_layer=4)  # a knob that is new
    assert len(read_baseline(tmp_path / f"{KEY.name}.json").runs) == 2


def test_a_scenarios_name_cannot_lead_elsewhere(tmp_path: Path) -> None:
    for name in ("../../etc/passwd", "..", "", "a\x00b/\x1b[2J", "模型" * 200):
        keep(tmp_path / "b", key=msgspec.structs.replace(KEY, scenario=name))
    assert len(read_all(tmp_path / "b")[0]) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


GOOD = msgspec.json.encode({"schema": "gpuconsole.baseline/1", "key": KEY, "knobs": {}, "unit": "tokens/s", "runs": [RUN]})
HOSTILE = {
    "empty": b"",
    "cut off": GOOD[:-20],
    "not text": b"\xff\xfe\x00{",
    "another thing": b'{"a": [1, 2]}',
    "deep": b'{"schema":' + b"[" * 100_000,
    "no runs": GOOD.replace(msgspec.json.encode(RUN), b""),
    "rate of zero": GOOD.replace(b"100.0", b"0.0"),
    "rate that is no number": GOOD.replace(b"100.0", b'"fast"'),
    "infinite": GOOD.replace(b"100.0", b"1e999"),
    "escapes for a date": GOOD.replace(b"2026-11-20T10:00:00Z", b"\\u001b[2J"),
    "newer": GOOD.replace(b"baseline/1", b"baseline/2"),
    "renamed": GOOD.replace(b'"cores":2', b'"cores":3'),
    "huge": b" " * (2 << 20) + GOOD,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_file_is_named_in_one_line_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    other = msgspec.structs.replace(KEY, cores=8)
    keep(tmp_path, key=other)
    bad = tmp_path / f"{KEY.name}.json"
    bad.write_bytes(HOSTILE[name])
    found, mistakes = read_all(tmp_path)
    assert [one.key for one in found] == [other]
    (line,) = mistakes.values()
    assert line.startswith(f"{bad}: ")
    assert line.isprintable() and len(line) < 600
    with pytest.raises(BaselineError, match=r"baseline|renamed"):
        keep(tmp_path)  # what cannot be read is not overwritten
    assert bad.read_bytes() == HOSTILE[name]
    assert remove(tmp_path, KEY.name) == bad
    keep(tmp_path)
    assert len(read_all(tmp_path)[0]) == 2


def test_pipes_and_folders_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "notes.txt").write_text("mine")
    found, mistakes = read_all(tmp_path)
    assert (found, sorted(mistakes)) == ([], ["folder", "loop", "pipe"])
    with pytest.raises(BaselineError, match="cannot be removed"):
        remove(tmp_path, "folder")


def test_only_listed_baselines_are_removed(tmp_path: Path) -> None:
    (tmp_path / "precious.json").write_text("{}")
    keep(tmp_path / "b")
    for name in ("../precious", "/etc/passwd", "train-gpt", ""):
        with pytest.raises(BaselineError, match="there is no baseline"):
            remove(tmp_path / "b", name)
    assert (tmp_path / "precious.json").exists()


def test_a_folder_that_cannot_exist_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(BaselineError, match="cannot be written"):
        check_folder(tmp_path / "taken" / "baselines")
    assert read_all(tmp_path / "absent") == ([], {})
    assert list(read_all(tmp_path / "taken")[1].values()) == [f"{tmp_path / 'taken'}: cannot be read: Not a directory"]


# --- a session -----------------------------------------------------------------------------------------------

KNOBS = {"batch_size": 8}
SCENARIO = Scenario("train-gpt", "", Workload("training.gpt", "", "tokens", ("batch_size",)), "", KNOBS, {}, {}, Teaches())
CPU = Device("cpu", "AMD EPYC")
STEP_S = 0.125


class Session:
    """A state and what is compared in it, fed by hand."""

    def __init__(self, keeps: Keeps = "chosen") -> None:
        self.state = SessionState()
        self.comparing = BaselineWatch(self.state, self.emit, keeps)
        self.emit(EnvironmentKnown(0.0, Environment(host="h", cpu="AMD EPYC", cores=2, torch="2.13.0")))

    def emit(self, event: AnyEvent) -> None:
        self.state.apply(event)

    async def run(self, tokens: int = 1000, n: int = 160, state: RunState | None = "finished", batch_size: int = 8) -> None:
        """A run of `n` steps of `tokens` each; it goes on with `state` None."""
        number = str(len(self.state.records) + 1)
        knobs = {"batch_size": batch_size}
        self.emit(RunOpened(1.0, number, "train-gpt", "training.gpt", knobs, "cpu"))
        self.comparing.begin(SCENARIO, CPU)
        await self.comparing.settled()
        self.emit(Started(1.0, knobs, {}))
        phases = (STEP_S, *(0.0,) * (len(PHASES) - 1))
        for i in range(n):
            t = 1.0 + (i + 1) * STEP_S
            self.emit(Steps(t, [Step(i, t, STEP_S, 8, tokens, phases)], 0.0, 0.0, 0.0, 1e6))
        if state is not None:
            self.close(state)
            await self.comparing.settled()

    def close(self, state: RunState) -> None:
        record = self.state.records[-1]
        self.emit(RunClosed(30.0, record.run.id, state))
        self.comparing.ended(record)

    @property
    def verdict(self) -> str | None:
        found = self.state.records[-1].run.baseline
        return found.verdict if found else None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return baselines_folder()


def test_runs_are_kept_and_later_runs_are_compared_with_them(folder: Path) -> None:
    async def body() -> None:
        session = Session("all")
        await session.run()
        assert session.state.records[-1].run.baseline is None
        await session.run(tokens=500)
        assert session.verdict == "slower"
        await session.run(tokens=3000)
        assert session.verdict == "faster"
        await session.run(n=6)
        assert session.verdict == "undecided"  # never steady
        await session.run(batch_size=16)
        other = session.state.records[-1].run.baseline
        assert other is not None
        assert other.words.startswith("no baseline for batch_size=16; the nearest baseline is for batch_size=8, from ")
        assert len(session.comparing.kept) == 4

    asyncio.run(body())
    assert sorted(len(one.runs) for one in read_all(folder)[0]) == [1, 3]


def test_a_slower_run_is_not_kept_where_the_user_asks_for_that(folder: Path) -> None:
    async def body() -> None:
        session = Session("all but slower")
        await session.run()
        await session.run(tokens=500)
        assert session.comparing.kept[-1] == "run 2 is not kept as a baseline: it is slower than the baseline"

    asyncio.run(body())
    assert [len(one.runs) for one in read_all(folder)[0]] == [1]


def test_the_key_keeps_a_run_when_it_ends_or_at_once_but_never_twice(folder: Path) -> None:
    async def body() -> None:
        session = Session()
        with pytest.raises(SessionError, match="no run to keep"):
            await session.comparing.keep()
        await session.run(state=None)
        assert await session.comparing.keep() == "run 1 will be kept as a baseline when it ends"
        assert await session.comparing.keep() == "run 1 will not be kept as a baseline when it ends"
        session.close("stopped")
        await session.comparing.settled()
        assert not folder.exists()
        assert (await session.comparing.keep()).endswith(", 1 run")
        with pytest.raises(SessionError, match="already"):
            await session.comparing.keep()
        await session.run(state=None)
        await session.comparing.keep()
        session.close("finished")
        await session.comparing.settled()
        assert session.state.notes[-1].endswith(", 2 runs")

    asyncio.run(body())


def test_a_run_without_a_measurement_is_not_kept(folder: Path) -> None:
    async def body() -> None:
        session = Session("all")
        await session.run(n=6)
        assert session.comparing.failed == ["run 1 is not kept as a baseline: too few steady steps (4 blocks are needed)"]
        await session.run(state="failed")
        with pytest.raises(SessionError, match="run 2 failed"):
            await session.comparing.keep()

    asyncio.run(body())
    assert not folder.exists()


def test_a_failed_reading_of_the_load_does_not_end_the_comparison(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[str] = []

    async def read(self: object) -> None:
        readings.append("read")
        raise IndexError("list index out of range")

    monkeypatch.setattr(OtherLoad, "read", read)
    monkeypatch.setattr("gpuconsole.experiments.watch_baseline.EVERY_S", 0.01)

    async def body() -> None:
        session = Session("all")
        await session.run()
        await session.run(tokens=500, state=None)
        watching = asyncio.create_task(session.comparing.run())
        await until(lambda: session.verdict == "slower" and len(readings) > 2)
        assert not watching.done()
        watching.cancel()
        assert sum("load of other programs" in note for note in session.state.notes) == 1, "reported once"

    asyncio.run(body())


def test_a_file_that_cannot_be_read_does_no_harm_to_a_run(folder: Path) -> None:
    async def body() -> None:
        session = Session("all")
        await session.run()
        path = next(folder.glob("*.json"))
        path.write_text("{")
        await session.run()
        found = session.state.records[-1].run.baseline
        assert found is not None
        assert found.words.startswith(f"{path}: not a valid baseline")
        assert any("not a valid baseline" in line for line in session.comparing.failed)

    asyncio.run(body())


def test_a_renamed_set_of_defaults_is_still_the_same_measurement(folder: Path) -> None:
    """The scenario has since been given the very values that were set by hand: all settings are equal, so they compare."""
    keep_run(folder, KEY, {"batch_size": 16}, "tokens/s", RUN)
    found = look_up(msgspec.structs.replace(KEY, changed={}), {"batch_size": 16})
    assert found.baseline is not None
    assert look_up(msgspec.structs.replace(KEY, changed={}), {"batch_size": 8}).instead is not None


@pytest.mark.parametrize("verdict", ["degraded", "invalid"])
def test_a_run_whose_figures_are_not_valid_is_no_baseline_and_has_no_verdict(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verdict: Literal["degraded", "invalid"]
) -> None:
    async def main() -> None:
        session = Session("all")
        for _ in range(3):
            await session.run(1000)
        doubt = Validity(verdict, ["the load generator waited for a CPU 38 % of the time"])
        monkeypatch.setattr(BaselineWatch, "_valid", lambda *_: doubt)
        await session.run(700)
        found = session.state.records[-1].run.baseline
        assert found is not None and found.verdict == {"degraded": "undecided", "invalid": None}[verdict]
        assert "the load generator waited for a CPU 38 % of the time" in found.words
        reason = f"its numbers are {verdict}: the load generator waited for a CPU 38 % of the time"
        assert session.comparing.failed == [f"run 4 is not kept as a baseline: {reason}"]
        with pytest.raises(SessionError, match="run 4 cannot be a baseline"):
            await session.comparing.keep()

    asyncio.run(main())
    assert len(read_all(folder)[0][0].runs) == 3
