"""Files that commands read and write: snapshots, pages to share, patches of the user's code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from gpuconsole.cli.options import UsageError
from gpuconsole.cli.output import problem
from gpuconsole.cli.values import writable
from gpuconsole.host.files import read_limited, unused, write_whole

if TYPE_CHECKING:
    from gpuconsole.model.certificate import Certificate
    from gpuconsole.model.snapshot import Snapshot
    from gpuconsole.report.patch import Patch
    from gpuconsole.report.share.document import Document

MAX_SOURCE_BYTES = 8 * 2**20
"""The largest file of source code that is read for a patch."""


def read_snapshot(path: Path) -> Snapshot:
    """A snapshot file; raises UsageError."""
    from gpuconsole.engine import reader
    from gpuconsole.model.snapshot import SnapshotError

    try:
        return reader.read_snapshot(path)
    except SnapshotError as error:
        raise UsageError(str(error)) from None


def read_measured(path: Path) -> Snapshot:
    """A snapshot file, or a result file of another client of model servers; raises UsageError."""
    from gpuconsole.engine import reader
    from gpuconsole.model.snapshot import SnapshotError

    try:
        return reader.read_measured(path)
    except SnapshotError as error:
        raise UsageError(str(error)) from None


def read_snapshot_with_unknown(path: Path) -> tuple[Snapshot, dict[str, object]]:
    """A snapshot file, decoded and as plain JSON data; raises UsageError."""
    from gpuconsole.model.snapshot import MAX_BYTES, decode_with_unknown

    try:
        return decode_with_unknown(read_limited(path, MAX_BYTES))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def read_tuned(path: Path) -> tuple[Snapshot, Certificate]:
    """A snapshot of `tune`, and what that session has proven; raises UsageError."""
    allowed = "allowed is what gpuconsole tune --snapshot FILE has written"
    try:
        snapshot = read_snapshot(path)
    except UsageError as error:
        raise UsageError(f"{error}; {allowed}") from None
    if snapshot.tuning is None:
        raise UsageError(f"{path}: not a snapshot of tune; {allowed}")
    return snapshot, snapshot.tuning


def write(path: Path, content: bytes) -> None:
    """Write a whole file; raises UsageError."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def save(snapshot: Snapshot, path: Path | None) -> bool:
    """Write the file of --snapshot, if the user wants one. False where that fails, which a line on
    stderr says: the result is printed in any case."""
    from gpuconsole.engine.reader import write_snapshot
    from gpuconsole.session.api import SessionError

    if path is None:
        return True
    try:
        write_snapshot(snapshot, path)
    except SessionError as error:
        problem(str(error))
        return False
    return True


STDOUT = Path("-")
"""The FILE of --markdown that means stdout."""


def check_sharing(args: argparse.Namespace) -> bool:
    """Whether --html or --markdown asks for a file. Raises UsageError for a file that cannot be
    written, before anything starts."""
    on_stdout = args.markdown == STDOUT
    markdown = None if on_stdout else writable(args, "--markdown")
    return writable(args, "--html") is not None or markdown is not None or on_stdout


def share(args: argparse.Namespace, document: Document) -> None:
    """Write the files of --html and --markdown. Raises UsageError."""
    from gpuconsole.report.share.html import html_page
    from gpuconsole.report.share.markdown import markdown_page

    for path, make in ((args.html, html_page), (args.markdown, markdown_page)):
        if path is not None:
            write_or_print(path, make(document))


def write_or_print(path: Path, text: str) -> None:
    """Write a whole file and name it on stdout, or print the text where `path` is STDOUT. Raises
    UsageError."""
    if path == STDOUT:
        print(text, end="")
    else:
        write(path, text.encode())
        print(f"wrote {path}")


def patch_of(snapshot: Snapshot) -> tuple[Patch, list[str]]:
    """The patch for the changes that were kept in a job, and its lines for people. Both are empty
    without such changes."""
    from gpuconsole.report.patch import Patch, make_patch, patch_text
    from gpuconsole.session.facts import kept_changes

    runs = [run for run in snapshot.runs if run.is_job and run.knobs]
    job = next((run.job for run in reversed(runs) if run.job is not None), None)
    if job is None:
        return Patch(), []
    changes = kept_changes(runs)
    patch = make_patch(changes, job, runs[0].knobs, source, place_in_patch)
    return patch, patch_text(patch, changes)


def check_changes(snapshot: Snapshot, path: Path) -> None:
    """Raises UsageError where the snapshot in `path` names changes of a job that no console can
    have made: the file may come from elsewhere, and its values would stand in a patch."""
    from gpuconsole.model.knobs.catalogue import CATALOGUE, KnobError, check_knobs

    for run in snapshot.runs:
        changed = {name: run.knobs.get(name, value) for name, value in run.changes.items()}
        try:
            check_knobs(dict(changed), tuple(CATALOGUE), "a job")
        except KnobError as problem:
            raise UsageError(f"{path}: {problem}") from None


def patch_lines(snapshot: Snapshot, path: Path | None, saved: Path | None = None) -> list[str]:
    """The patch for people, and what became of `path` (`--patch`). Empty without kept changes and
    without `path`.

    `saved`: the file of the session, where there is one. Without `path`, the last line says how to
    write the patch from it.
    """
    patch, lines = patch_of(snapshot)
    if path is not None:
        return [*lines, write_patch(path, patch)]
    if patch.parts and saved is not None:
        lines.append(
            f"to write this patch: gpuconsole report {shlex.quote(str(saved))} --patch faster.patch"
        )
    return lines


def source(file: str) -> str:
    """The text of a source file with its own line ends. Raises OSError, also for what is no file of
    source code: a snapshot from elsewhere names it."""
    # The patch names the file behind a link. A line break would end the line that names the file.
    if any(ord(character) < 0x20 for character in file + os.path.realpath(file)):
        raise OSError(errno.EINVAL, "the file name has control characters")
    return read_limited(Path(file), MAX_SOURCE_BYTES, regular=True).decode(
        "utf-8", errors="surrogateescape"
    )


def place_in_patch(file: str) -> tuple[str, str]:
    """Return the folder in which the patch of `file` is applied, and the path of the file from
    there. The folder is the current folder (empty) where it holds the file; else the git repository
    around the file; else the folder of the file.

    In a folder of a repository, git reads a path that begins with the name of this folder as one
    from the root. So such a path is one from the root.
    """
    path = Path(file).resolve()
    folder = next((folder for folder in path.parents if (folder / ".git").exists()), path.parent)
    with contextlib.suppress(OSError):  # the current folder has been removed
        if path.is_relative_to(here := Path.cwd()):
            name = path.relative_to(here)
            if folder not in here.parents or here.name not in name.parts[:-1]:
                return "", str(name)
    return str(folder), str(path.relative_to(folder))


def write_patch(path: Path, patch: Patch) -> str:
    """Write the patch, a file for each folder; returns a line with the commands that apply it, or
    why there is nothing to write."""
    if not patch.parts:
        return (
            f"{path}: no patch: no kept change can be written as one"
            if patch.lines
            else f"{path}: no patch: no change was kept"
        )
    commands: list[str] = []
    for part in patch.parts:
        file = path if not commands else unused(path)
        try:
            write_whole(file, part.diff.encode("utf-8", errors="surrogateescape"))
        except OSError as error:
            return f"{file}: {error.strerror}"
        # git looks for the patch in the folder of -C, and takes a name that begins with a dash for
        # an option
        name = shlex.quote(
            str(file.resolve())
            if part.folder
            else f"./{file}"
            if str(file).startswith("-")
            else str(file)
        )
        commands.append(
            f"git -C {shlex.quote(part.folder)} apply {name}"
            if part.folder
            else f"git apply {name}"
        )
    return f"patch written: {' && '.join(commands)}"
