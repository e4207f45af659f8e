"""Baselines on disk: one JSON file for each key, in the user's data folder. A file that is not a baseline is reported in one line."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

import msgspec
import platformdirs

from gpuconsole.machine.settings import settings
from gpuconsole.model.experiments.baseline import MOST_RUNS, SCHEMA, Baseline, BaselineKey, BaselineRun
from gpuconsole.model.files import write_whole
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.knobs.knob import nearest
from gpuconsole.model.text import visible

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
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
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
        found = msgspec.json.decode(data, type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BaselineError(f"{name}: not a valid baseline: {visible(str(error))[:200]}") from None
    if found.schema != SCHEMA:
        raise BaselineError(f"{name}: not a baseline that this gpuconsole reads ({SCHEMA})")
    if found.key.name != path.stem:
        raise BaselineError(f"{name}: renamed: its key is {found.key.name}")
    return found


def read_all(folder: Path) -> tuple[list[Baseline], dict[str, str]]:
    """All baselines, and a line for each invalid file, by the file name without `.json`."""
    found, mistakes = [], dict[str, str]()
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except FileNotFoundError:
        return [], {}
    except OSError as error:
        return [], {"": f"{folder}: cannot be read: {error.strerror}"}
    for path in paths:
        try:
            found.append(read_baseline(path))
        except BaselineError as error:
            mistakes[path.stem] = str(error)
    return found, mistakes


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
    return msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n"


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
