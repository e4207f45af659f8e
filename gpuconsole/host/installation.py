"""Find the source from which gpuconsole was installed, and the command that installs one of its
extras. No package index has gpuconsole: it is installed from its repository, never by its name."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

CLONE = Path(__file__).parents[2]
"""The folder of the clone, with pyproject.toml, if the program runs from a clone."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra (`torch`, `completion`) for the Python that runs
    this program.

    If gpuconsole was installed from a clone, editable or not, the command installs the clone with
    the extra. If it was installed from a wheel, a repository or an index, the command installs the
    requirements of the extra. The metadata of the package name these requirements.
    """
    try:
        package = metadata.distribution("gpuconsole")
    except metadata.PackageNotFoundError:  # `python -m gpuconsole` in a clone that is not installed
        return _install_folder(CLONE, extra, editable=True)
    # PEP 610: an installation from an index has no such file
    origin: dict[str, Any] = json.loads(package.read_text("direct_url.json") or "{}")
    folder = Path(unquote(urlsplit(origin.get("url", "")).path))
    if "dir_info" in origin and (folder / "pyproject.toml").is_file():
        return _install_folder(folder, extra, origin["dir_info"].get("editable", False))
    wanted = [
        line.partition(";")[0].strip()
        for line in package.requires or ()
        if re.search(rf"extra == ['\"]{extra}['\"]", line)
    ]
    return " ".join(
        [
            _installer(),
            *(name if re.fullmatch(r"[\w.-]+", name) else f'"{name}"' for name in wanted),
        ]
    )


def torch_version() -> str | None:
    """Return the version of the installed torch; None without torch."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _install_folder(folder: Path, extra: str, editable: bool) -> str:
    return f'{_installer()} {"-e " if editable else ""}"{folder}[{extra}]"'


def _installer() -> str:
    """Return the command that installs packages into the environment of this Python. The command is
    `pip install` if the shell finds the pip of this environment. Otherwise the command contains the
    path of this Python."""
    pip = shutil.which("pip")
    if pip and Path(pip).parent == Path(sys.executable).parent:
        return "pip install"
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip"):
        return f"{python} -m pip install"
    return f"uv pip install --python {python}"  # an environment without pip was made by uv
