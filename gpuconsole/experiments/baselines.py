"""Baselines: sessions that the user kept, each as a snapshot of one run; and the comparison of a
run with them.

A folder holds the runs of one work on one machine, so `gpuconsole compare FOLDER new/ --fail-below
RATIO` judges them too. A run is compared with all kept runs that differ in nothing that matters
(see `unlike`), in whatever folder they are.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from gpuconsole.engine.reader import read_snapshot, write_snapshot
from gpuconsole.experiments.runs import LONE_RUN
from gpuconsole.experiments.throughput import (
    DIGEST,
    FREE,
    MeasuredRun,
    ThroughputRatio,
    doubts,
    keyed,
    taken_off,
    throughput,
    why_no_rate,
)
from gpuconsole.host.files import make_writable_folder
from gpuconsole.host.folders import make_private, user_folder
from gpuconsole.host.settings import settings
from gpuconsole.model import units
from gpuconsole.model.comparison import BaselineComparison
from gpuconsole.model.knobs.knob import Knobs, nearest, show
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import SnapshotError
from gpuconsole.model.text import percent, visible
from gpuconsole.session.api import SessionError

# --- baselines on disk ----------------------------------------------------------------------------

MAX_RUNS = 20
"""Runs kept in a folder; the oldest run is deleted first."""
KEY = "*-" + "[0-9a-f]" * DIGEST
"""The names of the folders, see `keyed`."""
FILE = "????-??-??T*Z-" + "[0-9a-f]" * 8 + ".json"
"""The names of the files that `keep_run` writes: in the order of the dates of the runs."""
UNREADABLE = ""
"""Stands for the name of the folder itself, where it cannot be read."""


class BaselineError(RuntimeError):
    """A baseline cannot be read, written or found; the message is one line."""


def baselines_folder() -> Path:
    """The folder of the user's baselines: the setting `baselines`, or on Linux
    `~/.local/share/gpuconsole/baselines` (below `$XDG_DATA_HOME`).

    Raises SettingsError.
    """
    return settings().baselines or user_folder("data") / "baselines"


def check_folder(folder: Path) -> None:
    """Create `folder` where it does not exist; a folder that the user did not choose is private.
    Raises BaselineError if no file can be written there."""
    try:
        if (own := user_folder("data")) in folder.parents:
            make_private(own)
        make_writable_folder(folder)
    except OSError as error:
        raise BaselineError(f"{folder}: cannot be written: {error.strerror or error}") from None


def key_of(side: MeasuredRun) -> str:
    """The name of the work and the machine of a run. A job of the user's own counts with its
    command."""
    run = side.run
    knobs = {name: value for name, value in run.knobs.items() if name not in run.varies}
    settings_of = msgspec.json.encode(knobs, order="deterministic").decode()
    return keyed(run.scenario or "run", (*_work(run), *parts(side).values(), settings_of))


def keep_run(folder: Path, side: MeasuredRun) -> str:
    """Keep a run as a session of its own; returns a line for the user. Raises BaselineError.

    Above MAX_RUNS runs, the oldest run is deleted. Several consoles may call this function at the
    same time: each writes a file of its own.
    """
    key = key_of(side)
    place = folder / key
    check_folder(place)
    try:
        new = write_snapshot(
            side.alone, place / f"{side.run.started.replace(':', '-')}-{os.urandom(4).hex()}.json"
        )
        # the clock may have been set back
        files = sorted(place.glob(FILE), key=lambda file: (file == new, file.name))
        for oldest in files[:-MAX_RUNS]:
            oldest.unlink(missing_ok=True)
    except (OSError, SessionError) as error:
        raise BaselineError(str(error)) from None
    count = min(len(files), MAX_RUNS)
    return f"kept as a baseline: {key}, {count} run{'' if count == 1 else 's'}"


def read_run(path: Path) -> MeasuredRun:
    """The kept run in the file `path`: the last run of the session. Raises BaselineError."""
    name = visible(str(path))
    try:
        session = read_snapshot(path, regular=True)
        if not session.runs:
            raise BaselineError(f"{name}: this snapshot has no run")
        kept = MeasuredRun(name, session.runs[-1], session)
        if why := why_no_rate(kept):
            raise BaselineError(f"{name}: {why}")
        throughput([kept], [kept])
    except SnapshotError as error:
        raise BaselineError(visible(str(error))[:400]) from None
    except ArithmeticError as error:
        raise BaselineError(f"{name}: a number is out of range: {error}") from None
    return kept


def kept_runs(folder: Path, mistakes: dict[str, str]) -> Iterator[tuple[str, MeasuredRun]]:
    """Each kept run with the name of its folder, the oldest of a folder first. Adds a line to
    `mistakes` for each invalid file, by its path below `folder`."""
    for path in _below(folder, UNREADABLE, mistakes):
        if path.suffix == ".json":
            mistakes[path.name] = _of_earlier_version(path)
        for file in _below(path, path.name, mistakes) if path.match(KEY) and path.is_dir() else ():
            try:
                yield path.name, read_run(file)
            except BaselineError as error:
                if os.path.lexists(file):  # else another console has just deleted the oldest run
                    mistakes[f"{path.name}/{file.name}"] = str(error)


def read_all(folder: Path) -> tuple[dict[str, list[MeasuredRun]], dict[str, str]]:
    """All kept runs by the name of their folder, and a line for each invalid file."""
    by_key: dict[str, list[MeasuredRun]] = {}
    mistakes: dict[str, str] = {}
    for key, side in kept_runs(folder, mistakes):
        by_key.setdefault(key, []).append(side)
    return by_key, mistakes


def _below(folder: Path, name: str, mistakes: dict[str, str]) -> list[Path]:
    """The entries of `folder` in order, without hidden ones. Adds a line about `name` to `mistakes`
    where they cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        mistakes[name] = visible(f"{folder}: cannot be read: {error.strerror}")
        return []


def _of_earlier_version(path: Path) -> str:
    remove_it = f"`gpuconsole baselines --remove {path.stem}` deletes this file"
    return visible(
        f"{path}: no longer read: an earlier gpuconsole kept rates, and no sessions. Keep a run"
        f" again; {remove_it}"
    )


def remove(folder: Path, name: str) -> Path:
    """Delete the runs of the key `name`, valid or not; returns what was deleted. Raises
    BaselineError."""
    try:
        places = {
            path.name: path for path in folder.glob(KEY) if path.is_dir() and not path.is_symlink()
        } | {path.stem: path for path in folder.glob("*.json")}
        if name not in places:
            raise BaselineError(
                f"there is no baseline {name!r}{nearest(name, sorted(places))}; `gpuconsole"
                " baselines` lists them"
            )
        place = places[name]
        if not place.is_dir():
            place.unlink()
            return place
        for path in [*place.glob("*.json"), *place.glob(".*.json.*")]:
            path.unlink(missing_ok=True)
        place.rmdir()
    except OSError as error:
        raise BaselineError(f"baseline {name!r}: cannot be removed: {error.strerror}") from None
    return place


# --- which kept runs are those of a run -----------------------------------------------------------

Unequal = list[tuple[str, str]]
"""The parts that differ: the value of this run, and the value of a kept run."""


def _work(run: Run) -> tuple[str, str, str]:
    return run.scenario, run.workload, run.command_digest


def parts(side: MeasuredRun) -> dict[str, str]:
    """Hardware and software in words, to name the parts that differ. The major version of the GPU
    driver counts."""
    run, environment = side.run, side.session.environment
    torch = (run.job.torch if run.job is not None else "") or environment.torch
    driver = (environment.driver or "").partition(".")[0] if run.device != "cpu" else ""
    return {
        "device": side.device_name or run.device,
        "cpu": environment.cpu,
        "cores": f"{environment.cores} cores",
        "torch": f"torch {torch}" if torch else "no torch",
        "driver": f"driver {driver}" if driver else "no GPU driver",
    }


def unlike(now: MeasuredRun, kept: MeasuredRun) -> Unequal:
    """Return the parts that differ: hardware, software, then knobs. Two kinds of knobs do not
    count: a knob that only one side has (it was added later), and a knob that both programs change
    by themselves."""
    here, there = parts(now), parts(kept)
    unequal = [(part, there[name]) for name, part in here.items() if part != there[name]]
    knobs, others, vary = now.run.knobs, kept.run.knobs, {*now.run.varies} & {*kept.run.varies}
    changed = [
        name
        for name, value in knobs.items()
        if name not in vary and others.get(name, value) != value
    ]
    return unequal + [(_knob(name, knobs), _knob(name, others)) for name in changed]


def _knob(name: str, knobs: Knobs) -> str:
    return f"{name}={show(knobs[name])}"


def comparable(
    now: MeasuredRun, kept: Iterable[MeasuredRun]
) -> list[MeasuredRun] | BaselineComparison | None:
    """The kept runs that `now` is compared with; or the reason why there is no comparison, by the
    kept run that differs in the fewest parts (of several: the newest). None: no run of this work
    was kept."""
    equal: list[MeasuredRun] = []
    nearest_one: tuple[tuple[int, str], MeasuredRun, Unequal] | None = None
    for side in kept:
        if _work(side.run) == _work(now.run):
            if not (unequal := unlike(now, side)):
                equal.append(side)
            elif nearest_one is None or (-len(unequal), side.run.started) > nearest_one[0]:
                nearest_one = (-len(unequal), side.run.started), side, unequal
    if equal or nearest_one is None:
        return equal or None
    _, other, unequal = nearest_one
    here, there = (", ".join(dict.fromkeys(part[place] for part in unequal)) for place in (0, 1))
    sentence = (
        f"no baseline for {here}; the nearest baseline is for {there}, from"
        f" {other.run.started[:10]}: {_rate([other])}"
    )
    return BaselineComparison(
        key=key_of(now), words=visible(sentence), short=visible(f"no baseline for {here}")
    )


# --- compares a run with its baseline -------------------------------------------------------------

WORTH_REPORTING = 0.02
"""A wait for other programs below this share is less than the smallest relevant difference, so the
result does not mention it."""
ASSUMED_SPREAD = (
    f"equal runs are assumed to differ by {percent(LONE_RUN)}, because one run shows no spread"
)


def compare_with(
    now: MeasuredRun, kept: Sequence[MeasuredRun], live: bool = False
) -> BaselineComparison:
    """`now` compared with the runs that were kept. `live`: the run is still going on. A run whose
    figures are invalid is not compared. If they are degraded, the result has no verdict."""
    key, validity = key_of(now), now.run.validity
    if validity is not None and validity.verdict == "invalid":
        return BaselineComparison(
            key=key,
            words=f"not compared with {_name(kept)}: {doubts(validity)}",
            short="not compared: invalid",
        )
    answer = throughput(kept, [now], live)
    dates, rate = [side.run.started for side in kept], now.run.throughput[0]
    return BaselineComparison(
        key=key,
        words=visible(_words(now, kept, answer, live)),
        short=_short(answer),
        verdict=answer.verdict if answer is not None else "undecided",
        change=answer.change if answer is not None else None,
        rate=_mean_rate(kept),
        unit=kept[0].run.throughput[1],
        runs=len(kept),
        since=visible(min(dates)),
        until=visible(max(dates)),
        clock="contention_free" if answer is not None and answer.free else "wall",
        blocks=rate.n if rate is not None else 0,
        live=live,
    )


def _words(
    now: MeasuredRun, kept: Sequence[MeasuredRun], answer: ThroughputRatio | None, live: bool
) -> str:
    name = _name(kept)
    if answer is None:
        return (
            f"no verdict against {name}: "
            f"{why_no_rate(now) or f'this run counts {now.run.throughput[1]}'}"
        )
    delayed = answer.free and any(taken_off(side) >= WORTH_REPORTING for side in (now, *kept))
    so_far = (f", {FREE}" if delayed else "") + (", so far" if live else "")
    change, decided = answer.change, answer.verdict
    if decided == "slower" or decided == "faster":
        low, high = sorted((abs(change.low), abs(change.high)))
        text = (
            f"{abs(change.estimate) * 100:.1f} % [{low * 100:.1f}, {high * 100:.1f}] {decided} than"
            f" {name}{so_far}, more than the noise"
        )
        return "; ".join(filter(None, (text, _where(now, kept), answer.contention)))
    figure = f"{change.estimate * 100:+.1f} % [{change.low * 100:+.1f}, {change.high * 100:+.1f}]"
    noise = (
        f"the difference is within the noise; {ASSUMED_SPREAD}"
        if answer.ratio.assumed
        else "the difference is within the noise"
    )
    return (
        f"{figure} against {name}{so_far}: undecided,"
        f" {answer.why_open() or answer.contention or noise}"
    )


def _name(kept: Sequence[MeasuredRun]) -> str:
    dates = sorted({side.run.started[:10] for side in kept})
    count = f"{len(kept)} runs, " if len(kept) > 1 else ""
    until = f" to {dates[-1]}" if len(dates) > 1 else ""
    return f"the baseline of {count}{dates[0]}{until} ({_rate(kept)})"


def _rate(kept: Sequence[MeasuredRun]) -> str:
    return units.quantity(_mean_rate(kept), kept[0].run.throughput[1])


def _mean_rate(kept: Sequence[MeasuredRun]) -> float:
    """The mean rate of the kept runs on the wall clock."""
    return statistics.fmean(
        rate.mean for side in kept if (rate := side.run.throughput[0]) is not None
    )


def _where(now: MeasuredRun, kept: Sequence[MeasuredRun]) -> str:
    """The phase of a step with the largest change of time."""
    new, *old = (
        {name: share * step.p50 for name, share in side.run.summary.phases_ratio.items()}
        if (step := side.run.summary.step_time_s)
        else {}
        for side in (now, *kept)
    )
    timed = [phases for phases in old if phases]
    if not timed or not new:
        return ""
    usual = {name: statistics.fmean(phases.get(name, 0.0) for phases in timed) for name in new}
    most = max(new, key=lambda name: abs(new[name] - usual[name]))
    before, after = (units.duration(seconds[most]).strip() for seconds in (usual, new))
    return f"largest change in {most}: {before} -> {after} per step"


def _short(answer: ThroughputRatio | None) -> str:
    if answer is None:
        return "baseline: no verdict"
    if answer.verdict == "slower" or answer.verdict == "faster":
        return f"{answer.change.estimate * 100:+.0f} % vs baseline"
    return f"{answer.change.estimate * 100:+.1f} % vs baseline: {answer.verdict}"
