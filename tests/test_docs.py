"""The documentation is what the program is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_table_of_metrics_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "make_metrics.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
