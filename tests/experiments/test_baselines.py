"""Baselines on disk, also with hostile files; and a session whose runs are compared and kept."""

from __future__ import annotations

import asyncio
import errno
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

import jsonschema
import msgspec
import pytest

from gpuconsole.engine.reader import read_snapshot
from gpuconsole.experiments.baselines import (
    MAX_RUNS,
    BaselineError,
    baselines_folder,
    check_folder,
    keep_run,
    key_of,
    read_all,
    remove,
)
from gpuconsole.experiments.rate_watch import BaselineWatch, Keeps
from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.host.load import OtherLoad
from gpuconsole.model.experiments import Trial
from gpuconsole.model.run import PHASES, Distribution, Run, RunState, Step, Summary, Validity
from gpuconsole.model.snapshot import Environment, Snapshot, encode, json_schema
from gpuconsole.session.api import SessionError
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot
from gpuconsole.wire.events import AnyEvent, EnvironmentKnown, RunClosed, RunOpened, Started, Steps
from tests.experiments.measured import in_session
from tests.waiting import until

BOX = Environment(host="box", cpu="AMD EPYC", cores=2, torch="2.13.0")


def made(
    rate: float = 100.0,
    number: int = 0,
    scenario: str = "train-gpt",
    environment: Environment = BOX,
    **knobs: int,
) -> tuple[Snapshot, Run]:
    """A session of two runs, of which the second began at the minute `number`."""
    steady = Summary(tokens_per_s=Distribution(rate, 1.0, 20, rate))
    run = Run(
        "2", scenario, "training.gpt", {"batch_size": 16, **knobs}, "cpu", "finished",
        started=f"2026-11-20T10:{number:02}:00Z", duration_s=20.0, steady_from_s=0.0,
        summary=steady,
    )  # fmt: skip
    first = msgspec.structs.replace(run, id="1")
    trials = [Trial("1", "1", {}, "done"), Trial("2", "2", {}, "done")]
    return Snapshot(
        created="", gpuconsole="0.1.0", environment=environment, runs=[first, run], trials=trials
    ), run


def keep(folder: Path, *of: object, **more: Any) -> str:
    session, run = made(*of, **more)  # type: ignore[arg-type]
    return keep_run(folder, MeasuredRun("run 2", run, session))


def kept_in(folder: Path) -> list[MeasuredRun]:
    return [side for sides in read_all(folder)[0].values() for side in sides]


def test_a_kept_run_is_a_session_that_any_command_reads(tmp_path: Path) -> None:
    keep(tmp_path)
    (path,) = tmp_path.glob("*/*.json")
    session, (_, run) = read_snapshot(path), made()[0].runs
    assert session.runs == [run] and [trial.id for trial in session.trials] == ["2"]
    jsonschema.validate(json.loads(path.read_text()), json_schema())


def test_runs_are_kept_in_the_folder_of_their_key_the_oldest_making_room(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "baselines"
    for n in range(MAX_RUNS + 2):
        line = keep(folder, 100.0 + n, n)
    assert line == f"kept as a baseline: {key_of(in_session(made()[1], BOX))}, {MAX_RUNS} runs"
    assert [side.run.throughput[0].mean for side in kept_in(folder)] == [
        102.0 + n for n in range(MAX_RUNS)
    ]  # type: ignore[union-attr]
    keep(folder, 99.0, 0)
    assert {99.0, 103.0, 121.0} < {
        side.run.summary.tokens_per_s.mean
        for side in kept_in(folder)
        if side.run.summary.tokens_per_s
    }
    keep(folder, environment=msgspec.structs.replace(BOX, torch="2.11.0"))
    keep(folder, batch_size=32)
    assert sorted(map(len, read_all(folder)[0].values())) == [1, 1, MAX_RUNS]
    assert all(path.suffix == ".json" for path in folder.glob("*/*"))  # nothing half written


def test_a_scenarios_name_cannot_lead_elsewhere(tmp_path: Path) -> None:
    for name in ("../../etc/passwd", "..", "", "a\x00b/\x1b[2J", "模型" * 200):
        keep(tmp_path / "b", scenario=name)
    assert len(kept_in(tmp_path / "b")) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


GOOD = encode(msgspec.structs.replace(made()[0], runs=[made()[1]]))
HOSTILE = {
    "empty": (b"", "not JSON"),
    "cut off": (GOOD[:-20], "not JSON"),
    "not text": (b"\xff\xfe\x00{", "not JSON"),
    "another thing": (b'{"a": [1, 2]}', "not a gpuconsole snapshot"),
    "deep": (b'{"schema":' + b"[" * 100_000, "not JSON"),
    "no runs": (encode(msgspec.structs.replace(made()[0], runs=[])), "this snapshot has no run"),
    "rate of zero": (GOOD.replace(b'"mean": 100.0', b'"mean": 0.0'), "too few steady steps"),
    "rate that is no number": (
        GOOD.replace(b'"mean": 100.0', b'"mean": "fast"'),
        "not a valid snapshot",
    ),
    "infinite": (GOOD.replace(b'"mean": 100.0', b'"mean": 1e999'), "not "),
    "out of range": (GOOD.replace(b'"std": 1.0', b'"std": 1e300'), "a number is out of range"),
    "failed": (GOOD.replace(b'"finished"', b'"failed"'), "the run failed"),
    "newer": (GOOD.replace(b"snapshot/1", b"snapshot/2"), "newer gpuconsole"),
    "huge": (b" " * (17 << 20) + GOOD, "more than 16 MiB"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_file_is_one_line_and_nothing_else_is_lost(tmp_path: Path, name: str) -> None:
    keep(tmp_path)
    (good,) = tmp_path.glob("*/*.json")
    bad = good.with_name("2026-11-21T10-00-00Z-0123abcd.json")
    data, why = HOSTILE[name]
    bad.write_bytes(data)
    runs, mistakes = read_all(tmp_path)
    assert [len(sides) for sides in runs.values()] == [1]
    (line,) = mistakes.values()
    assert line.startswith(f"{bad}: ") and why in line
    assert line.isprintable() and len(line) < 600
    keep(tmp_path, number=5)
    assert bad.read_bytes() == data and len(kept_in(tmp_path)) == 2
    assert remove(tmp_path, good.parent.name) == good.parent
    assert not good.parent.exists()


def test_the_file_of_an_earlier_version_is_refused_in_one_line_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    old = tmp_path / "train-gpt-1f3a9c07.json"
    old.write_text('{"schema": "gpuconsole.baseline/1"}')
    keep(tmp_path)
    runs, mistakes = read_all(tmp_path)
    assert len(runs) == 1
    assert list(mistakes.values()) == [
        (
            f"{old}: no longer read: an earlier gpuconsole kept rates, and no sessions. Keep a run"
            " again; `gpuconsole baselines --remove train-gpt-1f3a9c07` deletes this file"
        )
    ]
    assert remove(tmp_path, "train-gpt-1f3a9c07") == old and not old.exists()
    assert len(kept_in(tmp_path)) == 1


def test_pipes_and_folders_are_not_waited_for(tmp_path: Path) -> None:
    keep(tmp_path)
    (good,) = tmp_path.glob("*/*.json")
    os.mkfifo(good.with_name("pipe.json"))
    good.with_name("folder.json").mkdir()
    good.with_name("loop.json").symlink_to("loop.json")
    (tmp_path / "notes.txt").write_text("mine")
    runs, mistakes = read_all(tmp_path)
    assert [len(sides) for sides in runs.values()] == [1]
    assert sorted(name.rpartition("/")[2] for name in mistakes) == [
        "folder.json",
        "loop.json",
        "pipe.json",
    ]
    with pytest.raises(BaselineError, match="cannot be removed"):
        remove(tmp_path, good.parent.name)


def test_only_listed_baselines_are_removed(tmp_path: Path) -> None:
    (tmp_path / "precious.json").write_text("{}")
    (tmp_path / "b" / "work").mkdir(parents=True)
    (tmp_path / "b" / "work" / "mine.json").write_text("{}")
    (tmp_path / "b" / "link-0123abcd").symlink_to(tmp_path / "b" / "work")
    keep(tmp_path / "b")
    for name in ("../precious", "/etc/passwd", "train-gpt", "", "work", "link-0123abcd"):
        with pytest.raises(BaselineError, match="there is no baseline"):
            remove(tmp_path / "b", name)
    assert (tmp_path / "precious.json").exists() and (
        tmp_path / "b" / "work" / "mine.json"
    ).exists()


def test_a_folder_that_cannot_exist_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(BaselineError, match="cannot be written"):
        check_folder(tmp_path / "taken" / "baselines")
    with pytest.raises(BaselineError, match="cannot be written"):
        keep(tmp_path / "taken")
    assert read_all(tmp_path / "absent") == ({}, {})
    assert list(read_all(tmp_path / "taken")[1].values()) == [
        f"{tmp_path / 'taken'}: cannot be read: Not a directory"
    ]


def test_two_consoles_keep_at_once_and_no_run_is_lost(tmp_path: Path) -> None:
    """All runs began in the same second."""
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        lines = list(pool.map(keep, [tmp_path] * 16, range(100, 116)))
    assert len(lines) == len({side.run.throughput[0].mean for side in kept_in(tmp_path)}) == 16  # type: ignore[union-attr]
    assert read_all(tmp_path)[1] == {}


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_full_disk_and_an_interrupt_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    keep(tmp_path)
    (good,) = tmp_path.glob("*/*.json")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr("os.fsync", fail)
    expected, words = (
        (BaselineError, "cannot be written: No space left")
        if isinstance(failure, OSError)
        else (KeyboardInterrupt, None)
    )
    with pytest.raises(expected, match=words):
        keep(tmp_path, number=1)
    assert [*good.parent.iterdir()] == [good]
    assert (len(kept_in(tmp_path)), read_all(tmp_path)[1]) == (1, {})


# --- a session ------------------------------------------------------------------------------------

STEP_S = 0.125


class Session:
    """A state and what is compared in it, fed by hand."""

    def __init__(self, keeps: Keeps = "chosen") -> None:
        self.state = SessionState()
        self.comparing = BaselineWatch(
            self.state,
            self.emit,
            keeps,
            lambda: make_snapshot(self.state, self.state.environment, self.state.now),
        )
        self.emit(
            EnvironmentKnown(0.0, Environment(host="h", cpu="AMD EPYC", cores=2, torch="2.13.0"))
        )

    def emit(self, event: AnyEvent) -> None:
        self.state.apply(event)

    async def run(
        self,
        tokens: int = 1000,
        n: int = 160,
        state: RunState | None = "finished",
        batch_size: int = 8,
    ) -> None:
        """A run of `n` steps of `tokens` each; it goes on with `state` None."""
        number = str(len(self.state.records) + 1)
        knobs = {"batch_size": batch_size}
        begun = 100.0 * len(self.state.records) + 1.0
        self.emit(RunOpened(begun, number, "train-gpt", "training.gpt", knobs, "cpu"))
        self.comparing.begin(self.state.records[-1])
        await self.comparing.settled()
        self.emit(Started(begun, knobs, {}))
        phases = (STEP_S, *(0.0,) * (len(PHASES) - 1))
        for i in range(n):
            t = begun + (i + 1) * STEP_S
            self.emit(Steps(t, [Step(i, t, STEP_S, 8, tokens, phases)], 0.0, 0.0, 0.0, 1e6))
        if state is not None:
            self.close(state)
            await self.comparing.settled()

    def close(self, state: RunState) -> None:
        record = self.state.records[-1]
        self.emit(RunClosed(record.opened.t + 30.0, record.run.id, state))
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
        assert other.words.startswith(
            "no baseline for batch_size=16; the nearest baseline is for batch_size=8, from "
        )
        assert len(session.comparing.kept) == 4

    asyncio.run(body())
    assert sorted(map(len, read_all(folder)[0].values())) == [1, 3]


def test_a_slower_run_is_not_kept_where_the_user_asks_for_that(folder: Path) -> None:
    async def body() -> None:
        session = Session("all but slower")
        await session.run()
        await session.run(tokens=500)
        assert (
            session.comparing.kept[-1]
            == "run 2 is not kept as a baseline: it is slower than the baseline"
        )

    asyncio.run(body())
    assert len(kept_in(folder)) == 1


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
        assert session.comparing.failed == [
            "run 1 is not kept as a baseline: too few steady steps for a rate: measure longer"
        ]
        await session.run(state="failed")
        with pytest.raises(SessionError, match="run 2 failed"):
            await session.comparing.keep()

    asyncio.run(body())
    assert not folder.exists()


def test_a_failed_reading_of_the_load_does_not_end_the_comparison(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[str] = []

    async def read(self: object) -> None:
        readings.append("read")
        raise IndexError("list index out of range")

    monkeypatch.setattr(OtherLoad, "read", read)
    monkeypatch.setattr("gpuconsole.experiments.rate_watch.EVERY_S", 0.01)

    async def body() -> None:
        session = Session("all")
        await session.run()
        await session.run(tokens=500, state=None)
        watching = asyncio.create_task(session.comparing.run())
        await until(lambda: session.verdict == "slower" and len(readings) > 2)
        assert not watching.done()
        watching.cancel()
        assert sum("load of other programs" in note for note in session.state.notes) == 1, (
            "reported once"
        )

    asyncio.run(body())


def test_a_file_that_cannot_be_read_does_no_harm_to_a_run(folder: Path) -> None:
    async def body() -> None:
        session = Session("all")
        await session.run()
        (path,) = folder.glob("*/*.json")
        good = path.read_bytes()
        path.write_text("{")
        await session.run()
        found = session.state.records[-1].run.baseline
        assert found is not None and found.words.startswith(f"{path}: not JSON")
        assert len(session.comparing.kept) == 2 and session.comparing.failed == []
        path.with_name("2026-11-21T10-00-00Z-0123abcd.json").write_bytes(good)
        await session.run(tokens=500)
        assert session.verdict == "slower", "the other files count"
        assert session.state.notes[-2].startswith(f"{path}: not JSON")

    asyncio.run(body())


@pytest.mark.parametrize("verdict", ["degraded", "invalid"])
def test_a_run_whose_figures_are_not_valid_is_no_baseline_and_has_no_verdict(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verdict: Literal["degraded", "invalid"]
) -> None:
    async def main() -> None:
        session = Session("all")
        for _ in range(3):
            await session.run(1000)
        doubt = Validity(verdict, ["the load generator waited for a CPU 38 % of the time"])
        monkeypatch.setattr("gpuconsole.session.figures.summary.validity", lambda _: doubt)
        await session.run(700)
        found = session.state.records[-1].run.baseline
        assert (
            found is not None
            and found.verdict == {"degraded": "undecided", "invalid": None}[verdict]
        )
        assert "the load generator waited for a CPU 38 % of the time" in found.words
        reason = f"its numbers are {verdict}: the load generator waited for a CPU 38 % of the time"
        assert session.comparing.failed == [f"run 4 is not kept as a baseline: {reason}"]
        with pytest.raises(SessionError, match="run 4 cannot be a baseline"):
            await session.comparing.keep()

    asyncio.run(main())
    assert len(kept_in(folder)) == 3
