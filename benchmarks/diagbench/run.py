"""One case, run and diagnosed as in a user's console; then the gain of its first suggestion and, if
asked for, of every other knob."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Container, Iterator

import msgspec
import psutil

from benchmarks.diagbench.cases import Case, Half
from benchmarks.diagbench.knobs import changes_to_try
from benchmarks.diagbench.rows import WORTH, Realised, Row, best
from benchmarks.machine import commit
from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.probes import PROBE_OF
from gpuconsole.diagnosis.rule import Case as RuleCase
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.trial import USUAL, TrialLimits
from gpuconsole.experiments.tune import until_diagnosed
from gpuconsole.model.finding import Finding, Interval, Suggestion
from gpuconsole.model.knobs.catalogue import CATALOGUE, GROUPS, Knobs
from gpuconsole.model.knobs.training import FAULTS
from gpuconsole.model.run import Run
from gpuconsole.session.api import SessionError, View

INJECTED = {knob.name for knob in FAULTS} | {
    "sync_each_batch",
    "gradient_percentiles",
    "gc_collect_every",
    "eval_batch_size",
}
QUICK_STEP_S = 0.15
"""Null trials of slower steps would take most of a minute each."""
TOP = TrialLimits(cap_s=16.0, loader_cap_s=20.0, serving_cap_s=40.0)
EACH = TrialLimits(cap_s=4.0, loader_cap_s=8.0, serving_cap_s=25.0)
NULLS = ("non_blocking", "pin_memory", "pytorch_alloc_conf")
"""Without effect on a CPU: changed in place, with a new loader, and in a process of its own. In
turn, by seed; a run has what its workload has."""


class Trials(msgspec.Struct, frozen=True):
    """The changes to try after the diagnosis of a run."""

    top: Container[int]
    """For these seeds the first suggestion."""
    oracle: Container[int]
    """For these seeds every knob."""
    nulls: int
    """So many changes without effect in each run of quick steps."""


async def run_case(
    engine: LiveSession, case: Case, half: Half, seed: int, neighbours: int, trials: Trials
) -> Row:
    """Run the case and return its row. A failure is in `error`."""
    scenario, sets = case.drawn(half, seed)
    row = Row(
        case.id,
        case.name,
        half,
        seed,
        neighbours,
        scenario,
        sets,
        case.truth,
        case.fix,
        offer=case.offer,
        commit=commit(),
    )
    begun = time.monotonic()
    try:
        with burning(neighbours + case.neighbours), burning(case.gpu_neighbours, BURN_GPU):
            try:
                await engine.start(scenario, sets)
                await _diagnose(engine, row, case.watch_s)
                row.diagnosed_s = round(time.monotonic() - begun, 2)
                await _realise(engine, row, trials)
            finally:
                with contextlib.suppress(SessionError):
                    await engine.stop()
    except SessionError as error:
        row.error = str(error)
    row.elapsed_s = round(time.monotonic() - begun, 1)
    return row


async def _diagnose(engine: LiveSession, row: Row, watch_s: float) -> None:
    """The findings when the diagnosis is complete, at least `watch_s` after the run became
    steady."""
    run = await until_diagnosed(engine, lambda: False, lambda view: _watch(row, view))
    while row.steady_from_s is not None and run.duration_s - row.steady_from_s < watch_s:
        run = await until_diagnosed(engine, lambda: False, lambda view: _watch(row, view))
    row.stood_s = round(run.duration_s, 2)
    row.fired = tuple(one.rule for one in told(run, row.offer))
    row.notes = tuple(one.rule for one in run.findings if one.state == "fires" and one.note)
    row.offers = tuple(one.rule for one in _offers(run))
    row.undecided = tuple(
        one.rule for one in run.findings if one.state == "cant_tell" and _unanswered(run, one)
    )
    row.signals = {name: float(f"{signal.value:.4g}") for name, signal in run.signals.items()}
    row.blind = _fired(run, run.knobs) == _fired(
        run, {name: v for name, v in run.knobs.items() if name not in INJECTED}
    )


def _fired(run: Run, knobs: Knobs) -> set[str]:
    """The rules that fire on the stored signals of the run with `knobs`."""
    return {
        one.rule
        for one in evaluate(RuleCase(knobs, run.signals, run.serves))
        if one.state == "fires"
    }


def _unanswered(run: Run, finding: Finding) -> bool:
    """Whether a probe has not answered yet. A probe that cannot run here has answered."""
    return any(
        f"probe.{PROBE_OF[name]}" not in run.unavailable
        for name in finding.missing
        if name in PROBE_OF
    )


def _promised(suggestion: Suggestion) -> float:
    return suggestion.predicted_speedup.middle if suggestion.predicted_speedup else 1.0


def told(run: Run, offer: bool = False) -> list[Finding]:
    """The findings that a user would take for a problem, best first; if the case is about an
    `offer`, the offers after them."""
    faults = [
        one
        for one in run.findings
        if one.state == "fires" and not one.note and not one.rule.endswith("_healthy")
    ]
    return faults + (_offers(run) if offer else [])


def _offers(run: Run) -> list[Finding]:
    """Notes that promise 5 % or more."""
    noted = [one for one in run.findings if one.state == "fires" and one.note]
    return [
        one
        for one in noted
        if any(_promised(suggestion) >= WORTH for suggestion in one.suggestions)
    ]


def _watch(row: Row, view: View) -> None:
    """The accused rules, the time when the run was known to be steady, and the time when the right
    finding was first on top."""
    run = view.run
    if run is None:
        return
    found = [one.rule for one in told(run, row.offer)]
    row.accused = tuple(
        dict.fromkeys((*row.accused, *(rule for rule in found if rule not in row.truth)))
    )
    if run.steady_from_s is None:
        return
    now = round(run.duration_s, 2)
    if row.steady_known_s is None:
        row.steady_from_s, row.steady_known_s = round(run.steady_from_s, 2), now
    if not found or found[0] not in row.truth:
        row.found_s = None  # it counts from when it came to stay
    elif row.found_s is None:
        row.found_s = now


async def _realise(engine: LiveSession, row: Row, trials: Trials) -> None:
    run = engine.view().run
    assert run is not None
    found = told(run, row.offer)
    if found:
        row.confidence = found[0].confidence
        tried = found[0].suggestions[:1] if row.seed in trials.top else ()
        for suggestion in [one for one in tried if not _costly(one.changes, row.seed)]:
            row.top = await _try(engine, suggestion.changes, TOP, suggestion.predicted_speedup)
            row.top.rule = found[0].rule
    here = [name for name in NULLS if name in run.knobs]
    if here and row.signals.get("step_s", 1.0) < QUICK_STEP_S:
        for number in range(trials.nulls):
            row.nulls.append(
                await _try(
                    engine, _nothing(here[(row.seed + number) % len(here)], run.knobs), USUAL
                )
            )
    if row.seed in trials.oracle:
        for changes in changes_to_try(run.knobs, row.fix):
            row.oracle.append(await _try(engine, changes, EACH))
        await confirm(engine, row)


async def confirm(engine: LiveSession, row: Row) -> None:
    """Try the best change of the oracle again, as long as a first suggestion, until the best change
    has had such a trial: the largest of many estimates is too large."""
    confirmed: list[Realised] = []
    while (
        (found := best(row)) is not None
        and found is not row.top
        and not any(found is one for one in confirmed)
    ):
        confirmed.append(
            msgspec.structs.replace(await _try(engine, found.changes, TOP), short=found.speedup)
        )
        row.oracle = [confirmed[-1] if one is found else one for one in row.oracle]


def _nothing(name: str, knobs: Knobs) -> Knobs:
    """The other value of a knob without effect."""
    return {
        name: next(
            value
            for value in (*CATALOGUE[name].examples, CATALOGUE[name].default)
            if value != knobs[name]
        )
    }


def _costly(changes: Knobs, seed: int) -> bool:
    """A second model server takes a minute, so only every fifth seed has one. The load belongs to
    the users, not to the server."""
    of_load = {knob.name for knob in GROUPS["load"]}
    return bool(of_load & changes.keys()) or (
        any(CATALOGUE[name].serving for name in changes) and seed % 5 != 0
    )


async def _try(
    engine: LiveSession, changes: Knobs, limits: TrialLimits, predicted: Interval | None = None
) -> Realised:
    realised = Realised(changes, predicted=predicted)
    try:
        trial = await engine.try_change(changes, predicted, keep=False, limits=limits)
    except SessionError as refused:
        realised.error = str(refused)
        return realised
    realised.speedup, realised.verdict, realised.error = (
        trial.speedup,
        trial.verdict or "",
        trial.error or "",
    )
    return realised


UNTIL = """
import time
until = time.monotonic() + 1800
"""
"""A limit for the case that no process is left to end it."""
BURN = f"""{UNTIL}
while time.monotonic() < until:
    sum(range(100_000))
"""
"""One busy core."""
BURN_GPU = f"""{UNTIL}
import torch
matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while time.monotonic() < until:
    matrix @ matrix
    torch.cuda.synchronize()
"""
"""Another process that multiplies matrices on the first GPU."""


@contextlib.contextmanager
def burning(count: int, program: str = BURN) -> Iterator[None]:
    """Busy processes next to the block. They are not children of this process, so the console
    counts them as processes of other users.

    Raises SessionError if one of them ended before the block.
    """
    burners: list[psutil.Process] = []
    try:
        for _ in range(count):
            start = (
                f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} > /dev/null 2>&1 & echo"
                " $!"
            )
            burners.append(
                psutil.Process(
                    int(
                        subprocess.run(
                            ["sh", "-c", start], stdout=subprocess.PIPE, check=True, text=True
                        ).stdout
                    )
                )
            )
        yield
        if not all(burner.is_running() for burner in burners):
            raise SessionError("a process that keeps the machine busy has ended too early")
    finally:
        for burner in burners:
            with contextlib.suppress(psutil.NoSuchProcess):
                burner.kill()


async def run_all(
    todo: list[tuple[Case, int]], half: Half, neighbours: int, trials: Trials, device: str
) -> AsyncIterator[Row]:
    """Every case with every seed, one after the other, in one console."""
    engine = LiveSession(interval_s=1.0, device=device, keeps="chosen")
    await engine.open()
    try:
        for case, seed in todo:
            yield await run_case(engine, case, half, seed, neighbours, trials)
    finally:
        await engine.close()
        await asyncio.sleep(0)
