"""The documentation is what the program is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.knobs.rows import rows
from gpuconsole.model.knobs.catalogue import CATALOGUE

ROOT = Path(__file__).parent.parent


def test_the_table_of_metrics_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "make_metrics.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_table_of_knobs_has_every_knob() -> None:
    page = (ROOT / "docs" / "knobs.md").read_text(encoding="utf-8")
    assert [name for name in CATALOGUE if f"| `{name}` |" not in page] == []


def test_every_knob_is_measured_on_some_scenario_or_said_to_be_without_effect() -> None:
    assert CATALOGUE.keys() <= {name for row in rows() for name in row.changes}
