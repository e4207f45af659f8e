"""The analytical models and the processes of a run, from the events that carry them to the snapshot
and its text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from gpuconsole.cli.main import main
from gpuconsole.diagnosis.models.run import MISSING, with_figures
from gpuconsole.engine.reader import StateReader
from gpuconsole.engine.recording import Replay
from gpuconsole.model.finding import Signal
from gpuconsole.model.run import PHASES, Run, Step
from gpuconsole.model.snapshot import Environment, decode, encode
from gpuconsole.report.parts import printed
from gpuconsole.report.prometheus.collector import ScrapeCollector
from gpuconsole.report.prometheus.scrape import scrape
from gpuconsole.report.run.breakdown import share_text, why_no_share
from gpuconsole.report.run.models import models_report
from gpuconsole.report.session import run_text
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import prelude
from gpuconsole.wire.events import (
    AnyEvent,
    EnvironmentKnown,
    Found,
    Hello,
    RankJoined,
    RunClosed,
    RunOpened,
    Started,
    Steps,
)
from gpuconsole.wire.recording import RecordingWriter

KNOBS = {
    "batch_size": 4,
    "seq_len": 64,
    "d_model": 192,
    "n_layer": 4,
    "sharding": "ddp",
    "nproc": 2,
    "optim": "adamw_fused",
}
FACTS = {
    "parameters": 2_000_000.0,
    "trainable_parameters": 2_000_000.0,
    "linear_parameters": 1.8e6,
    "flops_per_sample": 7e8,
    "world_size": 2.0,
}
COMM = PHASES.index("comm")


def step(index: int, comm: float) -> Step:
    phases = [0.0] * len(PHASES)
    phases[PHASES.index("backward")], phases[COMM] = 0.1 - comm, comm
    return Step(index, 10 + index * 0.1, 0.1, 8, 512, tuple(phases))


def session(facts: dict[str, float] = FACTS) -> list[AnyEvent]:
    """Two processes, of which the second is slow: the first waits for it in every step."""
    signals = {
        "memory.parameters_bytes": Signal(8_000_000.0, "bytes", "probe"),
        "step_s": Signal(0.1, "s", "step breakdown"),
        "comm.straggler_ratio": Signal(2.0, "x", "probe P8"),
        "comm.slowest_rank": Signal(1.0, "", "probe P8"),
    }
    events: list[AnyEvent] = [
        Hello(9.0, "runtime", 1, "0", 1.7e9),
        EnvironmentKnown(
            9.0, Environment(host="box", cores=2, calibration={"copy_bytes_per_s": 1e10})
        ),
        RunOpened(9.0, "1", "ddp-straggler", "training.gpt", KNOBS, "cpu"),
        *(RankJoined(9.5, rank, "box", 100 + rank, leads=rank == 0) for rank in (0, 1)),
        Started(9.9, KNOBS, facts),
    ]
    for index in range(60):
        t = 10 + index * 0.1
        events += [
            Steps(t, [step(index, comm)], 0.0, 0.0, 0.0, 5e8, rank=rank)
            for rank, comm in ((0, 0.06), (1, 0.01))
        ]
    return [*events, Found(16.0, "1", [], signals)]


def stored(events: list[AnyEvent]) -> SessionState:
    state = SessionState()
    for event in events:
        state.apply(event)
    return state


class Reader(StateReader):
    """Reads a state that is fed by hand."""

    def __init__(self, state: SessionState) -> None:
        super().__init__()
        self.state = state

    def run(self) -> Run:
        return self.build_view(
            device="cpu", probing="", recording=False, recording_to="", ended=False
        ).runs[-1]


def test_a_run_tells_the_models_and_its_processes_live_and_at_its_end() -> None:
    state = stored(session())
    reader = Reader(state)
    live = {figure.name: figure for figure in reader.run().figures}
    assert (
        live["memory.parameters_bytes"].predicted,
        live["memory.parameters_bytes"].measured,
    ) == (8_000_000, 8_000_000)
    state.apply(RunClosed(17.0, "1", "finished"))
    run = reader.run()
    assert {figure.name for figure in run.figures} == set(live)
    assert run.slowest == (1, 2.0)
    assert [(rank.rank, rank.leads) for rank in run.ranks] == [(0, True), (1, False)]
    assert [rank.busy_s for rank in run.ranks] == pytest.approx([0.04, 0.09])
    text = run_text(run)
    assert "2 processes" in text
    assert "slowest 2.00x" in next(
        line for line in text.splitlines() if line.split()[:2] == ["1", "box"]
    )
    parameters = next(line for line in text.splitlines() if line.strip().startswith("Parameters"))
    assert parameters.split() == ["Parameters", "7.63", "MiB", "7.63", "MiB", "+0.0", "%"]
    assert "Free parts of segments in use" not in text
    unknown = next(
        line
        for line in printed(models_report(run)).splitlines()
        if "Free parts of segments in use" in line
    )
    assert unknown.split()[6:8] == ["n/a", "n/a"]
    assert "not measured: a CPU has no allocator statistics" in unknown


def test_one_process_has_no_table_of_processes_and_without_facts_there_are_no_models() -> None:
    events = [
        event
        for event in session({})
        if not isinstance(event, RankJoined) and not (isinstance(event, Steps) and event.rank)
    ]
    state = stored(events)
    text = run_text(Reader(state).run())
    assert "processes" not in text
    assert "models" not in text


def test_the_attainable_rate_is_in_the_view_in_the_snapshot_and_in_diagnose(tmp_path: Path) -> None:
    state = stored(
        [*session({**FACTS, "peak_flops_per_s": 2e11}), RunClosed(17.0, "1", "finished")]
    )
    shown = Reader(state).run()
    assert shown.attainable is not None and share_text(shown).endswith("of hardware limit")
    snapshot = Reader(state).snapshot()
    assert snapshot.runs[0].attainable == shown.attainable
    file, again = tmp_path / "a.json", tmp_path / "b.json"
    snapshot.runs[0].attainable = None
    file.write_bytes(encode(snapshot))
    assert main(["diagnose", str(file), "--snapshot", str(again)]) == 0
    assert decode(again.read_bytes()).runs[0].attainable == shown.attainable


def test_prometheus_has_the_share_while_the_run_is_active() -> None:
    def shown(events: list[AnyEvent]) -> list[tuple[dict[str, str], float]]:
        families = ScrapeCollector(scrape(stored(events), 17.0), "box").collect()
        return [
            (one.labels, one.value)
            for family in families
            for one in family.samples
            if one.name == "gpuconsole_run_attainable_ratio"
        ]

    events = session({**FACTS, "peak_flops_per_s": 2e11})
    ((labels, value),) = shown(events)
    share = Reader(stored(events)).run().attainable
    assert (
        labels == {"scenario": "ddp-straggler", "bound": "compute"}
        and share is not None
        and value == pytest.approx(share.share_ratio)
    )
    assert shown(session()) == [] == shown([*events, RunClosed(17.0, "1", "finished")])


def test_a_machine_that_was_never_calibrated_has_no_attainable_rate_and_says_why() -> None:
    shown = Reader(stored(session())).run()
    assert share_text(shown) == "" and "gpuconsole calibrate" in why_no_share(shown)


def test_diagnose_computes_the_models_anew_and_keeps_stored_ones_without_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = stored([*session(), RunClosed(17.0, "1", "finished")])
    snapshot = Reader(state).snapshot()
    before = snapshot.runs[0].figures
    file, again = tmp_path / "a.json", tmp_path / "b.json"
    snapshot.runs[0].figures = []
    file.write_bytes(encode(snapshot))
    assert main(["diagnose", str(file), "--snapshot", str(again)]) == 0
    assert "Parameters" in capsys.readouterr().out
    assert decode(again.read_bytes()).runs[0].figures == before
    snapshot.runs[0].figures, snapshot.runs[0].facts = before[:1], {}
    file.write_bytes(encode(snapshot))
    assert main(["diagnose", str(file), "--snapshot", str(again)]) == 0
    assert decode(again.read_bytes()).runs[0].figures == before[:1]


def test_a_recording_that_begins_in_mid_run_has_the_models_and_tells_the_processes_apart(
    tmp_path: Path,
) -> None:
    events = session()
    state = stored(events)
    path = tmp_path / "session.jsonl"
    writer = RecordingWriter(path)
    started = next(event for event in events if isinstance(event, Started))
    for event in [
        Hello(9.0, "runtime", 1, "0", 1.7e9),
        *prelude(state, state.environment, started, 18.0),
    ]:
        writer.write(msgspec.structs.replace(event, t=18.0))
    for event in events:
        if isinstance(event, Steps):
            writer.write(msgspec.structs.replace(event, t=event.t + 10))
    writer.close()
    replay = Replay(path, speed=0)
    asyncio.run(replay.open())
    run = replay.view().run
    assert run is not None
    assert run.figures
    assert len(run.ranks) == 2
    assert 30 < run.summary.steps <= 60  # those of the process that leads alone


def test_knob_values_that_the_models_do_not_know_are_told_and_end_nothing() -> None:
    run = Run(
        "1",
        "x",
        "training.gpt",
        {**KNOBS, "batch_size": "many"},
        "cpu",
        facts={**FACTS, "vocabulary": 65.0},
    )
    run = with_figures(run, [], {}, lambda name: ())
    assert run.figures == []
    assert "many" in run.unavailable[MISSING]
    assert "many" in run_text(run)
