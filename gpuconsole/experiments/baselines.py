"""Baselines on disk, one JSON file for each key, in the user's data folder; and the comparison of a run with its baseline."""

from __future__ import annotations

import fcntl
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import msgspec
import platformdirs

from gpuconsole.engine.machine.settings import settings
from gpuconsole.experiments.runs import DEGREES, RunRate, change_of, occasions, run_rate, unix_s
from gpuconsole.experiments.statistics import MIN_BLOCKS, RUN_TO_RUN, rate_verdict
from gpuconsole.model import encoding, units
from gpuconsole.model.baseline import MOST_RUNS, SCHEMA, Baseline, BaselineComparison, BaselineKey, BaselineRun, BaselineVerdict, RateChange
from gpuconsole.model.files import make_writable_folder, write_whole
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.knobs.knob import Knobs, Value, nearest, show
from gpuconsole.model.run import Validity
from gpuconsole.model.text import percent, visible
from gpuconsole.session.figures.rate import Block

# --- baselines on disk ---------------------------------------------------------------------------------------

MOST_BYTES = 1 << 20
"""Maximum size of a baseline file. Twenty runs of sixty blocks take about 50 KB."""
LOCK = ".lock"


class BaselineError(RuntimeError):
    """A baseline cannot be read, written or found; the message is one line."""


def baselines_folder() -> Path:
    """The folder of the user's baselines: the setting `baselines`, or on Linux `~/.local/share/gpuconsole/baselines` (below `$XDG_DATA_HOME`).

    Raises SettingsError.
    """
    return settings().baselines or platformdirs.user_data_path("gpuconsole") / "baselines"


def check_folder(folder: Path) -> None:
    """Create `folder` where it does not exist. Raises BaselineError if no file can be written there."""
    try:
        make_writable_folder(folder)
    except OSError as error:
        raise BaselineError(f"{folder}: cannot be written: {error.strerror or error}") from None


def read_baseline(path: Path) -> Baseline:
    """The baseline in the file `path`; raises BaselineError."""
    name = visible(str(path))
    try:
        if not path.is_file():  # reading a pipe would wait
            raise BaselineError(f"{name}: {'not a file' if path.exists() else 'there is no such baseline'}")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BaselineError(f"{name}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise BaselineError(f"{name}: too large for a baseline")
    try:
        baseline = msgspec.json.decode(data, type=Baseline)
    except encoding.UNREADABLE as error:
        raise BaselineError(f"{name}: not a valid baseline: {visible(str(error))[:200]}") from None
    if baseline.schema != SCHEMA:
        raise BaselineError(f"{name}: not a baseline that this gpuconsole reads ({SCHEMA})")
    if baseline.key.name != path.stem:
        raise BaselineError(f"{name}: renamed: its key is {baseline.key.name}")
    return baseline


def read_all(folder: Path) -> tuple[list[Baseline], dict[str, str]]:
    """All baselines, and a line for each invalid file, by the file name without `.json`."""
    baselines, mistakes = [], dict[str, str]()
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except FileNotFoundError:
        return [], {}
    except OSError as error:
        return [], {"": f"{folder}: cannot be read: {error.strerror}"}
    for path in paths:
        try:
            baselines.append(read_baseline(path))
        except BaselineError as error:
            mistakes[path.stem] = str(error)
    return baselines, mistakes


def differing_knobs(baseline: Baseline, knobs: Knobs) -> Knobs:
    """The knobs of `baseline` that have another value in `knobs`. With the same key, the cause is a changed scenario file. A new knob does
    not count."""
    return {name: knobs[name] for name, value in baseline.knobs.items() if name in knobs and knobs[name] != value}


def keep_run(folder: Path, key: BaselineKey, knobs: Knobs, unit: str, run: BaselineRun) -> str:
    """Add `run` to the baseline of `key`; returns a line for the user. Raises BaselineError.

    Above MOST_RUNS runs, the oldest run is deleted. If the scenario file was changed, all earlier runs are deleted. Several consoles may
    call this function at the same time.
    """
    check_folder(folder)
    path = folder / f"{key.name}.json"
    try:
        with _locked(folder / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before, why = _comparable(path, knobs, unit)
            runs = (*before, run)[-MOST_RUNS:]
            write_whole(path, _encode(Baseline(key=key, knobs=knobs, unit=unit, runs=runs)))
    except OSError as error:
        raise BaselineError(f"{path}: cannot be written: {error.strerror or error}") from None
    return f"kept as a baseline: {key.name}, {len(runs)} run{'s' if len(runs) > 1 else ''}{why}"


def _locked(path: Path) -> IO[bytes]:
    """The file to lock. The folder may belong to a team: a link in it is not followed, and nothing is truncated. Raises OSError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+b")


def _comparable(path: Path, knobs: Knobs, unit: str) -> tuple[tuple[BaselineRun, ...], str]:
    """The kept runs that can be compared with new runs, and the reason if there are none."""
    if not path.exists():
        return (), ""
    before = read_baseline(path)
    changed = differing_knobs(before, knobs)
    if changed or before.unit != unit:
        return (), f" (earlier runs are deleted, the scenario had other values: {describe_changes(changed, before.knobs) or before.unit})"
    return before.runs, ""


def _encode(baseline: Baseline) -> bytes:
    return msgspec.json.format(encoding.encode(baseline), indent=1) + b"\n"


def remove(folder: Path, name: str) -> Path:
    """Delete the baseline `name`, valid or not; returns the deleted file. Raises BaselineError."""
    try:
        names = sorted(path.stem for path in folder.glob("*.json"))
        if name not in names:
            raise BaselineError(f"there is no baseline {name!r}{nearest(name, names)}; `gpuconsole baselines` lists them")
        path = folder / f"{name}.json"
        path.unlink()
    except OSError as error:
        raise BaselineError(f"baseline {name!r}: cannot be removed: {error.strerror}") from None
    return path


# --- compares a run with its baseline ------------------------------------------------------------------------

RUN_QUEUE_DIFFERS = 0.15
"""The threshold of rule host.cpu_contention. Below this share, verdicts on contention-free time are correct."""
OTHERS_DIFFER = WAITING_DIFFERS = 0.20
"""Minimum load that the signals of rule host.cpu_contention count as contention (docs/diagnosis.md)."""
WORTH_REPORTING = 0.02
"""Run-queue delay below this share is less than the smallest relevant difference, so the result does not mention it."""
FEW_RUNS = f"runs are assumed to differ by {percent(RUN_TO_RUN)} until {DEGREES + 1} runs of different times are kept"


def doubts(validity: Validity | None) -> str:
    """Why the figures of a serving run cannot be trusted: `its numbers are degraded: ...`; empty if they can."""
    if validity is None or validity.verdict == "valid":
        return ""
    return visible(f"its numbers are {validity.verdict}: {'; '.join(validity.reasons)}")


def compare(now: BaselineRun, baseline: Baseline, live: bool = False, validity: Validity | None = None) -> BaselineComparison:
    """`now` compared with the runs kept under its key. `live`: the run is still going on. A run whose figures are invalid is not compared. If
    they are degraded, the result has no verdict: the difference may come from what degraded the run."""
    if validity is not None and validity.verdict == "invalid":
        return BaselineComparison(
            key=baseline.key.name, words=f"not compared with {_name(baseline)}: {doubts(validity)}", short="not compared: invalid"
        )
    free = all(run.on_cpu and run.run_queue_ratio is not None for run in (now, *baseline.runs))
    kept, new = _rates(baseline.runs, free), _rate(now, free, live)
    change = change_of(kept, new) if kept and new is not None else None
    excused, contention = _contention(now, baseline.runs, free)
    doubt = doubts(validity)
    decided: BaselineVerdict = rate_verdict(change, excused) if change and not doubt else "undecided"
    return BaselineComparison(
        key=baseline.key.name,
        words=visible(_words(now, baseline, change, decided, doubt or contention, free, live)),
        short=_short(change, decided),
        verdict=decided,
        change=change,
        rate=baseline.rate,
        unit=baseline.unit,
        runs=len(baseline.runs),
        since=min(run.date for run in baseline.runs),
        until=max(run.date for run in baseline.runs),
        clock="contention_free" if free else "wall",
        blocks=len(now.rates),
        live=live,
    )


def _rate(run: BaselineRun, free: bool, live: bool = False) -> RunRate | None:
    """Return the rate of `run`. With `free`, the rate leaves out the run-queue delay of the training thread, as in the gate."""
    blocks = list(map(Block, run.rates, run.block_seconds))
    rate = run_rate(blocks, live, run.run_queue_ratio if free else None)
    begun = unix_s(run.date)
    return rate._replace(begun=begun, ended=None if begun is None else begun + run.duration_s) if rate is not None else None


def _rates(runs: Sequence[BaselineRun], free: bool) -> list[RunRate]:
    return [rate for run in runs if (rate := _rate(run, free)) is not None]


Unequal = list[tuple[str, str]]
"""The parts that differ: the value of this run, and the value of the baseline."""


def nearest_baseline(key: BaselineKey, knobs: Knobs, baselines: Iterable[Baseline]) -> tuple[Baseline, Unequal] | None:
    """The baseline of the same scenario that differs in the fewest parts (of several: the newest), and these parts. Without a differing part,
    the comparison is possible."""
    newest_first = sorted(baselines, key=lambda baseline: baseline.runs[-1].date, reverse=True)
    alike = [(baseline, _unequal(key, knobs, baseline)) for baseline in newest_first if baseline.key.scenario == key.scenario]
    return min(alike, key=lambda candidate: len(candidate[1]), default=None)


def unlike(key: BaselineKey, other: Baseline, parts: Unequal) -> BaselineComparison:
    """The reason why there is no comparison. `other`: the nearest baseline to `key`; it differs in `parts`."""
    here, there = (", ".join(dict.fromkeys(part[side] for part in parts)) for side in (0, 1))
    rate = units.quantity(other.rate, other.unit)
    sentence = f"no baseline for {here}; the nearest baseline is for {there}, from {other.runs[-1].date[:10]}: {rate}"
    return BaselineComparison(key=key.name, words=visible(sentence), short=visible(f"no baseline for {here}"))


def _unequal(key: BaselineKey, knobs: Knobs, other: Baseline) -> Unequal:
    """The differing parts: hardware, software, then knobs. A knob that exists on one side only was added later and does not count."""
    theirs = other.key.parts()
    parts = [(part, theirs[name]) for name, part in key.parts().items() if part != theirs[name]]
    changed = {name: value for name, value in knobs.items() if name in other.knobs and other.knobs[name] != value}
    return parts + [(_knob(name, value), _knob(name, other.knobs[name])) for name, value in changed.items()]


def _knob(name: str, value: Value) -> str:
    return f"{name}={show(value)}"


def _contention(now: BaselineRun, kept: Sequence[BaselineRun], free: bool) -> tuple[float, str]:
    """The additional load during this run compared with the kept runs, if the difference matters; and a description in words.

    Other programs slow a run down even if no task waits: through the other hyperthread of a core, or through memory bandwidth. If their
    load is not known, the share of waiting is used instead. Contention-free time does not contain the wait of the training thread.
    """
    load = ("others_ratio", OTHERS_DIFFER, "other programs used {} of the CPUs")
    waiting = ("waiting_ratio", WAITING_DIFFERS, "some task waited for a CPU {} of the time")
    queue = ("run_queue_ratio", RUN_QUEUE_DIFFERS, "the training thread waited for a CPU {} of the time")
    both_known = now.others_ratio is not None and any(run.others_ratio is not None for run in kept)
    increases = [(0.0, "")]
    for name, least, cause in (load if both_known else waiting, *(() if free else (queue,))):
        mine = getattr(now, name)
        theirs = [value for run in kept if (value := getattr(run, name)) is not None]
        usual = statistics.fmean(theirs) if theirs else 0.0
        if mine is not None and theirs and abs(mine - usual) >= least:
            here, there = (units.percent(share).strip() for share in (mine, usual))
            increases.append((mine - usual, f"contention: {cause.format(here)} ({there} in the baseline)"))
    return max(increases, key=lambda increase: abs(increase[0]))


def _words(
    now: BaselineRun, baseline: Baseline, change: RateChange | None, decided: BaselineVerdict, contention: str, free: bool, live: bool
) -> str:
    name = _name(baseline)
    delayed = free and any((run.run_queue_ratio or 0.0) >= WORTH_REPORTING for run in (now, *baseline.runs))
    so_far = (", without run-queue delay" if delayed else "") + (", so far" if live else "")
    if change is None:
        return f"no verdict against {name}: both runs need {MIN_BLOCKS} blocks of steady steps"
    if decided == "slower" or decided == "faster":
        low, high = sorted((abs(change.low), abs(change.high)))
        text = f"{abs(change.estimate) * 100:.1f} % [{low * 100:.1f}, {high * 100:.1f}] {decided} than {name}{so_far}, more than the noise"
        more = [_where(now, baseline.runs), "" if len(occasions(_rates(baseline.runs, free))) > DEGREES else FEW_RUNS, contention]
        return "; ".join(part for part in (text, *more) if part)
    figure = f"{change.estimate * 100:+.1f} % [{change.low * 100:+.1f}, {change.high * 100:+.1f}]"
    if decided == "same":
        return f"the same as {name}{so_far}, within 5 %: {figure}"
    return f"{figure} against {name}{so_far}: undecided, {contention or 'the difference is within the noise'}"


def _name(baseline: Baseline) -> str:
    dates = sorted({run.date[:10] for run in baseline.runs})
    count = f"{len(baseline.runs)} runs, " if len(baseline.runs) > 1 else ""
    until = f" to {dates[-1]}" if len(dates) > 1 else ""
    return f"the baseline of {count}{dates[0]}{until} ({units.quantity(baseline.rate, baseline.unit)})"


def _where(now: BaselineRun, kept: Sequence[BaselineRun]) -> str:
    """The phase of a step with the largest change of time."""
    timed = [run for run in kept if run.step_time_s and run.phases_ratio]
    if not timed or not now.step_time_s or not now.phases_ratio:
        return ""
    new = {name: share * now.step_time_s for name, share in now.phases_ratio.items()}
    old = {name: statistics.fmean(run.phases_ratio.get(name, 0.0) * (run.step_time_s or 0.0) for run in timed) for name in new}
    most = max(new, key=lambda name: abs(new[name] - old[name]))
    before, after = (units.duration(seconds[most]).strip() for seconds in (old, new))
    return f"largest change in {most}: {before} -> {after} per step"


def _short(change: RateChange | None, decided: BaselineVerdict) -> str:
    if change is None:
        return "baseline: too few steps"
    if decided == "slower" or decided == "faster":
        return f"{change.estimate * 100:+.0f} % vs baseline"
    return f"{change.estimate * 100:+.1f} % vs baseline: {'same' if decided == 'same' else 'undecided'}"
