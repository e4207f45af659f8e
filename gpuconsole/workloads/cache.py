"""The folder for files that a workload creates once per user."""

from __future__ import annotations

from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The user's cache folder for gpuconsole (`$XDG_CACHE_HOME/gpuconsole` where that variable is set).

    Created if missing. Raises OSError.
    """
    return platformdirs.user_cache_path("gpuconsole", ensure_exists=True)
