"""The environment of our own child processes. Imports little: `gpuconsole devices` starts a sampler and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gpuconsole


def own_environment() -> dict[str, str]:
    """The variables with which our own children, and theirs, find this program's modules and no others in the current folder.

    `python -m` puts the current folder first on the path, which may be a folder that other users can write. Where the console itself was started
    from a clone by `python -m gpuconsole`, the children find gpuconsole by PYTHONPATH.
    """
    safe = {"PYTHONSAFEPATH": "1"}
    package = str(Path(gpuconsole.__file__).parent.parent)
    if sys.flags.safe_path or not sys.path or os.path.abspath(sys.path[0]) != package:
        return safe
    return safe | {"PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))}


def dcgm_environment(url: str | None) -> dict[str, str]:
    """The variable by which a sampler learns the address of a dcgm-exporter: every user can read the words of a command line."""
    return {"GPUCONSOLE_DCGM": url or ""}
