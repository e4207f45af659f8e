"""A command registers by being a file in a group folder of cli/commands/."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gpuconsole
from gpuconsole.cli.parser import COMMANDS

CLI = Path(gpuconsole.__file__).parent / "cli"


def test_every_file_in_a_group_folder_is_a_command() -> None:
    files = {path.stem for path in (CLI / "commands").glob("*/*.py") if path.stem != "__init__"}
    assert COMMANDS.keys() == files
    assert COMMANDS["snapshot_schema"] == "gpuconsole.cli.commands.sessions.snapshot_schema"


def test_the_commands_are_found_in_a_zipped_package_too(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in CLI.parent.rglob("*.py"):
            packed.write(path, path.relative_to(CLI.parent.parent))
    code = (
        "import json; from gpuconsole.cli import parser; print(json.dumps([parser.__file__,"
        " parser.COMMANDS]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    place, found = json.loads(done.stdout)
    assert place.startswith(str(archive))
    assert found == COMMANDS
