"""A Python that finds no torch: for what does not need it, and would wait seconds for its
import."""

from __future__ import annotations

import os
from pathlib import Path

NAME = "without-torch"


def without_torch(folder: Path) -> dict[str, str]:
    """The variable that hides it; makes a folder in `folder`."""
    empty = folder / NAME
    empty.mkdir()
    (empty / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    return {"PYTHONPATH": f"{empty}{os.pathsep}{os.environ['PYTHONPATH']}"}
