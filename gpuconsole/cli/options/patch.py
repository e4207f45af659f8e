"""`--patch FILE`: the kept changes of a job as a patch against the user's files."""

from __future__ import annotations

import os
from pathlib import Path

from gpuconsole.model.snapshot import Snapshot
from gpuconsole.report.patch import Patch, make_patch, patch_text
from gpuconsole.session.facts import kept_changes


def patch_of(snapshot: Snapshot) -> tuple[Patch, list[str]]:
    """The patch for the changes that were kept in a job, and its lines for people. Both are empty without such changes."""
    runs = [run for run in snapshot.runs if run.is_job and run.knobs]
    facts = next((run.job for run in reversed(runs) if run.job is not None), None)
    if facts is None:
        return Patch(), []
    changes = kept_changes(runs)
    patch = make_patch(changes, facts, runs[0].knobs, source, name_in_patch)
    return patch, patch_text(patch, changes)


def patch_lines(snapshot: Snapshot, path: Path | None) -> list[str]:
    """The patch for people, and what became of `path` (`--patch`). Empty without kept changes and without `path`."""
    patch, lines = patch_of(snapshot)
    return [*lines, write_patch(path, patch)] if path is not None else lines


def source(file: str) -> str:
    """The text of a file with its own line ends. Raises OSError."""
    return Path(file).read_bytes().decode("utf-8", errors="surrogateescape")


def name_in_patch(file: str) -> str:
    """The path from the folder in which `git apply` accepts the patch, see `base`."""
    return os.path.relpath(Path(file).resolve(), base(file))


def base(file: str) -> Path:
    """The current folder where it holds the file; else the git repository around the file; else the folder of the file."""
    path, here = Path(file).resolve(), Path.cwd()
    if path.is_relative_to(here):
        return here
    return next((folder for folder in path.parents if (folder / ".git").exists()), path.parent)


def write_patch(path: Path, patch: Patch) -> str:
    """Write the patch; returns a line that says so, or why there is nothing to write."""
    if not patch.diff:
        return f"{path}: no patch: no kept change can be written as one" if patch.lines else f"{path}: no patch: no change was kept"
    try:
        path.write_bytes(patch.diff.encode("utf-8", errors="surrogateescape"))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"patch written: git apply {path}"
