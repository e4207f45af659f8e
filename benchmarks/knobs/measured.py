"""One row measured through the real command line."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path

import msgspec
import psutil

from benchmarks.headless import last_line, options, run_command
from benchmarks.knobs.rows import Row
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.knob import NO_EFFECT
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Snapshot, decode
from gpuconsole.wire.events import Started
from gpuconsole.wire.recording import read_recording

MEMORY_S = 8.0
"""Memory by part is measured once a run is steady."""
MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "heap_reserved")
BAD_USAGE = 2


class Measured(msgspec.Struct, omit_defaults=True):
    """The result of a row. `words`: the product's own reason for each knob without effect here, or
    for a change that is not possible.

    `memory`: bytes by part, before and after. `load`: load of the machine at the start.
    """

    scenario: str
    changes: Knobs
    sets: Knobs
    date: str
    load: float
    before: Knobs = {}
    throughput: float | None = None
    unit: str = ""
    speedup: Speedup | None = None
    wall_speedup: Speedup | None = None
    predicted: Interval | None = None
    verdict: str = ""
    clock: str = ""
    blocks: int = 0
    memory: dict[str, tuple[float, float]] = {}
    words: dict[str, str] = {}

    @property
    def key(self) -> tuple[str, str]:
        return Row(self.scenario, self.changes, self.sets).key


def measure(row: Row) -> Measured:
    made = Measured(
        row.scenario,
        row.changes,
        row.sets,
        datetime.date.today().isoformat(),
        psutil.getloadavg()[0],
    )
    if row.kind in ("no effect", "refused"):
        made.words = _words(row)
        return made
    done = run_command(
        row.scenario, row.duration_s, *options("--set", row.sets), *options("--try", row.changes)
    )
    if done.returncode == BAD_USAGE:
        made.words = dict.fromkeys(row.changes, last_line(done.stderr))
        return made
    snapshot = decode(done.stdout.encode())
    run = snapshot.runs[0]
    rate, unit = run.throughput
    made.before = {name: run.knobs[name] for name in row.changes}
    made.throughput, made.unit = (rate.p50 if rate else None), unit
    if not snapshot.trials:
        made.words = dict.fromkeys(row.changes, run.error or last_line(done.stderr))
        return made
    _note_trial(made, snapshot.trials[0], run)
    if row.kind == "memory" and made.speedup is not None:
        made.memory = _memory(row, snapshot)
    return made


def _note_trial(made: Measured, trial: Trial, run: Run) -> None:
    made.speedup, made.wall_speedup, made.blocks = trial.speedup, trial.wall_speedup, trial.blocks
    made.verdict, made.clock = trial.verdict or "", trial.clock
    if trial.error:
        made.words = dict.fromkeys(made.changes, trial.error)
    suggestions = [suggestion for finding in run.findings for suggestion in finding.suggestions]
    made.predicted = next(
        (one.predicted_speedup for one in suggestions if one.changes == made.changes), None
    )


def _memory(row: Row, snapshot: Snapshot) -> dict[str, tuple[float, float]]:
    """Memory of the run before, and of a run with the change: a short separate run if the trial did
    not keep the change."""
    before, after = (
        _parts(snapshot.runs[0]),
        _parts(snapshot.runs[-1]) if len(snapshot.runs) > 1 else {},
    )
    if not after:
        done = run_command(row.scenario, MEMORY_S, *options("--set", {**row.sets, **row.changes}))
        after = _parts(decode(done.stdout.encode())[0].runs[0]) if done.returncode == 0 else {}
    return {
        part: (before[part], after[part])
        for part in MEMORY_PARTS
        if part in before and part in after
    }


def _parts(run: Run) -> dict[str, float]:
    return {
        part: found.value
        for part in MEMORY_PARTS
        if (found := run.signals.get(f"memory.{part}_bytes"))
    }


def _words(row: Row) -> dict[str, str]:
    """The product's reasons about `row.changes`: from the worker's announcement, or from the
    refusal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.jsonl"
        done = run_command(
            row.scenario,
            row.duration_s,
            *options("--set", {**row.sets, **row.changes}),
            "--record",
            str(path),
        )
        if row.kind == "refused":
            return dict.fromkeys(row.changes, last_line(done.stderr))
        notes = (
            next((event.notes for event in read_recording(path) if isinstance(event, Started)), {})
            if path.exists()
            else {}
        )
    return {name: notes.get(NO_EFFECT + name, "it takes effect here") for name in row.changes}
