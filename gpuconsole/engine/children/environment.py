"""The environment of our own child processes. Imports little: `gpuconsole devices` starts a sampler
and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import gpuconsole

OF_THE_CONSOLE = {"TEXTUAL_FPS": "240 "}
"""Variables that the console sets in its own process, for a library that reads them when it is
imported. The space tells ours from one of the user's."""


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment as the console itself has found it: for a job of the user's own."""
    return {name: value for name, value in environment.items() if OF_THE_CONSOLE.get(name) != value}


def own_environment() -> dict[str, str]:
    """The variables with which our own children, and theirs, find this program's modules and no
    others in the current folder.

    `python -m` puts the current folder first on the path, which may be a folder that other users
    can write. Where the console itself was started from a clone by `python -m gpuconsole`, the
    children find gpuconsole by PYTHONPATH.
    """
    # an empty one is the current folder
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    package = str(Path(gpuconsole.__file__).parent.parent)
    if not sys.flags.safe_path and sys.path and os.path.abspath(sys.path[0]) == package:
        folders.insert(0, package)
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(folders)}


def child_command(*words: str) -> list[str]:
    """The command of our own child: a module with its arguments."""
    return [sys.executable, "-P", "-m", *words]


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of our own child, with `variables` of its own."""
    return {**os.environ, **own_environment(), "PYTHONUNBUFFERED": "1", **variables}


def dcgm_environment(url: str | None) -> dict[str, str]:
    """The variable by which a sampler learns the address of a dcgm-exporter: every user can read
    the words of a command line."""
    return {"GPUCONSOLE_DCGM": url or ""}
