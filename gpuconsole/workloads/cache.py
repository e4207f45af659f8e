"""Where workloads keep what is made once per user."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/gpuconsole`, made if need be."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuconsole"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
